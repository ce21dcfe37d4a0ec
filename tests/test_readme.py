"""Every Python block of the README and of the guide to acks runs as pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jetstream_sync.testing import LocalServer

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = {"README": README, "acks": ROOT / "docs" / "acks.md"}
BLOCKS = {
    f"{name}-{number}": block
    for name, page in PAGES.items()
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    )
}


@pytest.mark.parametrize("page", PAGES)
def test_page_has_python_blocks(page: str) -> None:
    """There are programs; without them the test below would check nothing."""
    assert f"{page}-1" in BLOCKS


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_block_runs(block: str, nats_server: LocalServer) -> None:
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


def test_readme_has_no_relative_links() -> None:
    """A package index shows the README alone: a link into the repository would lead nowhere."""
    links = re.findall(r"\]\(([^)]+)\)", README.read_text())
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
