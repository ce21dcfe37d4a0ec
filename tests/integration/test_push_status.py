"""Automatic status management of push subscriptions (ADR-15, ADR-9): flow control, heartbeats, gaps, limits.

What a real server does is seen on a real server; the rest is said by a scripted peer that plays JetStream.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import Connection, JetStream, JetStreamMessage, PushSubscription
from jetstream_sync.errors import (
    ConsumerDeletedError,
    MissedHeartbeatError,
    NoRespondersError,
    PullError,
    SequenceMismatchError,
    SlowConsumerError,
    TimeoutError,
)
from jetstream_sync.testing import FaultProxy, LocalServer, PeerConnection, ScriptedPeer
from tests.support.eventually import eventually
from tests.support.observer import Observer, fill


@contextmanager
def connected(url: str, **options: Any) -> Iterator[tuple[Connection, list[Exception]]]:
    """A connection, and what its error callback was told."""
    errors: list[Exception] = []
    nc = jetstream_sync.connect(url, error_cb=errors.append, **options)
    try:
        yield nc, errors
    finally:
        nc.close()


def of_kind(errors: list[Exception], kind: type[Exception]) -> list[Any]:
    return [error for error in errors if isinstance(error, kind)]


# --- a peer that plays JetStream --------------------------------------------------------------------------


class PlayedJetStream:
    """Answers the API as one stream S with one consumer would, and sends what the test tells it to."""

    nc: Connection
    """The client's connection."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {"error": {"code": 404, "err_code": 10014, "description": "not found"}}
        self.published: list[tuple[str, bytes]] = []
        self.created: list[dict[str, Any]] = []
        self._sids: dict[str, str] = {}
        self._connection: PeerConnection | None = None
        self._lock = threading.Lock()

    def serve(self, connection: PeerConnection) -> None:
        connection.handshake()
        with self._lock:
            self._connection = connection
        while True:
            verb, *arguments = connection.expect_line(timeout=60.0).decode().split(" ")
            if verb == "PING":
                self._send(b"PONG\r\n")
            elif verb == "SUB":
                self._sids[arguments[0]] = arguments[-1]
            elif verb == "PUB":
                payload = connection.read_exactly(int(arguments[-1]) + 2)[:-2]
                self._on_publish(arguments[0], arguments[1] if len(arguments) == 3 else None, payload)

    def _on_publish(self, subject: str, reply: str | None, payload: bytes) -> None:
        self.published.append((subject, payload))
        if reply is None:
            return
        if ".STREAM.NAMES" in subject:
            answer: dict[str, Any] = {"streams": ["S"], "total": 1}
        elif ".CONSUMER.CREATE." in subject:
            config = json.loads(payload)["config"]
            self.created.append(config)
            answer = {"stream_name": "S", "name": config["name"], "config": config}
        elif ".STREAM.INFO." in subject:
            answer = {"config": {"name": "S"}, "state": {"first_seq": 1, "last_seq": 1000}}
        elif ".CONSUMER.INFO." in subject:
            answer = self.info
        else:
            answer = {"success": True}
        inbox = reply.rpartition(".")[0] + ".*"
        self._msg(reply, self._sids[inbox], json.dumps(answer).encode())

    def _msg(self, subject: str, sid: str, payload: bytes, reply: str = "") -> None:
        self._send(
            f"MSG {subject} {sid} {reply + ' ' if reply else ''}{len(payload)}\r\n".encode() + payload + b"\r\n"
        )

    def _send(self, data: bytes) -> None:
        with self._lock:
            assert self._connection is not None
            self._connection.send(data)

    # --- what the test says

    prefix = "$JS.ACK"  # of the short form of reply subjects

    def message(
        self, sub: PushSubscription, consumer_seq: int, *, delivered: int = 1, stream_seq: int = 0
    ) -> None:
        sequences = f"{stream_seq or consumer_seq}.{consumer_seq}"
        reply = f"{self.prefix}.S.{sub.consumer_name}.{delivered}.{sequences}.1700000000000.0"
        self._msg("s.x", self._sids[sub.subject], b"%d" % consumer_seq, reply)

    def status(self, sub: PushSubscription, line: str, reply: str = "", **headers: str) -> None:
        lines = [f"NATS/1.0 {line}"] + [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        block = ("\r\n".join(lines) + "\r\n\r\n").encode()
        address = f"{sub.subject} {self._sids[sub.subject]} {reply + ' ' if reply else ''}"
        self._send(f"HMSG {address}{len(block)} {len(block)}\r\n".encode() + block + b"\r\n")

    def heartbeat(self, sub: PushSubscription, last_consumer: int, **headers: str) -> None:
        self.status(
            sub, "100 Idle Heartbeat", Nats_Last_Consumer=str(last_consumer), Nats_Last_Stream="9", **headers
        )

    def flow_control(self, sub: PushSubscription, reply: str) -> None:
        self.status(sub, "100 FlowControl Request", reply)

    def break_connection(self) -> None:
        """End the connection, and wait until the client has subscribed on the next one."""
        with self._lock:
            assert self._connection is not None
            subjects = set(self._sids)
            self._sids.clear()
            self._connection.socket.shutdown(socket.SHUT_RDWR)
        eventually(lambda: subjects <= set(self._sids), message="the client has subscribed again")

    def answers(self, subject: str = "$JS.FC.") -> list[str]:
        return [published for published, _ in self.published if published.startswith(subject)]


@pytest.fixture
def played() -> Iterator[tuple[PlayedJetStream, JetStream, list[Exception]]]:
    script = PlayedJetStream()
    with ScriptedPeer(script.serve) as peer, connected(peer.url, reconnect_time_wait=0.01) as (nc, errors):
        script.nc = nc
        yield script, nc.jetstream(), errors


Played = tuple[PlayedJetStream, JetStream, list[Exception]]


def numbers(sub: PushSubscription, count: int) -> list[int]:
    return [int(sub.next_msg(5.0).data) for _ in range(count)]


def nothing_more(sub: PushSubscription) -> None:
    with pytest.raises(TimeoutError):
        sub.next_msg(0.1)


# --- gaps --------------------------------------------------------------------------------------------------


def test_gap_is_reported_once_with_expected_and_got(played: Played) -> None:
    """A peer that skips consumer sequence 5: one report, expected 5, got 6; every message reaches the user."""
    peer, js, errors = played
    sub = js.subscribe("s.x", durable="d")
    for number in (1, 2, 3, 4, 6, 7, 8):
        peer.message(sub, number, stream_seq=number + 100)
    peer.heartbeat(sub, 8)
    assert numbers(sub, 7) == [1, 2, 3, 4, 6, 7, 8]
    nothing_more(sub)
    eventually(lambda: errors)
    [gap] = errors
    assert isinstance(gap, SequenceMismatchError)
    assert (gap.expected, gap.got, gap.stream_seq) == (5, 6, 106)


def test_gap_in_a_queue_is_none(played: Played) -> None:
    """Members of a queue see only their share of the sequences: nothing is reported."""
    peer, js, errors = played
    sub = js.subscribe("s.x", queue="q")
    for number in (1, 2, 3, 4, 6, 9):
        peer.message(sub, number)
    assert numbers(sub, 6) == [1, 2, 3, 4, 6, 9]
    assert errors == []


def test_gap_before_the_first_message_of_a_new_consumer(played: Played) -> None:
    """A consumer that was just created begins with 1."""
    peer, js, errors = played
    sub = js.subscribe("s.x")
    peer.message(sub, 3)
    assert numbers(sub, 1) == [3]
    eventually(lambda: [(gap.expected, gap.got) for gap in of_kind(errors, SequenceMismatchError)] == [(1, 3)])


def test_gap_shown_by_a_heartbeat(played: Played) -> None:
    """A heartbeat that names a later sequence than the last one received is a gap, though no message follows."""
    peer, js, errors = played
    sub = js.subscribe("s.x", idle_heartbeat=5.0)
    peer.message(sub, 1)
    peer.heartbeat(sub, 1)
    peer.heartbeat(sub, 2)
    peer.heartbeat(sub, 2)
    assert numbers(sub, 1) == [1]
    nothing_more(sub)
    eventually(lambda: errors)
    assert [(gap.expected, gap.got) for gap in of_kind(errors, SequenceMismatchError)] == [(1, 2)]
    peer.message(sub, 3)
    assert numbers(sub, 1) == [3]
    assert len(errors) == 1


@pytest.mark.parametrize(
    ("name", "sequences"),
    [("redelivery", [(1, 1), (2, 1), (4, 2), (5, 1)]), ("new leader", [(1, 1), (2, 1), (3, 1), (2, 1), (3, 1)])],
)
def test_what_is_no_gap(played: Played, name: str, sequences: list[tuple[int, int]]) -> None:
    """A redelivery is no gap, nor is a sequence that goes back: nothing is missing then."""
    peer, js, errors = played
    sub = js.subscribe("s.x")
    for number, delivered in sequences:
        peer.message(sub, number, delivered=delivered)
    assert numbers(sub, len(sequences)) == [number for number, _ in sequences]
    assert errors == []


def test_gap_over_a_reconnect_is_none(played: Played) -> None:
    """What was lost with the old connection is no gap, even with messages of it untaken; a later one is."""
    peer, js, errors = played
    sub = js.subscribe("s.x", durable="d")
    peer.message(sub, 1)
    peer.message(sub, 2)
    assert numbers(sub, 1) == [1]
    eventually(lambda: sub.pending_msgs == 1)
    peer.break_connection()
    peer.message(sub, 7)
    peer.message(sub, 8)
    peer.message(sub, 10)
    assert numbers(sub, 4) == [2, 7, 8, 10]
    eventually(lambda: of_kind(errors, SequenceMismatchError))
    assert [(gap.expected, gap.got) for gap in of_kind(errors, SequenceMismatchError)] == [(9, 10)]
    assert sub.delivered == 5


def test_gap_is_reported_to_callback_subscriptions(played: Played) -> None:
    """With a callback gaps are found and reported all the same."""
    peer, js, errors = played
    handled: list[int] = []
    sub = js.subscribe("s.x", cb=lambda message: handled.append(int(message.data)))
    peer.message(sub, 1)
    peer.message(sub, 4)
    eventually(lambda: handled == [1, 4] and errors)
    assert [(gap.expected, gap.got) for gap in errors if isinstance(gap, SequenceMismatchError)] == [(2, 4)]


@pytest.mark.parametrize("prefix", ["$JS.ACK", "$JS.ACK.hub.ACCOUNT"])
@pytest.mark.parametrize("ordered", [False, True])
def test_both_forms_of_reply_subjects_are_read(played: Played, prefix: str, ordered: bool) -> None:
    """Sequences are followed in reply subjects of 9 tokens and of 11."""
    peer, js, errors = played
    peer.prefix = prefix
    sub = js.subscribe("s.x", ordered_consumer=ordered)
    for number in (1, 2, 3):
        peer.message(sub, number, stream_seq=number * 10)
    assert numbers(sub, 3) == [1, 2, 3]
    assert (errors, len(peer.created)) == ([], 1)


# --- ordered -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["$JS.ACK", "$JS.ACK.hub.ACCOUNT"])
def test_ordered_gap_recreates_the_consumer_behind_the_last_message(played: Played, prefix: str) -> None:
    """A gap is mended in silence: a new consumer, on a new inbox, from behind the last message handed out."""
    peer, js, errors = played
    peer.prefix = prefix
    sub = js.subscribe("s.x", ordered_consumer=True)
    first = sub.consumer_name
    for number in (1, 2, 4, 5):
        peer.message(sub, number, stream_seq=number * 10)
    assert numbers(sub, 2) == [1, 2]
    nothing_more(sub)
    eventually(lambda: len(peer.created) == 2 and sub.consumer_name == peer.created[1]["name"])
    old, new = peer.created
    assert (new["deliver_policy"], new["opt_start_seq"]) == ("by_start_sequence", 21)
    assert new["deliver_subject"] != old["deliver_subject"]
    assert (new["filter_subject"], new["flow_control"], new["ack_policy"]) == ("s.x", True, "none")
    eventually(lambda: f"$JS.API.CONSUMER.DELETE.S.{first}" in peer.answers("$JS.API.CONSUMER.DELETE"))
    peer.message(sub, 1, stream_seq=30)
    assert numbers(sub, 1) == [1]
    assert (errors, sub.delivered) == ([], 3)


def test_ordered_loss_shown_by_a_heartbeat_recreates_the_consumer(played: Played) -> None:
    """The last message before a silence is missing: the heartbeat says so, and the consumer is made anew."""
    peer, js, errors = played
    sub = js.subscribe("s.x", ordered_consumer=True, idle_heartbeat=5.0)
    peer.message(sub, 1, stream_seq=7)
    peer.heartbeat(sub, 1)
    assert numbers(sub, 1) == [1]
    nothing_more(sub)
    assert len(peer.created) == 1
    peer.heartbeat(sub, 2)
    nothing_more(sub)
    eventually(lambda: len(peer.created) == 2)
    assert peer.created[1]["opt_start_seq"] == 8
    assert errors == []


def test_ordered_after_a_reconnect_drops_what_the_old_consumer_sent(played: Played) -> None:
    """A reconnect replaces the consumer at once; messages of the old one that were not taken come again."""
    peer, js, _ = played
    sub = js.subscribe("s.x", ordered_consumer=True)
    for number in (1, 2):
        peer.message(sub, number, stream_seq=number * 10)
    eventually(lambda: sub.pending_msgs == 2)
    peer.break_connection()
    eventually(lambda: len(peer.created) == 2)
    assert peer.created[1]["opt_start_seq"] == 1
    for number in (1, 2, 3):
        peer.message(sub, number, stream_seq=number * 10)
    messages = [sub.next_msg(5.0) for _ in range(3)]
    assert [message.metadata.sequence.stream for message in messages] == [10, 20, 30]
    assert {message.metadata.consumer for message in messages} == {peer.created[1]["name"]}
    assert len(peer.created) == 2


# --- flow control --------------------------------------------------------------------------------------------


def test_flow_control_is_answered_when_the_user_gets_there(played: Played) -> None:
    """The reply is sent when all messages before the request have been taken, not when the request arrives."""
    peer, js, _ = played
    sub = js.subscribe("s.x", idle_heartbeat=5.0, flow_control=True)
    peer.message(sub, 1)
    peer.message(sub, 2)
    peer.flow_control(sub, "$JS.FC.S.C.one")
    peer.message(sub, 3)
    eventually(lambda: sub.pending_msgs == 4)
    assert numbers(sub, 2) == [1, 2]
    peer.nc.flush()
    assert peer.answers() == []
    assert numbers(sub, 1) == [3]
    eventually(lambda: peer.answers() == ["$JS.FC.S.C.one"])
    assert [payload for subject, payload in peer.published if subject.startswith("$JS.FC.")] == [b""]
    assert sub.delivered == 3


def test_stalled_heartbeats_are_answered_once(played: Played) -> None:
    """Three heartbeats that name the same stalled subject, after the request itself or without it: one answer."""
    peer, js, _ = played
    sub = js.subscribe("s.x", idle_heartbeat=5.0, flow_control=True)
    for _ in range(3):
        peer.heartbeat(sub, 0, Nats_Consumer_Stalled="$JS.FC.S.C.one")
    peer.flow_control(sub, "$JS.FC.S.C.one")
    peer.flow_control(sub, "$JS.FC.S.C.two")
    peer.heartbeat(sub, 0, Nats_Consumer_Stalled="$JS.FC.S.C.two")
    peer.message(sub, 1)
    assert numbers(sub, 1) == [1]
    peer.nc.flush()
    assert peer.answers() == ["$JS.FC.S.C.one", "$JS.FC.S.C.two"]


def test_stalled_subject_of_several_words_is_not_answered(played: Played) -> None:
    """A forged heartbeat cannot make us send a malformed line; the next real one is answered."""
    peer, js, _ = played
    sub = js.subscribe("s.x", idle_heartbeat=5.0, flow_control=True)
    peer.heartbeat(sub, 0, Nats_Consumer_Stalled="a b c")
    peer.heartbeat(sub, 0, Nats_Consumer_Stalled="$JS.FC.S.C.one")
    peer.message(sub, 1)
    assert numbers(sub, 1) == [1]
    peer.nc.flush()
    assert peer.answers() == ["$JS.FC.S.C.one"]


def test_stalled_heartbeat_after_a_reconnect_is_answered_again(played: Played) -> None:
    """An answer may be lost with its connection: a consumer that is still stalled on the next gets another."""
    peer, js, _ = played
    sub = js.subscribe("s.x", idle_heartbeat=5.0, flow_control=True, cb=lambda message: None)
    peer.flow_control(sub, "$JS.FC.S.C.one")
    eventually(lambda: peer.answers() == ["$JS.FC.S.C.one"])
    peer.break_connection()
    peer.heartbeat(sub, 0, Nats_Consumer_Stalled="$JS.FC.S.C.one")
    eventually(lambda: peer.answers() == ["$JS.FC.S.C.one"] * 2)


def test_flow_control_of_121_large_messages(nats_server: LocalServer, js: JetStream) -> None:
    """121 messages of 60 kB, a callback of 20 ms: all in order, one answer per request, sent when reached."""
    js.create_stream(name="S", subjects=["s.>"], storage="memory")
    fill(js, 121, size=60_000)
    handled: list[tuple[float, int]] = []

    def handle(message: JetStreamMessage) -> None:
        threading.Event().wait(0.02)
        handled.append((time.monotonic(), int(message.data.rstrip(b"."))))

    with (
        Observer(nats_server.url) as observer,
        FaultProxy(nats_server) as proxy,
        connected(proxy.url) as (nc, errors),
    ):
        sub = nc.jetstream().subscribe("s.>", cb=handle, idle_heartbeat=0.5, flow_control=True)
        eventually(lambda: len(handled) == 121, 20.0, "all messages handled")
        observer.settle(nc)
        requests = flow_control_requests(proxy.captured[0].to_client)
        sub.unsubscribe()
    assert [number for _, number in handled] == list(range(121))
    assert errors == []
    assert len(requests) >= 2
    assert [seen.subject for seen in observer.flow] == list(requests)
    for seen in observer.flow:
        ahead = requests[seen.subject]
        assert ahead == 0 or seen.at >= handled[ahead - 1][0], "answered before what was ahead of it was handled"


def flow_control_requests(received: bytes) -> dict[str, int]:
    """Each flow-control request that was received, in order, and how many messages came before it."""
    requests: dict[str, int] = {}
    messages = 0
    for frame in re.finditer(rb"(?m)^(?:MSG s\.x |HMSG \S+ \S+ (\$JS\.FC\.\S+) )", received):
        if frame[1] is None:
            messages += 1
        else:
            requests.setdefault(frame[1].decode(), messages)
    return requests


# --- other statuses ------------------------------------------------------------------------------------------


def test_404_and_408_are_swallowed(played: Played) -> None:
    """Statuses that mean nothing to a push subscription are neither messages nor errors."""
    peer, js, errors = played
    sub = js.subscribe("s.x")
    peer.status(sub, "404 No Messages")
    peer.status(sub, "408 Request Timeout", Nats_Pending_Messages="1", Nats_Pending_Bytes="0")
    peer.message(sub, 1)
    assert numbers(sub, 1) == [1]
    assert (sub.delivered, errors) == (1, [])


@pytest.mark.parametrize(
    ("line", "kind", "code"),
    [
        ("409 Consumer Deleted", ConsumerDeletedError, 409),
        ("409 Exceeded MaxAckPending", PullError, 409),
        ("503", NoRespondersError, None),
        ("777 Of The Future", PullError, 777),
    ],
)
def test_error_status_raises_and_the_subscription_goes_on(
    played: Played, line: str, kind: type[Exception], code: int | None
) -> None:
    """409, 503 and unknown statuses are raised in their place by next_msg() and the iteration."""
    peer, js, _ = played
    sub = js.subscribe("s.x")
    peer.message(sub, 1)
    peer.status(sub, line)
    peer.message(sub, 2)
    assert numbers(sub, 1) == [1]
    with pytest.raises(kind) as caught:
        sub.next_msg(5.0)
    assert getattr(caught.value, "code", None) == code
    assert numbers(sub, 1) == [2]
    peer.status(sub, line)
    with pytest.raises(kind):
        next(iter(sub))


def test_error_status_is_reported_where_there_is_a_callback(played: Played) -> None:
    """With a callback no call can raise the error: it is reported to error_cb, and the next message is handled."""
    peer, js, errors = played
    handled: list[int] = []
    sub = js.subscribe("s.x", cb=lambda message: handled.append(int(message.data)))
    peer.status(sub, "409 Consumer Deleted")
    peer.message(sub, 1)
    eventually(lambda: handled == [1])
    assert [type(error) for error in errors] == [ConsumerDeletedError]


# --- heartbeats ----------------------------------------------------------------------------------------------


def test_heartbeats_are_no_messages_and_no_alarm(nats_server: LocalServer, js: JetStream) -> None:
    """An idle subscription with heartbeats is silent for its user: no message, no alarm, no gap."""
    js.create_stream(name="S", subjects=["s.>"])
    fill(js, 2)
    with connected(nats_server.url) as (nc, errors):
        sub = nc.jetstream().subscribe("s.>", idle_heartbeat=0.1)
        assert numbers(sub, 2) == [0, 1]
        with pytest.raises(TimeoutError):
            sub.next_msg(1.0)
        assert errors == []
        assert sub.delivered == 2
        sub.unsubscribe()


def test_slow_callback_is_no_missed_heartbeat(nats_server: LocalServer, js: JetStream) -> None:
    """Heartbeats are judged by their arrival: a callback longer than three of them raises no alarm."""
    js.create_stream(name="S", subjects=["s.>"])
    fill(js, 1)
    done = threading.Event()

    def handle(message: JetStreamMessage) -> None:
        threading.Event().wait(0.8)
        done.set()

    with connected(nats_server.url) as (nc, errors):
        sub = nc.jetstream().subscribe("s.>", cb=handle, idle_heartbeat=0.1)
        assert done.wait(5)
        sub.unsubscribe()
        assert errors == []


def test_alarm_when_heartbeats_stop(played: Played) -> None:
    """No heartbeats, though the consumer is there: the alarm is raised after three of them, again and again."""
    script, js, errors = played
    script.info = {"stream_name": "S", "name": "d", "config": {}}
    sub = js.subscribe("s.x", idle_heartbeat=0.1)
    started = time.monotonic()
    eventually(lambda: len(of_kind(errors, MissedHeartbeatError)) >= 3)
    assert time.monotonic() - started >= 0.8
    assert all(alarm.silence >= 0.3 for alarm in of_kind(errors, MissedHeartbeatError))
    sub.drain()
    count = len(of_kind(errors, MissedHeartbeatError))
    threading.Event().wait(0.5)
    assert len(of_kind(errors, MissedHeartbeatError)) == count, "a drained subscription raises no alarm"


def test_no_alarm_without_heartbeats(played: Played) -> None:
    """A consumer without heartbeats may be silent for ever, and needs no thread to watch it."""
    _, js, errors = played
    before = {thread.name for thread in threading.enumerate()}
    sub = js.subscribe("s.x")
    assert not [name for name in {thread.name for thread in threading.enumerate()} - before if "push" in name]
    nothing_more(sub)
    assert errors == []


# --- limits --------------------------------------------------------------------------------------------------


def test_slow_callback_over_the_pending_limit(nats_server: LocalServer, js: JetStream) -> None:
    """Over the limits messages are dropped and counted, with one error per episode; other subscriptions go on."""
    js.create_stream(name="S", subjects=["s.>"])
    entered, may_go_on = threading.Event(), threading.Event()
    handled: list[int] = []

    def handle(message: JetStreamMessage) -> None:
        entered.set()
        may_go_on.wait(10)
        handled.append(int(message.data))

    with connected(nats_server.url) as (nc, errors):
        context = nc.jetstream()
        slow = context.subscribe("s.x", cb=handle, config={"ack_policy": "none"}, pending_msgs_limit=10)
        other = context.subscribe("s.x", config={"ack_policy": "none"})
        for episode in (1, 2):
            entered.clear()
            may_go_on.clear()
            context.publish("s.x", b"%d" % (1000 * episode))
            assert entered.wait(5)
            fill(context, 50, first=1000 * episode + 1)
            eventually(lambda episode=episode: slow.dropped == 40 * episode)
            may_go_on.set()
            eventually(lambda episode=episode: len(handled) == 11 * episode)
            eventually(lambda episode=episode: len(of_kind(errors, SlowConsumerError)) == episode)
            assert len(numbers(other, 51)) == 51
        assert [error.dropped for error in of_kind(errors, SlowConsumerError)][-1] > 40
        assert (slow.dropped, other.dropped, nc.stats.dropped) == (80, 0, 80)
        # What was dropped is missing from what the user sees, and told when the next message is.
        assert [gap.got - gap.expected for gap in of_kind(errors, SequenceMismatchError)] == [40]


def test_pending_bytes_limit(nats_server: LocalServer, js: JetStream) -> None:
    """The limit in bytes holds as well."""
    js.create_stream(name="S", subjects=["s.>"])
    with connected(nats_server.url) as (nc, errors):
        sub = nc.jetstream().subscribe("s.x", config={"ack_policy": "none"}, pending_bytes_limit=10_000)
        fill(js, 20, size=1000)
        eventually(lambda: sub.pending_msgs + sub.dropped == 20)
        assert sub.pending_bytes <= 10_000
        assert sub.dropped == 10
        assert len(of_kind(errors, SlowConsumerError)) == 1
