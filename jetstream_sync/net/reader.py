"""The reader thread: receive, parse, hand over; and when the session breaks, get another.

It lives as long as the connection. It ends when the status is CLOSED, which it sees because close() breaks the
socket it may be receiving from and interrupts the dialer it may be waiting in. It runs no user code and never
waits on a full queue: mailboxes drop over their limits.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .._threads import spawn
from ..errors import (
    ConnectionLostError,
    NatsError,
    PermissionsError,
    TimeoutError,
)
from ..protocol import commands
from ..protocol.parser import PING, PONG, Err, Event, Info, Run
from .dialer import Dialer
from .handshake import Session
from .server_errors import server_error, stays_open

if TYPE_CHECKING:
    from .connection import Connection

log = logging.getLogger("jetstream_sync")

# A server in lame duck mode stays for 10 s at least before it closes connections; we are gone by then.
LAME_DUCK_SECONDS = 2.0


class Reader:
    """Owns the session loop of one connection."""

    def __init__(self, nc: Connection, dialer: Dialer) -> None:
        self._nc = nc
        self._dialer = dialer
        self._parting: NatsError | None = None  # an -ERR after which the server closes
        self._lame_duck = False

    def run(self) -> None:
        """The thread's body."""
        session = self._nc._await_opening() or self._next_session()
        while session is not None:
            error = self._read_until_broken(session)
            session = self._next_session() if self._nc._lost(error) else None

    def _next_session(self) -> Session | None:
        try:
            session = self._dialer.again()
        except NatsError as error:  # no server is left to try
            self._nc._report(error)
            self._nc._shut_down(error)
            return None
        if session is None or not self._nc._adopt(session):
            return None
        self._lame_duck = False
        self._nc._reconnected()
        return session

    def _read_until_broken(self, session: Session) -> Exception:
        """Handle everything the server sends; returns why it ended."""
        self._parting = None
        parser, recv = session.parser, session.transport.recv
        events = session.events
        try:
            while True:
                self._handle(events)
                if parser.error is not None:
                    return parser.error
                data = self._received_by_callers(session, events)
                if data is None:
                    data = recv()
                if not data:
                    break
                events = parser.feed(data)
        except OSError as error:
            return self._reason(ConnectionLostError(f"{session.address.url}: {error}"))
        except Exception as error:
            log.exception("unexpected error in the reader thread; reconnecting")
            return error
        return self._reason(ConnectionLostError(f"{session.address.url} closed the connection"))

    def _received_by_callers(self, session: Session, events: list[Event]) -> bytes | None:
        """Stand aside where callers may receive their answers; returns what they leave, None for nothing."""
        receiving = self._nc._receiving
        if not receiving.is_worth_it(lone_answer=self._is_lone_answer(events)):
            return None
        if session.transport.direct_recv is None or session.parser.buffered:
            return None
        return receiving.stand_aside(session.transport, self._others_wait)

    def _is_lone_answer(self, events: list[Event]) -> bool:
        """Whether nothing came but the answer to the only request."""
        mux = self._nc._mux
        if mux is None or len(events) != 1 or mux.pending:
            return False
        event = events[0]
        return type(event) is Run and event.sid == mux.sid and len(event.messages) == 1

    def _others_wait(self) -> bool:
        """Whether the server may send something else than the answer to a request yet to come."""
        nc = self._nc
        return len(nc._subs) != 1 or nc._mux is None or len(nc._mux) > 0 or len(nc._pongs) > 0

    def _reason(self, otherwise: NatsError) -> NatsError:
        return self._nc._break_reason or self._parting or otherwise

    def _handle(self, events: list[Event]) -> None:
        nc = self._nc
        for event in events:
            if type(event) is Run:
                nc._in_msgs += len(event.messages)
                nc._in_bytes += event.size
                inlet = nc._subs.get(event.sid)
                if inlet is not None:
                    inlet.deliver(event.messages, event.size)
            elif event is PING:
                nc._outbox.control(commands.PONG)
                nc._outbox.flush()
            elif event is PONG:
                nc._on_pong()
            elif type(event) is Info:
                self._on_info(event)
            elif type(event) is Err:
                self._on_err(event.text)

    # --- what the server says of itself -------------------------------------------------------------

    def _on_info(self, event: Info) -> None:
        nc = self._nc
        with nc._lock:
            nc._take_info(event.fields)
        if self._dialer.advertise(event.fields):
            nc._callbacks.submit(nc._options.callbacks.discovered_server, nc)
        if event.fields.get("ldm") and not self._lame_duck:
            self._lame_duck = True
            nc._callbacks.submit(nc._options.callbacks.lame_duck, nc)
            if nc._options.allow_reconnect and self._dialer.has_alternative:
                self._dialer.avoid_current()
                spawn("lameduck", self._leave_lame_duck, nc._session)

    def _leave_lame_duck(self, session: Session | None) -> None:
        """Own thread, bounded by its flush: let what is under way finish, then move to another server."""
        try:
            self._nc.flush(LAME_DUCK_SECONDS)
        except (NatsError, TimeoutError):
            pass  # the server is gone already, or the connection closed: there is nothing to wait for
        self._nc._break(ConnectionLostError("the server is in lame duck mode"), session)

    # --- what the server complains about --------------------------------------------------------------

    def _on_err(self, text: str) -> None:
        error = server_error(text)
        if isinstance(error, PermissionsError):
            self._on_denied(error)
        if stays_open(text):
            self._nc._report(error)
        else:
            # Reported with the loss of the connection, which follows.
            self._parting = error

    def _on_denied(self, error: PermissionsError) -> None:
        """Give the denial to the call it concerns: the server answers it with nothing else."""
        nc = self._nc
        subject = error.subject.encode("utf-8", "surrogateescape")
        if error.operation == "publish":
            if nc._mux is not None:
                nc._mux.fail_subject(subject, error)
            with nc._lock:
                listeners = list(nc._listeners)
            for listener in listeners:
                listener.on_publish_denied(subject, error)
            return
        for inlet in list(nc._subs.values()):
            if inlet.wire_subject == subject and inlet.queue == error.queue:
                inlet.fail(error)
