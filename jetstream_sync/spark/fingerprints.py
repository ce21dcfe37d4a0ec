"""Fingerprints of rows, and which occurrence of its fingerprint a row is. No I/O, no pyarrow.

Fingerprints are a part of message ids, which streams keep. They are the same in every process and Python.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import sha256

FINGERPRINT_BYTES = 8

# So many numbers are in a set, which is fast and takes 90 bytes for each. More are in a table.
MAX_IN_SET = 1 << 17
FIRST_SLOTS = 1 << 19


def fingerprints(rows: Iterable[bytes | memoryview]) -> bytes:
    """The fingerprints of rows in their canonical form, 8 bytes each, one behind the other.

    A fingerprint is the first 8 bytes of the row's SHA-256, which most processors compute in hardware and which
    every build of Python has.
    """
    digests = memoryview(b"".join([sha256(row).digest() for row in rows]))
    return array("Q", digests.cast("Q")[::4]).tobytes()


class Occurrences:
    """Counts how often each fingerprint has occurred in a task. For one thread."""

    def __init__(self) -> None:
        self._seen: _NumberSet | _NumberTable = _NumberSet()
        self._repeats: dict[int, int] = {}

    def count(self, prints: bytes) -> list[int] | None:
        """How many times each of these had occurred before; None if none had."""
        numbers = memoryview(prints).cast("Q").tolist()
        if isinstance(self._seen, _NumberSet) and len(self._seen) + len(numbers) > MAX_IN_SET:
            self._seen = _NumberTable(self._seen)
        repeated = self._seen.add_all(numbers)
        if not repeated:
            return None
        before = [0] * len(numbers)
        for row in repeated:
            number = numbers[row]
            before[row] = self._repeats[number] = self._repeats.get(number, 0) + 1
        return before


class _NumberSet(set[int]):
    """A set for numbers, most of which are added once."""

    def add_all(self, numbers: list[int]) -> list[int]:
        """Add numbers. Returns the positions of those that are in it already."""
        fresh = set(numbers)
        if len(fresh) == len(numbers) and self.isdisjoint(fresh):
            self.update(fresh)
            return []
        repeated = []
        for row, number in enumerate(numbers):
            if number in self:
                repeated.append(row)
            else:
                self.add(number)
        return repeated


class _NumberTable:
    """A set of very many 64-bit numbers in 12 to 24 bytes for each: a hash table in one array.

    The numbers are random, so their lowest bits are a good place to begin at. The first empty slot from there on
    ends the search.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._slots = array("Q", bytes(8)) * FIRST_SLOTS
        self._used = 0
        self.add_all(list(numbers))

    def add_all(self, numbers: list[int]) -> list[int]:
        """Add numbers. Returns the positions of those that are in it already."""
        if 0 in numbers:  # 0 is an empty slot
            numbers = [number or 1 for number in numbers]
        while (self._used + len(numbers)) * 3 > len(self._slots) * 2:
            self._grow()
        slots, mask = self._slots, len(self._slots) - 1
        repeated = []
        for row, number in enumerate(numbers):
            slot = number & mask
            while held := slots[slot]:
                if held == number:
                    repeated.append(row)
                    break
                slot = (slot + 1) & mask
            else:
                slots[slot] = number
        self._used += len(numbers) - len(repeated)
        return repeated

    def _grow(self) -> None:
        slots = array("Q", bytes(8)) * (2 * len(self._slots))
        mask = len(slots) - 1
        for number in filter(None, self._slots):
            slot = number & mask
            while slots[slot]:
                slot = (slot + 1) & mask
            slots[slot] = number
        self._slots = slots
