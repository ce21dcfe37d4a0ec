"""The log of an outage: a worker whose server is away for some seconds (the argument; 1 by default)."""

from __future__ import annotations

import logging
import sys
import time

from jetstream_sync import JetStreamMessage, NotConnectedError, connect
from jetstream_sync.testing import LocalServer

logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(levelname)-7s %(name)s %(message)s")
logging.getLogger("jetstream_sync").setLevel(logging.INFO)

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0


def handle(msg: JetStreamMessage) -> None:
    msg.ack()
    if msg.data == b"unusual":
        raise ValueError("unknown customer")  # no on_error: the log has it, with the traceback


with LocalServer() as server, connect(server.url, name="billing") as nc:
    js = nc.jetstream()
    js.create_stream(name="ORDERS", subjects=["orders.>"])
    consumer = js.create_consumer("ORDERS", durable_name="billing")
    with consumer.consume(handle):
        js.publish("orders.new", b"unusual")
        time.sleep(0.2)
        server.kill()
        time.sleep(seconds)
        try:
            js.publish("orders.new", b"1", timeout=0.2)
        except NotConnectedError as error:
            print(f"publish: {error} (sent: {error.sent})")
        server.start()
        while not nc.is_connected:
            time.sleep(0.05)
        js.publish("orders.new", b"2")
