"""Workers that are stopped and started again: the next one has what was buffered at once, nothing is done twice.

ack_wait is 60 s: what another worker gets within seconds was handed back.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import jetstream_sync
from jetstream_sync import Consumer, JetStream, JetStreamMessage
from jetstream_sync.testing import LocalServer
from tests.support.eventually import eventually
from tests.support.observer import Observer, stream_and_consumer

ACK_WAIT = 60.0

# --- one worker, ended by a signal ---------------------------------------------------------------------------

SLOW_WORKER = """
import signal, sys, time
from jetstream_sync import connect
url, ending = sys.argv[1:]
nc = connect(url)
consumer = nc.jetstream().get_consumer("S", "C")
context = stream = None
def work(msg):
    print("ready", flush=True)
    time.sleep(2)
    msg.ack()
if ending == "exit":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with consumer.messages(max_messages=500) as stream:
        for msg in stream:
            work(msg)
elif ending == "consume":
    context = consumer.consume(work, max_messages=500)
    signal.signal(signal.SIGTERM, lambda *_: context.stop())
    context.wait()
else:
    stream = consumer.messages(max_messages=500)
    signal.signal(signal.SIGTERM, lambda *_: nc.close() if ending == "close" else stream.stop())
    try:
        for msg in stream:
            work(msg)
    except Exception as error:
        assert ending == "close", error
"""


@contextmanager
def process(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    root = Path(jetstream_sync.__file__).parent.parent
    started = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()
        assert started.stdout is not None
        started.stdout.close()


@pytest.mark.parametrize("ending", ["stop", "exit", "close", "consume"])
def test_next_worker_has_the_buffer_within_a_second_of_sigterm(
    nats_server: LocalServer, js: JetStream, ending: str
) -> None:
    """500 buffered, the handler in the midst of its work: the next worker gets the 499 others."""
    consumer = stream_and_consumer(js, 500, ack_wait=ACK_WAIT)
    with process(SLOW_WORKER, nats_server.url, ending) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        eventually(lambda: consumer.get_info().num_ack_pending == 500)
        worker.send_signal(signal.SIGTERM)
        started = time.monotonic()
        got = [int(message.data) for message in consumer.fetch(499, expires=5)]
        assert time.monotonic() - started < 1.0
    assert sorted(got) == list(range(1, 500))


# --- deploys -------------------------------------------------------------------------------------------------


def deploy(url: str, count: int, end: Callable[[jetstream_sync.MessageStream], None]) -> list[int]:
    """One deploy: a worker that handles `count` messages with the default options, and is ended."""
    handled: list[int] = []
    with jetstream_sync.connect(url) as nc:
        stream = nc.jetstream().get_consumer("S", "C").messages()
        while len(handled) < count:
            message = stream.next(5.0)
            time.sleep(0.002)
            message.ack_sync()
            handled.append(int(message.data))
        end(stream)
    return handled


@pytest.mark.parametrize("end", ["stop", "drain", "close"])
def test_deploys_make_nothing_undeliverable(nats_server: LocalServer, js: JetStream, end: str) -> None:
    """Three deploys of five messages, then one for the rest, with max_deliver=3: all of the 100 are handled."""
    ends: dict[str, Callable[[jetstream_sync.MessageStream], None]] = {
        "stop": lambda stream: stream.stop(),
        "drain": lambda stream: stream.drain(buffered="nak"),
        "close": lambda stream: None,  # deploy() closes the connection
    }
    stream_and_consumer(js, 100, ack_wait=ACK_WAIT, max_deliver=3)
    handled = [number for count in (5, 5, 5, 85) for number in deploy(nats_server.url, count, ends[end])]
    assert sorted(handled) == list(range(100))


# --- many workers --------------------------------------------------------------------------------------------


class Workers:
    """Workers on one durable consumer, each of which begins and ends anew at random moments.

    A message is handled only where it was not handled before: a handled one is acknowledged, and what was handed
    out is never nak'ed by the library. So each is handled once.
    """

    def __init__(self, url: str, count: int, seed: int) -> None:
        self._url, self._seed = url, seed
        self._count = count
        self._lock = threading.Lock()
        self.handled: Counter[int] = Counter()
        self.replies: set[str] = set()
        self.endings: Counter[str] = Counter()

    @property
    def done(self) -> bool:
        return len(self.handled) >= self._count

    def run(self, workers: int, limit: float) -> None:
        threads = [threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(workers)]
        for thread in threads:
            thread.start()
        eventually(lambda: self.done, limit, "all messages are handled")
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()

    def _work(self, number: int) -> None:
        rng = random.Random(self._seed * 100 + number)
        with jetstream_sync.connect(self._url) as nc:
            consumer = nc.jetstream().get_consumer("S", "C")
            while not self.done:
                way = rng.choice((self._stream, self._consume, self._batch))
                way(consumer, rng)

    def _handle(self, message: JetStreamMessage) -> None:
        with self._lock:
            self.handled[int(message.data)] += 1
            self.replies.add(message.reply or "")
        if int(message.data) % 5 == 0:
            time.sleep(0.002)  # more of them end in the midst of something
        message.ack()

    def _end(self, rng: random.Random, **endings: Callable[[], object]) -> None:
        """End what runs, now or soon, here or on another thread."""
        name = rng.choice(list(endings))
        self.endings[name] += 1
        ender = threading.Timer(rng.random() * 0.01, endings[name])
        ender.start()
        if rng.random() < 0.3:
            endings[name]()

    def _stream(self, consumer: Consumer, rng: random.Random) -> None:
        stream = consumer.messages(max_messages=rng.choice((None, 1, 10, 500)), auto_progress=rng.random() < 0.3)
        if rng.random() < 0.2:
            self.endings["dropped"] += 1
            for _ in range(rng.choice((1, 10, 100))):
                try:
                    self._handle(stream.next(0.01))
                except jetstream_sync.TimeoutError:
                    return
            return
        self._end(rng, stop=stream.stop, drain=stream.drain, nak=lambda: stream.drain(buffered="nak"))
        for message in stream:
            self._handle(message)
            if rng.random() < 0.02:
                break

    def _consume(self, consumer: Consumer, rng: random.Random) -> None:
        context = consumer.consume(
            self._handle, max_messages=rng.choice((None, 1, 10, 500)), max_workers=rng.choice((1, 3))
        )
        self._end(rng, stop=context.stop, drain=context.drain, nak=lambda: context.drain(buffered="nak"))
        assert context.wait(20)

    def _batch(self, consumer: Consumer, rng: random.Random) -> None:
        batch = consumer.fetch(rng.choice((1, 10, 200)), expires=0.05)
        self._end(rng, close=batch.close)
        for message in batch:
            self._handle(message)


def check_workers(
    server: LocalServer, js: JetStream, observer: Observer, count: int, workers: int, seed: int
) -> None:
    consumer = stream_and_consumer(js, count, ack_wait=ACK_WAIT)
    many = Workers(server.url, count, seed)
    many.run(workers, limit=ACK_WAIT - 10)
    assert many.handled == Counter(range(count))
    eventually(lambda: consumer.get_info().num_ack_pending == 0)
    assert len(many.endings) == 5, many.endings
    naks = {seen.subject for seen in list(observer.acks) if seen.data == b"-NAK"}
    assert naks, "something was handed back"
    assert not naks & many.replies, "nothing that was handed out"
    assert max(observer.acked_once().values()) == 1


def test_many_workers_that_end_at_random_handle_each_message_once(
    nats_server: LocalServer, js: JetStream, observer: Observer, eager_switching: None
) -> None:
    """By stop, drain, break and close, from other threads, while messages come."""
    check_workers(nats_server, js, observer, 1500, workers=4, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_workers_that_end_at_random_in_full(
    nats_server: LocalServer, js: JetStream, observer: Observer, eager_switching: None, seed: int
) -> None:
    check_workers(nats_server, js, observer, 5000, workers=5, seed=seed)


# --- many processes ------------------------------------------------------------------------------------------

WORKER = """
import os, signal, sys, time
from jetstream_sync import connect
url, ledger = sys.argv[1:]
nc = connect(url)
context = None
log = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def work(msg):
    time.sleep(0.02)
    os.write(log, msg.data + b"\\n")
    msg.ack_sync()
