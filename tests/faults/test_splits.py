"""A recorded session, split and cut at every byte: the same messages or a typed error, never a wrong message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from jetstream_sync import Connection, Headers, Message, Subscription, connect
from jetstream_sync.errors import ConnectionLostError, NoServersError
from jetstream_sync.net import transport
from jetstream_sync.testing import FaultProxy, LocalServer, PeerConnection, ScriptedPeer
from tests.support.eventually import eventually
from tests.support.watchdog import under_watchdog

Facts = tuple[str, str | None, bytes, list[tuple[str, str]]]

SMALL_INFO = b'INFO {"server_id":"S","headers":true,"max_payload":99}\r\n'


def facts(msg: Message) -> Facts:
    return (msg.subject, msg.reply, msg.data, list(Headers(msg.headers or {}).multi_items()))


def publish_all(nc: Connection) -> None:
    """Publish messages that contain protocol lines, are empty, or have headers and reply subjects."""
    nc.publish("s.a", b"hello")
    nc.publish("s.b", b"MSG s 1 2\r\nx\r\n", reply="r.1")
    headers = Headers()
    headers.add("K", "v")
    headers.add("k", "PING")
    nc.publish("s.h", b"\r\n\0", headers=headers)
    nc.publish("s.e", b"")
    nc.publish("s.i", b"", headers={"A": ""}, reply="r.2")
    nc.publish("s.z", b"last")


class Session:
    """What a real server sent: `greeting` up to the PONG of the handshake, `rest` after it; and the messages."""

    def __init__(self, recorded: bytes, messages: list[Facts]) -> None:
        shortened = re.sub(rb"INFO [^\r]*\r\n", SMALL_INFO, recorded)  # fewer bytes, and so fewer cuts
        split = shortened.index(b"PONG\r\n") + len(b"PONG\r\n")
        self.greeting, self.rest = shortened[:split], shortened[split:]
        self.messages = messages
        self.size = len(shortened)

    def play(self, conn: PeerConnection, limit: int) -> None:
        """Send the first `limit` bytes of the session; of `rest` nothing before the client has subscribed."""
        conn.send(self.greeting[:limit])
        if limit <= len(self.greeting):
            return
        while not conn.expect_line().startswith(b"SUB "):
            pass
        conn.send(self.rest[: limit - len(self.greeting)])


@pytest.fixture(scope="module")
def session(nats_server: LocalServer) -> Session:
    """One session of a real server, with PINGs added in the middle and at the end."""
    with FaultProxy(nats_server) as proxy, connect(proxy.url) as nc:
        sub = nc.subscribe("s.*")
        publish_all(nc)
        messages = [facts(sub.next_msg()) for _ in range(6)]
        recorded = proxy.captured[0].to_client
    middle = recorded.index(b"HMSG")
    return Session(recorded[:middle] + b"PING\r\n" + recorded[middle:] + b"PING\r\n", messages)


class Replay:
    """A peer that plays the session in full, or only the bytes that `limits` allows to the next connection."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.limits: list[int] = []
        self.peer = ScriptedPeer(self._script)

    def _script(self, conn: PeerConnection) -> None:
        if self.limits:
            self.session.play(conn, self.limits.pop())
            return
        self.session.play(conn, self.session.size)
        while True:
            if conn.expect_line(timeout=60) == b"PING":
                conn.send(b"PONG\r\n")


@pytest.fixture
def replay(session: Session) -> Iterator[Replay]:
    replay = Replay(session)
    with replay.peer:
        yield replay


def take_all(sub: Subscription) -> list[Facts]:
    return [facts(sub.next_msg()) for _ in range(sub.pending_msgs)]


def test_session_has_everything_in_it(session: Session) -> None:
    """The recorded session holds each kind of frame, and is small enough to be cut everywhere."""
    recorded = session.greeting + session.rest
    for verb in (b"INFO ", b"PONG\r\n", b"PING\r\n", b"\r\nMSG ", b"\r\nHMSG "):
        assert verb in recorded
    assert session.size < 700
    assert [message[0] for message in session.messages] == ["s.a", "s.b", "s.h", "s.e", "s.i", "s.z"]
    assert session.messages[2][3] == [("K", "v"), ("k", "PING")]


def test_every_chunk_size_gives_the_same_messages(
    session: Session, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any number of bytes per recv(), from one to all, the messages are the same."""
    for size in range(1, len(session.rest) + 1):
        monkeypatch.setattr(transport, "RECV_SIZE", size)
        with closing(connect(replay.peer.url, allow_reconnect=False)) as nc:
            sub = nc.subscribe("s.*")
            under_watchdog(nc.flush)
            assert take_all(sub) == session.messages, size


def test_a_cut_after_every_byte_gives_whole_messages_or_an_error(session: Session, replay: Replay) -> None:
    """Cut after any byte: connect() raises, or whole messages come before the cut and all after the reconnect."""
    whole: set[int] = set()
    for limit in range(session.size + 1):
        replay.limits.append(limit)
        errors: list[Exception] = []
        try:
            nc = connect(replay.peer.url, reconnect_time_wait=0, error_cb=errors.append)
        except NoServersError:
            assert limit < len(session.greeting)
            continue
        with closing(nc):
            sub = nc.subscribe("s.*")
            eventually(lambda nc=nc: nc.stats.reconnects == 1)
            under_watchdog(nc.flush)
            got = take_all(sub)
            before = len(got) - len(session.messages)
            assert got == session.messages[:before] + session.messages, limit
            assert [type(error) for error in errors] == [ConnectionLostError], limit
            whole.add(before)
    assert whole == set(range(len(session.messages) + 1))


@pytest.mark.parametrize("size", [1, 3, 7])
def test_chunks_on_a_real_connection_give_the_same_messages(nats_server: LocalServer, size: int) -> None:
    """Tiny segments in both directions give the same messages."""
    with FaultProxy(nats_server) as proxy:
        proxy.chunk(size)
        with connect(proxy.url) as nc:
            sub = nc.subscribe("s.*")
            publish_all(nc)
            publish_all(nc)
            first, second = (
                [under_watchdog(sub.next_msg, 5, limit=8) for _ in range(6)],
                [under_watchdog(sub.next_msg, 5, limit=8) for _ in range(6)],
            )
            assert [facts(msg) for msg in first] == [facts(msg) for msg in second]
            assert [msg.data for msg in first] == [b"hello", b"MSG s 1 2\r\nx\r\n", b"\r\n\0", b"", b"", b"last"]
            assert nc.stats.reconnects == 0


def test_cuts_of_what_we_send_never_make_a_wrong_message(nats_server: LocalServer) -> None:
    """The client's frames are cut in the middle: the server sees whole messages only, in order, none twice."""
    with connect(nats_server.url) as observer:
        seen = observer.subscribe("ours.*")
        observer.flush()
        with FaultProxy(nats_server) as proxy:
            with connect(proxy.url, reconnect_time_wait=0, reconnect_time_wait_max=0.02) as nc:
                sent = 0
                for limit in range(1, 120, 2):
                    proxy.cut_after(limit, "to_server")
                    reconnects = nc.stats.reconnects
                    for _ in range(4):
                        nc.publish("ours.x", b"%d:" % sent + b"y" * 20)
                        sent += 1
                    eventually(lambda before=reconnects: nc.stats.reconnects > before)
                proxy.heal()
                nc.flush()
        observer.flush()
        numbers = []
        for _ in range(seen.pending_msgs):
            number, rest = seen.next_msg().data.split(b":")
            assert rest == b"y" * 20
            numbers.append(int(number))
        assert numbers == sorted(set(numbers))
