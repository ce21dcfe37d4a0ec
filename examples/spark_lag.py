"""See how far a streaming query is behind: from its progress in the driver, and on the server."""

from __future__ import annotations

import queue
import time

from _server import server_url
from _spark import session

from jetstream_sync import connect
from jetstream_sync.spark import Lag, LagListener


def main() -> None:
    with server_url() as url, session("lag") as spark, connect(url) as nc:
        js = nc.jetstream()
        js.create_or_update_stream(name="READINGS", subjects=["readings.*"])
        for number in range(300):
            js.publish_async("readings.0", str(number).encode())
        js.publish_async_wait(timeout=10)

        lags: queue.Queue[Lag] = queue.Queue()
        listener = LagListener(lags.put, servers=url, stream="READINGS")
        spark.streams.addListener(listener)
        query = (
            spark.readStream.format("jetstream")
            .option("servers", url)
            .option("stream", "READINGS")
            .option("startingOffsets", "earliest")
            .option("maxMessagesPerTrigger", 100)
            .option("positionConsumer", "dashboard")  # shows the position on the server
            .load()
            .writeStream.format("noop")
            .queryName("copy")
            .start()
        )
        try:
            behind = None
            while behind != 0:
                lag = lags.get(timeout=60)
                behind = lag.sequences
                age = "?" if lag.seconds is None else f"{lag.seconds:.1f}"
                print(f"query {lag.query_name}, stream {lag.stream}: {behind} sequences, {age} s behind")
            # What `nats consumer info READINGS dashboard` shows.
            info = js.get_consumer("READINGS", "dashboard").info
            deadline = time.monotonic() + 10
            while info.num_pending and time.monotonic() < deadline:
                time.sleep(0.1)
                info = js.get_consumer("READINGS", "dashboard").info
            print(f"on the server: ack floor {info.ack_floor.stream_seq}, {info.num_pending} pending")
        finally:
            query.stop()
            spark.streams.removeListener(listener)
            listener.close()


if __name__ == "__main__":
    main()
