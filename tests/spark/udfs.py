"""Functions that run on executors: in a module, for `__main__` would give them fresh globals per task."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from typing import Any

from pyspark import TaskContext

from jetstream_sync.spark import connection


def ask(url: str, question: str) -> str:
    """The answer of a service, and which connection of which process asked."""
    nc = connection(servers=url)
    answer = nc.request("double", question.encode(), timeout=10).data.decode()
    return f"{answer} {os.getpid()} {nc.client_id}"


def publish_rows(url: str, rows: Iterable[Any]) -> None:
    js = connection(servers=url).jetstream()
    acks = [js.publish_async("s.rows", str(row.id).encode()) for row in rows]
    for ack in acks:
        ack.result()


def shuffled_by_attempt(numbers: Iterable[int]) -> Iterator[tuple[str]]:
    """All rows, in an order of the task's attempt. The first attempt fails behind 6 000 rows."""
    context = TaskContext.get()
    assert context is not None
    attempt = context.attemptNumber()
    shuffled = list(numbers)
    random.Random(attempt).shuffle(shuffled)
    for place, number in enumerate(shuffled):
        if attempt == 0 and place == 6000:
            raise RuntimeError("the first attempt fails here")
        yield (str(number),)
