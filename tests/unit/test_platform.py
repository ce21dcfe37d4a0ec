"""What differs between operating systems: each way to wait, connect and wake, on whichever platform runs this."""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from jetstream_sync import _platform
from jetstream_sync._deadline import FOREVER
from jetstream_sync._platform import Wait, WakeSocket

READABLE = {"poll": _platform._by_poll(select.POLLIN), "select": _platform._by_select(reading=True)}
WRITABLE = {"poll": _platform._by_poll(select.POLLOUT), "select": _platform._by_select(reading=False)}


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture(params=READABLE)
def wait_readable(request: pytest.FixtureRequest) -> Wait:
    return READABLE[request.param]


@pytest.fixture(params=WRITABLE)
def wait_writable(request: pytest.FixtureRequest) -> Wait:
    return WRITABLE[request.param]


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of the main thread in slices, short ones."""
    monkeypatch.setattr(_platform, "WAIT_SLICE", 0.02)
    monkeypatch.setattr(_platform, "_SLICED", True)


# --- the switch -------------------------------------------------------------------------------------------


def import_with(value: str) -> subprocess.CompletedProcess[str]:
    code = "import jetstream_sync._platform as p; print(p.PORTABLE, p.NOW, p.WAIT_SLICE, p.FORK_HOOKS)"
    env = {**os.environ, "JETSTREAM_SYNC_PLATFORM": value}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


def test_portable_forces_every_fallback() -> None:
    """No flag for one call, sliced waits, no fork hooks."""
    assert import_with("portable").stdout.split() == ["True", "0", "0.5", "False"]


@pytest.mark.skipif(sys.platform != "linux", reason="says what Linux offers")
def test_nothing_is_forced_without_the_variable() -> None:
    """Neither unset nor empty."""
    assert import_with("").stdout.split() == ["False", str(int(socket.MSG_DONTWAIT)), "inf", "True"]


def test_unknown_value_of_the_variable_is_refused() -> None:
    """A misspelt value is an error that says what is possible, not a silent default."""
    run = import_with("portabel")
    assert run.returncode != 0
    assert "JETSTREAM_SYNC_PLATFORM is 'portabel': it is either 'portable' or not set" in run.stderr


# --- waits ------------------------------------------------------------------------------------------------


def test_wait_readable(wait_readable: Wait, pair: tuple[socket.socket, socket.socket]) -> None:
    """It returns at once when there is something, else when the time is up."""
    ours, theirs = pair
    started = time.monotonic()
    assert not wait_readable(ours.fileno(), 0.05, None)
    assert 0.04 < time.monotonic() - started < 2
    theirs.send(b"x")
    assert wait_readable(ours.fileno(), FOREVER, None)


def test_wait_writable(wait_writable: Wait, pair: tuple[socket.socket, socket.socket]) -> None:
    """It returns at once while there is room, and waits while there is none."""
    ours, _ = pair
    assert wait_writable(ours.fileno(), FOREVER, None)
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            ours.send(bytes(65536))
    assert not wait_writable(ours.fileno(), 0.05, None)


def test_wait_is_woken(
    wait_readable: Wait, wait_writable: Wait, pair: tuple[socket.socket, socket.socket]
) -> None:
    """A wake socket ends a wait from another thread, however long it would have been."""
    ours, _ = pair
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            ours.send(bytes(65536))
    for wait in (wait_readable, wait_writable):
        with closing(WakeSocket()) as wake:
            waker = threading.Timer(0.05, wake.set)
            waker.start()
            started = time.monotonic()
            assert wait(ours.fileno(), 60, wake)
            assert time.monotonic() - started < 5
            waker.join()


def test_wait_for_a_closed_descriptor_returns(wait_readable: Wait, wait_writable: Wait) -> None:
    """A wait that begins when the socket has been closed does not fail: what follows it does."""
    ours, theirs = socket.socketpair()
    number = ours.fileno()
    ours.close()
    theirs.close()
    assert wait_readable(number, 5, None)
    assert wait_writable(number, 5, None)


def test_select_refuses_what_it_cannot_hold(pair: tuple[socket.socket, socket.socket]) -> None:
    """A descriptor beyond select()'s table is an error that says so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2100), hard))
    try:
        number = os.dup2(pair[0].fileno(), 2048)
        with pytest.raises(OSError, match=r"descriptor 2048 is beyond what select\(\) can wait for"):
            READABLE["select"](number, 1, None)
        assert not READABLE["poll"](number, 0.01, None)
        os.close(number)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_wake_socket_never_blocks() -> None:
    """It is set as often as one likes, cleared with all that was set, and set again."""
    with closing(WakeSocket()) as wake:
        for _ in range(3):
            for _ in range(100_000):
                wake.set()
            assert READABLE["poll"](wake.fileno(), 0, None)
            wake.clear()
            assert not READABLE["poll"](wake.fileno(), 0, None)
    wake.set()


@pytest.mark.usefixtures("slices")
def test_main_thread_waits_in_slices() -> None:
    """Between two slices signal handlers can run; the last one ends when the time is up."""
    asked: list[float] = []

    def wait(seconds: float) -> bool:
        asked.append(seconds)
        time.sleep(seconds)
        return False

    def wait_for_the_fourth(seconds: float) -> bool:
        return wait(seconds) or len(asked) == 4

    assert _platform.sliced(wait_for_the_fourth, 60)
    assert asked == [0.02] * 4
    asked.clear()
    started = time.monotonic()
    assert not _platform.sliced(wait, 0.06)
    assert time.monotonic() - started >= 0.06
    assert 2 <= len(asked) <= 4  # a slice may last longer than it was asked to
    assert max(asked) <= 0.02


@pytest.mark.usefixtures("slices")
def test_other_threads_do_not_wait_in_slices() -> None:
    """They run no signal handlers, so there is no reason to wake them."""
    asked: list[float] = []
    thread = threading.Thread(target=lambda: _platform.sliced(lambda seconds: bool(asked.append(seconds)), 60))
    thread.start()
    thread.join()
    assert asked == [60]


# --- sockets ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["one call", "slices"])
def each_way(request: pytest.FixtureRequest) -> None:
    if request.param == "slices":
        request.getfixturevalue("slices")


@pytest.mark.usefixtures("each_way")
def test_connect() -> None:
    """A listening server is reached, a closed port refused, with the error that says so."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with listener, _platform.connect_tcp("127.0.0.1", port, 5) as sock:
        assert sock.getpeername()[1] == port
    with pytest.raises(ConnectionRefusedError):
        _platform.connect_tcp("127.0.0.1", port, 5)


@pytest.mark.usefixtures("each_way")
def test_connect_in_time() -> None:
    """A server that takes no more connections costs the time that was given, not more."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        waiting = []
        try:
            with pytest.raises(TimeoutError):
                for _ in range(10):  # as many as the kernel keeps for accept()
                    waiting.append(_platform.connect_tcp("127.0.0.1", port, 0.2))
        finally:
            for sock in waiting:
                sock.close()


@pytest.mark.parametrize("number", [10053, 10054, 10060, errno.EPIPE, errno.ECONNRESET, errno.EPROTOTYPE])
def test_errors_of_a_lost_connection(number: int) -> None:
    """Windows' numbers, and what macOS says of a send to a peer that closes."""
    assert _platform.is_lost(OSError(number, "so it is"))
    assert not _platform.is_lost(OSError(errno.ENOENT, "no such file"))
    assert {errno.EAGAIN, 10035} <= _platform.WOULD_BLOCK
