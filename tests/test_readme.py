"""Every Python block of the README runs as pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jetstream_sync.testing import LocalServer

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def test_readme_has_python_blocks() -> None:
    """The README has programs; without them the test below would check nothing."""
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_block_runs(block: str, nats_server: LocalServer) -> None:
    """The block runs as it is against a server on its default address (here: NATS_URL)."""
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NATS_URL": nats_server.url},
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
