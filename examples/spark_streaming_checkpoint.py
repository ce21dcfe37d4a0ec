"""A streaming query with a checkpoint: started again, it continues where it stopped, each message once."""

from __future__ import annotations

import tempfile

from _server import server_url
from _spark import session
from pyspark.sql import SparkSession

from jetstream_sync import JetStream, connect


def main() -> None:
    with server_url() as url, session("checkpoint") as spark, tempfile.TemporaryDirectory() as checkpoint:
        with connect(url) as nc:
            js = nc.jetstream()
            js.create_or_update_stream(name="CLICKS", subjects=["clicks.>"])
            js.create_or_update_stream(name="SHOUTED", subjects=["shouted"])
            for word in ("one", "two", "three"):
                js.publish("clicks.web", word.encode())
            copy_in_upper_case(spark, url, checkpoint)
            js.publish("clicks.web", b"four")
            copy_in_upper_case(spark, url, checkpoint)  # reads only "four"
            show(js)


def copy_in_upper_case(spark: SparkSession, url: str, checkpoint: str) -> None:
    clicks = (
        spark.readStream.format("jetstream")
        .option("servers", url)
        .option("stream", "CLICKS")
        .option("startingOffsets", "earliest")  # for the first start; later starts use the checkpoint
        .load()
    )
    query = (
        clicks.selectExpr("upper(cast(data AS string)) AS data")
        .writeStream.format("jetstream")
        .option("servers", url)
        .option("subject", "shouted")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)  # read what is there now; without it the query runs until it is stopped
        .start()
    )
    query.awaitTermination()


def show(js: JetStream) -> None:
    for msg in js.create_consumer("SHOUTED", ack_policy="none").fetch(100, expires=1):
        print(msg.metadata.sequence.stream, msg.data.decode(), msg.headers["Nats-Msg-Id"])


if __name__ == "__main__":
    main()
