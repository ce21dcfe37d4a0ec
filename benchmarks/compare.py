"""Measure a revision (A) and the present tree (B) on one server, interleaved A B B A, and say what differs.

    python -m benchmarks.compare BASE [--rounds N | --quick] [--only KEYS] [--json PATH]

Both sides are copied into a temporary folder, B with what is not committed. Each measurement is a process of its
own that imports the library from its side, and the benchmark code of the present tree in both cases. One scenario
follows the other, so that a row is there as soon as its rounds are. The statistics are those of `paired`.

Exit status: 1 when a scenario is worse than 1.02 × outside the spread.
"""

from __future__ import annotations

import argparse
import compileall
import io
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .harness import ROOT, Bench, MeasurementError
from .paired import LIMIT, Comparison, Round, Verdict, compare
from .scenarios import Scenario, select

PACKAGE = "jetstream_sync"
ROUNDS, QUICK_ROUNDS = 15, 5
ORDER = "ABBA"

Result = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    key: str
    name: str
    more_is_better: bool = False

    def show(self, value: float) -> str:
        if self.key == "rate":
            return f"{value / 1000:.1f} k/s"
        microseconds = value if self.key == "cpu_us" else value * 1e6
        return f"{microseconds:.2f} µs" if microseconds < 10_000 else f"{microseconds / 1000:.2f} ms"


CPU = Metric("cpu_us", "CPU")
RATE = Metric("rate", "rate", more_is_better=True)
P50 = Metric("p50", "p50")


def metrics(scenario: Scenario) -> list[Metric]:
    return [CPU, RATE if scenario.unit == "rate" else P50]


@dataclass
class Measured:
    """All of one scenario: the results of each round in the order of ORDER, and what they say."""

    scenario: Scenario
    rounds: list[list[Result]] = field(default_factory=list)
    comparisons: dict[str, Comparison] = field(default_factory=dict)

    def conclude(self) -> None:
        for metric in metrics(self.scenario):
            numbers = [Round(*(float(result[metric.key]) for result in results)) for results in self.rounds]
            self.comparisons[metric.key] = compare(numbers, more_is_better=metric.more_is_better)

    @property
    def over_limit(self) -> bool:
        return any(comparison.verdict is Verdict.OVER_LIMIT for comparison in self.comparisons.values())

    def row(self) -> str:
        cells = [cell(metric, self.comparisons[metric.key]) for metric in metrics(self.scenario)]
        return f"| {self.scenario.key:17} | " + " | ".join(cells) + " |"

    def as_json(self) -> dict[str, Any]:
        comparisons = {key: {**asdict(c), "verdict": c.verdict.value} for key, c in self.comparisons.items()}
        return {"name": self.scenario.name, "rounds": self.rounds, "comparisons": comparisons}


CELL = 49
HEADER = f"| {'':17} | {'CPU per message or call':{CELL}} | {'rate or p50':{CELL}} |"
RULE = f"|{'-' * 19}|{'-' * (CELL + 2)}|{'-' * (CELL + 2)}|"


def cell(metric: Metric, found: Comparison) -> str:
    numbers = f"{metric.show(found.a):>10} → {metric.show(found.b):>10}"
    text = f"{numbers}  {found.ratio:.3f} ±{found.spread - 1:.3f}  {found.verdict.value}"
    return f"{text:{CELL}}"


# --- the two sides --------------------------------------------------------------------------------------


def git(*arguments: str) -> bytes:
    finished = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True)
    if finished.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {finished.stderr.decode().strip()}")
    return finished.stdout


def commit_of(revision: str) -> str:
    return git("rev-parse", "--verify", "--short", f"{revision}^{{commit}}").decode().strip()


def present() -> str:
    """The commit of the present tree, and whether the library differs from it."""
    changed = git("status", "--porcelain", "--", PACKAGE)
    return commit_of("HEAD") + (" and local changes" if changed else "")


class Sides:
    """Copies of the library, one for each side, and of the benchmark code, with their bytecode."""

    def __init__(self, folder: Path, base: str) -> None:
        self.code = folder / "code"
        self.checkouts = {"A": folder / "a", "B": folder / "b"}
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit_of(base), PACKAGE))) as archive:
            # The archive is git's own; on Pythons that know filters, not naming one is a warning.
            options: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(self.checkouts["A"], **options)
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / PACKAGE, self.checkouts["B"] / PACKAGE, ignore=ignore)
        # Alone in a folder, which is that of the processes: nothing else there can be imported by mistake.
        shutil.copytree(ROOT / "benchmarks", self.code / "benchmarks", ignore=ignore)
        for compiled in (*self.checkouts.values(), self.code):
            compileall.compile_dir(compiled, quiet=2)

    def measure(self, bench: Bench, side: str, scenario: Scenario) -> Result:
        """One measurement: of several processes the medians. Raises MeasurementError."""
        checkout = self.checkouts[side]
        results = [
            bench.measure("ours", scenario, environment={"PYTHONPATH": str(checkout)}, folder=self.code)
            for _ in range(scenario.processes)
        ]
        for result in results:
            module = Path(result.pop("module"))
            if checkout not in module.parents:
                raise SystemExit(f"{side} must be measured in {checkout}, but was in {module}")
        return {key: statistics.median([result[key] for result in results]) for key in results[0]}


