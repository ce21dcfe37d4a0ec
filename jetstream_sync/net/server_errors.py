"""Maps the text of a server's `-ERR` to an error, during the handshake and afterwards; and what closed a
connection to the error that its calls raise."""

from __future__ import annotations

import re

from ..errors import (
    AuthorizationError,
    ConnectionClosedError,
    NatsError,
    PermissionsError,
    ProtocolError,
    StaleConnectionError,
)

# How -ERR texts begin, in lower case. The server closes the connection after each of these.
_BY_PREFIX: tuple[tuple[str, type[NatsError]], ...] = (
    ("authorization violation", AuthorizationError),
    ("authentication timeout", AuthorizationError),
    ("user authentication expired", AuthorizationError),
    ("user authentication revoked", AuthorizationError),
    ("account authentication expired", AuthorizationError),
    ("stale connection", StaleConnectionError),
)

# After these the server keeps the connection open. After any other -ERR it closes the connection.
_STAYS_OPEN = (
    "permissions violation",
    "invalid subject",
    "invalid publish subject",
    "maximum subscriptions exceeded",
)

_PERMISSION = re.compile(
    r'permissions violation for (publish|subscription) to "(.*?)"(?: using queue "(.*?)")?(?: \(sid "(\d+)"\))?$',
    re.IGNORECASE,
)


def server_error(text: str) -> NatsError:
    """The error for the text of an `-ERR` line (without its quotes)."""
    match = _PERMISSION.match(text)
    if match:
        operation, subject, queue, _sid = match.groups()
        return PermissionsError(
            f"the server denied: {text}", subject=subject, operation=operation.lower(), queue=queue
        )
    lowered = text.lower()
    for prefix, kind in _BY_PREFIX:
        if lowered.startswith(prefix):
            return kind(f"the server said: {text}")
    return ProtocolError(f"the server said: {text}")


def stays_open(text: str) -> bool:
    """Whether the server keeps the connection open after this `-ERR`."""
    return text.lower().startswith(_STAYS_OPEN)


def closed_by(error: Exception | None) -> NatsError:
    """What calls raise once `error`, or the user (None), has closed the connection."""
    if error is None:
        return ConnectionClosedError()
    closed = ConnectionClosedError(f"the connection is closed: {error}")
    closed.__cause__ = error
    return closed
