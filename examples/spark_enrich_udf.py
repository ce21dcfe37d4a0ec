"""Call a service from a UDF: each worker process of Spark has one connection, opened on first use."""

from __future__ import annotations

from _enrich import country_of, remember
from _server import server_url
from _spark import session
from pyspark.sql import functions as f

from jetstream_sync import Message, connect

CODES = {"de": "Germany", "fr": "France", "jp": "Japan"}


def main() -> None:
    with server_url() as url, session("enrich") as spark, connect(url) as nc:
        js = nc.jetstream()
        js.create_or_update_stream(name="SEEN", subjects=["seen.*"])

        def look_up(msg: Message) -> None:
            msg.respond(CODES.get(msg.data.decode(), "?").encode())

        with nc.subscribe("country", cb=look_up):
            people = spark.createDataFrame(
                [("Ada", "de"), ("Bo", "fr"), ("Chi", "jp")], "name string, code string"
            )
            enrich = f.udf(country_of(url), useArrow=False)
            people.withColumn("country", enrich("code")).show()

        people.foreachPartition(remember(url))
        print(js.get_stream("SEEN").info.state.messages, "people remembered")


if __name__ == "__main__":
    main()
