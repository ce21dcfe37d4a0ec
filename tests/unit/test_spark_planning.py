"""How the driver plans while the server is away."""

from __future__ import annotations

import pytest

from jetstream_sync.errors import ConnectionLostError, StreamNotFoundError
from jetstream_sync.spark.planning import patiently


def test_planning_waits_for_the_server_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """An operator sees why no batch begins, and when it goes on."""
    outcomes: list[Exception | int] = [ConnectionLostError("the server is away"), 7]

    def ask() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert patiently(ask) == 7
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "planning a batch: the server is away; waiting up to 60 s" in caplog.text
    assert "planning a batch: goes on after" in caplog.text


def test_planning_does_not_wait_for_what_no_time_mends() -> None:
    """A stream that does not exist is an error at once."""
    with pytest.raises(StreamNotFoundError):
        patiently(lambda: (_ for _ in ()).throw(StreamNotFoundError(404, 10059, "stream not found")))
