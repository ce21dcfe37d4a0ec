"""Requests to the JetStream API: account, streams, consumers, stored messages."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from jetstream_sync import (
    ConsumerNotFoundError,
    JetStreamNotEnabledError,
    MessageNotFoundError,
    StreamConfig,
    StreamNotFoundError,
)
from tests.spec.wire_scenarios.bench import Bench, scenario


@scenario("streams")
def streams(bench: Bench) -> None:
    """Streams are made, changed, found and deleted."""
    js = bench.js
    with bench.step("account"):
        js.account_info()
    with bench.step("create"):
        js.create_stream(name="A", subjects=["a.>"], storage="memory", max_age=3600)
        js.create_stream(StreamConfig(name="B", subjects=["b.*"], storage="memory", allow_direct=True))
    with bench.step("update"):
        js.update_stream(name="A", subjects=["a.>", "c"], storage="memory", max_msgs=10)
    with bench.step("create or update: there, and not there"):
        js.create_or_update_stream(name="A", subjects=["a.>"], storage="memory")
        js.create_or_update_stream(name="C", subjects=["c.>"], storage="memory")
    with bench.step("look up"):
        stream = js.get_stream("A")
        stream.get_info()
        stream.get_info(deleted_details=True, subjects_filter=">")
        with pytest.raises(StreamNotFoundError):
            js.get_stream("NONE")
    with bench.step("list"):
        bench.note(*(info.config.name for info in js.list_streams()))
        bench.note(*js.stream_names())
        bench.note(*js.stream_names("a.1"))
        bench.note(js.find_stream_name_by_subject("b.1"))
    with bench.step("delete"):
        stream.delete()
        js.delete_stream("B")


@scenario("streams")
def stored_messages(bench: Bench) -> None:
    """Stored messages are read and removed, by way of the leader and of Direct Get."""
    bench.stream(6)
    stream = bench.js.get_stream("S")
    with bench.step("get"):
        bench.note(stream.get_message(2).data.decode())
        bench.note(stream.get_message(last_by_subject="s.x").data.decode())
        bench.note(stream.get_message(3, next_by_subject="s.*").data.decode())
        bench.note(stream.get_message(next_by_subject="s.x").data.decode())
        with pytest.raises(MessageNotFoundError):
            stream.get_message(99)
    with bench.step("allow Direct Get, and get"):
        stream = bench.js.update_stream(name="S", subjects=["s.>"], storage="memory", allow_direct=True)
        bench.note(stream.get_message(2).data.decode())
        bench.note(stream.get_message(last_by_subject="s.x").data.decode())
        bench.note(stream.get_message(3, next_by_subject="s.*").data.decode())
        with pytest.raises(MessageNotFoundError):
            stream.get_message(99)
    with bench.step("delete"):
        stream.delete_message(1)
        stream.secure_delete_message(2)
    with bench.step("purge"):
        bench.note(stream.purge(keep=3))
        bench.note(stream.purge(sequence=5, subject="s.x"))
        bench.note(stream.purge())


@scenario("consumers")
def consumers(bench: Bench) -> None:
    """Consumers are made, changed, found and deleted."""
    bench.stream()
    js = bench.js
    stream = js.get_stream("S")
    with bench.step("create: durable, by name, without a name"):
        js.create_consumer("S", durable_name="D", ack_wait=10, max_deliver=3, backoff=[1, 2])
        stream.create_consumer(name="N", filter_subject="s.x", inactive_threshold=60)
        stream.create_consumer(
            filter_subjects=["s.x", "s.y"], ack_policy="none", deliver_policy="last_per_subject"
        )
    with bench.step("update, create or update"):
        js.update_consumer("S", durable_name="D", ack_wait=20)
        stream.create_or_update_consumer(durable_name="D", description="changed")
        js.create_or_update_consumer("S", durable_name="E")
    with bench.step("look up"):
        consumer = js.get_consumer("S", "D")
        consumer.get_info()
        with pytest.raises(ConsumerNotFoundError):
            stream.get_consumer("NONE")
    with bench.step("list"):
        bench.note(sum(1 for _ in stream.list_consumers()))
        bench.note(sum(1 for _ in stream.consumer_names()))
    with bench.step("delete"):
        consumer.delete()
        js.delete_consumer("S", "E")
        stream.delete_consumer("N")


@scenario("consumers", since=(2, 11))
def pause_and_unpin(bench: Bench) -> None:
    """Consumers are paused, resumed and unpinned."""
    bench.stream()
    bench.admin.create_consumer(
        "S", durable_name="C", priority_groups=["g"], priority_policy="pinned_client", priority_timeout=60
    )
    stream = bench.js.get_stream("S")
    with bench.step("pause, resume"):
        bench.note(stream.pause_consumer("C", datetime(2100, 1, 1, tzinfo=timezone.utc)).paused)
        bench.note(stream.resume_consumer("C").paused)
    with bench.step("unpin"):
        stream.unpin_consumer("C", "g")


@scenario("consumers")
def other_prefixes(bench: Bench) -> None:
    """A domain, and a prefix of the API."""
    with bench.step("domain"):
        with pytest.raises(JetStreamNotEnabledError):
            bench.nc.jetstream(domain="hub").account_info()
    with bench.step("prefix"):
        with pytest.raises(JetStreamNotEnabledError):
            bench.nc.jetstream(prefix="other.api").get_consumer("S", "C")
