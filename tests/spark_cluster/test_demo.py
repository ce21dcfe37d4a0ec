"""`make demo CLUSTER=1` in small, and the cluster that it starts: nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.spark_cluster.conftest import ROOT
from tests.support.eventually import eventually

OWNER = """\
from examples._cluster import SparkCluster
import time
with SparkCluster() as cluster:
    print(cluster.home, *cluster.pids, flush=True)
    time.sleep(600)
"""


def test_demo_on_the_cluster() -> None:
    """An executor is killed while it reads, and all totals agree."""
    ran = subprocess.run(
        [sys.executable, ROOT / "examples" / "spark_pipeline.py", "--cluster", "60000", "20000"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ran.returncode == 0, ran.stderr[-8000:]
    assert "2 days, 80,000 orders: all totals agree" in ran.stdout
    assert "An executor was killed on the way" in ran.stdout


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_cluster_ends_with_its_owner() -> None:
    """A process that is killed cannot clean up: the guards do."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    with owner:
        assert owner.stdout is not None
        home, *pids = owner.stdout.readline().decode().split()
        assert len(pids) == 3
        owner.send_signal(signal.SIGKILL)
    eventually(lambda: not any(running(int(pid)) for pid in pids), 30, "the cluster has ended")
    eventually(lambda: not Path(home).exists(), 30, "its files are removed")
