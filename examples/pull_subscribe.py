"""A pull subscription: fetch() returns available messages, or waits for the first ones."""

from __future__ import annotations

from _server import server_url

from jetstream_sync import TimeoutError, connect


def main() -> None:
    with server_url() as url, connect(url) as nc:
        js = nc.jetstream()
        js.create_or_update_stream(name="JOBS", subjects=["jobs.>"])
        for number in range(7):
            js.publish("jobs.resize", b"%d" % number)

        # Leaving the block deletes the durable consumer, because this subscription created it.
        with js.pull_subscribe("jobs.>", durable="resizers") as sub:
            while True:
                try:
                    jobs = sub.fetch(batch=5, timeout=1)
                except TimeoutError:
                    break  # no message came within a second
                for job in jobs:
                    job.ack()
                print(f"{len(jobs)} jobs done, {sub.consumer_info().num_pending} to go")


if __name__ == "__main__":
    main()