context = nc.jetstream().get_consumer("S", "C").consume(work, max_workers=2, auto_progress=True)
signal.signal(signal.SIGTERM, lambda *_: context.stop())
print("ready", flush=True)
context.wait()
nc.close()
"""


@pytest.mark.soak
def test_processes_that_are_restarted_handle_everything_and_little_twice(
    nats_server: LocalServer, js: JetStream, tmp_path: Path
) -> None:
    """Five workers, ended by SIGTERM again and again, now and then killed: nothing is lost, and at most what a
    killed worker held is handled twice."""
    count, ledger, rng, kills, stops = 5000, tmp_path / "ledger", random.Random(3), 0, 0
    consumer = stream_and_consumer(js, count, ack_wait=3.0)
    ledger.touch()

    def start() -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, nats_server.url, str(ledger)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(jetstream_sync.__file__).parent.parent)},
        )
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        return worker

    def end(worker: subprocess.Popen[str], number: signal.Signals) -> None:
        worker.send_signal(number)
        code = worker.wait(10)
        assert code == (0 if number is signal.SIGTERM else -number)
        assert worker.stdout is not None
        worker.stdout.close()

    def handled() -> Counter[int]:
        return Counter(map(int, ledger.read_text().split()))

    workers = [start() for _ in range(5)]
    ends = time.monotonic() + 90
    while len(handled()) < count and time.monotonic() < ends:
        time.sleep(rng.random() * 0.2)
        index, number = rng.randrange(5), rng.choice((signal.SIGTERM,) * 4 + (signal.SIGKILL,))
        kills, stops = kills + (number is signal.SIGKILL), stops + (number is signal.SIGTERM)
        end(workers[index], number)
        workers[index] = start()
    eventually(lambda: consumer.get_info().num_ack_pending == 0, 10)
    for worker in workers:
        end(worker, signal.SIGTERM)
    result = handled()
    twice = sum(result.values()) - len(result)
    print(f"{stops} stops, {kills} kills, {twice} handled twice")
    assert set(result) == set(range(count))
    assert twice <= 2 * kills  # two callbacks at work in each
    assert stops > 5
