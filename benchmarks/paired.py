"""The statistics of `compare`: do two sides differ, or is it the noise of the machine? Pure functions.

A round measures A B B A. Its ratio of B against A is that of the geometric means, in which a steady drift cancels.
Neighbours of one side (B B within a round, A A from one round to the next) differ by noise alone: their ratios
show how large the noise is in this very run. The ratio of B against A has 1/√2 of it, and their median less again.

A difference counts only when two conditions hold, which noise meets in different ways: the median lies outside the
spread that the noise gives it, and nearly all rounds point to the same side. Of nothing but noise, with or without
heavy tails, bursts or drift, 15 rounds meet both less than once in 1 000 comparisons.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

LIMIT = 1.02
# How many standard errors a median of nothing but noise may be away.
SIGMAS = 3.0
# A normal distribution has 80 % of its values (its 10th to 90th percentile) within so many standard deviations.
NORMAL_80 = 1.2816
# The standard error of a median of normal values is so much larger than that of their mean.
MEDIAN_ERROR = 1.2533
# How likely it may be that so many rounds point to one side by chance.
CHANCE = 0.02


class Verdict(Enum):
    NONE = "none"
    BETTER = "better"
    WORSE = "worse"
    OVER_LIMIT = "OVER LIMIT"
    """Worse, and by more than the limit."""


class Round(NamedTuple):
    """One number of each measurement of a round, in the order in which they were made."""

    first_a: float
    first_b: float
    second_b: float
    second_a: float


@dataclass(frozen=True)
class Comparison:
    a: float
    b: float
    """The medians of all measurements of each side. Their ratio is not `ratio`, which is paired."""
    ratio: float
    spread: float
    """A factor: noise alone gives a ratio from 1/spread to spread."""
    verdict: Verdict


def pair_ratio(measured: Round) -> float:
    """B against A in one round."""
    return math.sqrt(measured.first_b * measured.second_b / (measured.first_a * measured.second_a))


def repeat_ratios(rounds: Sequence[Round]) -> list[float]:
    """B against B within each round and A against A from each to the next: 1 but for noise.

    Neighbours only: A and B are compared as neighbours, too, and a machine changes more in a longer time.
    """
    of_b = [measured.second_b / measured.first_b for measured in rounds]
    return of_b + [later.first_a / earlier.second_a for earlier, later in pairwise(rounds)]


def spread_of_median(rounds: Sequence[Round]) -> float:
    """The factor up to which the median of the pair ratios is noise, judged by the repeats. At least 1."""
    noise = sorted(abs(math.log(ratio)) for ratio in repeat_ratios(rounds))
    # Beyond the percentile may lie any few outliers: the median does not see them either.
    deviation = noise[min(math.ceil(0.8 * (len(noise) + 1)), len(noise)) - 1] / NORMAL_80
    error = MEDIAN_ERROR * deviation / math.sqrt(2) / math.sqrt(len(rounds))
    return math.exp(error * sigmas(len(noise)))


def sigmas(values: int) -> float:
    """SIGMAS, widened as Student's distribution is where the deviation itself is judged by few values."""
    return SIGMAS + (SIGMAS**3 + SIGMAS) / (4 * values)


def agreement(rounds: int) -> int:
    """How many of so many rounds must point to one side. All of them, where there are few."""
    for needed in range(rounds // 2 + 1, rounds):
        if 2 * sum(math.comb(rounds, k) for k in range(needed, rounds + 1)) / 2**rounds <= CHANCE:
            return needed
    return rounds


def compare(rounds: Sequence[Round], *, more_is_better: bool = False, limit: float = LIMIT) -> Comparison:
    """B against A. Raises ValueError without a round, and for a number that is not positive."""
    if not rounds or min(min(measured) for measured in rounds) <= 0:
        raise ValueError("there must be a round, and every measured number must be positive")
    ratios = [pair_ratio(measured) for measured in rounds]
    ratio = statistics.median(ratios)
    spread = spread_of_median(rounds)
    return Comparison(
        a=statistics.median([value for measured in rounds for value in (measured.first_a, measured.second_a)]),
        b=statistics.median([value for measured in rounds for value in (measured.first_b, measured.second_b)]),
        ratio=ratio,
        spread=spread,
        verdict=judge(ratios, spread, more_is_better=more_is_better, limit=limit),
    )


def judge(ratios: Sequence[float], spread: float, *, more_is_better: bool, limit: float) -> Verdict:
    costs = [1 / ratio if more_is_better else ratio for ratio in ratios]
    cost = statistics.median(costs)
    if 1 / spread <= cost <= spread:
        return Verdict.NONE
    same_side = sum(value > 1 if cost > 1 else value < 1 for value in costs)
    if same_side < agreement(len(costs)):
        return Verdict.NONE
    if cost < 1:
        return Verdict.BETTER
    return Verdict.OVER_LIMIT if cost > limit else Verdict.WORSE
