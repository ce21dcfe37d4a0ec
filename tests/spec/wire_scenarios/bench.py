"""Where a scenario runs: a recorded connection, and one beside it that prepares the server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import jetstream_sync
from jetstream_sync import Connection, Consumer, JetStream, Stream
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.plugin import await_removal
from tests.support.eventually import eventually
from tests.support.observer import fill
from tests.support.wire import PATIENCE, Recording

PULL = "$JS.API.CONSUMER.MSG.NEXT."
ACK = "$JS.ACK."


class Bench(Recording):
    """A recording. `nc` and `js` are recorded; `admin_nc` and `admin` go to the server directly."""

    def __init__(self, server: LocalServer, admin_nc: Connection, options: dict[str, Any]) -> None:
        super().__init__(server, options)
        self.admin_nc = admin_nc
        self.admin: JetStream = admin_nc.jetstream()

    def __enter__(self) -> Bench:
        super().__enter__()
        self.js = self.nc.jetstream()
        return self

    def stream(self, messages: int = 0, *, size: int = 0, **config: Any) -> Stream:
        """Stream S on `s.>` with `messages` numbered messages, made by the other connection."""
        fields = {"name": "S", "subjects": ["s.>"], "storage": "memory", **config}
        made = self.admin.create_stream(**fields)
        self.fill(messages, size=size)
        return made

    def fill(self, count: int, *, first: int = 0, size: int = 0) -> None:
        """Publish numbered messages to `s.x` over the other connection."""
        fill(self.admin, count, first=first, size=size)

    def consumer(self, messages: int = 0, *, size: int = 0, **config: Any) -> Consumer:
        """Stream S and its durable consumer C; the recorded connection looks C up, in a step of its own."""
        self.stream(messages, size=size)
        self.admin.create_consumer("S", durable_name="C", **config)
        with self.step("look the consumer up"):
            return self.js.get_consumer("S", "C")

    def delete_pulled(self, name: str | None) -> None:
        """Delete a consumer of stream S when a pull waits there: before, the server may lose a pull silently."""
        consumer = self.admin.get_consumer("S", str(name))
        eventually(lambda: consumer.get_info().num_waiting, PATIENCE, "a pull waits")
        consumer.delete()

    def unbound(self, durable: str) -> None:
        """Wait until the server has noticed that nothing is subscribed to a push consumer any more."""
        consumer = self.admin.get_consumer("S", durable)
        eventually(lambda: not consumer.get_info().push_bound, PATIENCE, f"{durable} is not bound")


class Scenario(NamedTuple):
    """A part of a surface's golden file."""

    title: str
    play: Callable[[Bench], None]
    since: tuple[int, ...]
    """The first server version that knows what this asks for."""
    config: str | None
    """Configuration of a server of its own, which must know the user ann with the password secret."""
    options: dict[str, Any]
    """Options of connect()."""


SURFACES: dict[str, list[Scenario]] = defaultdict(list)


def scenario(
    surface: str, *, since: tuple[int, ...] = (0,), config: str | None = None, **options: Any
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Add the decorated function to `surface`. Its docstring is its title in the golden file."""

    def add(play: Callable[[Bench], None]) -> Callable[[Bench], None]:
        assert play.__doc__
        SURFACES[surface].append(Scenario(play.__doc__.rstrip("."), play, since, config, options))
        return play

    return add


def record(scenario: Scenario, shared: LocalServer) -> list[str]:
    """Run a scenario; what it sent, as lines of text. Leaves no stream behind on the shared server."""
    if scenario.config is None:
        return _record_on(scenario, shared, {})
    with LocalServer(config=scenario.config) as server:
        return _record_on(scenario, server, {"user": "ann", "password": "secret"})


def _record_on(scenario: Scenario, server: LocalServer, login: dict[str, Any]) -> list[str]:
    with jetstream_sync.connect(server.url, **login) as admin_nc:
        try:
            with Bench(server, admin_nc, scenario.options) as bench:
                scenario.play(bench)
            return bench.text(handshake=scenario in SURFACES["connect"])
        finally:
            admin = admin_nc.jetstream()
            for name in list(admin.stream_names()):
                admin.delete_stream(name)
            await_removal(server.store_dir)
