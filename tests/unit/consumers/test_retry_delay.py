"""The delay before a message comes again whose handling failed."""

from __future__ import annotations

import pytest

from jetstream_sync.consumers.retry_delay import retry_delay


@pytest.mark.parametrize(
    ("num_delivered", "delay"),
    [(0, 1.0), (1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (8, 60.0), (10**9, 60.0)],
)
def test_delay_doubles_up_to_a_minute(num_delivered: int, delay: float) -> None:
    """1 s × 2^(num_delivered − 1), at most 60 s."""
    assert retry_delay(num_delivered) == retry_delay(num_delivered, []) == delay


@pytest.mark.parametrize(("num_delivered", "delay"), [(0, 0.5), (1, 0.5), (2, 300.0), (3, 7.0), (99, 7.0)])
def test_delay_of_the_consumer_wins(num_delivered: int, delay: float) -> None:
    """The consumer's backoff for that delivery as it is, its last value from then on."""
    assert retry_delay(num_delivered, [0.5, 300.0, 7.0]) == delay
