"""Code that runs on the executors, in a module of its own: functions of `__main__` get new globals per task."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyspark.sql import Row

from jetstream_sync.spark import connection


def country_of(url: str) -> Callable[[str], str]:
    def ask(code: str) -> str:
        return connection(servers=url).request("country", code.encode()).data.decode()

    return ask


def remember(url: str) -> Callable[[Iterable[Row]], None]:
    def publish(rows: Iterable[Row]) -> None:
        js = connection(servers=url).jetstream()
        acks = [js.publish_async(f"seen.{row.code}", row.name.encode(), msg_id=row.name) for row in rows]
        for ack in acks:
            ack.result()

    return publish
