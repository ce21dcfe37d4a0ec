"""The search for the last messages of a stream, against a model of the stream."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from jetstream_sync import RawStreamMsg
from jetstream_sync.api.tail import last_messages


class Model:
    """A stream with these sequences; counts requests."""

    def __init__(self, present: list[int]) -> None:
        self._present = present
        self.requests = 0

    def first_at(self, seq: int) -> RawStreamMsg | None:
        self.requests += 1
        index = bisect_left(self._present, seq)
        return RawStreamMsg(subject="s", seq=self._present[index]) if index < len(self._present) else None


def tail(model: Model, low: int, high: int, count: int) -> list[int]:
    return [message.seq for message in last_messages(model.first_at, low, high, count)]


@pytest.mark.parametrize("seed", range(20))
def test_last_messages_of_any_stream(seed: int) -> None:
    """Gaps of all sizes at any place: exactly the last messages, in order."""
    pick = random.Random(seed)
    for _ in range(50):
        size = pick.choice([0, 1, 5, 100, 1000])
        density = pick.choice([0.005, 0.1, 0.5, 0.95, 1.0])
        first = pick.choice([1, 77])
        present = [seq for seq in range(first, first + size) if pick.random() < density]
        if pick.random() < 0.3:  # a hole
            start = first + pick.randrange(size + 1)
            present = [seq for seq in present if not start <= seq < start + size // 2]
        count = pick.choice([0, 1, 2, 10, 5000])
        high = first + size - 1
        assert tail(Model(present), first, high, count) == (present[-count:] if count else [])


@pytest.mark.parametrize(
    ("present", "count", "requests"),
    [
        (range(1, 1_000_001), 10, 10),  # nothing is missing: one for each
        ([*range(1, 11), 1_000_000], 10, 120),  # a gap of nearly the whole stream
        ([*range(1, 900_001), 1_000_000], 10, 120),  # a crowd below a gap: it is not read
        (range(1, 1_000_001, 1000), 10, 250),  # one of a thousand
        ([1], 10, 60),
    ],
    ids=["dense", "gap", "crowd", "sparse", "single"],
)
def test_number_of_requests(present: list[int], count: int, requests: int) -> None:
    """It does not grow with the stream."""
    model = Model(list(present))
    assert tail(model, 1, 1_000_000, count) == list(present)[-count:]
    assert model.requests <= requests


def test_messages_that_come_during_the_search_are_left_out() -> None:
    """The tail is that of one moment."""
    assert tail(Model(list(range(1, 31))), 1, 20, 5) == [16, 17, 18, 19, 20]
