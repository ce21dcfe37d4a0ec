"""The same measurements, with nats-py, written the way its documentation shows."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from .measure import Span, quantiles
from .scenarios import CORE_SUBJECT, CREDIT_SUBJECT, STREAM, SUBJECT, Scenario

Result = dict[str, Any]


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
    for _ in range(scenario.count):
        start = time.perf_counter()
        nc = await nats.connect(url)
        samples.append(time.perf_counter() - start)
        await nc.close()
    return quantiles(samples)


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
messages = consume = fetch


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
    for _ in range(scenario.count):
        start = time.perf_counter()
        await js.publish(SUBJECT, payload)
        samples.append(time.perf_counter() - start)
    return quantiles(samples)


async def info(nc: Any, scenario: Scenario) -> Result:
    js = nc.jetstream()
    samples = []
    for _ in range(scenario.count):
        start = time.perf_counter()
        await js.stream_info(STREAM)
        samples.append(time.perf_counter() - start)
    return quantiles(samples)


async def next_latency(nc: Any, scenario: Scenario) -> Result:
    sub = await pull(nc, scenario, DeliverPolicy.NEW)
    samples = []
    for _ in range(scenario.count):
        start = time.perf_counter()
        await nc.publish(CREDIT_SUBJECT, b"one")
        (message,) = await sub.fetch(1, timeout=5)
        samples.append(time.perf_counter() - start)
        await message.ack()
    return quantiles(samples)


messages_latency = next_latency
