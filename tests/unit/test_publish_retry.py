"""The policy of retries: what an answer means, and what follows from it."""

from __future__ import annotations

import random

import pytest

from jetstream_sync.api.publish_retry import (
    ASK_SECONDS,
    MIN_ASK_SECONDS,
    MIN_TRY_SECONDS,
    Meaning,
    Verdict,
    judge,
    meaning_of,
    pause_before_asking,
    try_seconds,
)
from jetstream_sync.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    NatsError,
    NoStreamResponseError,
    OutboundBufferLimitError,
    PermissionsError,
    TimeoutError,
    api_error,
)

FINAL, NOT_STORED, IN_PROCESS, NO_ANSWER, NOT_TAKEN = Meaning


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (api_error(503, 10008, "JetStream system temporarily unavailable"), NOT_STORED),
        (api_error(503, 10009, "cluster can not handle request"), NOT_STORED),
        (api_error(500, 10118, "stream is offline"), NOT_STORED),
        (api_error(503, 10163, "expected last sequence per subject temporarily unavailable"), NOT_STORED),
        (api_error(429, 10167, "too many requests"), NOT_STORED),
        (NoStreamResponseError("s"), NOT_STORED),
        (api_error(409, 10158, "duplicate message id is in process"), IN_PROCESS),
        (TimeoutError("no reply"), NO_ANSWER),
        (ConnectionLostError("lost"), NO_ANSWER),
        (OutboundBufferLimitError(10, 5), NOT_TAKEN),
        (api_error(400, 10071, "wrong last sequence: 1"), FINAL),
        (api_error(400, 10060, "expected stream does not match"), FINAL),
        (api_error(503, 10077, "maximum messages exceeded"), FINAL),
        (api_error(500, 10023, "insufficient resources"), FINAL),
        (ConnectionClosedError(), FINAL),
        (PermissionsError("denied"), FINAL),
    ],
    ids=lambda value: str(value)[:40],
)
def test_meaning_of_an_error(error: NatsError, meaning: Meaning) -> None:
    """Each error that a try can raise has one meaning."""
    assert meaning_of(error) is meaning


@pytest.mark.parametrize(
    ("meaning", "has_msg_id", "retries", "maybe_stored", "left", "verdict"),
    [
        # Final, whatever else is known.
        (FINAL, True, 2, True, 5.0, Verdict(None, 2, False)),
        (FINAL, False, 2, False, 5.0, Verdict(None, 2, False)),
        # Not taken: told at once, unless an earlier copy may be stored.
        (NOT_TAKEN, True, 2, False, 5.0, Verdict(None, 2, False)),
        (NOT_TAKEN, False, 2, False, 5.0, Verdict(None, 2, False)),
        (NOT_TAKEN, True, 0, True, 5.0, Verdict(ASK_SECONDS, 0, True)),
        (NOT_TAKEN, True, 2, True, 0.03, Verdict(None, 2, True)),
        # Refused for now: with and without an id, as long as there are retries and time.
        (NOT_STORED, False, 2, False, 5.0, Verdict(0.1, 1, False)),
        (NOT_STORED, True, 1, False, 5.0, Verdict(0.1, 0, False)),
        (NOT_STORED, True, 0, False, 5.0, Verdict(None, 0, False)),
        (NOT_STORED, False, 2, False, 0.1, Verdict(None, 2, False)),
        # Refused for now, while an earlier copy may be stored: until the deadline, and never a refusal.
        (NOT_STORED, True, 0, True, 5.0, Verdict(ASK_SECONDS, 0, True)),
        (NOT_STORED, True, 2, True, 0.2, Verdict(0.1, 2, True)),
        (NOT_STORED, True, 2, True, 0.03, Verdict(None, 2, True)),
        # In process: until the deadline, whatever the retries. Without an id it makes no sense, and is final.
        (IN_PROCESS, True, 2, False, 5.0, Verdict(ASK_SECONDS, 2, True)),
        (IN_PROCESS, True, 0, True, 5.0, Verdict(ASK_SECONDS, 0, True)),
        (IN_PROCESS, True, 0, False, 0.0, Verdict(None, 0, True)),
        (IN_PROCESS, False, 2, False, 5.0, Verdict(None, 2, False)),
        # No answer: it may be stored, and only an id makes it safe to ask.
        (NO_ANSWER, True, 2, False, 5.0, Verdict(0.1, 1, True)),
        (NO_ANSWER, True, 0, False, 5.0, Verdict(None, 0, True)),
        (NO_ANSWER, True, 2, False, -0.01, Verdict(None, 2, True)),
        (NO_ANSWER, False, 2, False, 5.0, Verdict(None, 2, True)),
    ],
)
def test_verdict(
    meaning: Meaning, has_msg_id: bool, retries: int, maybe_stored: bool, left: float, verdict: Verdict
) -> None:
    """The table of the module, row by row, with a retry_wait of 0.1 s."""
    found = judge(
        meaning, has_msg_id=has_msg_id, retries=retries, retry_wait=0.1, maybe_stored=maybe_stored, left=left
    )
    assert found == verdict


def test_any_sequence_of_answers_ends_before_the_deadline_and_tells_the_truth() -> None:
    """Random answers: the pauses add up to less than the timeout; what may be stored is never told as refused."""
    pick = random.Random(7)
    for _ in range(2000):
        has_msg_id, retries, left = pick.random() < 0.7, pick.randrange(4), pick.uniform(0.0, 3.0)
        maybe_stored = unanswered = False
        tries = 0
        while True:
            tries += 1
            meaning = pick.choice([NOT_STORED, IN_PROCESS, NO_ANSWER, NOT_STORED, NOT_TAKEN])
            unanswered = unanswered or meaning is NO_ANSWER
            verdict = judge(
                meaning,
                has_msg_id=has_msg_id,
                retries=retries,
                retry_wait=0.05,
                maybe_stored=maybe_stored,
                left=left,
            )
            assert verdict.maybe_stored or not unanswered
            if verdict.pause is None:
                break
            assert has_msg_id or not unanswered, "sent twice without an id"
            assert MIN_ASK_SECONDS <= verdict.pause < left
            left -= verdict.pause
            retries, maybe_stored = verdict.retries, verdict.maybe_stored
        assert tries < 200


@pytest.mark.parametrize(
    ("left", "retries", "share"),
    [(5.0, 2, 5 / 3), (5.0, 0, 5.0), (15.0, 59, 1.0), (0.4, 3, 0.4), (3.0, 5, 1.0), (30.0, 2, 10.0)],
)
def test_share_of_one_try(left: float, retries: int, share: float) -> None:
    """The tries share the time that is left, but each gets at least a second if there is one."""
    assert try_seconds(left, retries) == pytest.approx(share)
    assert share >= min(left, MIN_TRY_SECONDS)


def test_pause_before_asking_for_a_batch_again() -> None:
    """Only an id that is being stored is worth a second question."""
    assert pause_before_asking(IN_PROCESS, 5.0) == ASK_SECONDS
    assert pause_before_asking(IN_PROCESS, 0.01) is None
    assert pause_before_asking(FINAL, 5.0) is pause_before_asking(NOT_STORED, 5.0) is None
