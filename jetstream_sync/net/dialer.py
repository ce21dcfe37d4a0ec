"""Getting connected and connected again: rounds over the server pool with growing waits between them.

The dialer belongs to one thread at a time: the caller of connect() first, the reader thread afterwards. Other
threads may interrupt it, replace the servers of the pool, and read their lists. `_lock` guards every change of the
pool; reading takes no lock.
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._threads import Wakeup
from ..errors import AuthorizationError, NatsError, NoServersError
from .handshake import Session, establish, explain
from .options import Options
from .servers import Backoff, PoolServer, Server, ServerAddress, ServerPool, choose
from .transport import Transport

# What an attempt fails with; all but the first two are what a nonsensical INFO leads to.
_FAILURES = (NatsError, OSError, ValueError, TypeError, LookupError, AttributeError)

Attempts = list[tuple[str, BaseException]]
# The URL, why it failed, and the error for the user.
OnFailed = Callable[[str, BaseException, NatsError], None]


class Dialer:
    """Finds a server that takes us in."""

    def __init__(self, options: Options, on_failed: OnFailed, report: Callable[[Exception], None]) -> None:
        """`on_failed` is told of each attempt that failed, `report` of what the user's handler did wrong.

        Both are called in the thread that the dialer belongs to.
        """
        self._on_failed = on_failed
        self._options = options
        self._report = report
        self._pool = ServerPool(
            options.servers, shuffle=not options.dont_randomize, max_attempts=options.max_reconnect_attempts
        )
        self._backoff = Backoff(
            options.reconnect_time_wait, options.reconnect_time_wait_max, options.reconnect_jitter
        )
        self._connected_at: float | None = None
        self._avoid_current = False
        self._own_failure: Exception | None = None  # what first()'s argument raised: no other server helps
        self._info: Mapping[str, Any] = {}  # what a server said last
        # interrupt() and replace() may come from any thread; _lock guards the next two, and changes of the pool.
        self._lock = allocate_lock()
        self._interrupted = False
        self.dialing: Transport | None = None
        """The transport of a server that has been dialled and is to answer."""
        self._wakeup = Wakeup()

    @property
    def urls(self) -> list[str]:
        return [server.address.url for server in self._pool.servers]

    @property
    def entries(self) -> list[PoolServer]:
        return [server.entry for server in self._pool.servers]

    @property
    def discovered_urls(self) -> list[str]:
        return [server.address.url for server in self._pool.servers if server.discovered]

    @property
    def has_alternative(self) -> bool:
        return any(server is not self._pool.current for server in self._pool.servers)

    def advertise(self, info: Mapping[str, Any]) -> bool:
        """Take over what a server's INFO says of its cluster; True when a server was new."""
        self._info = info
        urls = None if self._options.ignore_discovered_servers else info.get("connect_urls")
        if not isinstance(urls, list):
            return False
        with self._lock:
            return self._pool.advertise(urls)

    def replace(self, addresses: Sequence[ServerAddress]) -> None:
        """Any thread: use these servers from the next attempt on."""
        with self._lock:
            self._pool.replace(addresses)

    def avoid_current(self) -> None:
        """The current server is about to shut down: the next round leaves it out while others are there."""
        self._avoid_current = True

    def interrupt(self) -> None:
        """Make first() and again() give up at once, now and in future. Any thread; may be repeated."""
        with self._lock:
            self._interrupted = True
            dialing = self.dialing
        self._wakeup.set()
        if dialing is not None:
            dialing.abort()

    def first(self, while_waiting: Callable[[], None]) -> Session:
        """One round over all servers. `while_waiting` is called when one has been dialled and is to answer.

        Raises AuthorizationError when every server refused the credentials, else NoServersError naming each.
        """
        attempts: Attempts = []

        def on_dialed(transport: Transport) -> None:
            self._remember(transport)
            try:
                while_waiting()
            except Exception as error:
                self._own_failure = error
                raise

        session = self._round(attempts, on_dialed, reconnecting=False)
        if session is None:
            raise _summary(attempts)
        return session

    def again(self) -> Session | None:
        """Rounds until a server takes us in: the first at once, then with growing waits.

        None when interrupted. Raises AuthorizationError or NoServersError when no server is left to try.
        """
        # A connection that was lost right after it was made does not count as success for the back-off.
        long_ago = time.monotonic() - self._options.reconnect_time_wait_max
        if self._connected_at is not None and self._connected_at <= long_ago:
            self._backoff.reset()
        attempts: Attempts = []
        while not self._interrupted:
            if not self._pool.servers:
                raise _summary(attempts)
            chosen, wait = self._plan()
            if self._wakeup.wait(wait):
                return None
            attempts = []
            session = self._round(attempts, self._remember, reconnecting=True, only=chosen)
            if session is not None:
                return session
        return None

    def _plan(self) -> tuple[Server | None, float]:
        """The server to try next, None for a round over all, and the wait before.

        The user's handler decides where there is one; it runs here, as the callables of credentials do. A server
        that has just failed is not tried again at once, though the handler says so.
        """
        handler = self._options.reconnect_to_server_handler
        if handler is None:
            return None, self._backoff.next_wait()
        choice = choose(handler, self._pool.servers, self._info)
        if choice.error is not None:
            self._report(choice.error)
        if choice.server is None:
            return None, max(choice.wait, self._backoff.next_wait())
        least = self._options.reconnect_time_wait if choice.server.failures else 0.0
        return choice.server, max(choice.wait, least)

    def _round(
        self,
        attempts: Attempts,
        on_dialed: Callable[[Transport], None],
        *,
        reconnecting: bool,
        only: Server | None = None,
    ) -> Session | None:
        with self._lock:
            servers = self._pool.round() if only is None else [only]
        if self._avoid_current and len(servers) > 1:
            servers = [server for server in servers if server is not self._pool.current]
        self._avoid_current = False
        for server in servers:
            if self._interrupted:
                return None
            if server not in self._pool.servers:
                continue  # replaced meanwhile
            failure: BaseException | None = None
            try:
                session = establish(server.address, self._options, on_dialed)
            except BaseException as error:
                # js-reader goes on whatever the user's callables raise: sys.exit() would end it in silence.
                if not reconnecting and (error is self._own_failure or not isinstance(error, _FAILURES)):
                    raise  # in the caller of connect(): what a signal handler of the user's raised
                failure = explain(error)
            finally:
                self._remember(None)
            if failure is not None:
                if self._is_interrupted():
                    return None  # close() broke it: no failure to tell of
                attempt = (server.address.url, failure)
                attempts.append(attempt)
                with self._lock:
                    self._pool.failed(server, failure, reconnecting=reconnecting)
                self._on_failed(*attempt, _summary([attempt]))
                continue
            with self._lock:
                self._pool.connected(server)
            self._connected_at = time.monotonic()
            return session
        return None

    def _is_interrupted(self) -> bool:
        return self._interrupted

    def _remember(self, transport: Transport | None) -> None:
        with self._lock:
            self.dialing = transport
            interrupted = self._interrupted
        if transport is not None and interrupted:
            transport.abort()


def _summary(attempts: Attempts) -> NatsError:
    """What to tell the user when no server took us in."""
    errors = [error for _url, error in attempts]
    if errors and all(isinstance(error, AuthorizationError) for error in errors):
        urls = ", ".join(url for url, _error in attempts)
        refused = AuthorizationError(f"{errors[-1]} ({urls})", credentials=getattr(errors[-1], "credentials", ""))
        refused.__cause__ = errors[-1]
        return refused
    summary = NoServersError(attempts)
    summary.__cause__ = errors[-1] if errors else None
    return summary
