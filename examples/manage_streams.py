"""Create, change, list, read, purge and delete streams and consumers."""

from __future__ import annotations

import os
from contextlib import ExitStack

from jetstream_sync import ConsumerExistsError, StreamConfig, connect
from jetstream_sync.testing import LocalServer

with ExitStack() as stack:
    url = os.environ.get("NATS_URL") or stack.enter_context(LocalServer()).url
    nc = stack.enter_context(connect(url))
    js = nc.jetstream()

    config = StreamConfig(
        name="EXAMPLE_SENSORS",
        subjects=["example.sensors.*"],
        storage="memory",
        max_age=24 * 3600,  # seconds, or a timedelta
        max_msgs_per_subject=100,
        allow_direct=True,
    )
    stream = js.create_or_update_stream(config)
    stack.callback(stream.delete)

    for number in range(10):
        js.publish(f"example.sensors.{'in' if number % 2 else 'out'}", str(number).encode())

    # Read, modify, update: fields that this library does not know are kept.
    changed = stream.get_info().config
    changed.description = "temperatures"
    js.update_stream(changed)

    info = stream.get_info(subjects_filter="example.sensors.>")
    print(f"{info.state.messages} messages:", dict(sorted(info.state.subjects.items())))
    print("streams on sensors:", list(js.stream_names("example.sensors.in")))

    # Read single messages, by sequence and by subject.
    print("first:", stream.get_message(1).data, "last from inside:", end=" ")
    print(stream.get_message(last_by_subject="example.sensors.in").data)
    stream.delete_message(2)
    print("purged:", stream.purge(subject="example.sensors.out", keep=1))

    # To create a consumer that exists with another configuration is an error.
    stream.create_consumer(durable_name="archive", ack_wait=10)
    try:
        stream.create_consumer(durable_name="archive", ack_wait=20)
    except ConsumerExistsError as error:
        print(error.description)
    stream.create_or_update_consumer(durable_name="archive", ack_wait=20)
    for consumer in stream.list_consumers():
        print(f"{consumer.name}: {consumer.num_pending} messages to come, ack_wait {consumer.config.ack_wait} s")
    stream.delete_consumer("archive")
