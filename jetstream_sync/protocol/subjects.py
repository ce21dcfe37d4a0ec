"""Subjects and names: validation before anything is sent, inboxes, unique ids.

The server splits a control line at space, tab, CR and LF, so no name may contain them. Unless it runs in pedantic
mode, the server checks little else. A wildcard is a whole token: `*`, or `>` at the end. Inside a longer token
both are ordinary characters. So publishing to `a.b*c` is allowed; it reaches a subscription to `a.*`. Subscribing
to it is refused: the star would match only itself, which is hardly what the caller means.
"""

from __future__ import annotations

import itertools
import os
import re
import weakref
from collections.abc import Callable
from typing import ClassVar

from .._platform import on_fork
from ..errors import BadSubjectError

__all__ = [
    "Nuid",
    "api_prefix",
    "inbox_prefix",
    "new_inbox",
    "next_nuid",
    "publish_subject",
    "queue_name",
    "subject_matches",
    "subscribe_subject",
    "valid_name",
]

# Validated subjects are cached: most programs publish to few. The cache is emptied when full; long ones stay out.
CACHED_SUBJECTS = 4096
CACHED_LENGTH = 256
# An invalid subject may be a whole document passed by mistake: errors show its start.
SHOWN_CHARACTERS = 128

_BLANK_OR_CONTROL = re.compile(r"[\x00-\x20\x7f]")
# What the server forbids in names of streams and consumers, and control characters.
_FORBIDDEN_IN_NAME = re.compile(r"[\x00-\x20\x7f.*>/\\]")

_publish_cache: dict[str, bytes] = {}


def publish_subject(subject: str) -> bytes:
    """`subject` as bytes, checked for publishing. Raises `BadSubjectError`, or `TypeError` if it is not a str."""
    try:
        return _publish_cache[subject]
    except (KeyError, TypeError):
        pass
    encoded = _encode("subject", subject)
    for token in _tokens("subject", subject):
        if token in ("*", ">"):
            raise BadSubjectError(f"subject {_shown(subject)} has the wildcard {token!r}: not for publishing")
    if len(subject) <= CACHED_LENGTH:
        if len(_publish_cache) >= CACHED_SUBJECTS:
            _publish_cache.clear()
        _publish_cache[subject] = encoded
    return encoded


def subscribe_subject(subject: str) -> bytes:
    """`subject` as bytes, checked for subscribing. Raises `BadSubjectError`, or `TypeError` if it is not a str."""
    encoded = _encode("subject", subject)
    tokens = _tokens("subject", subject)
    for token in tokens:
        if len(token) > 1 and ("*" in token or ">" in token):
            raise BadSubjectError(
                f"subject {_shown(subject)} has a wildcard inside the token {_shown(token)}: "
                "a wildcard must be a whole token"
            )
    if ">" in tokens[:-1]:
        raise BadSubjectError(f"subject {_shown(subject)} has '>' before its end: it must be the last token")
    return encoded


def queue_name(name: str) -> bytes:
    """The name of a queue group as bytes. Raises `BadSubjectError`, or `TypeError` if it is not a str."""
    return _encode("queue name", name)


def valid_name(kind: str, name: str) -> str:
    """`name`, checked as the name of a stream or consumer. Raises `BadSubjectError`, which calls it `kind`."""
    _encode(kind, name)
    bad = _FORBIDDEN_IN_NAME.search(name)
    if bad is not None:
        raise BadSubjectError(
            f"{kind} {_shown(name)} has {bad[0]!r} at position {bad.start()}: "
            "dots, wildcards, slashes and blanks are not allowed"
        )
    return name


def inbox_prefix(prefix: str) -> str:
    """`prefix`, checked as the prefix of inboxes. Raises `BadSubjectError`."""
    return _prefix("inbox prefix", prefix)


def api_prefix(prefix: str) -> str:
    """`prefix`, checked as the prefix of the JetStream API's subjects. Raises `BadSubjectError`."""
    return _prefix("API prefix", prefix)


def _prefix(kind: str, prefix: str) -> str:
    _encode(kind, prefix)
    _tokens(kind, prefix)
    if "*" in prefix or ">" in prefix:
        raise BadSubjectError(f"{kind} {_shown(prefix)} has a wildcard")
    return prefix


def _encode(kind: str, text: str) -> bytes:
    """`text` as bytes, unless it is empty or would break a control line."""
    if not isinstance(text, str):
        raise TypeError(f"{kind} must be str, not {type(text).__name__}")
    if not text:
        raise BadSubjectError(f"{kind} is empty")
    bad = _BLANK_OR_CONTROL.search(text)
    if bad is not None:
        raise BadSubjectError(
            f"{kind} {_shown(text)} has {bad[0]!r} at position {bad.start()}: no blanks or control characters"
        )
    try:
        # Received subjects that are not UTF-8 are decoded the same way, so that a reply can be sent to them.
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadSubjectError(
            f"{kind} {_shown(text)} has {text[error.start]!r} at position {error.start}: not UTF-8"
        ) from None


def _tokens(kind: str, subject: str) -> list[str]:
    tokens = subject.split(".")
    if "" in tokens:
        raise BadSubjectError(f"{kind} {_shown(subject)} has an empty token (a dot at an end, or two in a row)")
    return tokens


def _shown(text: str) -> str:
    return repr(text) if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]!r}…"


def subject_matches(pattern: str, subject: str) -> bool:
    """Whether a subscription to `pattern` receives messages published to `subject`. Both must be valid."""
    wanted = pattern.split(".")
    tokens = subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(w in ("*", t) for w, t in zip(wanted, tokens, strict=True))


# --- unique ids ---------------------------------------------------------------------------------

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]
_PREFIX_LENGTH = 12
_SEQUENCE_LENGTH = 10


class Nuid:
    """Creates ids of 22 base-62 characters: 12 random ones, then a sequence with a random start and step.

    Thread-safe without a lock: `next` of `itertools.count` is atomic. A forked child draws new random numbers, so
    it never repeats its parent's ids.
    """

    __slots__ = ("__weakref__", "_state")

    _all: ClassVar[weakref.WeakSet[Nuid]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._seed()
        self._all.add(self)

    def _seed(self) -> None:
        prefix = _base62(int.from_bytes(os.urandom(16), "big"), _PREFIX_LENGTH)
        # The start is in the lower half of the sequence's range: more than 10**15 ids follow before it runs out.
        start = int.from_bytes(os.urandom(8), "big") % (62**_SEQUENCE_LENGTH // 2)
        step = 33 + os.urandom(1)[0]
        self._state = (prefix, itertools.count(start, step))  # one store: another thread may be reading it

    def next(self) -> str:
        """A new id."""
        prefix, sequence = self._state
        return prefix + _base62(next(sequence), _SEQUENCE_LENGTH)

    @classmethod
    def _seed_all(cls) -> None:
        for nuid in list(cls._all):
            nuid._seed()


def _base62(number: int, length: int) -> str:
    """The last `length` (an even number) digits of `number`."""
    pairs = []
    for _ in range(length // 2):
        number, pair = divmod(number, 3844)
        pairs.append(_PAIRS[pair])
    return "".join(reversed(pairs))


on_fork(Nuid._seed_all)

_nuid = Nuid()
next_nuid: Callable[[], str] = _nuid.next


def new_inbox(prefix: str = "_INBOX") -> str:
    """A unique subject below `prefix`, which the caller has validated."""
    return f"{prefix}.{next_nuid()}"
