"""Streams: created, changed, listed, purged, deleted on a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from jetstream_sync import (
    APIError,
    BadSubjectError,
    Connection,
    JetStream,
    Stream,
    StreamConfig,
    StreamInfo,
    StreamNameInUseError,
    StreamNotFoundError,
    TimeoutError,
    connect,
)
from jetstream_sync.testing import LocalServer

BAD_NAMES = ["", "a b", "a.b", "a*", "*", ">", "a/b", "a\\b", "a\tb", "a\r\nb", "a\0b", "a\x7f", ".."]


def sent(nc: Connection) -> int:
    return nc.stats.out_msgs


# --- create, update ---------------------------------------------------------------------------------


def test_create_returns_the_stream_as_the_server_has_it(js: JetStream) -> None:
    """Fields, a dict, a StreamConfig, and a StreamConfig overridden by fields all create a stream."""
    by_fields = js.create_stream(name="A", subjects=["a.>"], storage="memory")
    by_dict = js.create_stream({"name": "B", "subjects": ["b.>"]}, storage="memory")
    config = StreamConfig(name="C", subjects=["c.>"], storage="memory")
    by_config = js.create_stream(config)
    by_both = js.create_stream(config, name="D", subjects=["d.>"])
    for stream, name in zip((by_fields, by_dict, by_config, by_both), "ABCD", strict=True):
        assert isinstance(stream, Stream)
        assert stream.name == name
        assert stream.info.config.subjects == [f"{name.lower()}.>"]
        assert stream.info.config.storage == "memory"
    assert config.name == "C"
    assert sorted(js.stream_names()) == ["A", "B", "C", "D"]


def test_create_again_with_the_same_config_returns_it(js: JetStream) -> None:
    """Creating twice the same is no error, so that programs may create what they need at their start."""
    js.create_stream(name="S", subjects=["s"])
    js.publish("s", b"kept")
    assert js.create_stream(name="S", subjects=["s"]).get_info().state.messages == 1


def test_create_over_a_different_one_is_an_error(js: JetStream) -> None:
    """A stream of that name with other settings is not touched."""
    js.create_stream(name="S", subjects=["s"])
    with pytest.raises(StreamNameInUseError) as caught:
        js.create_stream(name="S", subjects=["other"])
    assert caught.value.err_code == 10058
    assert js.get_stream("S").info.config.subjects == ["s"]


def test_update_changes_an_existing_stream_only(js: JetStream) -> None:
    """Update takes a config read from the server, changed; without the stream it raises StreamNotFoundError."""
    stream = js.create_stream(name="S", subjects=["s"], max_msgs=10)
    config = stream.info.config
    config.max_msgs = 20
    assert js.update_stream(config).info.config.max_msgs == 20
    assert js.update_stream(config, description="d").info.config.description == "d"
    with pytest.raises(StreamNotFoundError):
        js.update_stream(name="NONE", subjects=["none"])


def test_update_that_the_server_refuses_raises_its_error(js: JetStream) -> None:
    """What cannot be changed is refused with the server's own words."""
    js.create_stream(name="S", subjects=["s"], storage="memory")
    with pytest.raises(APIError, match="can not change storage type") as caught:
        js.update_stream(name="S", subjects=["s"], storage="file")
    assert (caught.value.code, caught.value.err_code) == (500, 10052)


def test_create_or_update_does_either(js: JetStream) -> None:
    """The first call creates, the second changes, the third changes nothing."""
    for limit in (10, 20, 20):
        assert js.create_or_update_stream(name="S", subjects=["s"], max_msgs=limit).info.config.max_msgs == limit


def test_field_this_version_does_not_know_survives_an_update(js: JetStream) -> None:
    """What was read and not understood is sent back as it was: here metadata, hidden from the reader."""
    js.create_stream(name="S", subjects=["s"], metadata={"owner": "billing"})
    wire = js.get_stream("S").info.config.to_wire()
    config = StreamConfig(name="S", subjects=["s"], description="changed")
    config.unknown_fields["metadata"] = wire["metadata"]
    updated = js.update_stream(config)
    assert updated.info.config.metadata is not None
    assert updated.info.config.metadata["owner"] == "billing"
    assert updated.info.config.description == "changed"


# --- get, list, delete ------------------------------------------------------------------------------


def test_get_and_delete(js: JetStream) -> None:
    """Both delete calls remove it; then get, delete and info say that it is not there."""
    js.create_stream(name="S", subjects=["s"])
    stream = js.get_stream("S")
    stream.delete()
    js.create_stream(name="S", subjects=["s"])
    js.delete_stream("S")
    for call in (lambda: js.get_stream("S"), lambda: js.delete_stream("S"), stream.get_info, stream.purge):
        with pytest.raises(StreamNotFoundError) as caught:
            call()
        assert (caught.value.code, caught.value.err_code) == (404, 10059)


