"""What importing the library does not do."""

from __future__ import annotations

import subprocess
import sys


def test_import_starts_no_thread() -> None:
    """Importing alone starts nothing."""
    code = "import threading, jetstream_sync; print(threading.active_count())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "1"
