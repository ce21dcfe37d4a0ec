"""Everything that differs between operating systems. The lowest layer: it imports nothing of the library.

Elsewhere the library names no flag, signal, fork hook or `select` function, so another platform is a change of
this module. What differs:

- A send or receive that must not block. Linux has a flag for one call (MSG_DONTWAIT). Elsewhere the whole socket
  is non-blocking, and a blocking receive is a wait and a receive (macOS defines the flag, but does not document
  it for send).
- Waiting for a socket: poll(), else select(), which cannot hold every descriptor.
- Signals during a wait. POSIX interrupts the wait. Windows does not, so the main thread, which runs the handlers,
  waits in slices of WAIT_SLICE seconds.
- Waking a thread that is blocked on a socket. POSIX: shutdown() does. Elsewhere the thread also waits for a
  `WakeSocket`. (Closing the socket instead would free its number, which the next socket may get while the thread
  still waits for it.)
- Forks. Windows has none, and no hooks for them.

The environment variable JETSTREAM_SYNC_PLATFORM=portable forces every fallback, so that the tests of one platform
cover them all.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable

_VARIABLE = "JETSTREAM_SYNC_PLATFORM"


def _is_portable(value: str) -> bool:
    if value not in ("", "portable"):
        raise ValueError(f"{_VARIABLE} is {value!r}: it is either 'portable' or not set")
    return value == "portable"


PORTABLE = _is_portable(os.environ.get(_VARIABLE, ""))
"""Whether every fallback is in use, whatever the platform offers."""

_WINDOWS = sys.platform == "win32"
_HAS_FLAG = not PORTABLE and sys.platform.startswith("linux") and hasattr(socket, "MSG_DONTWAIT")
_HAS_POLL = not PORTABLE and hasattr(select, "poll")
_SHUTDOWN_WAKES = not PORTABLE and not _WINDOWS

FORK_HOOKS = not PORTABLE and hasattr(os, "register_at_fork")
"""Whether on_fork() has an effect."""

NOW = int(socket.MSG_DONTWAIT) if _HAS_FLAG else 0
"""Flags of a send or receive that must not block. The socket has gone through prepare()."""

_SLICED = PORTABLE or _WINDOWS
WAIT_SLICE = 0.5 if _SLICED else math.inf
"""How long the main thread may wait at a time. Infinite where a signal interrupts a wait."""

# poll() counts milliseconds in an int, of 24 days at most. A caller that waits longer waits again.
_LONGEST_WAIT = 86400.0


# --- errors -----------------------------------------------------------------------------------------------


def _numbers(*names: str) -> set[int]:
    """The error numbers of these names, as far as the platform knows them."""
    return {getattr(errno, name) for name in names if hasattr(errno, name)}


# Windows' own numbers are listed as well: not every function of Python translates them.
WOULD_BLOCK = frozenset(_numbers("EAGAIN", "EWOULDBLOCK") | {10035})
"""Error numbers of a socket that can take or give nothing at present."""

LOST = frozenset(
    # EPROTOTYPE: what macOS says in send while the peer's close is under way.
    _numbers(
        "EPIPE", "ECONNRESET", "ECONNABORTED", "ETIMEDOUT", "ENOTCONN", "ESHUTDOWN", "ENETRESET", "EPROTOTYPE"
    )
    | {10053, 10054, 10060}
)
"""Error numbers of a connection that the peer or the network has ended."""


def is_lost(error: OSError) -> bool:
    """Whether `error` of a socket says that the connection is gone."""
    return error.errno in LOST


# --- waits ------------------------------------------------------------------------------------------------


def sliced(wait: Callable[[float], bool], timeout: float) -> bool:
    """`wait(timeout)`, repeated in slices on the main thread where signals do not interrupt a wait.

    `wait` returns whether what it waits for has come. Signal handlers run between two slices.
    """
    if timeout <= WAIT_SLICE or threading.get_ident() != threading.main_thread().ident:
        return wait(timeout)
    ends_at = time.monotonic() + timeout
    while True:
        left = ends_at - time.monotonic()
        if wait(max(0.0, min(left, WAIT_SLICE))):
            return True
        if left <= WAIT_SLICE:
            return False


class WakeSocket:
    """A descriptor that becomes readable by set(): it wakes a thread that waits for sockets.

    One thread owns it, that is, waits for it, clears and closes it; any thread may set it.
    """

    __slots__ = ("_reader", "_writer")

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def set(self) -> None:
        """Never blocks; idempotent until clear()."""
        try:
            self._writer.send(b"\0")
        except OSError:
            pass  # full: it is set already; closed: no thread waits for it

    def clear(self) -> None:
        try:
            while self._reader.recv(4096):
                pass
        except OSError:
            pass  # empty, or closed

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


Wait = Callable[[int, float, "WakeSocket | None"], bool]


def _by_poll(event: int) -> Wait:
    def wait(fd: int, timeout: float, wake: WakeSocket | None) -> bool:
        poller = select.poll()
        poller.register(fd, event)
        if wake is not None:
            poller.register(wake.fileno(), select.POLLIN)
        return bool(poller.poll(min(timeout, _LONGEST_WAIT) * 1000))

    return wait


def _by_select(*, reading: bool) -> Wait:
    def wait(fd: int, timeout: float, wake: WakeSocket | None) -> bool:
        readers = [fd] if reading else []
        writers = [] if reading else [fd]
        if wake is not None:
            readers.append(wake.fileno())

        def once(seconds: float) -> bool:
            try:
                # The third list: Windows reports there that a connect has failed.
                return any(select.select(readers, writers, writers, seconds))
            except ValueError as error:
                if wake is not None and wake.fileno() < 0:
                    return True  # closed: what follows says so
                raise OSError(
                    errno.EMFILE, f"descriptor {fd} is beyond what select() can wait for: too many are open"
                ) from error
            except OSError:
                return True  # the descriptor is broken: what follows says so

        return sliced(once, min(timeout, _LONGEST_WAIT))

    return wait


wait_readable: Wait = _by_poll(select.POLLIN) if _HAS_POLL else _by_select(reading=True)
"""(descriptor, seconds, wake): block until a receive would not, `wake` is set, or the time is up (then False)."""

wait_writable: Wait = _by_poll(select.POLLOUT) if _HAS_POLL else _by_select(reading=False)
"""(descriptor, seconds, wake): the same for a send."""


# --- sockets ----------------------------------------------------------------------------------------------


def connect_tcp(host: str, port: int, timeout: float | None) -> socket.socket:
    """A TCP socket connected to the first address of `host` that accepts within `timeout`. Raises OSError."""
    if not _SLICED:
        return socket.create_connection((host, port), timeout=timeout)
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            _connect_in_slices(sock, address, math.inf if timeout is None else timeout)
            return sock
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    raise failure


def _connect_in_slices(sock: socket.socket, address: object, timeout: float) -> None:
    sock.setblocking(False)
    code = sock.connect_ex(address)  # type: ignore[arg-type]
    if code == errno.EINPROGRESS or code in WOULD_BLOCK:
        if not wait_writable(sock.fileno(), timeout, None):
            raise TimeoutError("timed out")
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def prepare(sock: socket.socket) -> WakeSocket | None:
    """Make a connected socket fit for sends with NOW. Returns what wakes its waits, where shutdown() does not."""
    sock.setblocking(_HAS_FLAG)
    return None if _SHUTDOWN_WAKES else WakeSocket()


def abort(sock: socket.socket, wake: WakeSocket | None) -> None:
    """Break the connection: every thread that is blocked on it returns. Any thread; idempotent."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # not connected any more
    if wake is not None:
        wake.set()


# --- processes --------------------------------------------------------------------------------------------


def on_fork(in_child: Callable[[], None]) -> None:
    """Have `in_child` called in every process that is forked from this one. Nothing where there are no forks."""
    if FORK_HOOKS:
        os.register_at_fork(after_in_child=in_child)
