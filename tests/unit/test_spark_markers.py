"""Markers of exactlyOnce: what they say, what they mean for a task, which streams can lose them."""

from __future__ import annotations

from typing import Any

import pytest

from jetstream_sync import StreamConfig
from jetstream_sync.spark.markers import (
    Fingerprint,
    Marker,
    Start,
    batch_tag,
    can_roll_up,
    limits_that_remove_markers,
    lost_markers,
    new_batch_id,
    start_of,
    takes_markers,
)


def test_marker_survives_bytes() -> None:
    """A marker is read back as it was written, also one of version 0.1.0; anything else is refused."""
    for marker in (Marker(3, 9, "task"), Marker(3, 9, "task", "0a1b"), Marker(3, 9, "task", "0a1b", ended=True)):
        assert Marker.from_bytes(marker.to_bytes()) == marker
    assert Marker.from_bytes(b'{"epoch":3,"rows":999,"task":"t"}') == Marker(3, 999, "t", None)
    for data in (b"", b"{}", b"[]", b"x", b'{"epoch": "a", "rows": 1, "task": "t"}'):
        with pytest.raises(ValueError, match="marker"):
            Marker.from_bytes(data)


@pytest.mark.parametrize(
    ("last", "named", "expected"),
    [
        (None, False, Start.STORE),
        (Marker(4, 500, "t", "f"), False, Start.STORE),
        (Marker(5, 500, "t", "f"), False, Start.COMPARE),
        (Marker(5, 500, "t", "f"), True, Start.COMPARE),
        (Marker(5, 500, "t"), False, Start.PASS_OVER),
        (Marker(6, 1, "t", "f"), True, Start.DONE),
        (Marker(6, 1, "t", "f"), False, Start.MISMATCH),
        (Marker(6, 1, "t"), False, Start.MISMATCH),
    ],
)
def test_what_the_last_marker_means_for_a_task_of_epoch_5(
    last: Marker | None, named: bool, expected: Start
) -> None:
    """The table of the module: what a task does first."""
    assert start_of(last, 5, named=named) is expected


@pytest.mark.parametrize(
    ("any_marker", "epoch", "named", "last_row_is_ours", "lost"),
    [
        (True, 7, False, True, False),
        (False, 0, False, False, False),
        (False, 7, True, False, False),
        (False, 7, False, False, True),
        (False, 0, False, True, True),
        (False, 0, True, True, True),
    ],
)
def test_when_markers_are_lost(
    any_marker: bool, epoch: int, named: bool, last_row_is_ours: bool, lost: bool
) -> None:
    """Where a row or an earlier epoch of the write is, there must be a marker."""
    found = lost_markers(any_marker=any_marker, epoch=epoch, named=named, last_row_is_ours=last_row_is_ours)
    assert found is lost


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, []),
        ({"max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msgs_per_subject": -1, "retention": "limits"}, []),
        ({"max_age": 3600}, ["max_age=3600"]),
        ({"max_msgs": 10}, ["max_msgs=10"]),
        ({"max_bytes": 1024, "discard": "old"}, ["max_bytes=1024"]),
        ({"max_msgs": 10, "max_bytes": 1024, "discard": "new"}, []),
        ({"max_msgs_per_subject": 5}, ["max_msgs_per_subject=5"]),
        ({"retention": "interest"}, ["retention=interest"]),
        ({"retention": "workqueue"}, ["retention=workqueue"]),
        ({"max_age": 60, "max_msgs": 10}, ["max_age=60", "max_msgs=10"]),
    ],
)
def test_limits_that_remove_markers(settings: dict[str, Any], named: list[str]) -> None:
    """Each limit by its name; discard new removes nothing."""
    assert limits_that_remove_markers(StreamConfig(name="S", subjects=["s.>"], **settings)) == named


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"allow_rollup_hdrs": True}, True),
        ({"allow_rollup_hdrs": True, "deny_purge": True}, False),
    ],
)
def test_where_markers_roll_up(settings: dict[str, Any], expected: bool) -> None:
    assert can_roll_up(StreamConfig(name="S", **settings)) is expected


def test_fingerprint_depends_on_the_rows_alone() -> None:
    """How rows were divided does not matter, their order does."""
    parts, whole = Fingerprint(2), Fingerprint(2)
    parts.add(0, b"1", b"a")
    parts.add(1, b"1", b"b")
    parts.add(0, b"1", memoryview(b"c"))
    parts.add(1, b"1", b"d")
    whole.add(0, b"11", b"ac")
    whole.add(1, b"11", b"bd")
    assert parts.value == whole.value
    others = [(b"11", b"ca", b"bd"), (b"2", b"ac", b"bd"), (b"11", b"bd", b"ac"), (b"11", b"acb", b"d")]
    for lengths, first, second in others:
        other = Fingerprint(2)
        other.add(0, lengths, first)
        other.add(1, b"11", second)
        assert other.value != whole.value


def test_batch_ids_tell_the_write() -> None:
    """Ids of one write begin alike; all have the same length, which a server accepts."""
    mine, yours = batch_tag("query"), batch_tag("another query")
    ids = {new_batch_id(tag) for tag in (mine, mine, yours)}
    assert len(ids) == 3
    assert {len(one) for one in ids} == {22}
    assert sum(one.startswith(mine) for one in ids) == 2


@pytest.mark.parametrize(
    ("version", "takes"),
    [("2.12.0", False), ("2.12.1", True), ("2.12.1-RC.1", True), ("2.15.1", True), ("3.0.0", True), ("", True)],
)
def test_servers_that_take_markers(version: str, takes: bool) -> None:
    """2.12.0 rejects a batch whose last message expects the sequence of its subject. An unknown one is tried."""
    assert takes_markers(version) is takes
