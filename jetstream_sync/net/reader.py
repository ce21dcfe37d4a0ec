"""The reader thread: receive, parse, deliver; and when the session breaks, get another.

It ends when the status is CLOSED: shut_down() breaks the socket and interrupts the dialer. It runs no user code
and never waits for a receiver: mailboxes drop what exceeds their limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._deadline import Deadline
from .._threads import spawn
from ..errors import ConnectionLostError, NatsError, PermissionsError
from ..protocol import commands
from ..protocol.parser import PING, PONG, Err, Event, Info, Run
from .dialer import Dialer
from .handshake import Session
from .server_errors import server_error, stays_open

if TYPE_CHECKING:
    from .link import Link

# A server in lame duck mode stays for 10 s at least before it closes connections; we are gone by then.
LAME_DUCK_SECONDS = 2.0


class Reader:
    """Owns the session loop of one connection."""

    def __init__(self, link: Link, dialer: Dialer) -> None:
        self._link = link
        self._dialer = dialer
        self._parting: NatsError | None = None  # an -ERR after which the server closes
        self._lame_duck = False
        self.in_msgs: int = 0
        self.in_bytes: int = 0

    def run(self) -> None:
        """The thread's body."""
        session = self._link.first_session() or self._next_session()
        while session is not None:
            error = self._read_until_broken(session)
            session = self._next_session() if self._link.lost(session, error) else None

    def _next_session(self) -> Session | None:
        try:
            session = self._dialer.again()
        except NatsError as error:  # no server is left to try
            self._link.call(self._link.options.error_cb, error)
            self._link.shut_down(error)
            return None
        if session is None or not self._link.opened(session, first=False):
            return None
        self._lame_duck = False
        return session

    def _read_until_broken(self, session: Session) -> Exception:
        """Handle everything the server sends. Returns why it ended."""
        self._parting = None
        link = self._link
        parser, recv, offer = session.parser, session.transport.recv, link.direct.offer
        is_single_reply, only_requests = link.requests.is_single_reply, link.only_requests
        events = session.events
        try:
            while True:
                self._handle(events)
                if parser.error is not None:
                    return parser.error
                single_reply = is_single_reply(events) and not parser.buffered
                data = offer(session.transport, single_reply, only_requests)
                if data is None:
                    data = recv()
                if not data:
                    break
                events = parser.feed(data)
        except OSError as error:
            return self._parting or ConnectionLostError(f"{session.address.url}: {error}")
        except Exception as error:  # noqa: BLE001 - logged; the next session may do better
            link.logs.connection.exception("unexpected error in the reader thread; reconnecting")
            return error
        return self._parting or ConnectionLostError(f"{session.address.url} closed the connection")

    def _handle(self, events: list[Event]) -> None:
        link = self._link
        for event in events:
            if type(event) is Run:
                self.in_msgs += len(event.messages)
                self.in_bytes += event.size
                receiver = link.router.receivers.get(event.sid)
                if receiver is not None:
                    receiver.deliver(event.messages, event.size)
            elif event is PING:
                link.outbox.control(commands.PONG)
                link.outbox.flush()
            elif event is PONG:
                link.pong()
            elif type(event) is Info:
                self._on_info(event)
            elif type(event) is Err:
                self._on_err(event.text)

    def _on_info(self, event: Info) -> None:
        link = self._link
        link.info(event.fields)
        if event.fields.get("ldm") and not self._lame_duck:
            self._lame_duck = True
            link.call(link.options.lame_duck_mode_cb, link.connection)
            if link.options.allow_reconnect and self._dialer.has_alternative:
                self._dialer.avoid_current()
                spawn("lameduck", self._leave_lame_duck, link.session)

    def _leave_lame_duck(self, session: Session | None) -> None:
        """js-lameduck, which ends after two bounded waits: let requests finish, then change the server."""
        try:
            self._link.round_trip(Deadline(LAME_DUCK_SECONDS))
        except NatsError:
            pass  # the server is gone already, or the connection closed: there is nothing to wait for
        reason = ConnectionLostError("the server is in lame duck mode")
        self._link.leave_session(reason, session, LAME_DUCK_SECONDS)

    def _on_err(self, text: str) -> None:
        error = server_error(text)
        if isinstance(error, PermissionsError):
            self._link.denied(error)
        if stays_open(text):
            self._link.report(error)
        else:
            # Reported with the loss of the connection, which follows.
            self._parting = error
