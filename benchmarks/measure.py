"""One measurement of one client, in a process of its own: prints one line of JSON.

python -m benchmarks.measure <client> <scenario name> <server url>
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

from .scenarios import SCENARIOS


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def summary(count: int, wall: float, cpu: float) -> dict[str, float]:
    return {"rate": count / wall, "cpu_us": cpu / count * 1e6}


def quantiles(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]}


class Span:
    """Wall and CPU time from the first message to the last."""

    def __init__(self) -> None:
        self.wall = time.perf_counter()
        self.cpu = cpu_seconds()

    def end(self, count: int) -> dict[str, float]:
        return summary(count, time.perf_counter() - self.wall, cpu_seconds() - self.cpu)


def main(client: str, name: str, url: str) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)
    if scenario.kind == "import":
        start = time.perf_counter()
        __import__({"ours": "jetstream_sync", "nats-py": "nats"}[client])
        result: dict[str, Any] = {"p50": time.perf_counter() - start, "p99": 0.0}
    elif client == "ours":
        from .client_ours import run

        result = run(scenario, url)
    else:
        from .client_nats_py import run

        result = run(scenario, url)
    result["rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