def test_info_is_cached_until_asked_again(js: JetStream) -> None:
    """`info` is what was last received; get_info() asks the server."""
    stream = js.create_stream(name="S", subjects=["s"])
    js.publish("s")
    assert stream.info.state.messages == 0
    assert stream.get_info().state.messages == 1
    assert stream.info.state.messages == 1


def test_info_tells_deleted_sequences_and_subjects(js: JetStream) -> None:
    """Details come when asked for; a filter that matches nothing gives an empty dict."""
    stream = js.create_stream(name="S", subjects=["s.>"])
    for number in range(6):
        js.publish(f"s.{number % 2}")
    stream.delete_message(3)
    assert stream.get_info().state.deleted == []
    assert stream.get_info(deleted_details=True).state.deleted == [3]
    assert stream.get_info().state.subjects == {}
    assert stream.get_info(subjects_filter="s.>").state.subjects == {"s.0": 2, "s.1": 3}
    assert stream.get_info(subjects_filter="s.1").state.subjects == {"s.1": 3}
    assert stream.get_info(subjects_filter="s.9").state.subjects == {}


def test_streams_are_found_by_subject(js: JetStream) -> None:
    """Lists can be narrowed to a subject; finding the one stream needs exactly one."""
    js.create_stream(name="A", subjects=["a.>"])
    js.create_stream(name="B", subjects=["b.*"])
    assert list(js.stream_names("a.x")) == ["A"]
    assert [info.config.name for info in js.list_streams("b.>")] == ["B"]
    assert js.find_stream_name_by_subject("b.1") == "B"
    with pytest.raises(StreamNotFoundError, match="no stream on subject 'c'"):
        js.find_stream_name_by_subject("c")
    with pytest.raises(StreamNotFoundError, match="several streams: A, B"):
        js.find_stream_name_by_subject(">")


@pytest.fixture(scope="module")
def crowded() -> Iterator[LocalServer]:
    """A server with 1100 streams."""
    with LocalServer() as server:
        with connect(server.url) as nc:
            create_many(nc, 1100)
        yield server


def create_many(nc: Connection, count: int) -> None:
    """Pipelined: one round trip each would take most of the test's time."""
    answers = nc.subscribe("answers")
    for number in range(count):
        body = b'{"name":"N%04d","subjects":["n.%04d"],"storage":"memory"}' % (number, number)
        nc.publish(f"$JS.API.STREAM.CREATE.N{number:04}", body, reply="answers")
    for _ in range(count):
        assert b'"error"' not in answers.next_msg(timeout=30).data
    answers.unsubscribe()


def test_lists_of_more_than_one_page_are_complete(crowded: LocalServer) -> None:
    """1100 streams are more than a page of 256 infos and of 1024 names: the lists have them all, each once."""
    with connect(crowded.url) as nc:
        js = nc.jetstream()
        expected = [f"N{number:04}" for number in range(1100)]
        infos = list(js.list_streams())
        assert all(isinstance(info, StreamInfo) for info in infos)
        assert sorted(info.config.name for info in infos) == expected
        assert sorted(js.stream_names()) == expected


def test_lists_ask_page_by_page(crowded: LocalServer) -> None:
    """Making the iterator sends nothing, its first item one request, item 257 the second."""
    with connect(crowded.url) as nc:
        streams = nc.jetstream().list_streams()
        assert sent(nc) == 0
        for _ in range(256):
            next(streams)
        assert sent(nc) == 1
        next(streams)
        assert sent(nc) == 2
        assert len(list(streams)) == 1100 - 257
        assert sent(nc) == 5


def test_list_of_nothing_is_empty(js: JetStream) -> None:
    """Without streams both lists end at once."""
    assert list(js.list_streams()) == []
    assert list(js.stream_names()) == []


@pytest.mark.soak
def test_names_of_five_thousand_streams_are_listed() -> None:
    """The names come in pages of 1024 and are complete."""
    with LocalServer() as server, connect(server.url) as nc:
        create_many(nc, 5000)
        before = sent(nc)
        names = list(nc.jetstream(timeout=30).stream_names())
        assert sorted(names) == [f"N{number:04}" for number in range(5000)]
        assert sent(nc) - before == 5


def test_info_of_more_subjects_than_a_page_is_complete(nats_server: LocalServer) -> None:
    """100 000 subjects is what the server tells at once; of 100 500 the rest is asked for."""
    with connect(nats_server.url) as nc:
        js = nc.jetstream(timeout=30)
        stream = js.create_stream(name="WIDE", subjects=["w.*"], storage="memory")
        try:
            for number in range(100_500):
                js.publish_async(f"w.{number}")
            js.publish_async_wait(60)
            before = sent(nc)
            started = time.monotonic()
            subjects = stream.get_info(subjects_filter=">").state.subjects
            print(f"100 500 subjects in {time.monotonic() - started:.2f} s")
            assert sent(nc) - before == 2
            assert len(subjects) == 100_500
            assert set(subjects.values()) == {1}
            assert subjects["w.100499"] == 1
        finally:
            stream.delete()


