"""`python -m jetstream_sync.testing`: a server in the foreground, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jetstream_sync import connect
from jetstream_sync.testing import LocalServer


@contextmanager
def run_main(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The program, which must have ended by the end of the block; one that hangs is killed, and fails the test."""
    command = [sys.executable, "-m", "jetstream_sync.testing", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            yield program
        finally:
            program.kill()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_main_runs_until_it_is_told_to_end(ending: signal.Signals) -> None:
    """It prints the URL, serves, and ends with code 0 and nothing left on Ctrl-C or SIGTERM."""
    with run_main("--port", "0") as program:
        assert program.stdout is not None
        first, second = program.stdout.readline(), program.stdout.readline()
        url = next(word for word in first.split() if word.startswith("nats://"))
        store_dir = next(word for word in second.split() if word.startswith("/"))
        assert "temporary" in second
        with connect(url) as nc:
            assert list(nc.jetstream().stream_names()) == []
        program.send_signal(ending)
        rest, errors = program.communicate(timeout=10)
    assert (program.returncode, rest, errors) == (0, "", "")
    assert not os.path.exists(store_dir)


def test_main_keeps_a_given_store(tmp_path: Path) -> None:
    """With --store-dir the data stay, and it says so."""
    with run_main("--port", "0", "--store-dir", str(tmp_path)) as program:
        assert program.stdout is not None
        program.stdout.readline()
        assert f"{tmp_path} (kept)" in program.stdout.readline()
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=10)
    assert program.returncode == 0
    assert (tmp_path / "jetstream").is_dir()


def test_main_with_a_taken_port_says_so(nats_server: LocalServer) -> None:
    """A port in use is one clear line and exit code 1."""
    with run_main("--port", str(nats_server.port)) as program:
        output, errors = program.communicate(timeout=10)
    assert (program.returncode, output) == (1, "")
    assert errors.startswith(f"Port {nats_server.port} is taken")
    assert len(errors.splitlines()) == 1


def test_main_says_when_the_server_ends_by_itself() -> None:
    """A server that dies under it ends the program with code 1 and the last lines of its log."""
    with run_main("--port", "0") as program:
        assert program.stdout is not None
        program.stdout.readline()
        store_dir = next(word for word in program.stdout.readline().split() if word.startswith("/"))
        log = (Path(store_dir).parent / "server.log").read_text()
        os.kill(int(log[1 : log.index("]")]), signal.SIGKILL)
        _, errors = program.communicate(timeout=10)
    assert program.returncode == 1
    assert "ended by itself" in errors
    assert "Server is ready" in errors
