"""nc.check(): how a connection stands at this moment. Looks and asks, changes nothing."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import timedelta

from .._deadline import Deadline
from ..errors import NatsError, describe
from ..protocol.headers import is_no_responders
from .link import Link
from .states import Status

_JETSTREAM_INFO = b"$JS.API.INFO"


@dataclass(frozen=True, slots=True)
class Health:
    """How a connection stands, as `nc.check()` found it. In a condition it is true when the connection is well.

    `str()` of it is one line for people and logs.
    """

    ok: bool
    """There is a session, and its server answered in time."""
    status: Status
    """Where the connection stands."""
    server: str | None
    """The URL of the server in use; None while there is none."""
    server_name: str | None
    """Its name."""
    server_version: str | None
    """Its version."""
    rtt: float | None
    """Seconds from a PING to its PONG; None when none came in time."""
    jetstream: bool | None
    """Whether JetStream answers for this account, without a domain; None when that is not known."""
    pending_bytes: int
    """Bytes of messages that wait to be sent."""
    reconnects: int
    """How often the connection was made again after a loss."""
    disconnected_for: float | None
    """Seconds without a session; None while there is one."""
    last_error: Exception | None
    """What is wrong: why the server's answer did not come, else the newest error of the connection."""

    @property
    def connected(self) -> bool:
        """Whether there was a session, answering or not."""
        return self.server is not None

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        parts = [self._standing()]
        if self.ok and self.jetstream is not None:
            parts.append("JetStream available" if self.jetstream else "JetStream not available")
        if self.pending_bytes:
            parts.append(f"{self.pending_bytes} bytes wait to be sent")
        if self.reconnects:
            parts.append(f"reconnects: {self.reconnects}")
        if self.last_error is not None:
            parts.append(f"last error: {describe(self.last_error)}")
        return ("ok: " if self.ok else "not ok: ") + ", ".join(parts)

    def _standing(self) -> str:
        if self.server is None:
            lasting = "" if self.disconnected_for is None else f" for {self.disconnected_for:.1f} s"
            return "closed" if self.status is Status.CLOSED else f"not connected{lasting}"
        answer = "no answer in time" if self.rtt is None else f"round trip {self.rtt * 1000:.1f} ms"
        return f"connected to {self.server} ({self.server_name}, {self.server_version}), {answer}"


def check(link: Link, timeout: float | timedelta) -> Health:
    """See `Connection.check`. Does not wait for a connection that is lost."""
    deadline = Deadline(timeout)
    rtt = jetstream = failure = None
    session = link.session
    try:
        link.check_usable()
        if session is not None:
            started = time.perf_counter()
            link.round_trip(deadline)
            rtt = time.perf_counter() - started
            jetstream = _has_jetstream(link, deadline)
    except NatsError as error:
        failure = error
    present = link.session is not None and not link.forked
    info = link.server_info if session is not None and present else {}
    return Health(
        ok=present and rtt is not None,
        status=link.status,
        server=session.address.url if session is not None and present else None,
        server_name=info.get("server_name"),
        server_version=info.get("version"),
        rtt=rtt if present else None,
        jetstream=jetstream,
        pending_bytes=link.outbox.queued,
        reconnects=link.reconnects,
        disconnected_for=None if present else link.reports.outage.seconds,
        last_error=failure or link.reports.last_error,
    )


def _has_jetstream(link: Link, deadline: Deadline) -> bool | None:
    try:
        raw = link.request(_JETSTREAM_INFO, b"", deadline.remaining())
    except NatsError:
        return None  # no answer in time, or not allowed to ask
    if is_no_responders(raw[2]):
        return False
    try:
        return "error" not in json.loads(raw[3])
    except (ValueError, TypeError, RecursionError):
        return None
