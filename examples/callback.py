"""Handle messages in a callback, which four threads of the library call."""

from __future__ import annotations

import threading

from _server import server_url

from jetstream_sync import JetStreamMessage, connect

MESSAGES = 20


def main() -> None:
    with server_url() as url, connect(url) as nc:
        js = nc.jetstream()
        js.create_or_update_stream(name="PHOTOS", subjects=["photos.>"])
        for number in range(MESSAGES):
            js.publish_async("photos.new", b"%d" % number)
        js.publish_async_wait(timeout=5)

        finished = threading.Event()
        seen: set[int] = set()

        def handle(msg: JetStreamMessage) -> None:
            seen.add(msg.metadata.sequence.stream)
            msg.ack()
            if len(seen) == MESSAGES:
                finished.set()

        consumer = js.create_or_update_consumer("PHOTOS", durable_name="thumbnails")
        with consumer.consume(handle, max_workers=4, on_error=print):
            finished.wait(timeout=10)
        print(f"{len(seen)} photos handled")


if __name__ == "__main__":
    main()
