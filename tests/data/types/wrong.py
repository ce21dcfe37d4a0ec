"""Calls that type checkers must refuse, one in each line that ends in `# wrong`: run by tests/test_types.py."""

from __future__ import annotations

from jetstream_sync import ConsumerConfig, JetStream, Stream, StreamConfig, connect


def calls(js: JetStream, stream: Stream) -> None:
    js.create_stream(name="S", subjetcs=["a.>"])  # wrong
    js.create_stream(name="S", subjects="a.>")  # wrong
    js.update_stream(name="S", max_age="1d")  # wrong
    js.create_or_update_stream(name="S", num_replicas="3")  # wrong
    js.create_stream(name="S", placement={"cluser": "c"})  # wrong
    js.create_stream(name="S", mirror={"opt_start_seq": 7})  # wrong
    js.create_stream(durable_name="d")  # wrong
    js.create_consumer("S", durable="d")  # wrong
    js.update_consumer("S", backoff=1.5)  # wrong
    js.create_or_update_consumer("S", headers_only="yes")  # wrong
    stream.create_consumer(ack_wiat=2)  # wrong
    stream.update_consumer(ack_wait="2s")  # wrong
    stream.create_or_update_consumer(metadata={"a": 1})  # wrong
    js.ordered_consumer("S", ack_wait=2)  # wrong
    stream.ordered_consumer(max_reset_attempts="many")  # wrong
    js.subscribe("a", durabel="d")  # wrong
    js.pull_subscribe("a", filter_subject=7)  # wrong
    js.add_stream(name="S", subjetcs=["a"])  # wrong
    js.add_consumer("S", durabel_name="d")  # wrong
    js.publish("a", "text")  # wrong
    connect(nmae="shop")  # wrong
    connect().jetstream(publish_async_max_pendign=1)  # wrong
    StreamConfig("S", subjetcs=["a"])  # wrong
    ConsumerConfig(max_deliver="3")  # wrong
