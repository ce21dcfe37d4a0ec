"""One measurement of one client, in a process of its own: prints one line of JSON.

python -m benchmarks.measure <client> <scenario key> <server url>

What is imported here, the measured import finds loaded: so only what is needed, and the rest in functions.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

MODULES = {"ours": "jetstream_sync", "nats-py": "nats"}

Result = dict[str, Any]


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Span:
    """Wall and CPU time of the whole process, from here to end()."""

    def __init__(self) -> None:
        self.wall = time.perf_counter()
        self.cpu = cpu_seconds()

    def end(self, count: int, samples: Sequence[float] = ()) -> Result:
        """`count` messages or calls were handled; `samples` is how long each took, where that was measured."""
        wall, cpu = time.perf_counter() - self.wall, cpu_seconds() - self.cpu
        result = {"rate": count / wall, "cpu_us": cpu / count * 1e6}
        if samples:
            ordered = sorted(samples)
            result["p50"] = ordered[len(ordered) // 2]
            result["p99"] = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        return result


def run(client: str, key: str, url: str) -> Result:
    if key == "import":
        span = Span()
        __import__(MODULES[client])
        return span.end(1, [time.perf_counter() - span.wall])
    from .scenarios import by_key

    if client == "ours":
        from . import client_ours

        return client_ours.run(by_key(key), url)
    from . import client_nats_py

    return client_nats_py.run(by_key(key), url)


def main(client: str, key: str, url: str) -> None:
    result = run(client, key, url)
    result["rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result["module"] = sys.modules[MODULES[client]].__file__
    import json

    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