# --- purge ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "purged", "left"),
    [
        ({}, 10, []),
        ({"subject": "s.0"}, 5, [2, 4, 6, 8, 10]),
        ({"subject": "s.*"}, 10, []),
        ({"subject": "s.9"}, 0, list(range(1, 11))),
        ({"sequence": 4}, 3, list(range(4, 11))),
        ({"keep": 3}, 7, [8, 9, 10]),
        ({"keep": 0}, 10, []),
        ({"subject": "s.1", "sequence": 6}, 2, [1, 3, 5, 6, 7, 8, 9, 10]),
        ({"subject": "s.0", "keep": 1}, 4, [2, 4, 6, 8, 9, 10]),
    ],
)
def test_purge_removes_what_was_asked_for(
    js: JetStream, options: dict[str, Any], purged: int, left: list[int]
) -> None:
    """By subject, below a sequence, all but the last: the count returned is what is gone."""
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory")
    for number in range(10):
        js.publish(f"s.{number % 2}")
    assert stream.purge(**options) == purged
    state = stream.get_info(deleted_details=True).state
    present = [seq for seq in range(state.first_seq, state.last_seq + 1) if seq not in state.deleted]
    assert present == left


@pytest.mark.parametrize(
    "options",
    [
        {"sequence": 1, "keep": 1},
        {"sequence": 0},
        {"keep": -1},
        {"sequence": "1"},
        {"keep": True},
        {"subject": "a b"},
    ],
)
def test_purge_with_bad_options_sends_nothing(nc: Connection, js: JetStream, options: dict[str, Any]) -> None:
    """Sequence and keep together, numbers out of range, a bad subject: an error before anything is sent."""
    stream = js.create_stream(name="S", subjects=["s"])
    before = sent(nc)
    with pytest.raises(ValueError):
        stream.purge(**options)
    assert sent(nc) == before


# --- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_name_is_refused_before_anything_is_sent(nc: Connection, js: JetStream, name: str) -> None:
    """Blanks, dots, wildcards, separators and control characters: BadSubjectError from every call."""
    before = sent(nc)
    calls = [
        lambda: js.create_stream(name=name),
        lambda: js.update_stream(name=name),
        lambda: js.create_or_update_stream(name=name),
        lambda: js.get_stream(name),
        lambda: js.delete_stream(name),
        lambda: js.create_consumer(name),
        lambda: js.get_consumer(name, "c"),
        lambda: js.delete_consumer(name, "c"),
    ]
    for call in calls:
        with pytest.raises(BadSubjectError):
            call()
    assert sent(nc) == before


@pytest.mark.parametrize("subject", ["", "a b", "a..b", ".a", "a.", "a.>.b", "a*b", "a\r\nb", "a\0"])
def test_bad_subject_is_refused_before_anything_is_sent(nc: Connection, js: JetStream, subject: str) -> None:
    """Subjects are checked when the call is made, also by lists, which ask later."""
    before = sent(nc)
    calls = [
        lambda: js.create_stream(name="S", subjects=[subject]),
        lambda: js.stream_names(subject),
        lambda: js.list_streams(subject),
        lambda: js.find_stream_name_by_subject(subject),
    ]
    for call in calls:
        with pytest.raises(BadSubjectError):
            call()
    assert sent(nc) == before


def test_unknown_field_name_is_an_error(js: JetStream) -> None:
    """A misspelt field is not silently left out."""
    with pytest.raises(TypeError, match="max_mgs"):
        js.create_stream(name="S", max_mgs=1)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"prefix": "a b"},
        {"prefix": ""},
        {"prefix": "a.*"},
        {"domain": "a.b"},
        {"domain": ""},
        {"domain": "d", "prefix": "p"},
        {"publish_async_max_pending": 0},
    ],
)
def test_bad_context_options_are_refused(nc: Connection, options: dict[str, Any]) -> None:
    """Options of a context that cannot work are rejected."""
    with pytest.raises(ValueError):
        nc.jetstream(**options)


def test_silent_server_ends_a_call_at_its_timeout() -> None:
    """The context's timeout bounds every call."""
    with LocalServer() as server, connect(server.url) as nc:
        js = nc.jetstream(timeout=0.3)
        js.create_stream(name="S")
        server.pause()
        started = time.monotonic()
        with pytest.raises(TimeoutError, match=r"STREAM\.INFO\.S"):
            js.get_stream("S")
        assert 0.3 <= time.monotonic() - started < 1.5
        server.resume()
        assert js.get_stream("S").name == "S"
