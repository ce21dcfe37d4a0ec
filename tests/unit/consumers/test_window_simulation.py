"""A simulated consume: server, round trip, buffer, workers, keep-alive. What is handled twice?

Time is a number: nothing sleeps. The client is the library's own arithmetic, PullState with a Window, and
KeepAlive, driven as Refill drives them. The server delivers to waiting pulls, and again what is not acknowledged
in ack_wait. What is handed out has two thirds of ack_wait left: where no handling takes longer than that, no
message may be handled twice. Beyond it the few that have waited in the buffer may be.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from jetstream_sync.consumers.keep_alive import KeepAlive
from jetstream_sync.consumers.pull_options import ConsumeOptions
from jetstream_sync.consumers.pull_state import PullState, Window

Handler = Callable[[int, random.Random], float]


@dataclass
class World:
    """Events in the order of their time."""

    now: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            self.now, _, event = heapq.heappop(self._events)
            event()


class Server:
    """A consumer: each message is delivered to a waiting pull, and again when ack_wait has run out."""

    def __init__(self, world: World, messages: int, ack_wait: float, deliver: Callable[[int], None]) -> None:
        self.world = world
        self.ack_wait = ack_wait
        self.deliver = deliver
        self.ready = deque(range(messages))
        self.asked = 0
        self.due: dict[int, float] = {}  # not acknowledged: when its time is up
        self.acked: set[int] = set()

    def pull(self, count: int) -> None:
        self.asked += count
        self.serve()

    def serve(self) -> None:
        while self.asked and self.ready:
            number = self.ready.popleft()
            if number in self.acked:
                continue
            self.asked -= 1
            self.extend(number)
            self.deliver(number)

    def extend(self, number: int) -> None:
        self.due[number] = at = self.world.now + self.ack_wait
        self.world.after(self.ack_wait, lambda: self.expire(number, at))

    def expire(self, number: int, at: float) -> None:
        if self.due.get(number) == at:
            del self.due[number]
            self.ready.appendleft(number)
            self.serve()

    def in_progress(self, numbers: list[int]) -> None:
        for number in numbers:
            if number in self.due:
                self.extend(number)

    def ack(self, number: int) -> None:
        self.due.pop(number, None)
        self.acked.add(number)


class Client:
    """`window` None: a fixed window of 500."""

    def __init__(
        self,
        world: World,
        messages: int,
        handler: Handler,
        *,
        ack_wait: float,
        workers: int,
        round_trip: float,
        seed: int,
        automatic: bool = True,
        kept_alive: bool = True,
    ) -> None:
        self.world, self.handler, self.random = world, handler, random.Random(seed)
        self.one_way = round_trip / 2
        self.server = Server(world, messages, ack_wait, lambda number: self.later(lambda: self.arrive(number)))
        window = Window(workers, ack_wait) if automatic else None
        self.state = PullState(ConsumeOptions.make(None if automatic else 500), window)
        self.keep_alive = KeepAlive(ack_wait, 0.0) if kept_alive else None
        self.buffer: deque[int] = deque()
        self.added = 0
        self.idle = workers
        self.handled: Counter[int] = Counter()
        self.pull()
        if self.keep_alive is not None:
            self.look()

    def later(self, event: Callable[[], None]) -> None:
        """After one way through the network."""
        self.world.after(self.one_way, event)

    def pull(self) -> None:
        units = self.state.take_pull(self.world.now)
        if units is not None:
            self.later(lambda: self.server.pull(units))

    def look(self) -> None:
        assert self.keep_alive is not None
        old = self.keep_alive.look(self.world.now, self.added, len(self.buffer))
        numbers = list(itertools.islice(self.buffer, old))
        self.later(lambda: self.server.in_progress(numbers))
        self.world.after(self.keep_alive.period, self.look)

    def arrive(self, number: int) -> None:
        self.buffer.append(number)
        self.added += 1
        self.hand_out()

    def hand_out(self) -> None:
        while self.idle and self.buffer:
            number = self.buffer.popleft()
            self.idle -= 1
            self.handled[number] += 1
            self.state.received(1)
            seconds = self.handler(number, self.random)
            self.world.after(seconds, lambda n=number, s=seconds: self.done(n, s))  # type: ignore[misc]

    def done(self, number: int, seconds: float) -> None:
        self.later(lambda: self.server.ack(number))
        self.idle += 1
        if self.state.processed(1, seconds if self.state.measured else None):
            self.pull()
        self.hand_out()


def deliveries(messages: int, handler: Handler, **options: float | bool) -> Counter[int]:
    """How often each message was handled, until all were and the last redelivery had its time."""
    world = World()
    client = Client(world, messages, handler, **options)  # type: ignore[arg-type]
    world.run(lambda: len(client.server.acked) == messages and not client.buffer and not client.server.due)
    return client.handled


def steady(seconds: float) -> Handler:
    return lambda _, __: seconds


def jumping(number: int, _: random.Random) -> float:
    """Fast, and slow after half of the messages."""
    return 0.001 if number < 300 else 0.3


def ragged(_: int, chance: random.Random) -> float:
    """Mostly fast; one in fifty takes long."""
    return 0.6 if chance.random() < 0.02 else 0.004


def exponential(_: int, chance: random.Random) -> float:
    return min(0.6, chance.expovariate(1 / 0.05))


def in_turns(number: int, _: random.Random) -> float:
    """A hundred fast ones, then ten slow ones, and so on."""
    return 0.5 if number % 110 >= 100 else 0.002


HANDLERS: dict[str, Handler] = {
    "1 ms": steady(0.001),
    "20 ms": steady(0.02),
    "60 ms": steady(0.06),
    "0.6 s": steady(0.6),
    "jumping": jumping,
    "ragged": ragged,
    "exponential": exponential,
    "in turns": in_turns,
}


@pytest.mark.parametrize("round_trip", [0.0002, 0.05])
@pytest.mark.parametrize("workers", [1, 4, 8])
@pytest.mark.parametrize("ack_wait", [1.0, 2.0, 30.0])
@pytest.mark.parametrize("handler", HANDLERS)
def test_nothing_is_handled_twice(handler: str, ack_wait: float, workers: int, round_trip: float) -> None:
    """No handling takes longer than two thirds of ack_wait."""
    found = deliveries(
        400, HANDLERS[handler], ack_wait=ack_wait, workers=workers, round_trip=round_trip, seed=len(handler)
    )
    assert found == Counter(range(400))


@pytest.mark.parametrize(
    ("handler", "automatic", "kept_alive", "twice"),
    [
        ("20 ms", False, False, True),  # what the fixed window of before did
        ("20 ms", True, False, False),  # the window alone is enough at a steady pace
        ("jumping", True, False, True),  # but no window foresees a handler that becomes slow
        ("jumping", True, True, False),
        ("20 ms", False, True, False),
    ],
)
def test_what_the_window_and_the_keep_alive_are_for(
    handler: str, automatic: bool, kept_alive: bool, twice: bool
) -> None:
    """Each of the two is needed."""
    found = deliveries(
        600,
        HANDLERS[handler],
        ack_wait=2.0,
        workers=1,
        round_trip=0.001,
        seed=1,
        automatic=automatic,
        kept_alive=kept_alive,
    )
    assert (sum(found.values()) > 600) is twice
