"""Every example runs as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
# The Spark examples run in tests/spark, which has a Java and a Spark.
PLAIN = sorted(path.name for path in EXAMPLES.glob("[a-z]*.py") if not path.name.startswith("spark_"))


@pytest.mark.parametrize("name", PLAIN)
def test_example_runs(name: str) -> None:
    """The example ends by itself, exit code 0, with output and without complaints."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("NATS_") or key == "NATS_SERVER"
    }
    finished = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    assert finished.stdout.strip()
