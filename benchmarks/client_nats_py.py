"""The same measurements, with nats-py, written the way its documentation shows."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from .measure import Result, Span
from .scenarios import CORE_SUBJECT, CREDIT_SUBJECT, LOAD, STREAM, SUBJECT, Scenario


def run(scenario: Scenario, url: str) -> Result:
    return asyncio.run(run_async(scenario, url))


async def run_async(scenario: Scenario, url: str) -> Result:
    if scenario.kind == "connect":
        return await connect(scenario, url)
    nc = await nats.connect(url, pending_size=8 * 1024 * 1024)
    try:
        return await globals()[scenario.kind](nc, scenario)
    finally:
        await nc.close()


async def connect(scenario: Scenario, url: str) -> Result:
    samples = []
    span = Span()
    for _ in range(scenario.count):
        start = time.perf_counter()
        nc = await nats.connect(url)
        samples.append(time.perf_counter() - start)
        await nc.close()
    return span.end(scenario.count, samples)


async def core(nc: Any, scenario: Scenario) -> Result:
    """The faster of its two ways: a callback."""
    portion = 10_000
    received = 0
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def handle(_message: Any) -> None:
        nonlocal received
        received += 1
        if received % portion == 0:
            await nc.publish(CREDIT_SUBJECT, b"%d" % portion)
            if received == scenario.count:
                finished.set_result(None)

    await nc.subscribe(CORE_SUBJECT, cb=handle)
    await nc.flush()
    await nc.publish(CREDIT_SUBJECT, b"%d" % portion)
    await nc.publish(CREDIT_SUBJECT, b"%d" % portion)
    await nc.flush()
    span = Span()
    await finished
    return span.end(scenario.count)


async def pull(nc: Any, scenario: Scenario, deliver: DeliverPolicy = DeliverPolicy.ALL) -> Any:
    policy = AckPolicy.EXPLICIT if scenario.ack else AckPolicy.NONE
    config = ConsumerConfig(ack_policy=policy, mem_storage=True, deliver_policy=deliver)
    return await nc.jetstream().pull_subscribe(SUBJECT, stream=STREAM, config=config)


async def fetch(nc: Any, scenario: Scenario) -> Result:
    sub = await pull(nc, scenario)
    received, ack = 0, scenario.ack
    span = Span()
    while received < scenario.count:
        for message in await sub.fetch(500, timeout=5):
            if ack:
                await message.ack()
            received += 1
    return span.end(received)


# nats-py has no messages() or consume(): a fetch loop is how one consumes with it.
messages = consume = pull_subscribe = fetch


async def fetch_single(nc: Any, scenario: Scenario) -> Result:
    sub = await pull(nc, scenario)
    samples = []
    span = Span()
    for _ in range(scenario.count):
        start = time.perf_counter()
        (message,) = await sub.fetch(1, timeout=5)
        await message.ack()
        samples.append(time.perf_counter() - start)
    return span.end(scenario.count, samples)


async def push(nc: Any, scenario: Scenario, ordered_consumer: bool = False) -> Result:
    received, ack = 0, scenario.ack
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def handle(message: Any) -> None:
        nonlocal received
        if ack:
            await message.ack()
        received += 1
        if received == scenario.count:
            finished.set_result(None)

    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT if ack else AckPolicy.NONE, mem_storage=True)
    span = Span()
    await nc.jetstream().subscribe(
        SUBJECT, stream=STREAM, cb=handle, config=config, manual_ack=True, ordered_consumer=ordered_consumer
    )
    await finished
    return span.end(scenario.count)


async def ordered(nc: Any, scenario: Scenario) -> Result:
    return await push(nc, scenario, ordered_consumer=True)


async def publish_async(nc: Any, scenario: Scenario) -> Result:
    js = nc.jetstream(publish_async_max_pending=1000)
    payload = b"x" * scenario.size
    await js.publish(SUBJECT, payload)
    span = Span()
    futures = [await js.publish_async(SUBJECT, payload, wait_stall=60) for _ in range(scenario.count)]
    await asyncio.gather(*futures)
    return span.end(scenario.count)


async def publish(nc: Any, scenario: Scenario) -> Result:
    js = nc.jetstream()
    payload = b"x" * scenario.size
    samples = []
    span = Span()
    for _ in range(scenario.count):
        start = time.perf_counter()
        await js.publish(SUBJECT, payload)
        samples.append(time.perf_counter() - start)
    return span.end(scenario.count, samples)


async def info(nc: Any, scenario: Scenario) -> Result:
    js = nc.jetstream()
    samples = []
    span = Span()
    for _ in range(scenario.count):
        start = time.perf_counter()
        await js.stream_info(STREAM)
        samples.append(time.perf_counter() - start)
    return span.end(scenario.count, samples)


async def request_load(nc: Any, scenario: Scenario) -> Result:
    received = 0
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def handle(_message: Any) -> None:
        nonlocal received
        received += 1
        if received == LOAD * scenario.count:
            finished.set_result(None)

    await nc.subscribe(CORE_SUBJECT, cb=handle)
    await nc.flush()
    samples, credit = [], b"%d" % LOAD
    span = Span()
    for _ in range(scenario.count):
        await nc.publish(CREDIT_SUBJECT, credit)
        start = time.perf_counter()
        await nc.request("$JS.API.INFO")
        samples.append(time.perf_counter() - start)
    await finished
    return span.end(scenario.count, samples)


async def next_latency(nc: Any, scenario: Scenario) -> Result:
    sub = await pull(nc, scenario, DeliverPolicy.NEW)
    samples = []
    span = Span()
    for _ in range(scenario.count):
        start = time.perf_counter()
        await nc.publish(CREDIT_SUBJECT, b"one")
        (message,) = await sub.fetch(1, timeout=5)
        samples.append(time.perf_counter() - start)
        await message.ack()
    return span.end(scenario.count, samples)


messages_latency = next_latency