# --- the run --------------------------------------------------------------------------------------------


class Progress:
    """One line that is written over, on a terminal; elsewhere the rows of the table are the progress."""

    def __init__(self, measurements: int) -> None:
        self.measurements = measurements
        self.done = 0
        self.start = time.monotonic()
        self.shown = sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self.shown:
            left = (time.monotonic() - self.start) / max(self.done, 1) * (self.measurements - self.done)
            minutes = f", {left / 60:.0f} min left" if self.done else ""
            sys.stderr.write(f"\r\x1b[K{text}, {100 * self.done // self.measurements} %{minutes}")
            sys.stderr.flush()

    def step(self) -> None:
        self.done += 1

    def clear(self) -> None:
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def measure_scenario(bench: Bench, sides: Sides, scenario: Scenario, rounds: int, progress: Progress) -> Measured:
    """Raises MeasurementError where A cannot do it. B must."""
    measured = Measured(scenario)
    progress.show(scenario.key)
    bench.prepare(scenario)
    for side in "AB":  # the first of each fills caches and is not counted
        measure_side(bench, sides, side, scenario)
    for number in range(1, rounds + 1):
        results = []
        for side in ORDER:
            progress.show(f"{scenario.key}, round {number} of {rounds}")
            results.append(measure_side(bench, sides, side, scenario))
            progress.step()
        measured.rounds.append(results)
    measured.conclude()
    return measured


def measure_side(bench: Bench, sides: Sides, side: str, scenario: Scenario) -> Result:
    try:
        return sides.measure(bench, side, scenario)
    except MeasurementError as error:
        if side == "A":
            raise
        raise SystemExit(f"the present tree, {scenario.key}:\n{error}") from None


def run(base: str, chosen: list[Scenario], rounds: int) -> tuple[dict[str, Any], list[Measured]]:
    """All measurements; prints a row as each scenario is done. Returns what was compared, and the results."""
    measured: list[Measured] = []
    progress = Progress(len(chosen) * rounds * len(ORDER))
    with tempfile.TemporaryDirectory(prefix="compare-") as folder, Bench() as bench:
        sides = Sides(Path(folder), base)
        about = {
            "a": f"{base} ({commit_of(base)})",
            "b": f"the present tree ({present()})",
            "rounds": rounds,
            "order": ORDER,
            "python": platform.python_version(),
            "server": bench.server_version,
        }
        print(f"A: {about['a']}, B: {about['b']}")
        print(f"nats-server {about['server']}, Python {about['python']}, {rounds} rounds of {' '.join(ORDER)}")
        print("A → B, the ratio of B against A (median of the rounds) ± what noise makes of it (A against A)\n")
        print(f"{HEADER}\n{RULE}", flush=True)
        for scenario in chosen:
            try:
                found = measure_scenario(bench, sides, scenario, rounds, progress)
            except MeasurementError as error:
                progress.clear()
                progress.measurements -= rounds * len(ORDER)
                print(f"| {scenario.key:17} | A cannot do this: {str(error).splitlines()[-1]}", flush=True)
                continue
            progress.clear()
            measured.append(found)
            print(found.row(), flush=True)
    return about, measured


def summary(measured: list[Measured]) -> str:
    lines = []
    for verdict, text in (
        (Verdict.OVER_LIMIT, f"worse than {LIMIT} ×, outside the spread"),
        (Verdict.WORSE, f"worse, outside the spread, by up to {LIMIT} ×"),
        (Verdict.BETTER, "better, outside the spread"),
    ):
        named = [
            f"{found.scenario.key} ({metric.name} {found.comparisons[metric.key].ratio:.3f} ×)"
            for found in measured
            for metric in metrics(found.scenario)
            if found.comparisons[metric.key].verdict is verdict
        ]
        lines.append(f"{text}: {', '.join(named) or 'none'}")
    spreads = [comparison.spread for found in measured for comparison in found.comparisons.values()]
    wide = sum(spread > LIMIT for spread in spreads)
    if wide:
        lines.append(f"too noisy for {LIMIT} × to be seen (more rounds help): {wide} of {len(spreads)} numbers")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.compare")
    parser.add_argument("base", metavar="BASE", help="the revision to compare with")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_const", dest="rounds", const=QUICK_ROUNDS, help="5 rounds")
    parser.add_argument("--only", type=select, default="", metavar="KEYS", help="these scenarios: push,messages*")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all numbers there")
    arguments = parser.parse_args()
    if arguments.rounds < QUICK_ROUNDS:
        parser.error(f"fewer than {QUICK_ROUNDS} rounds tell nothing")
    about, measured = run(arguments.base, arguments.only, arguments.rounds)
    if not measured:
        raise SystemExit("nothing could be compared")
    print(f"\n{summary(measured)}")
    if arguments.json:
        scenarios = {found.scenario.key: found.as_json() for found in measured}
        arguments.json.write_text(json.dumps({**about, "scenarios": scenarios}, indent=1))
    return int(any(found.over_limit for found in measured))


if __name__ == "__main__":
    sys.exit(main())
