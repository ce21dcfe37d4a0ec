"""Notices that Spark will run its Python workers with an interpreter that lacks this package.

Spark runs them with PYSPARK_PYTHON, by default the first `python3` of the PATH, and not with the interpreter of
the driver. Without the package there, queries fail with errors that do not say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

# For an interpreter that starts and imports the package. It takes a fraction of a second.
TIMEOUT = 10.0

_PROGRAM = "import jetstream_sync.spark"


def problem_of_workers(python: str, shipped: Sequence[str] = ()) -> str | None:
    """Why workers that run `python` on this machine will not find the package; None if they will, or if unknown.

    `shipped` are files that Spark adds to their path. Blocks while the interpreter runs, TIMEOUT seconds at most.
    """
    found = shutil.which(python)
    if found is None:
        return f"Spark runs Python workers with {python!r}, which is not found. {_advice()}"
    if os.path.abspath(found) == os.path.abspath(sys.executable):
        return None
    path = os.pathsep.join([*shipped, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **({"PYTHONPATH": path} if path else {})}
    try:
        finished = subprocess.run(
            [found, "-c", _PROGRAM],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if finished.returncode == 0:
        return None
    reason = (finished.stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"Spark runs Python workers with {found!r}, which cannot {_PROGRAM} ({reason}). {_advice()}"


def _advice() -> str:
    return (
        "Queries of format jetstream will fail. Install jetstream-sync there, or set the environment variable "
        f"PYSPARK_PYTHON to {sys.executable!r} before the session starts"
    )
