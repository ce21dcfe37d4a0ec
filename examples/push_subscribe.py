"""Push subscriptions: one with a callback, and one that reads the whole stream in order."""

from __future__ import annotations

import threading

from _server import server_url

from jetstream_sync import JetStreamMessage, connect

MESSAGES = 10


def main() -> None:
    with server_url() as url, connect(url, error_cb=print) as nc:
        js = nc.jetstream()
        js.create_or_update_stream(name="PRICES", subjects=["prices.>"])
        for number in range(MESSAGES):
            js.publish("prices.gold", b"%d" % (1900 + number))

        finished = threading.Event()
        seen: list[int] = []

        def handle(msg: JetStreamMessage) -> None:
            """The message is acked when this returns, and delivered again when it raises."""
            seen.append(int(msg.data))
            if len(seen) >= MESSAGES:
                finished.set()

        # error_cb gets an error when no message and no heartbeat comes for 3 × idle_heartbeat, and for gaps.
        with js.subscribe("prices.>", cb=handle, idle_heartbeat=5, flow_control=True):
            finished.wait(timeout=10)
        print(f"{len(seen)} prices handled, the last was {seen[-1]}")

        # Every message once and in order, even if the connection is lost in between.
        with js.subscribe("prices.>", ordered_consumer=True) as history:
            highest = max(int(history.next_msg(timeout=5).data) for _ in range(MESSAGES))
        print(f"the highest was {highest}")


if __name__ == "__main__":
    main()
