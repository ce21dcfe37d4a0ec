"""Runs the tests of tests/spark_cluster: a Spark standalone cluster of two workers, and Spark Connect.

Spark Connect needs packages that nothing else needs, so they are installed into a venv of their own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venvs" / "connect"
PYTHON = VENV / "bin" / "python"


def install() -> None:
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-e", ".[dev,nkeys,spark]", "pyspark[connect]>=4.0,<4.4"], cwd=ROOT, check=True)
    subprocess.run([PYTHON, "-m", "jetstream_sync.spark.java", "--install"], cwd=ROOT, check=True)


def main(*arguments: str) -> int:
    install()
    tests = [PYTHON, "-m", "pytest", "-q", "-m", "cluster", "tests/spark_cluster", *arguments]
    return subprocess.run(tests, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
