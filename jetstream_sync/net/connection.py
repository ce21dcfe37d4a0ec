"""The connection: what users hold, its state, and its two threads.

Threads: who starts them, what they own, what they may block on, when they end
  js-reader     by connect(), while the first server prepares its INFO. Owns state changes, the dialer, the parser,
                and putting into mailboxes. Blocks until connect() is done, then in recv, dialling and back-off
                waits, and for milliseconds at a time while callers receive (receiving.py). Ends when connect()
                fails, or when the status is CLOSED: close() breaks the socket and interrupts the dialer.
  js-writer     by js-reader, when connect() is done. Owns the ping timer, and a stuck transport's sending half.
                Blocks on its kick and on a full socket, both bounded by the next ping. Ends when the outbox is
                closed.
  js-callbacks  by the first event with a callback. Blocks in its mailbox and in user code. Ends when its mailbox
                is closed and empty.
  js-sub-<sid>  by subscribe(cb=…). Blocks in the mailbox and in user code. Ends when the mailbox is closed.
  js-lameduck   by an INFO with ldm. Blocks in one bounded flush, and ends after it.

Locks, in the order in which they may be nested
  Connection._lock   status, subscriptions, sids, listeners, pings
  Outbox._mu         queue, sender
  Mailbox._lock      waiters, end
  Dialer._lock       the socket being dialled (taken alone)
Decide under a lock, act after releasing it: no user code, no socket call and no wait under any of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from .._deadline import FOREVER, Deadline, seconds
from ..errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DrainTimeoutError,
    ForkError,
    MaxPayloadError,
    NatsError,
    NoRespondersError,
    SubscriptionClosedError,
    TimeoutError,
)
from ..protocol import commands
from ..protocol.headers import encode_headers, status_of
from ..protocol.parser import RawMessage
from ..protocol.subjects import new_inbox, publish_subject, queue_name, subscribe_subject
from .contracts import Inlet, Listener, Stats, Status
from .interest import Interest
from .link import Link
from .message import Message
from .outbox import Ephemeral
from .requests import RequestMux, Slot
from .subscription import DEFAULT_PENDING_BYTES, DEFAULT_PENDING_MSGS, Inbound, Subscription, drain

if TYPE_CHECKING:
    from ..jetstream import JetStream

__all__ = ["Connection", "Inlet", "Listener", "Stats", "Status", "is_no_responders", "link_of"]


class Connection(Interest):
    """A connection to a NATS server or cluster. Thread-safe. Made by `connect()`.

    As a context manager it drains when the block is left, or closes if an exception is on its way.

    A signal handler may raise in any call, and may call stop() and drain() of what consumes. close() and whatever
    waits for the server belong outside of it: it may have interrupted the very call it would wait for.
    """

    # --- ending -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close at once: what was sent before still reaches the server if it takes it; buffers are dropped.

        Idempotent, and allowed from any callback. Returns within about 2 s whatever the server does.
        """
        self._check_process()
        self._shut_down(None)

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """End in order: unsubscribe all, handle what has been received, send what is queued, wait for the acks of
        asynchronous publishes, close.

        Blocks up to `timeout` (default: `drain_timeout` of connect()); then closes and raises DrainTimeoutError.
        A second call, and a call on a closed connection, does nothing.
        """
        self._check_process()
        deadline = Deadline(self._drain_timeout(timeout))
        with self._lock:
            if self._status in (Status.CLOSED, Status.DRAINING):
                return
            connected = self._status is Status.CONNECTED
            if connected:
                self._status = Status.DRAINING
            inbounds = [receiver for receiver in self._subs.values() if isinstance(receiver, Inbound)]
        try:
            if connected:
                drain(self._link, inbounds, deadline)
                for settle in list(self._before_drained):
                    settle(deadline)
                self._ping_pong(deadline)
        except TimeoutError as error:
            raise DrainTimeoutError("the connection did not drain in time and was closed") from error
        except (ConnectionLostError, ConnectionClosedError):
            pass  # nothing more to drain: the server is gone, or somebody closed meanwhile
        except NatsError:
            raise
        except BaseException:
            self._shut_down(None, goodbye=False)  # Ctrl-C: no more waiting for the server
            raise
        finally:
            self.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._forked:
            return  # a child that leaves the parent's block must not disturb the parent
        if error is None:
            self.drain()
        else:
            self.close()

    def force_reconnect(self) -> None:
        """Drop the present session and connect anew, to the next server where there are several."""
        self._check_usable()
        self._break(ConnectionLostError("force_reconnect() was called"), self._session)

    # --- publishing -------------------------------------------------------------------------------------

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        """Publish a message. At most once: use JetStream's publish for an acknowledgement.

        Returns when the message is on its way; blocks only while the server takes no data. While disconnected
        messages wait in a buffer of `pending_size` bytes, over which OutboundBufferLimitError is raised.
        """
        wire_reply = None if reply is None else publish_subject(reply)
        self._publish_raw(publish_subject(subject), payload, reply=wire_reply, headers=headers)
        if self._outbox.congested:
            self._outbox.wait_for_room()

    def _publish_raw(
        self,
        subject: bytes,
        payload: bytes,
        *,
        reply: bytes | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        """Publish to a subject that is known to be valid. Never blocks."""
        frame, size = self._frame(subject, payload, reply, encode_headers(headers) if headers else None)
        try:
            self._outbox.publish(frame, size)
        except ConnectionClosedError:
            self._check_usable()  # says what closed it
            raise

    def _frame(
        self, subject: bytes, payload: bytes, reply: bytes | None, block: bytes | None
    ) -> tuple[bytes, int]:
        """A message's frame and size. Raises MaxPayloadError, TypeError, ForkError."""
        if self._forked:
            raise ForkError()
        if type(payload) is not bytes:
            payload = _as_bytes(payload)
        size = len(payload) if block is None else len(payload) + len(block)
        if size > self._max_payload:
            raise MaxPayloadError(size, self._max_payload)
        return commands.publish(subject, payload, reply, block), size

    def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        timeout: float | timedelta = 5.0,
        headers: Mapping[str, Any] | None = None,
    ) -> Message:
        """Publish a request and wait for its first reply.

        Raises TimeoutError, NoRespondersError when nobody listens, PermissionsError, ConnectionLostError.
        """
        block = encode_headers(headers) if headers else None
        message = Message(self._request_raw(publish_subject(subject), payload, timeout, block), self._link)
        if not message.data and is_no_responders(message.raw_headers):
            raise NoRespondersError(subject)
        return message

    def _request_raw(
        self,
        subject: bytes,
        payload: bytes,
        timeout: float | timedelta | None,
        block: bytes | None = None,
    ) -> RawMessage:
        """The raw reply to a request. A reply that tells "no responders" is returned like any other."""
        limit = seconds(timeout)
        mux = self._mux
        if mux is None or mux.denied is not None:
            mux = self._request_mux()
        slot = Slot(subject)
        token = mux.new_token()
        reply = mux.prefix + token
        frame = aside = own = None
        try:
            mux.pending[token] = slot
            built, size = self._frame(subject, payload, reply, block)
            frame = Ephemeral(built)
            aside = self._receiving.begin()
            self._outbox.publish(frame, size)
            wait = FOREVER if limit is None else min(limit, FOREVER)
            if aside is not None:
                begun = time.monotonic()
                own = self._receiving.receive(aside, reply, mux.sid, wait)
                self._receiving.end(aside, answered=own is not None)
                aside = None
                if own is not None:
                    mux.pending.pop(token, None)
                    return own
                wait = max(0.0, begun + wait - time.monotonic())
            answered = slot.lock.acquire(timeout=wait)
        except ConnectionClosedError:
            self._check_usable()  # says what closed it
            raise
        finally:
            unanswered = mux.pending.pop(token, None) is not None
            if aside is not None:  # interrupted
                self._receiving.end(aside, answered=False)
            if unanswered and frame is not None:
                self._outbox.withdraw(frame)  # gave up: it must not be sent after a reconnect
        if slot.reply is not None:
            return slot.reply
        if slot.error is not None:
            self._outbox.withdraw(frame)
            raise slot.error.with_traceback(None)
        assert not answered
        raise TimeoutError(f"no reply on {subject.decode('utf-8', 'replace')!r} within {limit} s")

    def _request_mux(self) -> RequestMux:
        self._check_usable()
        mux = self._mux
        if mux is None:
            with self._lock:
                mux = self._mux
                if mux is None:
                    mux = RequestMux(self.new_inbox(), self._new_sid())
                    self._add_inlet(mux)
                    self._mux = mux
        if mux.denied is not None:
            raise mux.denied.with_traceback(None)
        return mux

    # --- subscribing ------------------------------------------------------------------------------------

    def subscribe(
        self,
        subject: str,
        *,
        queue: str | None = None,
        cb: Callable[[Message], Any] | None = None,
        pending_msgs_limit: int = DEFAULT_PENDING_MSGS,
        pending_bytes_limit: int = DEFAULT_PENDING_BYTES,
    ) -> Subscription:
        """Subscribe to `subject`, which may have wildcards; `queue` shares the messages among its members.

        With `cb` a thread of the subscription's own calls it for each message; otherwise iterate or call
        next_msg(). A limit of 0 or less is no limit.
        """
        wire_subject = subscribe_subject(subject)
        wire_queue = None if queue is None else queue_name(queue)
        if cb is not None and not callable(cb):
            raise TypeError("cb must be callable")

        inbound = Inbound(
            self._link,
            wire_subject,
            wire_queue,
            msgs_limit=pending_msgs_limit,
            bytes_limit=pending_bytes_limit,
        )
        try:
            self._link.open(inbound)
            self._outbox.flush()
            if cb is not None:
                inbound.start_callback(cb)
            return Subscription(inbound)
        except BaseException:  # a signal handler raised, be it on the way back: the caller does not get to hold it
            inbound.end(SubscriptionClosedError("the subscription could not be made"), discard=True)
            raise

    # --- round trips ------------------------------------------------------------------------------------

    def flush(self, timeout: float | timedelta = 10.0) -> None:
        """Wait until the server has taken everything sent so far. Raises TimeoutError, ConnectionLostError."""
        self._check_usable()
        self._ping_pong(Deadline(timeout))

    def rtt(self, timeout: float | timedelta = 5.0) -> float:
        """Seconds from a PING to its PONG."""
        self._check_usable()
        start = time.perf_counter()
        self._ping_pong(Deadline(timeout))
        return time.perf_counter() - start

    # --- facts ------------------------------------------------------------------------------------------

    def new_inbox(self) -> str:
        """A subject nobody else uses, to receive replies on."""
        return new_inbox(self._options.inbox_prefix)

    def _next_inbox(self) -> str:
        """An inbox for one use of the library's own: cheaper than a new_inbox() for each."""
        return f"{self._inbox_root}.{self._next_inbox_number()}"

    def jetstream(
        self,
        *,
        domain: str | None = None,
        prefix: str = "$JS.API",
        timeout: float | timedelta = 5.0,
        **options: Any,
    ) -> JetStream:
        """The JetStream context on this connection; see `JetStream` for the options."""
        # The one import against the direction of the layers: jetstream.py builds on this module.
        from ..jetstream import JetStream

        return JetStream(self, domain=domain, prefix=prefix, timeout=timeout, **options)

    @property
    def connected_url(self) -> str | None:
        """The URL of the server in use, without credentials."""
        session = self._session
        return None if session is None else session.address.url

    @property
    def server_info(self) -> dict[str, Any]:
        """What the server last said of itself (INFO)."""
        return dict(self._server_info)

    @property
    def max_payload(self) -> int:
        return self._max_payload

    @property
    def client_id(self) -> int | None:
        return self._server_info.get("client_id")

    @property
    def servers(self) -> list[str]:
        """URLs of all servers in the pool, without credentials."""
        return self._dialer.urls

    @property
    def discovered_servers(self) -> list[str]:
        """URLs of the servers in the pool that the cluster advertised."""
        return self._dialer.discovered_urls

    @property
    def last_error(self) -> Exception | None:
        return self._last_error

    @property
    def stats(self) -> Stats:
        return Stats(
            self._in_msgs + self._receiving.answers,
            self._outbox.out_msgs,
            self._in_bytes + self._receiving.answer_bytes,
            self._outbox.out_bytes,
            self._reconnects,
            self._dropped,
        )

    def __repr__(self) -> str:
        where = f" to {self.connected_url}" if self.is_connected else ""
        return f"<Connection {self._status.value}{where}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Connection cannot be pickled: call connect() in the process that uses it")


def is_no_responders(block: bytes | None) -> bool:
    """Whether a reply's header block is the server's own "503 No Responders"."""
    status = status_of(block)
    return status is not None and status.code == 503


def _as_bytes(payload: Any) -> bytes:
    if isinstance(payload, str):
        raise TypeError("payload must be bytes, not str: encode it first, for example text.encode()")
    try:
        return bytes(memoryview(payload))
    except TypeError:
        raise TypeError(f"payload must be bytes-like, not {type(payload).__name__}") from None


def link_of(nc: Connection) -> Link:
    """The inner interface of a connection."""
    return nc._link
