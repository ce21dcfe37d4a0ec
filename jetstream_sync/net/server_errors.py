"""What a server's `-ERR` text means: one table for the handshake and for a live connection."""

from __future__ import annotations

import re

from ..errors import AuthorizationError, NatsError, PermissionsError, ProtocolError, StaleConnectionError

# Lower-case beginnings of -ERR texts. After each of these the server closes the connection.
_BY_PREFIX: tuple[tuple[str, type[NatsError]], ...] = (
    ("authorization violation", AuthorizationError),
    ("authentication timeout", AuthorizationError),
    ("user authentication expired", AuthorizationError),
    ("user authentication revoked", AuthorizationError),
    ("account authentication expired", AuthorizationError),
    ("stale connection", StaleConnectionError),
)

# The server stays open after these; everything else is followed by its EOF.
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
    """The error for an `-ERR` line's text (without its quotes)."""
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
    """Whether the server keeps the connection after this `-ERR`."""
    return text.lower().startswith(_STAYS_OPEN)
