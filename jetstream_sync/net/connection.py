"""The connection: what users hold. It delegates to its `Link`, which owns state, threads and locks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

from .._deadline import Deadline, seconds
from .._threads import beside
from ..errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DrainTimeoutError,
    NatsError,
    NoRespondersError,
    SubscriptionClosedError,
    TimeoutError,
)
from ..protocol.headers import encode_headers, is_no_responders
from ..protocol.subjects import publish_subject, queue_name, subscribe_subject
from . import health, subscription
from .health import Health
from .link import Link
from .message import Message
from .options import Options, drain_timeout
from .server_errors import closed_by
from .servers import PoolServer, parse_server, unique
from .settings import url_list
from .states import Stats, Status
from .subscription import DEFAULT_PENDING_BYTES, DEFAULT_PENDING_MSGS, Inbound, Subscription

if TYPE_CHECKING:
    from ..jetstream import JetStream

__all__ = ["Connection", "Stats", "Status", "link_of"]

# close() waits this long for messages on their way to consumes that have just ended.
HAND_BACK_SECONDS = 0.5


def hand_back(link: Link, reason: NatsError, *, idle: bool = True) -> None:
    """Consumes end, and hand back what no code took; for a moment also what is on its way to them.

    Unless `idle`, those that have nothing buffered are left alone: threads may wait for their messages.
    """
    if not link.connected:
        return
    try:
        _end_consumes(link, reason, idle)
        if any(receiver.leaving for receiver in link.router.snapshot()):
            link.round_trip(Deadline(HAND_BACK_SECONDS))
    except NatsError:
        pass  # lost or closed meanwhile, or the server is silent: it delivers again after ack_wait
    except BaseException:  # a signal handler raised: begin anew, and do not wait
        _end_consumes(link, reason, idle)
        raise


def _end_consumes(link: Link, reason: NatsError, idle: bool) -> None:
    for receiver in link.router.snapshot():
        if idle or receiver.items:
            receiver.closing(reason)


class Connection:
    """A connection to a NATS server or cluster. Thread-safe. Made by `connect()`.

    As a context manager it drains when the block is left, or closes if an exception is on its way.

    A signal handler may raise in any call. It may call close() and drain(), whatever it interrupted: if that was a
    call of this library, they do their work on another thread and wait for it for half a second at most.
    """

    __slots__ = ("__weakref__", "_link")

    def __init__(self, options: Options) -> None:
        self._link = Link(options, self)

    def close(self) -> None:
        """Close at once. Queued messages are sent if the server accepts them within a second; received, unread
        messages are dropped.

        Idempotent, and allowed in any callback and signal handler. Returns within about 3 s whatever the server
        does.
        """
        self._link.check_process()
        beside(self._close, self._link.logs.connection)

    def _close(self) -> None:
        try:
            hand_back(self._link, closed_by(None))
        finally:
            self._link.shut_down(None)

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """End in order: unsubscribe all, handle what has been received, send what is queued, wait for the acks of
        asynchronous publishes, close.

        Blocks up to `timeout` (default: `drain_timeout` of connect()); then closes and raises DrainTimeoutError.
        A second call, and a call on a closed connection, does nothing.
        """
        link = self._link
        link.check_process()
        deadline = Deadline(drain_timeout(link.options, timeout))
        beside(partial(self._drain, deadline), link.logs.connection)

    def _drain(self, deadline: Deadline) -> None:
        link = self._link
        receivers = link.begin_drain()
        if receivers is None:
            return
        try:
            if link.connected:
                subscription.drain(link, cast("list[Inbound]", receivers), deadline)
                for step in list(link.drain_steps):
                    step(deadline)
                link.round_trip(deadline)
        except TimeoutError as error:
            raise DrainTimeoutError("the connection did not drain in time and was closed") from error
        except (ConnectionLostError, ConnectionClosedError):
            pass  # nothing more to drain: the server is gone, or another thread has closed the connection
        except NatsError:
            raise
        except BaseException:
            link.shut_down(None, goodbye=False)  # Ctrl-C: no more waiting for the server
            raise
        finally:
            self._close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._link.forked:
            return  # a child that leaves the parent's block must not disturb the parent
        if error is None:
            self.drain()
        else:
            self.close()

    def force_reconnect(self) -> None:
        """Drop the present session and connect anew, to the next server where there are several."""
        self._link.check_usable()
        self._link.break_session(ConnectionLostError("force_reconnect() was called"), self._link.session)

    # --- publishing -------------------------------------------------------------------------------------

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        """Publish `payload` to `subject`. At most once: use JetStream's publish for an acknowledgement.

        `reply` is the subject on which an answer is expected. `headers` are names and values; a list of values
        makes several headers of one name.

        Returns when the message is on its way; blocks only while the server accepts no data. While disconnected,
        messages wait in a buffer of `pending_size` bytes; beyond that OutboundBufferLimitError is raised.
        """
        link = self._link
        wire_reply = None if reply is None else publish_subject(reply)
        link.publish(publish_subject(subject), payload, wire_reply, encode_headers(headers) if headers else None)
        if link.outbox.congested:
            link.outbox.wait_for_room()

    def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        timeout: float | timedelta = 5.0,
        headers: Mapping[str, Any] | None = None,
    ) -> Message:
        """Publish `payload` to `subject` as a request, with `headers` if given, and wait for its first reply.

        Blocks up to `timeout` seconds. Raises TimeoutError, NoRespondersError when no service listens,
        PermissionsError, ConnectionLostError.
        """
        block = encode_headers(headers) if headers else None
        raw = self._link.request(publish_subject(subject), payload, seconds(timeout), block)
        if not raw[3] and is_no_responders(raw[2]):
            raise NoRespondersError(subject)
        return Message(raw, self._link)

    def subscribe(
        self,
        subject: str,
        queue: str | None = None,
        cb: Callable[[Message], Any] | None = None,
        *,
        pending_msgs_limit: int = DEFAULT_PENDING_MSGS,
        pending_bytes_limit: int = DEFAULT_PENDING_BYTES,
    ) -> Subscription:
        """Subscribe to `subject`, which may have wildcards; `queue` shares the messages among its members.

        With `cb` a thread of the subscription's own calls it for each message; otherwise iterate or call
        next_msg(). Messages beyond `pending_msgs_limit` or `pending_bytes_limit` that wait to be taken are
        dropped; 0 or less is no limit.
        """
        wire_subject = subscribe_subject(subject)
        wire_queue = None if queue is None else queue_name(queue)
        if cb is not None and not callable(cb):
            raise TypeError("cb must be callable")
        link = self._link
        inbound = Inbound(link, wire_subject, wire_queue, pending_msgs_limit, pending_bytes_limit)
        sub = Subscription(inbound)
        try:
            link.open(inbound)
            link.outbox.flush()
            if cb is not None:
                inbound.start_callback(cb)
            return sub
        except BaseException:  # a signal handler raised: no caller gets to hold this subscription
            inbound.end(SubscriptionClosedError("subscribing was interrupted"), discard=True)
            raise

    def flush(self, timeout: float | timedelta = 10.0) -> None:
        """Wait up to `timeout` seconds until the server has handled everything sent so far.

        Raises TimeoutError, ConnectionLostError.
        """
        self._link.check_usable()
        self._link.round_trip(Deadline(timeout))

    def rtt(self, timeout: float | timedelta = 5.0) -> float:
        """Seconds from a PING to its PONG, `timeout` at most. Raises TimeoutError, ConnectionLostError."""
        start = time.perf_counter()
        self.flush(timeout)
        return time.perf_counter() - start

    def check(self, timeout: float | timedelta = 2.0) -> Health:
        """Ask the server for a sign of life, up to `timeout` seconds, and tell how the connection stands.

        For health checks: `if not nc.check(): …`. An unhealthy connection raises nothing: one that is lost, closed
        or belongs to another process, or whose server does not answer, is told as such, and at once where there
        is no session to ask on. `print(nc.check())` shows one line.
        """
        return health.check(self._link, timeout)

    # --- facts ------------------------------------------------------------------------------------------

    def new_inbox(self) -> str:
        """A subject that no other client uses, to receive replies on."""
        return self._link.new_inbox()

    def jetstream(
        self,
        *,
        domain: str | None = None,
        prefix: str = "$JS.API",
        timeout: float | timedelta = 5.0,
        publish_async_max_pending: int = 4000,
    ) -> JetStream:
        """The JetStream context on this connection.

        `domain` or `prefix` selects another JetStream than the one of the account. `timeout` is how long a call
        blocks for the server's reply. `publish_async_max_pending` limits how many asynchronous publishes may wait
        for their acknowledgement at once.
        """
        # The one import against the direction of the layers: jetstream.py builds on this module.
        from ..jetstream import JetStream

        return JetStream(
            self,
            domain=domain,
            prefix=prefix,
            timeout=timeout,
            publish_async_max_pending=publish_async_max_pending,
        )

    @property
    def status(self) -> Status:
        """Where the connection stands."""
        return self._link.status

    @property
    def is_connected(self) -> bool:
        """Whether there is a session with a server at this moment."""
        return self._link.connected

    @property
    def is_reconnecting(self) -> bool:
        """Whether the session was lost, or was never made, and a server is being looked for."""
        return self._link.status is Status.RECONNECTING

    @property
    def is_draining(self) -> bool:
        """Whether drain() is at work."""
        return self._link.status is Status.DRAINING

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed for good."""
        return self._link.closed

    @property
    def connected_url(self) -> str | None:
        """The URL of the server in use, without credentials."""
        session = self._link.session
        return None if session is None else session.address.url

    @property
    def server_info(self) -> dict[str, Any]:
        """What the server last said of itself (INFO)."""
        return dict(self._link.server_info)

    @property
    def max_payload(self) -> int:
        """How many bytes the server accepts in one message, headers included."""
        return self._link.max_payload

    @property
    def client_id(self) -> int | None:
        """The server's number for this connection."""
        return self._link.server_info.get("client_id")

    @property
    def servers(self) -> list[str]:
        """URLs of all servers in the pool, without credentials."""
        return self._link.dialer.urls

    @property
    def server_pool(self) -> list[PoolServer]:
        """All servers in the pool, with the number of attempts that failed since each was last connected to."""
        return self._link.dialer.entries

    def set_server_pool(self, servers: str | Iterable[str]) -> None:
        """Replace the servers of the pool; the next reconnect uses them, and the present connection stays.

        `servers` is what connect() takes, without parameters. Servers that the cluster advertises are still added,
        unless `ignore_discovered_servers` is set. Raises ValueError for a URL that is none.
        """
        self._link.check_usable()
        self._link.dialer.replace(unique(map(parse_server, url_list(servers))))

    @property
    def discovered_servers(self) -> list[str]:
        """URLs of the servers in the pool that the cluster advertised."""
        return self._link.dialer.discovered_urls

    @property
    def pending_data_size(self) -> int:
        """Bytes that wait to be sent, without acknowledgements; while disconnected, `pending_size` limits them."""
        return self._link.outbox.queued

    @property
    def last_error(self) -> Exception | None:
        """The newest error of the connection; None when there was none, or a server took us in again after it."""
        return self._link.reports.last_error

    @property
    def stats(self) -> Stats:
        """Counters since the connection was made."""
        link = self._link
        return Stats(
            link.reader.in_msgs + link.direct_receive.replies,
            link.outbox.out_msgs,
            link.reader.in_bytes + link.direct_receive.reply_bytes,
            link.outbox.out_bytes,
            link.reconnects,
            link.dropped_msgs,
        )

    def __repr__(self) -> str:
        link = self._link
        session, name = link.session, link.options.name  # read once: js-reader may lose the session meanwhile
        named = "" if name is None else f" {name!r}"
        where = "" if session is None else f" to {session.address.url}"
        counts = f"in={link.reader.in_msgs} out={link.outbox.out_msgs} reconnects={link.reconnects}"
        return f"<Connection{named} {link.status.value}{where} {counts}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Connection cannot be pickled: call connect() in the process that uses it")


def link_of(nc: Connection) -> Link:
    """The inner interface of a connection, for what is built on it."""
    return nc._link
