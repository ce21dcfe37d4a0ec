"""Calls that type checkers must accept: run by tests/test_types.py, never executed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from jetstream_sync import ConsumerConfig, JetStream, Placement, Stream, StreamConfig, StreamSource


def calls(js: JetStream, stream: Stream, settings: dict[str, Any]) -> None:
    js.create_stream(name="S", subjects=["a.>"], max_age=timedelta(days=1), placement={"cluster": "c"})
    js.create_stream(StreamConfig("S"), subjects=("a", "b"), storage="memory", placement=Placement(tags=["x"]))
    js.update_stream({"name": "S"}, duplicate_window=2, metadata={"a": "b"})
    js.create_or_update_stream(name="S", sources=[StreamSource("A"), {"name": "B", "opt_start_seq": 7}])
    js.create_or_update_stream(**settings)
    js.create_consumer("S", durable_name="d", ack_wait=2, backoff=[1, 2.5, timedelta(seconds=4)])
    js.update_consumer("S", ConsumerConfig(name="d"), max_deliver=3, idle_heartbeat=1)
    stream.create_consumer(name="c", filter_subjects=["a"], opt_start_time=datetime.now(timezone.utc))
    stream.create_or_update_consumer(settings, ack_policy="none")
    js.ordered_consumer("S", filter_subject="a", name_prefix="p", inactive_threshold=timedelta(minutes=1))
    stream.ordered_consumer(**settings)
    js.subscribe("a", durable="d", idle_heartbeat=1, flow_control=True, deliver_policy="new", max_deliver=2)
    js.add_stream(name="S", subjects=["a"])
    js.add_consumer("S", ConsumerConfig(name="d"), ack_wait=2)
    js.pull_subscribe("a", "d", ack_wait=timedelta(seconds=1))
