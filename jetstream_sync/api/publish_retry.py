"""What the answer to a publish means for the next try: the one policy of publish() and publish_async(). Pure.

| the answer to a try                                    | meaning    | asked again                             |
|--------------------------------------------------------|------------|-----------------------------------------|
| an ack, a refusal for good                             | FINAL      | no                                      |
| no stream responded; 10008, 10009, 10118, 10163, 10167 | NOT_STORED | `retries` times, `retry_wait` apart     |
| none: not connected, and so not sent                   | NOT_STORED | `retries` times, `retry_wait` apart     |
| none: not connected, and the buffer is full            | NOT_TAKEN  | no: the caller is to know at once       |
| 10158: a message of this id is being stored            | IN_PROCESS | until the deadline; then comes an ack   |
| none: timed out, connection lost                       | NO_ANSWER  | with a message id only, `retries` times |

Without a message id the stream cannot tell a repeat from a new message. So what may be stored is not sent again.

While an earlier copy may be stored, NOT_STORED and NOT_TAKEN say nothing about that copy. It is asked for until
the deadline then, like IN_PROCESS, and the end is no refusal: it is not known whether the message is stored.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..errors import (
    APIError,
    ConnectionLostError,
    NatsError,
    NoStreamResponseError,
    OutboundBufferLimitError,
    TimeoutError,
)

DEFAULT_RETRIES = 2
DEFAULT_RETRY_WAIT = 0.25
# However many tries there are to be: a reply under load may well take some hundred milliseconds.
MIN_TRY_SECONDS = 1.0
# Between two questions for a copy that may be stored: a commit takes milliseconds, an election some seconds.
ASK_SECONDS = 0.25
# No further question is asked in a shorter time than this.
MIN_ASK_SECONDS = 0.02

# Nothing was stored and trying again helps: no leader at the moment (10008, 10009), stream offline (10118), other
# messages for the same subject on their way (10163), more messages at once than the server queues (10167).
_REFUSED_FOR_NOW = frozenset({10008, 10009, 10118, 10163, 10167})
_DUPLICATE_IN_PROCESS = 10158


class Meaning(Enum):
    """What an answer, or its absence, says about the message."""

    FINAL = "final"
    NOT_STORED = "not stored"
    IN_PROCESS = "in process"
    NO_ANSWER = "no answer"
    NOT_TAKEN = "not taken"


class Verdict(NamedTuple):
    """What to do after a try, and what is known then."""

    pause: float | None
    """Seconds until the next try; None: this was the last one."""
    retries: int
    """How many further tries there may be."""
    maybe_stored: bool
    """Whether a copy that was sent may be stored."""


def meaning_of(error: NatsError) -> Meaning:
    """The meaning of what a try raised."""
    if isinstance(error, APIError):
        if error.err_code == _DUPLICATE_IN_PROCESS:
            return Meaning.IN_PROCESS
        return Meaning.NOT_STORED if error.err_code in _REFUSED_FOR_NOW else Meaning.FINAL
    if isinstance(error, NoStreamResponseError):
        return Meaning.NOT_STORED
    if isinstance(error, OutboundBufferLimitError):
        return Meaning.NOT_TAKEN
    if isinstance(error, (TimeoutError, ConnectionLostError)):
        return Meaning.NOT_STORED if error.sent is False else Meaning.NO_ANSWER
    return Meaning.FINAL


def judge(
    meaning: Meaning, *, has_msg_id: bool, retries: int, retry_wait: float, maybe_stored: bool, left: float
) -> Verdict:
    """What to do after a try that ended with `meaning`, `left` seconds before the deadline."""
    give_up = Verdict(None, retries, maybe_stored or meaning is Meaning.NO_ANSWER)
    if meaning is Meaning.FINAL or (meaning is Meaning.NOT_TAKEN and not maybe_stored):
        return Verdict(None, retries, False)
    if meaning is not Meaning.NOT_STORED and not has_msg_id:
        return give_up
    if meaning is Meaning.IN_PROCESS or (maybe_stored and meaning is not Meaning.NO_ANSWER):
        return Verdict(_until_asking(left), retries, True)
    if not retries or left <= retry_wait:
        return give_up
    return Verdict(retry_wait, retries - 1, give_up.maybe_stored)


def pause_before_asking(meaning: Meaning, left: float) -> float | None:
    """Seconds until the next question for an id that is being stored; None: nothing to ask for, or no time."""
    return _until_asking(left) if meaning is Meaning.IN_PROCESS else None


def _until_asking(left: float) -> float | None:
    pause = min(ASK_SECONDS, left / 2)
    return pause if pause >= MIN_ASK_SECONDS else None


def try_seconds(left: float, retries: int) -> float:
    """How long one try with a message id waits for its answer: one that was lost in a crash never comes.

    A message without id must not be sent twice. Its one try has all the time.
    """
    return min(left, max(left / (retries + 1), MIN_TRY_SECONDS))
