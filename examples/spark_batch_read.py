"""Read the messages of a stream into a DataFrame, and query it in SQL."""

from __future__ import annotations

import json

from _server import server_url
from _spark import session

from jetstream_sync import connect


def main() -> None:
    with server_url() as url, session("batch read") as spark:
        with connect(url) as nc:
            js = nc.jetstream()
            js.create_or_update_stream(name="READINGS", subjects=["readings.*"])
            for number in range(300):
                reading = {"sensor": number % 3, "celsius": 20 + number % 7}
                js.publish_async(f"readings.{number % 3}", json.dumps(reading).encode())
            js.publish_async_wait(timeout=10)

        readings = (
            spark.read.format("jetstream")
            .option("servers", url)
            .option("stream", "READINGS")
            .option("subjects", "readings.0, readings.1")  # the server filters
            .load()
        )
        readings.printSchema()
        readings.createOrReplaceTempView("readings")
        spark.sql("""
            SELECT subject, count(*) AS readings, avg(parsed.celsius) AS celsius
            FROM (SELECT subject, from_json(cast(data AS string), 'celsius double') AS parsed FROM readings)
            GROUP BY subject ORDER BY subject
        """).show()


if __name__ == "__main__":
    main()
