"""Measure this library and nats-py on one real server, interleaved, and print a table of ratios.

    python -m benchmarks [--rounds N] [--only KEYS]

Machines are noisy: each figure is the median of the rounds, each round measures both clients one after the other
in processes of their own. Rates count from the first to the last message; CPU is the client process' own.
"""

from __future__ import annotations

import argparse
import compileall
import platform
import statistics
from pathlib import Path
from typing import Any

import jetstream_sync

from .harness import Bench, MeasurementError
from .scenarios import Scenario, select

CLIENTS = ("ours", "nats-py")


def median(results: list[dict[str, Any]], key: str) -> float:
    return statistics.median([float(result[key]) for result in results])


def row(scenario: Scenario, results: dict[str, list[dict[str, Any]]]) -> str:
    ours, peer = results["ours"], results["nats-py"]
    if scenario.unit == "rate":
        ratio = median(ours, "rate") / median(peer, "rate")
        cells = [f"{median(r, 'rate') / 1000:8.1f} k/s ({median(r, 'cpu_us'):5.1f} µs CPU)" for r in (ours, peer)]
    else:
        ratio = median(ours, "p50") / median(peer, "p50")
        cells = [f"p50 {median(r, 'p50') * 1e6:8.0f} µs, p99 {median(r, 'p99') * 1e6:7.0f}" for r in (ours, peer)]
    return f"| {scenario.name:40} | {cells[0]:29} | {cells[1]:29} | {ratio:6.2f} × |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=select, default="", metavar="KEYS", help="these scenarios: push,messages*")
    arguments = parser.parse_args()
    # An installed package has its bytecode; this one may run from a fresh checkout.
    compileall.compile_dir(Path(jetstream_sync.__file__).parent, quiet=1)
    with Bench() as bench:
        print(
            f"nats-server {bench.server_version}, Python {platform.python_version()}, "
            f"median of {arguments.rounds} interleaved rounds; memory stream"
        )
        print(f"| {'':40} | {'jetstream_sync':29} | {'nats-py':29} | {'ratio':8} |")
        print(f"|{'-' * 42}|{'-' * 31}|{'-' * 31}|{'-' * 10}|")
        for scenario in arguments.only:
            results: dict[str, list[dict[str, Any]]] = {client: [] for client in CLIENTS}
            bench.prepare(scenario)
            for _ in range(arguments.rounds):
                for client in CLIENTS:
                    try:
                        results[client].append(bench.measure(client, scenario))
                    except MeasurementError as error:
                        raise SystemExit(f"{client}, {scenario.name}:\n{error}") from None
            print(row(scenario, results), flush=True)


if __name__ == "__main__":
    main()
