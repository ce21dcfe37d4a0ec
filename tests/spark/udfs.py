"""Functions that run on executors: in a module, for `__main__` would give them fresh globals per task."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

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
