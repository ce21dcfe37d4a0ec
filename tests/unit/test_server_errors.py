"""The text of an -ERR: which error it is, and whether the server closes the connection after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jetstream_sync.errors import (
    AuthorizationError,
    NatsError,
    PermissionsError,
    ProtocolError,
    StaleConnectionError,
)
from jetstream_sync.net.server_errors import server_error, stays_open
from jetstream_sync.protocol.parser import Err, Parser

STATUSES = Path(__file__).parent.parent / "data" / "statuses.jsonl"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Authorization Violation", AuthorizationError),
        ("authorization violation", AuthorizationError),
        ("Authentication Timeout", AuthorizationError),
        ("User Authentication Expired", AuthorizationError),
        ("User Authentication Revoked", AuthorizationError),
        ("Account Authentication Expired", AuthorizationError),
        ("Stale Connection", StaleConnectionError),
        ("Unknown Protocol Operation", ProtocolError),
        ("Maximum Payload Violation", ProtocolError),
        ("maximum connections exceeded", ProtocolError),
        ("", ProtocolError),
        ("something new", ProtocolError),
    ],
)
def test_server_error_kind(text: str, kind: type[NatsError]) -> None:
    """Each text has its class, in any case of letters; what is unknown is a ProtocolError that quotes it."""
    error = server_error(text)
    assert type(error) is kind
    assert text in str(error)


@pytest.mark.parametrize(
    ("text", "operation", "subject", "queue"),
    [
        ('Permissions Violation for Publish to "a.b"', "publish", "a.b", None),
        ('permissions violation for subscription to "a.>"', "subscription", "a.>", None),
        ('Permissions Violation for Subscription to "a" using queue "q"', "subscription", "a", "q"),
        ('Permissions Violation for Subscription to "a" (sid "12")', "subscription", "a", None),
        ('Permissions Violation for Subscription to "a" using queue "q" (sid "1")', "subscription", "a", "q"),
        ('Permissions Violation for Publish to "a"b"', "publish", 'a"b', None),
    ],
)
def test_permission_violation_names_what_was_denied(
    text: str, operation: str, subject: str, queue: str | None
) -> None:
    """A violation carries operation, subject and queue, also with the sid that newer servers add."""
    error = server_error(text)
    assert isinstance(error, PermissionsError)
    assert (error.operation, error.subject, error.queue) == (operation, subject, queue)
    assert stays_open(text)


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ('Permissions Violation for Publish to "a"', True),
        ("Invalid Subject", True),
        ("Invalid Publish Subject", True),
        ("maximum subscriptions exceeded", True),
        ("Authorization Violation", False),
        ("Authentication Timeout", False),
        ("Stale Connection", False),
        ("Unknown Protocol Operation", False),
        ("Maximum Payload Violation", False),
        ("maximum control line exceeded", False),
        ("maximum connections exceeded", False),
    ],
)
def test_stays_open_as_servers_do(text: str, stays: bool) -> None:
    """A server keeps the connection after some errors, and after these only."""
    assert stays_open(text) is stays
    assert stays_open(text.upper()) is stays


def recorded_errors() -> list[str]:
    """The text of every -ERR in the recordings of real servers, as the parser gives it."""
    statuses = [json.loads(line) for line in STATUSES.read_text().splitlines()]
    lines = [status["example"].encode() for status in statuses if status["code"] == "-ERR"]
    return [event.text for line in lines for event in Parser().feed(line) if isinstance(event, Err)]


def test_every_recorded_error_is_understood() -> None:
    """What real servers said is turned into an error that quotes it."""
    texts = recorded_errors()
    assert len(texts) >= 5
    for text in texts:
        error = server_error(text)
        assert isinstance(error, NatsError)
        if "permissions violation" in text.lower():
            assert isinstance(error, PermissionsError), text
