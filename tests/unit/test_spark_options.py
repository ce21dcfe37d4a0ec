"""The options of the data source: tables, no Spark."""

from __future__ import annotations

import pytest

from jetstream_sync.spark.message_ids import Marker, TaskIdentity, rows_already_written
from jetstream_sync.spark.offsets import Position
from jetstream_sync.spark.options import ConnectionOptions, ReadOptions, Secret, WriteOptions


def test_read_options_are_typed() -> None:
    """Text becomes numbers, flags and positions; names are taken in any case, Spark's own are passed over."""
    options = ReadOptions.parse(
        {
            "stream": "ORDERS",
            "SUBJECTS": "a.*, b.>",
            "startingoffsets": '{"seq": 5}',
            "minPartitions": "8",
            "failOnDataLoss": "FALSE",
            "checkpointLocation": "/tmp/x",
            "queryName": "q",
        }
    )
    assert options.stream == "ORDERS"
    assert options.subjects == ("a.*", "b.>")
    assert options.starting_offsets == Position(seq=5)
    assert options.min_partitions == 8
    assert options.fail_on_data_loss is False


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "stream"),
        ({"stream": ""}, "stream"),
        ({"stream": "A.B"}, "stream"),
        ({"stream": "S", "streem": "S"}, "streem"),
        ({"stream": "S", "path": "S"}, "path"),
        ({"stream": "S", "subjects": "a..b"}, "subjects"),
        ({"stream": "S", "subjects": "a,,b"}, "subjects"),
        ({"stream": "S", "startingOffsets": "yesterday"}, "startingOffsets"),
        ({"stream": "S", "endingOffsets": "earliest"}, "endingOffsets"),
        ({"stream": "S", "startingOffsets": "latest", "endingOffsets": '{"seq": 3}'}, "endingOffsets"),
        ({"stream": "S", "minPartitions": "0"}, "minPartitions"),
        ({"stream": "S", "minPartitions": "1.5"}, "minPartitions"),
        ({"stream": "S", "maxMessagesPerTrigger": "-3"}, "maxMessagesPerTrigger"),
        ({"stream": "S", "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"stream": "S", "domain": "d", "apiPrefix": "p"}, "apiPrefix"),
        ({"stream": "S", "apiPrefix": "p.>"}, "apiPrefix"),
        ({"stream": "S", "tlsKeyFile": "k"}, "tlsCertFile"),
        ({"stream": "S", "password": "hunter2"}, "user"),
        ({"stream": "S", "exactlyOnce": "true"}, "exactlyOnce"),
    ],
)
def test_read_options_name_what_is_wrong(options: dict[str, str], named: str) -> None:
    """An unknown option or a bad value is an error that names the option."""
    with pytest.raises(ValueError, match=named):
        ReadOptions.parse(options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"subject": "a.*"}, "subject"),
        ({"exactlyOnce": "true"}, "markerSubject"),
        ({"markerSubject": "m"}, "exactlyOnce"),
        ({"maxPending": "none"}, "maxPending"),
        ({"publishTimeout": "0"}, "publishTimeout"),
        ({"startingOffsets": "latest"}, "startingOffsets"),
    ],
)
def test_write_options_name_what_is_wrong(options: dict[str, str], named: str) -> None:
    """The same for writing."""
    with pytest.raises(ValueError, match=named):
        WriteOptions.parse(options)


def test_secrets_are_not_shown() -> None:
    """Neither the options nor an error about them show a secret; a URL may hold one, too."""
    secret = "hunter2"
    options = ConnectionOptions.parse(
        {"user": secret, "password": secret, "token": secret, "servers": f"nats://u:{secret}@h"}
    )
    assert secret not in repr(options)
    assert secret not in str(options)
    assert options.password == Secret(secret)
    for name in ("password", "token", "servers"):
        with pytest.raises(ValueError, match=name) as caught:
            ConnectionOptions.parse({name: ""})
        assert secret not in str(caught.value)
    with pytest.raises(ValueError) as caught:
        ConnectionOptions.parse({"passwort": secret})
    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    ("identity", "prefix"),
    [(TaskIdentity("q", 7, 2), "q/7/2/"), (TaskIdentity("w", None, 0), "w/0/")],
)
def test_message_ids_name_write_batch_and_partition(identity: TaskIdentity, prefix: str) -> None:
    """The prefix of a row's id stays the same when its task runs again."""
    assert identity.id_prefix == prefix


def test_marker_subject_is_one_token_per_part() -> None:
    """A query id cannot break out of its token."""
    assert TaskIdentity("a.b>c", 1, 3).marker_subject("m") == "m.a_b_c.3"


def test_marker_survives_bytes() -> None:
    """A marker is read back as it was written; anything else is refused."""
    marker = Marker(3, 999, "task")
    assert Marker.from_bytes(marker.to_bytes()) == marker
    for data in (b"", b"{}", b"[]", b"x", b'{"epoch": "a", "rows": 1, "task": "t"}'):
        with pytest.raises(ValueError, match="marker"):
            Marker.from_bytes(data)


@pytest.mark.parametrize(
    ("last", "epoch", "expected"),
    [
        (None, 0, 0),
        (Marker(4, 500, "t"), 5, 0),
        (Marker(5, 500, "t"), 5, 500),
        (Marker(6, 1, "t"), 5, None),
    ],
)
def test_rows_already_written(last: Marker | None, epoch: int, expected: int | None) -> None:
    """Rows of a finished chunk are skipped, and all rows of an epoch that a later one has followed."""
    assert rows_already_written(last, epoch) == expected
