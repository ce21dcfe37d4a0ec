"""Write a DataFrame to a stream: subject, headers and message id come from its columns."""

from __future__ import annotations

from _server import server_url
from _spark import session
from pyspark.sql import functions as f

from jetstream_sync import connect


def main() -> None:
    with server_url() as url, session("write") as spark:
        with connect(url) as nc:
            js = nc.jetstream()
            js.create_or_update_stream(name="INVOICES", subjects=["invoices.*"], allow_atomic=True)

            invoices = spark.range(1000).select(
                f.concat(f.lit("invoices."), f.col("id") % 4).alias("subject"),
                f.to_json(f.struct("id", (f.col("id") * 100).alias("cents"))).alias("data"),
                f.create_map(f.lit("Currency"), f.array(f.lit("EUR"))).alias("headers"),
                f.concat(f.lit("invoice-"), "id").alias("msg_id"),
            )
            writer = invoices.write.format("jetstream").option("servers", url).mode("append")
            writer.save()
            writer.save()  # the same message ids: the stream stores no message twice
            print(js.get_stream("INVOICES").info.state.messages, "invoices")

            # Exactly once, even if Spark runs a task again much later: in atomic batches, each with a marker.
            js.create_or_update_stream(name="LEDGER", subjects=["ledger.>"], allow_atomic=True)
            ledger = invoices.select("data").write.format("jetstream").option("servers", url).mode("append")
            ledger.options(exactlyOnce="true", subject="ledger.entry", markerSubject="ledger.markers").save()
            print(js.get_stream("LEDGER").get_info(subjects_filter="ledger.entry").state.subjects)


if __name__ == "__main__":
    main()
