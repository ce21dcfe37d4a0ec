"""Infos: all fields that the server sends are read, and missing ones have sensible values."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from datetime import datetime, timezone
from typing import Any

import pytest

from jetstream_sync.api.config import ConsumerConfig, StreamConfig
from jetstream_sync.api.fields import Info
from jetstream_sync.api.info import (
    AccountInfo,
    AccountLimits,
    APIStats,
    ClusterInfo,
    ConsumerInfo,
    ConsumerPause,
    PeerInfo,
    PubAck,
    RawStreamMsg,
    SequenceInfo,
    StreamInfo,
    StreamSourceInfo,
    StreamState,
    Tier,
)
from jetstream_sync.errors import APIError, JetStreamError, StreamNotFoundError
from jetstream_sync.protocol.headers import Headers

UTC = timezone.utc

CLUSTERED_STREAM: dict[str, Any] = {
    "type": "io.nats.jetstream.api.v1.stream_info_response",
    "total": 0,
    "offset": 0,
    "limit": 0,
    "config": {"name": "S", "subjects": ["a"], "max_age": 1_500_000_000, "consumer_limits": {}},
    "created": "2024-02-29T12:00:00.123456789Z",
    "state": {
        "messages": 3,
        "bytes": 120,
        "first_seq": 1,
        "first_ts": "2024-02-29T12:00:01Z",
        "last_seq": 5,
        "last_ts": "0001-01-01T00:00:00Z",
        "num_subjects": 2,
        "subjects": {"a": 1, "b": 2},
        "num_deleted": 2,
        "deleted": [2, 3],
        "lost": {"msgs": [4], "bytes": 40},
        "consumer_count": 1,
    },
    "cluster": {
        "name": "C",
        "raft_group": "S-R3F-x",
        "leader": "n1",
        "leader_since": "2024-02-29T12:00:00Z",
        "replicas": [
            {"name": "n2", "current": True, "active": 250_000_000, "peer": "p2"},
            {"name": "n3", "current": False, "offline": True, "active": 0, "lag": 7, "peer": "p3", "mood": "bad"},
        ],
        "desired": {
            "name": "D",
            "origin": {"replicas": 3, "placement": {"cluster": "C"}, "retention": "limits"},
            "status": {"description": "waiting", "type": "catchup"},
        },
    },
    "sources": [
        {
            "name": "O",
            "lag": 9,
            "active": -1,
            "error": {"code": 404, "err_code": 10059, "description": "stream not found"},
        }
    ],
    "alternates": [{"name": "S", "cluster": "C"}],
    "ts": "2024-02-29T12:00:02.5Z",
    "weather": "fine",
}


def test_stream_info_is_read_whole() -> None:
    """Every part of a clustered stream's info is there, in Python's types."""
    info = StreamInfo.from_wire(CLUSTERED_STREAM)
    assert info.config.max_age == 1.5
    assert info.created == datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)
    assert (info.state.first_ts, info.state.last_ts) == (datetime(2024, 2, 29, 12, 0, 1, tzinfo=UTC), None)
    assert (info.state.subjects, info.state.deleted) == ({"a": 1, "b": 2}, [2, 3])
    assert info.state.lost is not None
    assert info.state.lost.msgs == [4]
    assert info.cluster is not None
    assert [(peer.name, peer.active) for peer in info.cluster.replicas] == [("n2", 0.25), ("n3", 0.0)]
    assert info.cluster.desired is not None
    assert info.cluster.desired.status is not None
    assert info.cluster.desired.status.type == "catchup"
    assert (info.alternates[0].name, info.alternates[0].cluster) == ("S", "C")


def test_error_of_a_source_is_an_api_error() -> None:
    """The error of a source is an APIError of the class that would be raised; `active` is None without contact."""
    (source,) = StreamInfo.from_wire(CLUSTERED_STREAM).sources
    assert source.active is None
    assert isinstance(source.error, StreamNotFoundError)
    assert isinstance(source.error, APIError)
    assert (source.error.code, source.error.err_code) == (404, 10059)


def test_unknown_fields_are_kept_without_the_envelope() -> None:
    """Unknown fields are kept in their object; paging and type belong to the reply and are not kept."""
    info = StreamInfo.from_wire(CLUSTERED_STREAM)
    assert info.unknown_fields == {"weather": "fine"}
    assert info.cluster is not None
    assert [peer.unknown_fields for peer in info.cluster.replicas] == [{}, {"mood": "bad"}]


def test_info_written_and_read_again_is_equal() -> None:
    """An info can be stored as JSON."""
    info = StreamInfo.from_wire({**CLUSTERED_STREAM, "sources": []})
    assert StreamInfo.from_wire(json.loads(json.dumps(info.to_wire()))) == info


@pytest.mark.parametrize(
    "info",
    [
        StreamInfo.from_wire(CLUSTERED_STREAM | {"sources": []}),
        ConsumerInfo(),
        AccountInfo(),
        PubAck("S", 1),
        RawStreamMsg("a", 1, b"x", Headers({"A": "b"}), datetime(2024, 1, 1, tzinfo=UTC)),
    ],
    ids=lambda info: type(info).__name__,
)
def test_infos_copy_and_pickle(info: Info) -> None:
    """Infos can be copied and sent to other processes."""
    assert pickle.loads(pickle.dumps(info)) == info
    assert copy.deepcopy(info) == info
    assert copy.copy(info) == info


@pytest.mark.parametrize(
    ("cls", "wire", "expected"),
    [
        (PubAck, {"stream": "S", "seq": 1}, PubAck("S", 1, duplicate=False, domain="")),
        (
            PubAck,
            {"stream": "S", "seq": 2**64 - 1, "duplicate": True, "domain": "hub"},
            PubAck("S", 2**64 - 1, duplicate=True, domain="hub"),
        ),
        (
            PubAck,
            {"stream": "S", "seq": 3, "val": "12", "batch": "id", "count": 3},
            PubAck("S", 3, val="12", batch="id", count=3),
        ),
        (StreamState, {}, StreamState()),
        (StreamState, {"subjects": None, "deleted": None, "lost": None}, StreamState()),
        (StreamInfo, {"config": {"name": "S"}}, StreamInfo(StreamConfig("S"))),
        (StreamInfo, {"config": {"name": "S"}, "sources": None, "cluster": None}, StreamInfo(StreamConfig("S"))),
        (ConsumerInfo, {}, ConsumerInfo()),
        (
            ConsumerInfo,
            {"name": "c", "delivered": {"consumer_seq": 1, "stream_seq": 2}, "pause_remaining": 1_500_000_000},
            ConsumerInfo(name="c", delivered=SequenceInfo(1, 2), pause_remaining=1.5),
        ),
        (ConsumerInfo, {"config": {"ack_policy": "none"}}, ConsumerInfo(config=ConsumerConfig(ack_policy="none"))),
        (ConsumerPause, {"paused": False, "pause_until": "0001-01-01T00:00:00Z"}, ConsumerPause()),
        (
            ClusterInfo,
            {"replicas": [{"name": "n", "active": 0}]},
            ClusterInfo(replicas=[PeerInfo("n", active=0.0)]),
        ),
        (StreamSourceInfo, {"name": "O", "active": -1}, StreamSourceInfo("O")),
        (
            AccountInfo,
            {
                "memory": 1,
                "reserved_storage": 2**64 - 1,
                "limits": {"max_memory": -1, "max_bytes_required": True},
                "api": {"level": 5, "total": 2**63 + 5},
                "tiers": {"R3": {"streams": 2, "limits": {"max_streams": 9}}},
            },
            AccountInfo(
                memory=1,
                reserved_storage=2**64 - 1,
                limits=AccountLimits(max_memory=-1, max_bytes_required=True),
                api=APIStats(level=5, total=2**63 + 5),
                tiers={"R3": Tier(streams=2, limits=AccountLimits(max_streams=9))},
            ),
        ),
    ],
)
def test_info_is_read_with_defaults_for_what_is_missing(cls: type[Info], wire: Any, expected: Info) -> None:
    """Missing and null are empty; integers of 64 bits are kept."""
    assert cls.from_wire(wire) == expected


def test_defaults_are_not_shared() -> None:
    """Two infos never have the same empty list."""
    first, second = StreamState.from_wire({}), StreamState.from_wire({})
    first.deleted.append(1)
    assert second.deleted == []


@pytest.mark.parametrize(
    ("cls", "wire", "place"),
    [
        (PubAck, {}, "PubAck.stream"),
        (PubAck, {"stream": "S"}, "PubAck.seq"),
        (PubAck, {"stream": "S", "seq": "1"}, "PubAck.seq"),
        (PubAck, ["S", 1], "PubAck"),
        (StreamInfo, {}, "StreamInfo.config"),
        (StreamInfo, {"config": 5}, "StreamInfo.config"),
        (StreamInfo, {"config": {}}, "StreamConfig.name"),
        (StreamInfo, {"config": {"name": "S"}, "created": "now"}, "StreamInfo.created"),
        (StreamInfo, {"config": {"name": "S"}, "state": []}, "StreamInfo.state"),
        (StreamInfo, {"config": {"name": "S"}, "sources": [5]}, "StreamInfo.sources"),
        (StreamState, {"subjects": {"a": "1"}}, "StreamState.subjects"),
        (StreamSourceInfo, {"error": "no"}, "StreamSourceInfo.error"),
        (StreamSourceInfo, {"error": {"code": "no"}}, "StreamSourceInfo.error.code"),
        (AccountInfo, {"tiers": {"R1": 1}}, "AccountInfo.tiers"),
        (AccountInfo, {"memory": 1.5}, "AccountInfo.memory"),
        (RawStreamMsg, {"subject": "a", "seq": 1, "data": "%%"}, "RawStreamMsg.data"),
        (RawStreamMsg, {"subject": "a", "seq": 1, "data": 5}, "RawStreamMsg.data"),
        (RawStreamMsg, {"subject": "a", "seq": 1, "hdrs": "ä"}, "RawStreamMsg.headers"),
    ],
)
def test_wrong_json_type_names_the_place(cls: type[Info], wire: Any, place: str) -> None:
    """An answer of the wrong shape is a JetStreamError that says where; in objects within, when they are read."""
    with pytest.raises(JetStreamError, match=f"cannot be read: {place}"):
        cls.from_wire(wire).to_wire()


def test_objects_within_are_read_once_and_when_asked_for() -> None:
    """Most of an info is never looked at; what is looked at stays the same object, and can be changed."""
    info = StreamInfo.from_wire({"config": {"name": "S"}, "state": {"messages": 3}, "created": None})
    assert info.state.messages == 3
    assert info.config is info.config
    info.config.description = "changed"
    assert info.to_wire()["config"]["description"] == "changed"
    assert info == copy.deepcopy(info) == pickle.loads(pickle.dumps(info))
    assert set(dataclasses.asdict(info)["config"]) >= {"name", "description"}
    assert "_deferred" not in dataclasses.asdict(info)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        info.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_long_value_is_shortened_in_the_error() -> None:
    """An error stays readable, whatever the server sent."""
    with pytest.raises(JetStreamError) as caught:
        PubAck.from_wire({"stream": ["x"] * 10_000, "seq": 1})
    assert len(str(caught.value)) < 200


def test_stored_message_is_decoded() -> None:
    """Payload and headers are base64 in JSON, bytes and Headers in Python, and go back unchanged."""
    wire = {
        "subject": "a",
        "seq": 7,
        "hdrs": "TkFUUy8xLjANCkE6IDENCkE6IDINCg0K",
        "data": "AP8=",
        "time": "2024-02-29T12:00:00.5Z",
    }
    message = RawStreamMsg.from_wire(wire)
    assert message.headers is not None
    assert message.headers.get_all("a") == ["1", "2"]
    assert message.data == b"\x00\xff"
    assert message.time == datetime(2024, 2, 29, 12, 0, 0, 500_000, tzinfo=UTC)
    assert message.to_wire() == {**wire, "data": "AP8=", "time": "2024-02-29T12:00:00.500000Z"}


def test_headers_made_here_are_encoded() -> None:
    """Headers that were never on the wire get their block when written."""
    message = RawStreamMsg("a", 7, headers=Headers({"A": "b"}))
    assert RawStreamMsg.from_wire(message.to_wire()).headers == {"A": "b"}


def test_repr_leaves_out_what_is_empty() -> None:
    """An info prints what it has."""
    assert repr(PubAck("S", 1, domain="hub")) == (
        "PubAck(stream='S', seq=1, duplicate=False, domain='hub', val='', batch='', count=0)"
    )
    assert "replicas" not in repr(ClusterInfo("C"))
