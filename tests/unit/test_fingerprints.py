"""Fingerprints of rows and the counting of those that repeat."""

from __future__ import annotations

import random
from collections import Counter
from struct import pack

import pytest

from jetstream_sync.spark import fingerprints as module
from jetstream_sync.spark.fingerprints import Occurrences, fingerprints


def packed(numbers: list[int]) -> bytes:
    return pack(f"={len(numbers)}Q", *numbers)


def test_fingerprints_never_change() -> None:
    """Ids in streams are made of them: another Python or another version gives the same."""
    rows = [b"s.a 1\r\n\r\nx", memoryview(b"s.a 0\r\n\r\n"), b""]
    assert fingerprints(rows).hex(" ", 8) == "9c50d418e3e1ae60 94f83eec267e3aa9 e3b0c44298fc1c14"
    assert fingerprints([]) == b""


@pytest.mark.parametrize("max_in_set", [0, 10, 100, 1 << 17])
@pytest.mark.parametrize("distinct", [1, 7, 300, 1 << 60])
def test_occurrences_are_counted(monkeypatch: pytest.MonkeyPatch, max_in_set: int, distinct: int) -> None:
    """As a dict of all would count them, in a set and in a table that grows, over many calls."""
    monkeypatch.setattr(module, "MAX_IN_SET", max_in_set)
    monkeypatch.setattr(module, "FIRST_SLOTS", 4)
    chance = random.Random(distinct)
    mine, counts = Occurrences(), Counter[int]()
    for size in (0, 1, 5, 100, 3, 1000, 17):
        numbers = [chance.randrange(1, distinct + 1) for _ in range(size)]
        expected = []
        for number in numbers:
            expected.append(counts[number])
            counts[number] += 1
        assert mine.count(packed(numbers)) == (expected if any(expected) else None)


@pytest.mark.parametrize("max_in_set", [0, 100])
def test_zero_is_a_fingerprint_like_others(monkeypatch: pytest.MonkeyPatch, max_in_set: int) -> None:
    """It is counted, though 0 marks an empty slot of the table."""
    monkeypatch.setattr(module, "MAX_IN_SET", max_in_set)
    mine = Occurrences()
    assert mine.count(packed([0, 5])) is None
    assert mine.count(packed([5, 0, 0])) == [1, 1, 2]


def test_neighbours_in_the_table_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers with the same lowest bits share a place to begin at, also at the end of the table."""
    monkeypatch.setattr(module, "MAX_IN_SET", 0)
    monkeypatch.setattr(module, "FIRST_SLOTS", 16)
    numbers = [15 + 16 * each for each in range(10)]
    mine = Occurrences()
    assert mine.count(packed(numbers)) is None
    assert mine.count(packed(numbers)) == [1] * 10
