"""Subjects and names that may go on the wire, and ids that are unique."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from jetstream_sync.errors import BadSubjectError
from jetstream_sync.protocol import subjects
from jetstream_sync.protocol.subjects import (
    Nuid,
    api_prefix,
    inbox_prefix,
    new_inbox,
    next_nuid,
    publish_subject,
    queue_name,
    subject_matches,
    subscribe_subject,
    valid_name,
)
from tests.support.platforms import needs_fork_hooks


def stream_name(name: str) -> str:
    return valid_name("stream name", name)


SUBJECTS: list[Callable[[str], Any]] = [publish_subject, subscribe_subject, inbox_prefix, api_prefix]
EVERYTHING: list[Callable[[str], Any]] = [*SUBJECTS, queue_name, stream_name]
every_check = pytest.mark.parametrize("check", EVERYTHING)


@every_check
@pytest.mark.parametrize(
    "text", ["", " ", "a b", " a", "a ", "a\tb", "a\r", "a\nb", "a\r\nPING", "a\0b", "\x7f", "a\x0c"]
)
def test_blanks_and_control_characters_are_refused(check: Callable[[str], Any], text: str) -> None:
    """Nothing that could end a field or a line early gets through, anywhere; nor does the empty text."""
    with pytest.raises(BadSubjectError) as raised:
        check(text)
    assert isinstance(raised.value, ValueError)
    assert "empty" in str(raised.value) if not text else repr(text) in str(raised.value)


@every_check
@pytest.mark.parametrize("value", [None, b"a", 1, ["a"]])
def test_other_types_are_refused(check: Callable[[Any], Any], value: object) -> None:
    """Anything but str is a TypeError that says so."""
    with pytest.raises(TypeError, match="must be str"):
        check(value)


@every_check
@pytest.mark.parametrize("text", ["a\ud800", "a\udc0ab", "\udc20"])
def test_text_outside_utf8_is_refused(check: Callable[[str], Any], text: str) -> None:
    """Lone surrogates are refused, above all those that escape a line end or a blank."""
    with pytest.raises(BadSubjectError):
        check(text)


@pytest.mark.parametrize("check", SUBJECTS)
@pytest.mark.parametrize("text", [".", ".a", "a.", "a..b"])
def test_empty_tokens_are_refused(check: Callable[[str], Any], text: str) -> None:
    """Two dots in a row and dots at the ends make empty tokens."""
    with pytest.raises(BadSubjectError, match="empty token"):
        check(text)


@pytest.mark.parametrize("text", ["*", ">", "a.*", "*.a", "a.>", "a.>.b", "a.*.b"])
def test_wildcards_are_refused_for_publishing(text: str) -> None:
    """A wildcard token cannot be published to."""
    with pytest.raises(BadSubjectError, match="wildcard"):
        publish_subject(text)


@pytest.mark.parametrize("text", ["a.b*", "a*b", "a.>b", "a>", "**", ">>"])
def test_wildcards_inside_tokens_are_literal_for_publishing_only(text: str) -> None:
    """The server takes a wildcard inside a token literally: published as it is, refused as a subscription."""
    assert publish_subject(text) == text.encode()
    for check in (subscribe_subject, inbox_prefix, api_prefix):
        with pytest.raises(BadSubjectError, match="wildcard"):
            check(text)


@pytest.mark.parametrize("text", ["a", "*", ">", "a.*", "*.*", "a.*.b", "a.>", "*.>", "$JS.ACK.>", "ü.b"])
def test_valid_subscriptions_pass(text: str) -> None:
    """Whole-token wildcards, the rest-of-subject wildcard at the end only, and any other text pass."""
    assert subscribe_subject(text) == text.encode()


@pytest.mark.parametrize("text", [">.a", "a.>.b", ">.>"])
def test_full_wildcard_before_the_end_is_refused(text: str) -> None:
    """The rest-of-subject wildcard must be the last token."""
    with pytest.raises(BadSubjectError, match="last token"):
        subscribe_subject(text)


def test_subject_that_is_not_utf8_can_be_answered() -> None:
    """A subject received as other bytes than UTF-8 goes out as the same bytes."""
    received = b"a.\xff\xfe"
    text = received.decode("utf-8", "surrogateescape")
    assert publish_subject(text) == received
    assert subscribe_subject(text) == received


def test_published_subjects_are_remembered_within_bounds() -> None:
    """The second look-up is the same object; neither many nor long subjects pile up."""
    assert publish_subject("cached.subject") is publish_subject("cached.subject")
    for n in range(subjects.CACHED_SUBJECTS + 10):
        publish_subject(f"many.{n}")
    assert len(subjects._publish_cache) <= subjects.CACHED_SUBJECTS
    long = "x" * (subjects.CACHED_LENGTH + 1)
    assert publish_subject(long) == long.encode()
    assert long not in subjects._publish_cache


@pytest.mark.parametrize("name", ["a.b", "a*", ">", "a/b", "a\\b", "../x"])
def test_names_the_server_refuses_are_refused(name: str) -> None:
    """Names of streams and consumers have no dots, wildcards and slashes; the error says which name."""
    with pytest.raises(BadSubjectError) as raised:
        valid_name("durable name", name)
    assert "durable name" in str(raised.value)
    assert repr(name) in str(raised.value)


def test_valid_names_pass() -> None:
    """Names, queues and prefixes come back as they are."""
    assert valid_name("stream name", "ORDERS_2-ü") == "ORDERS_2-ü"
    assert queue_name("workers.v2") == b"workers.v2"
    assert inbox_prefix("_INBOX.team") == "_INBOX.team"
    assert api_prefix("$JS.hub.API") == "$JS.hub.API"


def test_error_shows_the_start_of_long_text() -> None:
    """A whole document passed by mistake does not become the error's text."""
    with pytest.raises(BadSubjectError) as raised:
        publish_subject("x y" * 100_000)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a", False),
        ("a", "a.b", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("*.b", "a.b", True),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        (">", "a", True),
        (">", "a.b.c", True),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.>", "b.c", False),
        ("*.b.>", "a.b.c", True),
        ("a*", "ab", False),
        ("a*", "a*", True),
    ],
)
def test_subject_matches(pattern: str, subject: str, expected: bool) -> None:
    """Matching follows the server's rules for whole-token wildcards."""
    assert subject_matches(pattern, subject) is expected


