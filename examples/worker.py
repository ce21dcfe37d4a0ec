"""A worker: handles messages, acknowledges each when it is done, and drains on Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import sys

from _server import server_url

from jetstream_sync import connect


def main() -> None:
    with server_url() as url, connect(url, name="worker") as nc:
        js = nc.jetstream()
        js.create_or_update_stream(name="JOBS", subjects=["jobs.>"])
        for number in range(5):
            js.publish("jobs.resize", f"picture {number}".encode())

        consumer = js.create_or_update_consumer("JOBS", durable_name="resizer", ack_wait=30)
        messages = consumer.messages()
        signal.signal(signal.SIGTERM, lambda *_: messages.drain())

        for msg in messages:
            try:
                print("resizing", msg.data.decode())
            except OSError as error:
                print("failed, once more in 5 s:", error, file=sys.stderr)
                msg.nak(delay=5)
                continue
            msg.ack()
            if msg.metadata.num_pending == 0:
                messages.drain()  # a real worker would continue


if __name__ == "__main__":
    main()
