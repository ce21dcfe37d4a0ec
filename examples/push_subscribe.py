"""Push subscriptions: the server sends, a callback handles; and an ordered replay of the whole stream."""

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
            """Acked when this returns, delivered again when it raises."""
            seen.append(int(msg.data))
            if len(seen) >= MESSAGES:
                finished.set()

        # Alarms (no message and no heartbeat for 3 × idle_heartbeat) and gaps go to error_cb.
        with js.subscribe("prices.>", cb=handle, idle_heartbeat=5, flow_control=True):
            finished.wait(timeout=10)
        print(f"{len(seen)} prices handled, the last was {seen[-1]}")

        # Every message once, in order, whatever happens to server or connection.
        with js.subscribe("prices.>", ordered_consumer=True) as history:
            highest = max(int(history.next_msg(timeout=5).data) for _ in range(MESSAGES))
        print(f"the highest was {highest}")


if __name__ == "__main__":
    main()