# --- unique ids ---------------------------------------------------------------------------------


def test_nuids_are_22_characters_of_base_62_and_differ() -> None:
    """Ids have the usual form and never repeat; two generators share no prefix."""
    ids = [next_nuid() for _ in range(5000)]
    assert len(set(ids)) == 5000
    assert all(re.fullmatch("[0-9A-Za-z]{22}", nuid) for nuid in ids)
    assert len({nuid[:12] for nuid in ids}) == 1
    assert Nuid().next()[:12] != Nuid().next()[:12]


def test_inbox_is_a_nuid_below_the_prefix() -> None:
    """Inboxes are valid subjects, made of the prefix and an id."""
    assert re.fullmatch(r"_INBOX\.[0-9A-Za-z]{22}", new_inbox())
    inbox = new_inbox("my.inbox")
    assert inbox.startswith("my.inbox.")
    assert publish_subject(inbox) == inbox.encode()


@pytest.mark.usefixtures("eager_switching")
def test_nuids_differ_between_threads() -> None:
    """Threads that share one generator never get the same id."""
    nuid = Nuid()
    taken: list[list[str]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda ids=ids: ids.extend(nuid.next() for _ in range(5000))) for ids in taken
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({nuid for ids in taken for nuid in ids}) == 20_000


@needs_fork_hooks
def test_nuids_differ_after_fork() -> None:
    """A forked child draws new random numbers, for the shared generator and for its own; the parent keeps its."""
    program = """if True:
        import os
        from jetstream_sync.protocol.subjects import Nuid, next_nuid

        own = Nuid()
        print(next_nuid()[:12], own.next()[:12], flush=True)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        print(next_nuid()[:12], own.next()[:12], flush=True)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    before, in_child, in_parent = [line.split() for line in done.stdout.splitlines()]
    assert in_parent == before
    assert in_child[0] != before[0]
    assert in_child[1] != before[1]
