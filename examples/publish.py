"""Publish to a stream: one message at a time, many at once, and with expectations."""

from __future__ import annotations

import os
from contextlib import ExitStack

from jetstream_sync import NoStreamResponseError, WrongLastSequenceError, connect
from jetstream_sync.testing import LocalServer

with ExitStack() as stack:
    url = os.environ.get("NATS_URL") or stack.enter_context(LocalServer()).url
    nc = stack.enter_context(connect(url))
    js = nc.jetstream()
    stream = js.create_stream(name="EXAMPLE_ORDERS", subjects=["example.orders.>"], storage="memory")
    stack.callback(stream.delete)

    # One at a time: when publish() returns, the message is stored.
    ack = js.publish("example.orders.new", b'{"id": 1}', headers={"Source": "shop"})
    print(f"stored in {ack.stream} as number {ack.seq}")

    # A message id makes it safe to publish a message again, for the program and for the library.
    again = [js.publish("example.orders.new", b'{"id": 2}', msg_id="order-2") for _ in range(2)]
    print(f"the second one was a duplicate: {again[1].duplicate}")

    # Store the message only if the stream has not changed since message 1.
    try:
        js.publish("example.orders.new", b'{"id": 3}', expected_last_seq=1)
    except WrongLastSequenceError as error:
        print(f"refused: {error.description}")

    # Many at once: each call returns a future; publish_async_wait() waits for all acks.
    futures = [js.publish_async("example.orders.bulk", f'{{"id": {number}}}'.encode()) for number in range(10_000)]
    js.publish_async_wait(timeout=30)
    print(f"{len(futures)} published, the last one as number {futures[-1].result().seq}")

    # No stream stores this subject.
    try:
        js.publish("example.nowhere", b"lost?", retry_attempts=0)
    except NoStreamResponseError as error:
        print(error)
