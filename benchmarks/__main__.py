"""Measure this library and nats-py on one real server, interleaved, and print a table of ratios.

    python -m benchmarks [--rounds N] [--only TEXT] [--scale F]

Machines are noisy: each figure is the median of the rounds, each round measures both clients one after the other
in processes of their own. Rates count from the first to the last message; CPU is the client process' own.
"""

from __future__ import annotations

import argparse
import compileall
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import jetstream_sync
from jetstream_sync.testing import LocalServer

from . import scenarios
from .scenarios import STREAM, SUBJECT, Scenario

CLIENTS = ("ours", "nats-py")


def store(js: jetstream_sync.JetStream, scenario: Scenario) -> None:
    """A memory stream with the messages of the scenario in it."""
    js.create_or_update_stream(name=STREAM, subjects=[SUBJECT], storage="memory")
    js.get_stream(STREAM).purge()
    if scenario.needs_stored:
        payload = b"x" * scenario.size
        for _ in range(scenario.count):
            js.publish_async(SUBJECT, payload)
        js.publish_async_wait(120)


def measure(client: str, scenario: Scenario, url: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.measure", client, scenario.name, url]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if finished.returncode:
        raise SystemExit(f"{client}, {scenario.name}:\n{finished.stderr}")
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


def median(results: list[dict[str, Any]], key: str) -> float:
    return statistics.median(result[key] for result in results)


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
    parser.add_argument("--only", default="", help="run the scenarios whose name contains this")
    arguments = parser.parse_args()
    # An installed package has its bytecode; this one may run from a fresh checkout.
    compileall.compile_dir(Path(jetstream_sync.__file__).parent, quiet=1)
    chosen = [scenario for scenario in scenarios.SCENARIOS if arguments.only in scenario.name]
    with LocalServer() as server, jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream(timeout=60)
        publisher = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.publisher", server.url], stdout=subprocess.PIPE, text=True
        )
        assert publisher.stdout is not None
        publisher.stdout.readline()
        try:
            print(
                f"nats-server {nc.server_info['version']}, Python {platform.python_version()}, "
                f"median of {arguments.rounds} interleaved rounds; memory stream"
            )
            print(f"| {'':40} | {'jetstream_sync':29} | {'nats-py':29} | {'ratio':8} |")
            print(f"|{'-' * 42}|{'-' * 31}|{'-' * 31}|{'-' * 10}|")
            for scenario in chosen:
                results: dict[str, list[dict[str, Any]]] = {client: [] for client in CLIENTS}
                store(js, scenario)
                for _ in range(arguments.rounds):
                    for client in CLIENTS:
                        results[client].append(measure(client, scenario, server.url))
                print(row(scenario, results), flush=True)
        finally:
            publisher.terminate()
            publisher.wait()
            publisher.stdout.close()


if __name__ == "__main__":
    main()
