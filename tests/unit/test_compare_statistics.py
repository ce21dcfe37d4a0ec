"""The statistics of `make compare`: pairing, medians, spread, verdict."""

from __future__ import annotations

import math
import random
from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from benchmarks.paired import (
    LIMIT,
    Round,
    Verdict,
    agreement,
    compare,
    pair_ratio,
    repeat_ratios,
    sigmas,
    spread_of_median,
)
from benchmarks.scenarios import SCENARIOS, select

Noise = Callable[[random.Random], float]


def normal(rng: random.Random) -> float:
    return rng.gauss(0, 0.02)


def heavy_tails(rng: random.Random) -> float:
    return rng.gauss(0, 0.015) / math.sqrt(rng.expovariate(1) + 1e-6)


def two_modes(rng: random.Random) -> float:
    return rng.gauss(0, 0.005) + (0.05 if rng.random() < 0.3 else 0)


def rounds_of(noise: Noise, rng: random.Random, *, factor: float = 1.0, count: int = 15) -> list[Round]:
    """B is `factor` times A, and every measurement has noise of its own."""
    made = []
    for _ in range(count):
        a1, b1, b2, a2 = (100 * math.exp(noise(rng)) for _ in range(4))
        made.append(Round(a1, b1 * factor, b2 * factor, a2))
    return made


def even(factor: float, noise: float = 0.01, count: int = 15) -> list[Round]:
    """Rounds with known noise: neighbours of one side differ by `noise`, and B against A is `factor` in all."""
    up, down = 100 * math.exp(noise / 2), 100 * math.exp(-noise / 2)
    return [Round(down, factor * down, factor * up, up)] * count


# --- pairing ---------------------------------------------------------------------------------------------


def test_pair_ratio_is_that_of_the_geometric_means() -> None:
    """B against A in a round: what one measurement is too high by counts half."""
    assert pair_ratio(Round(100, 110, 110, 100)) == pytest.approx(1.1)
    assert pair_ratio(Round(50, 200, 50, 200)) == pytest.approx(1)


def test_pair_ratio_steady_drift_cancels() -> None:
    """A machine that gets slower by the same factor from run to run does not make B slower."""
    assert pair_ratio(Round(100, 100 * 1.1, 100 * 1.1**2, 100 * 1.1**3)) == pytest.approx(1)


def test_repeat_ratios_compare_neighbours_of_one_side() -> None:
    """B against B within a round and A against A from one to the next, whatever B is against A."""
    rounds = [Round(100, 300, 330, 90), Round(81, 300, 300, 100), Round(110, 200, 180, 100)]
    assert repeat_ratios(rounds) == pytest.approx([1.1, 1, 0.9, 0.9, 1.1])
    assert repeat_ratios(rounds[:1]) == pytest.approx([1.1])


# --- medians ---------------------------------------------------------------------------------------------


def test_ratio_is_the_median_of_the_rounds() -> None:
    """One round that went wrong does not move the ratio."""
    rounds = [Round(100, 105, 105, 100)] * 4 + [Round(100, 900, 900, 100)]
    assert compare(rounds).ratio == pytest.approx(1.05)


def test_sides_are_shown_as_medians_of_all_their_measurements() -> None:
    """What stands beside the ratio is the median of all of A's numbers, and of all of B's."""
    found = compare([Round(10, 20, 24, 12), Round(11, 21, 23, 13)])
    assert (found.a, found.b) == (11.5, 22)


@pytest.mark.parametrize("rounds", [[], [Round(1, 1, 1, 0)], [Round(1, 1, 1, 1), Round(1, -1, 1, 1)]])
def test_compare_without_rounds_or_with_a_number_that_is_not_positive_raises(rounds: list[Round]) -> None:
    """A ratio of nothing, or by zero, is an error and no verdict."""
    with pytest.raises(ValueError, match="positive"):
        compare(rounds)


# --- spread ----------------------------------------------------------------------------------------------


def test_spread_is_none_without_noise() -> None:
    """Where all repeats are equal, every difference is one."""
    assert spread_of_median([Round(100, 120, 120, 100)] * 15) == 1


def test_spread_does_not_depend_on_the_ratio() -> None:
    """The spread is the noise of each side, not the difference of the sides."""
    rng = random.Random(1)
    rounds = rounds_of(normal, rng)
    doubled = [Round(a1, 2 * b1, 2 * b2, a2) for a1, b1, b2, a2 in rounds]
    assert spread_of_median(doubled) == pytest.approx(spread_of_median(rounds))


def test_spread_narrows_with_the_root_of_the_rounds() -> None:
    """Four times the rounds give half the spread, but for what few rounds add."""
    few, many = even(1.0, 0.02, count=16), even(1.0, 0.02, count=64)
    ratio = math.log(spread_of_median(few)) / math.log(spread_of_median(many))
    assert ratio == pytest.approx(2 * sigmas(31) / sigmas(127))


