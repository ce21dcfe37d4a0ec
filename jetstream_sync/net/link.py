"""The inner interface of a connection: what the rest of the library may use of it.

`Connection` is what users hold. It delegates to one `Link`, which owns the parts; docs/design.md lists them, and
has the tables of all threads and locks.

`lost`, `opened`, `shut_down` and `open` must each be one step, so there is one lock for status, session, routing
and pings. Outbox's lock and those of mailboxes may be taken inside it. Decide under the lock, act after
releasing it: no user code, no socket call, no start of a thread and no wait under it.
"""

from __future__ import annotations

import itertools
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .._deadline import Deadline
from .._log import Logs
from .._threads import Waiters, acquire, detached, join_quietly, locked, spawn
from ..errors import (
    ConnectionClosedError,
    ConnectionLostError,
    ForkError,
    MaxPayloadError,
    NatsError,
    NotConnectedError,
    PermissionsError,
    StaleConnectionError,
    TimeoutError,
)
from ..protocol import commands
from ..protocol.subjects import new_inbox
from . import direct
from .dialer import Dialer
from .handshake import Session
from .open_links import links
from .options import Options
from .outbox import DetachedTransport, Outbox
from .pings import Departure, Pings, PongWaiters
from .reader import Reader
from .receiver import JOIN_SECONDS, Receiver
from .reports import Reports
from .requests import ReplyWaiter, RequestCall, Requests
from .router import Router
from .server_errors import closed_by
from .states import Status

if TYPE_CHECKING:
    from .connection import Connection

# close() waits this long for the server to accept what was sent last and to close its side.
GOODBYE_SECONDS = 1.0
# Between two looks at a send that is to end.
LEAVE_PAUSE = 0.002