def test_spread_ignores_a_few_outliers() -> None:
    """Up to a fifth of the repeats may be off by any factor: the median does not see those rounds either."""
    rounds = even(1.0, 0.02)
    assert spread_of_median([Round(100, 100, 100, 500), *rounds[1:]]) < 1.02


def test_spread_covers_the_median_of_noise() -> None:
    """The median of noise alone lies outside less than once in a hundred runs, and the spread is not wide."""
    rng = random.Random(2)
    outside, spreads = 0, []
    for _ in range(500):
        found = compare(rounds_of(normal, rng))
        spreads.append(found.spread)
        outside += not 1 / found.spread <= found.ratio <= found.spread
    assert outside <= 5
    assert sorted(spreads)[250] < 1.025


# --- verdict ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "needed"), [(5, 5), (6, 6), (7, 7), (15, 13), (30, 22)])
def test_agreement_leaves_chance_two_percent(rounds: int, needed: int) -> None:
    """So many rounds of one direction are rare by chance; of few rounds all must agree."""
    assert agreement(rounds) == needed


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1.0, Verdict.NONE),
        (1.002, Verdict.NONE),
        (1.015, Verdict.WORSE),
        (1.03, Verdict.OVER_LIMIT),
        (0.97, Verdict.BETTER),
    ],
)
def test_verdict_by_what_less_is_better_of(factor: float, verdict: Verdict) -> None:
    """Inside the spread none; outside better, worse, or over the limit."""
    assert compare(even(factor)).verdict is verdict


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.03, Verdict.BETTER), (0.985, Verdict.WORSE), (1 / 1.03, Verdict.OVER_LIMIT), (1.002, Verdict.NONE)],
)
def test_verdict_by_what_more_is_better_of(factor: float, verdict: Verdict) -> None:
    """A rate is judged the other way round, and its ratio is still that of B against A."""
    found = compare(even(factor), more_is_better=True)
    assert found.verdict is verdict
    assert found.ratio == pytest.approx(factor)


def test_verdict_at_the_limit_is_not_over_it() -> None:
    """1.02 × may be; more may not."""
    assert compare([Round(100, 102, 102, 100)] * 15, limit=LIMIT + 1e-9).verdict is Verdict.WORSE
    assert compare([Round(100, 102.1, 102.1, 100)] * 15).verdict is Verdict.OVER_LIMIT


def test_verdict_needs_most_rounds_to_agree() -> None:
    """A median far outside is no difference while a third of the rounds say the opposite."""
    rounds = [Round(100, 120, 120, 100)] * 10 + [Round(100, 90, 90, 100)] * 5
    assert compare(rounds).verdict is Verdict.NONE
    assert compare(rounds[:10] + [Round(100, 90, 90, 100)] * 1).verdict is Verdict.OVER_LIMIT


@pytest.mark.parametrize("noise", [normal, heavy_tails, two_modes])
@pytest.mark.parametrize("count", [5, 15])
def test_verdict_of_noise_alone_is_none(noise: Noise, count: int) -> None:
    """A against A: of 300 comparisons, which are those of a dozen whole runs, at most a few are marked."""
    rng = random.Random(3)
    verdicts = [compare(rounds_of(noise, rng, count=count)).verdict for _ in range(300)]
    assert sum(verdict is not Verdict.NONE for verdict in verdicts) <= (1 if count == 15 else 4)


@pytest.mark.parametrize("noise", [normal, heavy_tails, two_modes])
def test_verdict_of_a_difference_in_noise_is_found(noise: Noise) -> None:
    """A twentieth more in two per cent of noise is seen in nearly all of the runs."""
    rng = random.Random(4)
    verdicts = [compare(rounds_of(noise, rng, factor=1.05)).verdict for _ in range(100)]
    assert verdicts.count(Verdict.OVER_LIMIT) >= 85


# --- choosing scenarios -----------------------------------------------------------------------------------


def test_scenario_keys_are_unique_and_can_be_listed() -> None:
    """`ONLY=a,b` needs keys without commas and blanks, each of one scenario."""
    keys = [scenario.key for scenario in SCENARIOS]
    assert len(set(keys)) == len(keys)
    assert not [key for key in keys if set(key) & set(", *?[]'")]


def test_select_takes_keys_and_patterns() -> None:
    """Keys and shell patterns, in the order of the table; nothing selects everything."""
    assert select("") == SCENARIOS
    assert [scenario.key for scenario in select("push, core")] == ["core", "push"]
    assert [scenario.key for scenario in select("publish-*")] == ["publish-async", "publish-async-16k"]


def test_select_unknown_key_raises() -> None:
    """A misspelt key is an error that lists the keys, and does not measure nothing."""
    with pytest.raises(ArgumentTypeError, match=r"'pusch'.*push"):
        select("push,pusch")