class Link:
    """See the module's text. Thread-safe. Only the reader thread moves between CONNECTED and RECONNECTING."""

    def __init__(self, options: Options, connection: Connection) -> None:
        self.options = options
        self.logs: Logs = Logs(options.name)
        self.forked = False
        self.max_payload: int = 1024 * 1024
        self.reconnects: int = 0
        self.dropped_msgs: int = 0
        self.server_info: dict[str, Any] = {}
        self.session: Session | None = None
        self.failed: bool = False
        """An error, not a call of the user's, closed the connection."""
        self.reports: Reports = Reports(options, connection, self.logs.connection)
        self.report: Callable[[Exception], None] = self.reports.report
        self.not_connected: Callable[[str], NotConnectedError] = self.reports.not_connected
        self.call: Callable[[Callable[[Any], Any] | None, Any], None] = self.reports.call
        self.outbox: Outbox = Outbox(options.pending_size, self.reports.outage)
        self.router: Router = Router()
        self.requests: Requests = Requests(self)
        self.request: RequestCall = self.requests.request
        self.dialer: Dialer = Dialer(options, self._attempt_failed, self.report)
        self.reader: Reader = Reader(self, self.dialer)
        self.direct: direct.NoDirect = direct.NO_DIRECT
        self.direct_receive: direct.NoDirect = direct.DirectReceive() if direct.ENABLED else direct.NO_DIRECT
        self.status: Status = Status.DISCONNECTED  # written under the lock
        self.connection = connection  # the argument of the user's callbacks
        self._lock = allocate_lock()
        self.pings: Pings = Pings(options.ping_interval, options.max_outstanding_pings)
        self.drain_steps: dict[Callable[[Deadline], None], None] = {}
        self._inbox_root = new_inbox(options.inbox_prefix).encode()
        self._next_inbox_number: Callable[[], int] = itertools.count(1).__next__
        self._break_reason: NatsError | None = None
        self._opening = locked()  # released when connect() is done, and its outcome in _first_session
        self._first_session: Session | None = None
        self._leaving = Waiters()  # for the end of a session
        self._reader_thread: threading.Thread | None = None
        self._writer_thread: threading.Thread | None = None
        links.add(self)

    # --- where it stands ----------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self.session is not None

    @property
    def closed(self) -> bool:
        return self.status is Status.CLOSED

    def check_process(self) -> None:
        """Raise ForkError in a forked child."""
        if self.forked:
            raise ForkError()

    def check_usable(self) -> None:
        """Raise ForkError in a forked child, ConnectionClosedError, which says why, once closed."""
        self.check_process()
        if self.status is Status.CLOSED:
            raise closed_by(self.reports.last_error if self.failed else None)

    # --- opening and losing sessions --------------------------------------------------------------------

    def connect(self) -> None:
        """Connect and start the threads. Raises what the dialer raises, unless retrying was asked for."""
        session: Session | None = None
        try:
            session = self.dialer.first(self._start_reader)
        except BaseException as error:
            if not isinstance(error, NatsError) or not self.options.retry_on_failed_connect:
                self._give_up_opening()
                self._join_own_threads()
                raise
            self.reports.last_error = error
            self.status = Status.RECONNECTING
        try:
            if session is not None:
                self.opened(session, first=True)
            self._start_reader()
            self._first_session = session
            self._opening.release()
        except BaseException:  # a signal handler raised: no caller gets to hold this connection
            self._give_up_opening()
            self.shut_down(None, goodbye=False)
            if session is not None:
                session.transport.close()  # the outbox may not have got it
            raise

    def _start_reader(self) -> None:
        if self._reader_thread is None:
            self._reader_thread = spawn("reader", self.reader.run)

    def _give_up_opening(self) -> None:
        """connect() fails: the threads it started find an interrupted dialer and a closed outbox, and end."""
        self.dialer.interrupt()
        self.outbox.close()
        self.reports.give_up()
        if self._opening.locked():
            self._opening.release()

    def first_session(self) -> Session | None:
        """Reader thread, at first: wait for the end of connect(). Returns its session; None when there is none."""
        self._opening.acquire()
        self.reports.start()
        # Here, so that neither connect() nor the reading of what the server says meanwhile waits for the start.
        try:
            self._writer_thread = spawn("writer", self._run_writer)
        except RuntimeError as error:  # no thread to be had: better closed than without a writer
            self.shut_down(error)
            return None
        session, self._first_session = self._first_session, None
        return session

    def opened(self, session: Session, *, first: bool) -> bool:
        """A session is established: subscriptions go out first, then what waited. False when closed meanwhile."""
        with self._lock:
            usable = self.status is not Status.CLOSED
            if usable:
                self.session = session
                self._use_info(session.info)
                self._break_reason = None
                self.pings.restart()
                if self.status is not Status.DRAINING:
                    self.status = Status.CONNECTED
                self.direct = direct.NO_DIRECT if session.transport.direct_recv is None else self.direct_receive
                self.outbox.attach(session.transport, self.router.resubscriptions())
                if not first:
                    self.reconnects += 1
                self.reports.opened(first=first)
        if not usable:
            session.transport.close()
            return False
        discovered = self.dialer.advertise(session.info) and not first
        self.outbox.flush()
        self.reports.log_session(session, discovered=discovered)
        if not first:
            for receiver in self.router.snapshot():
                receiver.reconnected()
        return True

    def _use_info(self, info: dict[str, Any]) -> None:
        """Requires holding _lock."""
        assert self._lock.locked()
        self.server_info = info
        limit = info.get("max_payload")
        if isinstance(limit, int) and limit > 0:
            self.max_payload = limit

    def _attempt_failed(self, url: str, error: BaseException, summary: NatsError) -> None:
        """Reader thread, or the caller of connect()."""
        connecting = self.status is Status.DISCONNECTED
        self.reports.attempt_failed(url, error, summary, connecting=connecting)

    def lost(self, session: Session, error: Exception) -> bool:
        """Reader thread: `session` broke, by break_session() or `error`. True when there is to be another."""
        with self._lock:
            if self.status is Status.CLOSED:
                return False
            error = self._break_reason or error
            again = self.options.allow_reconnect and self.status is not Status.DRAINING
            if again:
                self.status = Status.RECONNECTING
            self.session = None
            self.reports.lost(session, error)
            # In one step: a PING without its waiter, or a waiter without its PING, would shift all later ones.
            pings = self.pings.take_waiters()
            transport = self.outbox.detach()
            # After the detach: a request or a pull made later is not lost, it waits for the next session.
            requests, receivers = list(self.requests.pending), self.router.snapshot()
        self._leaving.wake_all()
        transport.abort()
        transport.close()
        failure = ConnectionLostError(f"the connection was lost: {error}")
        self.requests.fail(requests, failure)
        for waiter in pings:
            waiter.complete(None, failure)
        for receiver in receivers:
            receiver.disconnected()
        self.reports.log_loss(session, error)
        if not again:
            self.shut_down(error)
        return again

    def break_session(self, reason: NatsError, session: Session | None) -> None:
        """Give up `session` if it is still the present one. The reader notices and connects anew."""
        with self._lock:
            if session is None or session is not self.session:
                return
            if self._break_reason is None:
                self._break_reason = reason
        session.transport.abort()
        self.direct.recall()

    def leave_session(self, reason: NatsError, session: Session | None, seconds: float) -> None:
        """Give up `session` without losing what was sent on it: the server handles that, then closes. Blocks."""
        deadline = Deadline(seconds)
        with self._lock:
            if session is None or session is not self.session:
                return
            self._break_reason = self._break_reason or reason
            self.outbox.retire()
        self.direct.recall()
        while self.outbox.sending and not deadline.expired:
            time.sleep(LEAVE_PAUSE)  # at most one frame is on its way; an event would cost every send
        session.transport.finish()
        self._leaving.wait_until(lambda: self.session is not session, deadline)
        self.break_session(reason, session)

    # --- closing ------------------------------------------------------------------------------------

    def shut_down(self, error: Exception | None, *, goodbye: bool = True) -> None:
        """Close for good; once. `error` is what made it necessary, None for a call of the user's."""
        finish = None
        try:
            with self._lock:
                if self.status is Status.CLOSED:
                    return
                session, waiters, none = self.session, self.pings.waiters, PongWaiters()
                closed = closed_by(error)
                finish = partial(self._finish, session, waiters, self.router.snapshot(), closed)
                self.reports.last_error, self.reports.ending = error or self.reports.last_error, True
                # Stores and no call between them: a signal handler that raises finds it closed or not.
                self.session, self.pings.waiters = None, none
                self.failed, self.status = error is not None, Status.CLOSED
            self.direct.recall()
            if session is not None and goodbye:
                self._say_goodbye(session)
            finish()
        except BaseException:
            if finish is not None:  # a signal handler raised: another thread, where none does, begins anew
                detached(finish)
            raise

    def _finish(
        self, session: Session | None, waiters: PongWaiters, receivers: list[Receiver], closed: NatsError
    ) -> None:
        """The end of shut_down(). Each step may be repeated: the first thread may have been interrupted."""
        links.discard(self)
        self._leaving.wake_all()
        self.router.clear()
        self.dialer.interrupt()
        transport = self.outbox.detach(for_good=True)
        if session is not None:
            session.transport.abort()
        self.outbox.close()
        self.requests.closed(closed)
        for waiter in waiters:
            if waiter is not None and not waiter.completed:
                waiter.complete(None, closed)
        for receiver in receivers:
            receiver.closed(closed)
        self.reports.closed(had_session=session is not None)
        self._join_threads(transport, receivers)
        if session is not None and transport.transport is None:
            session.transport.close()  # the thread that was interrupted has detached it
        self.reports.log_end(self.reports.last_error if self.failed else None)

    def _say_goodbye(self, session: Session) -> None:
        """Send what is queued and wait for the server to close: a plain close could cut off our last bytes."""
        self.outbox.flush()
        if not self.outbox.idle:
            return  # the socket is stuck: nothing more can be said
        session.transport.finish()
        join_quietly(self._reader_thread, GOODBYE_SECONDS)

    def _join_threads(self, transport: DetachedTransport, receivers: list[Receiver]) -> None:
        try:
            self._join_own_threads()
        finally:
            transport.close()  # the reader, which may have been receiving from it, has ended
        deadline = Deadline(JOIN_SECONDS)  # for all together: each may be in user code
        for receiver in receivers:
            receiver.join(deadline.wait_time())
        self.reports.join(JOIN_SECONDS)

    def _join_own_threads(self) -> None:
        join_quietly(self._reader_thread, JOIN_SECONDS)
        join_quietly(self._writer_thread, JOIN_SECONDS)  # looked at now: the reader may have been yet to start it

    # --- publishing and requesting ----------------------------------------------------------------------

    def frame(self, subject: bytes, payload: bytes, reply: bytes | None, block: bytes | None) -> tuple[bytes, int]:
        """A message's frame and size; `block`: encoded headers. Raises MaxPayloadError, TypeError, ForkError."""
        if self.forked:
            raise ForkError()
        if type(payload) is not bytes:
            payload = commands.payload_bytes(payload)
        size = len(payload) if block is None else len(payload) + len(block)
        if size > self.max_payload:
            raise MaxPayloadError(size, self.max_payload)
        return commands.publish(subject, payload, reply, block), size

    def publish(
        self, subject: bytes, payload: bytes, reply: bytes | None = None, block: bytes | None = None
    ) -> None:
        """Publish to a subject that is known to be valid. Never blocks."""
        frame, size = self.frame(subject, payload, reply, block)
        try:
            self.outbox.publish(frame, size)
        except ConnectionClosedError:
            self.check_usable()  # says what closed it
            raise

    def not_sent(self, subject: bytes) -> TimeoutError:
        """For a call that gave up and took back its message to `subject`, which had not left."""
        what = f"to {subject.decode('utf-8', 'replace')!r}"
        return self.reports.not_sent(what, connected=self.connected)

    def no_message(self) -> TimeoutError:
        """For a call that only waited for a message, and got none in time."""
        return self.reports.no_message(connected=self.connected)

    def new_inbox(self) -> str:
        """A subject that no other client uses, to receive replies on."""
        return new_inbox(self.options.inbox_prefix)

    def next_inbox(self) -> bytes:
        """An inbox for one use by the library: cheaper than a new_inbox() for each."""
        return b"%b.%d" % (self._inbox_root, self._next_inbox_number())

    # --- receivers ------------------------------------------------------------------------------------

    def open(self, receiver: Receiver) -> None:
        """Give `receiver` a sid, register it and queue its SUB: all or nothing. Open already: nothing.

        Does not flush: the SUB leaves with what is published next. Call it inside the `try` whose handler closes
        the receiver: a signal handler may raise on the way back.
        """
        self.check_usable()
        with self._lock:
            self.check_usable()  # shut_down() takes the receivers it closes under the lock: none may come after
            if self.router.holds(receiver):
                return
            if receiver.drains and self.status is Status.DRAINING:
                raise ConnectionClosedError("the connection is draining: no new subscriptions")
            try:
                self.outbox.control(self.router.add(receiver))
            except BaseException:  # a signal handler raised
                if self.router.holds(receiver):
                    self._remove(receiver)
                raise
        self.direct.recall()

    def close(self, receiver: Receiver) -> None:
        """Remove the interest of `receiver`. Idempotent, never blocks. In a forked child: nothing."""
        if self.forked:
            return
        with self._lock:
            if not self.router.holds(receiver):
                return
            self._remove(receiver)
        if not receiver.completed:
            self.outbox.flush()

    def leave(self, receiver: Receiver) -> None:
        """close(), but what the server has sent before still comes. Does not flush. May be repeated."""
        with self._lock:
            if not self.router.holds(receiver) or receiver.leaving:
                return
            if self.session is None or receiver.completed:
                self._remove(receiver)
                return
            self.outbox.control(commands.unsubscribe(receiver.sid))
            self.outbox.ping(self.pings.waiters, Departure(self, receiver))
            receiver.leaving = True

    def _remove(self, receiver: Receiver) -> None:
        """UNSUB first: after a signal handler raised between the two, a second call repeats both."""
        assert self._lock.locked()
        if not receiver.completed:
            self.outbox.control(commands.unsubscribe(receiver.sid))
        self.router.remove(receiver)

    def soon(self, job: Callable[[], None]) -> None:
        """Run `job`, which takes the connection's locks, from a finalizer: now, or on a thread of its own.

        The garbage collector may run a finalizer in a thread that holds one of these locks.
        """
        if self._lock.locked() or self.outbox.lock_held:
            detached(job)
        else:
            job()

    def limit(self, receiver: Receiver, count: int) -> bool:
        """Have the server end the interest after `count` messages in all. Does not flush.

        False: that many have come, and the receiver was closed instead.
        """
        with self._lock:
            if not self.router.holds(receiver):
                return True
            if receiver.set_limit(count):
                self.outbox.control(commands.unsubscribe(receiver.sid, count))
                return True
            self._remove(receiver)
        return False

    def move(self, receiver: Receiver, subject: bytes) -> bool:
        """Subscribe to `subject` instead, under a new sid: what still comes on the old one is dropped.

        False when the receiver has been closed, or is not to be subscribed again.
        """
        with self._lock:
            if not self.router.holds(receiver) or receiver.remaining() < 0:
                return False
            self._remove(receiver)
            receiver.wire_subject = subject
            self.outbox.control(self.router.add(receiver))
        self.direct.recall()
        self.outbox.flush()
        return True

    # --- draining -------------------------------------------------------------------------------------

    def begin_drain(self) -> list[Receiver] | None:
        """Start draining the connection: the receivers to be drained; None when it drains or is closed already."""
        with self._lock:
            if self.status in (Status.CLOSED, Status.DRAINING):
                return None
            if self.status is not Status.CONNECTED:
                return []
            self.status = Status.DRAINING
            return [receiver for receiver in self.router.snapshot() if receiver.drains]

    def drain(self, receivers: list[Receiver], deadline: Deadline) -> None:
        """Unsubscribe, and wait until all that the server sent before has arrived. The caller closes them.

        Raises TimeoutError. Without a session there is nothing to wait for.
        """
        with self._lock:
            for receiver in filter(self.router.holds, receivers):
                self.outbox.control(commands.unsubscribe(receiver.sid))
        self.outbox.flush()
        if self.connected:
            self.round_trip(deadline)

    def add_drain_step(self, step: Callable[[Deadline], None]) -> None:
        """Have drain() call `step`, which raises TimeoutError at the deadline. Idempotent."""
        self.drain_steps[step] = None

    def remove_drain_step(self, step: Callable[[Deadline], None]) -> None:
        """Idempotent."""
        self.drain_steps.pop(step, None)

    # --- pings ----------------------------------------------------------------------------------------

    def round_trip(self, deadline: Deadline) -> None:
        """PING, and wait for its PONG. Raises TimeoutError, ConnectionLostError, ConnectionClosedError."""
        waiter = ReplyWaiter()
        with self._lock:
            if self.status is Status.CLOSED:
                raise ConnectionClosedError()
            ping = self.outbox.ping(self.pings.waiters, waiter)
        answered = withdrawn = False
        try:
            self.direct.recall()
            self.outbox.flush()
            answered = acquire(waiter.lock, deadline.wait_time())
        finally:
            if not answered:  # a PING that has not left goes, together with its place among the waiters
                with self._lock:
                    withdrawn = self.outbox.unping(ping, self.pings.waiters, waiter)
        if waiter.error is not None:
            raise waiter.error.with_traceback(None)
        if not answered:
            if withdrawn:
                raise self.reports.not_sent("ping", connected=self.connected)
            late = TimeoutError("the server did not answer a ping in time")
            late.sent = True
            raise late

    def pong(self) -> None:
        """Reader thread: a PONG came."""
        with self._lock:
            waiter = self.pings.pong()
        if waiter is not None:
            waiter.complete(None, None)

    def _run_writer(self) -> None:
        """js-writer."""
        while self.outbox.serve(self.pings.wait_time()):
            if not self.pings.wait_time():
                self._keep_alive()

    def _keep_alive(self) -> None:
        """Send a PING that is due. With `max_outstanding_pings` unanswered the session is stale."""
        with self._lock:
            session = self.session
            if not self.pings.due() or session is None:
                return
            stale = self.pings.stale
            if not stale:
                self.outbox.ping(self.pings.waiters, None)
        if stale:
            reason = StaleConnectionError("the server answered no ping: the connection is stale")
            self.break_session(reason, session)
        else:
            self.outbox.flush()

    def only_requests(self) -> bool:
        """Whether the server may send nothing but the reply to a request yet to come."""
        return len(self.router) == 1 and not self.requests.pending and not self.pings.waiters

    # --- what the server says, and telling the user ---------------------------------------------------

    def info(self, fields: dict[str, Any]) -> None:
        """Reader thread: the server sent INFO."""
        with self._lock:
            self._use_info(fields)
        if self.dialer.advertise(fields):
            self.call(self.options.discovered_server_cb, self.connection)

    def denied(self, error: PermissionsError) -> None:
        """Reader thread: give the denial to the call it concerns. The server answers it with nothing else."""
        subject = error.subject.encode("utf-8", "surrogateescape")
        queue = None if error.queue is None else error.queue.encode("utf-8", "surrogateescape")
        for receiver in self.router.snapshot():
            if error.operation == "publish":
                receiver.publish_denied(subject, error)
            elif (receiver.wire_subject, receiver.wire_queue) == (subject, queue):
                receiver.denied(error)

    def dropped(self, count: int) -> None:
        """Reader thread: a slow consumer has lost `count` messages."""
        self.dropped_msgs += count
