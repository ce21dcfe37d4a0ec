"""TLS against a real server: every way in, every failure, and never a credential in the clear."""

from __future__ import annotations

import random
import ssl
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import jetstream_sync
from jetstream_sync import Connection, Message
from jetstream_sync.errors import NoServersError
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.peer import PeerConnection, ScriptedPeer
from jetstream_sync.testing.proxy import FaultProxy
from tests.support.certs import CertKit
from tests.support.eventually import eventually

PASSWORD = "hunter2-secret"
USERS = f'authorization {{ user: ann, password: "{PASSWORD}" }}\nmax_payload: 8MB\nmax_pending: 64MB\n'
CREDENTIALS = {"user": "ann", "password": PASSWORD}


@pytest.fixture(scope="module")
def server(cert_kit: CertKit) -> Iterator[LocalServer]:
    with LocalServer(jetstream=False, config=cert_kit.server_tls_config(*cert_kit.server()) + USERS) as server:
        yield server


@pytest.fixture(scope="module")
def plain_server() -> Iterator[LocalServer]:
    with LocalServer(jetstream=False) as server:
        yield server


def trusting(ca_file: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca_file))


def assert_works(nc: Connection) -> None:
    sub = nc.subscribe("works")
    nc.publish("works", b"yes")
    assert sub.next_msg(timeout=5).data == b"yes"


def assert_nothing_said(proxy: FaultProxy) -> None:
    """No credential has passed in the clear, nor the CONNECT that would carry it."""
    assert proxy.accepted > 0
    for connection in proxy.captured:
        assert b"CONNECT" not in connection.to_server
        assert PASSWORD.encode() not in connection.to_server


# --- ways in --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["nats", "tls"])
def test_explicit_context(scheme: str, server: LocalServer, cert_kit: CertKit) -> None:
    """A context given by the user is used, whatever the scheme; nothing but TLS is on the wire."""
    with FaultProxy(server) as proxy:
        url = proxy.url.replace("nats://", f"{scheme}://")
        with jetstream_sync.connect(url, tls=trusting(cert_kit.ca_file), **CREDENTIALS) as nc:
            assert_works(nc)
            assert nc.connected_url == url
        assert_nothing_said(proxy)


def test_requests_in_a_row_are_received_by_the_reader(server: LocalServer, cert_kit: CertKit) -> None:
    """With TLS there is no direct receive: only the reader thread may read from an encrypted socket."""
    options = {"tls": trusting(cert_kit.ca_file), **CREDENTIALS}
    connect = jetstream_sync.connect
    with connect(server.url, **options) as nc, connect(server.url, **options) as other:
        other.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
        other.flush()
        for number in range(20):
            assert nc.request("echo", b"%d" % number).data == b"%d" % number
        assert link_of(nc).direct_receive.replies == 0


@pytest.mark.parametrize("options", [{}, {"tls": True}])
@pytest.mark.parametrize("scheme", ["nats", "tls"])
def test_default_context(
    scheme: str, options: dict[str, bool], server: LocalServer, cert_kit: CertKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a context the system's trusted certificates count, also when only the server asks for TLS."""
    monkeypatch.setenv("SSL_CERT_FILE", str(cert_kit.ca_file))
    url = server.url.replace("nats://", f"{scheme}://")
    with jetstream_sync.connect(url, **options, **CREDENTIALS) as nc:
        assert_works(nc)


def test_hostname_to_verify_is_given(cert_kit: CertKit) -> None:
    """`tls_hostname` is the name the certificate must have, where the address has none."""
    config = cert_kit.server_tls_config(*cert_kit.server("nats.example.com", ips=()))
    with LocalServer(jetstream=False, config=config) as server:
        context = trusting(cert_kit.ca_file)
        with jetstream_sync.connect(server.url, tls=context, tls_hostname="nats.example.com") as nc:
            assert_works(nc)
        with pytest.raises(NoServersError, match="certificate refused"):
            jetstream_sync.connect(server.url, tls=context)


def test_handshake_first(cert_kit: CertKit) -> None:
    """A server that wants TLS before INFO gets it; the same client fails in time where the server does not."""
    config = cert_kit.server_tls_config(*cert_kit.server(), handshake_first=True)
    with LocalServer(jetstream=False, config=config) as server:
        options = {"tls": trusting(cert_kit.ca_file), "tls_handshake_first": True}
        with jetstream_sync.connect(server.url, **options) as nc:
            assert_works(nc)
        with pytest.raises(NoServersError, match="timed out"):
            jetstream_sync.connect(server.url, tls=trusting(cert_kit.ca_file), connect_timeout=0.5)


def test_handshake_first_at_server_without_it(plain_server: LocalServer, cert_kit: CertKit) -> None:
    """TLS first at a server that speaks plain text fails, and nothing is said to it."""
    with FaultProxy(plain_server) as proxy:
        with pytest.raises(NoServersError, match="TLS"):
            jetstream_sync.connect(
                proxy.url, tls=trusting(cert_kit.ca_file), tls_handshake_first=True, **CREDENTIALS
            )
        assert_nothing_said(proxy)


def test_mutual(cert_kit: CertKit) -> None:
    """With a client certificate the server lets in; without, the error names TLS and the certificate."""
    config = cert_kit.server_tls_config(*cert_kit.server(), verify=True)
    with LocalServer(jetstream=False, config=config) as server:
        context = trusting(cert_kit.ca_file)
        with FaultProxy(server) as proxy:
            with pytest.raises(NoServersError) as caught:
                jetstream_sync.connect(proxy.url, tls=context, **CREDENTIALS)
            assert_nothing_said(proxy)
        assert "certificate" in str(caught.value).lower()
        cert, key = cert_kit.client("ann")
        context.load_cert_chain(str(cert), str(key))
        with jetstream_sync.connect(server.url, tls=context) as nc:
            assert_works(nc)


# --- failures -------------------------------------------------------------------------------------


def refuse_case(cert_kit: CertKit, case: str) -> tuple[tuple[Path, Path], Path, str]:
    """The server's certificate, what the client trusts, and what the error must say."""
    if case == "wrong host":
        return (
            cert_kit.server("elsewhere.example.com", ips=("192.0.2.1",)),
            cert_kit.ca_file,
            "IP address mismatch",
        )
    if case == "unknown CA":
        return cert_kit.server(), cert_kit.other_ca_file, "unable to get local issuer"
    return cert_kit.server(expired=True), cert_kit.ca_file, "expired"


@pytest.mark.parametrize("case", ["wrong host", "unknown CA", "expired"])
def test_certificate_refused(case: str, cert_kit: CertKit) -> None:
    """A certificate that does not hold is refused with its reason, before any credential is sent."""
    certificate, trusted, reason = refuse_case(cert_kit, case)
    with LocalServer(jetstream=False, config=cert_kit.server_tls_config(*certificate) + USERS) as server:
        with FaultProxy(server) as proxy:
            with pytest.raises(NoServersError, match=reason) as caught:
                jetstream_sync.connect(proxy.url, tls=trusting(trusted), **CREDENTIALS)
            assert_nothing_said(proxy)
    assert proxy.captured[0].to_server.startswith(b"\x16\x03")  # a TLS record: the handshake, and no more
    assert len(caught.value.attempts) == 1


@pytest.mark.parametrize("ask", ["context", "True", "scheme"])
def test_server_without_tls_gets_nothing(ask: str, plain_server: LocalServer, cert_kit: CertKit) -> None:
    """Where TLS was asked for and the server has none, not one byte is sent: there is no fallback."""
    with FaultProxy(plain_server) as proxy:
        options = {"context": {"tls": trusting(cert_kit.ca_file)}, "True": {"tls": True}, "scheme": {}}[ask]
        url = proxy.url.replace("nats://", "tls://") if ask == "scheme" else proxy.url
        with pytest.raises(NoServersError, match="does not offer it"):
            jetstream_sync.connect(url, **options, **CREDENTIALS)
        assert [connection.to_server for connection in proxy.captured] == [b""]


def test_required_tls_that_fails_is_no_fallback() -> None:
    """A server that requires TLS and then talks nonsense gets a handshake and no credentials."""

    def nonsense(connection: PeerConnection) -> None:
        connection.send_info(tls_required=True)
        connection.read_exactly(5)
        connection.send(b"INFO {}\r\n" * 3)
        connection.wait_closed(5)

    with ScriptedPeer(nonsense) as peer:
        with pytest.raises(NoServersError, match="TLS handshake failed"):
            jetstream_sync.connect(peer.url, **CREDENTIALS)
        eventually(lambda: peer.connections[0].received)
    received = peer.connections[0].received
    assert received.startswith(b"\x16\x03")
    assert PASSWORD.encode() not in received
    assert b"CONNECT" not in received


def test_server_that_never_finishes_the_handshake() -> None:
    """The connect timeout covers the TLS handshake."""

    def silent(connection: PeerConnection) -> None:
        connection.send_info(tls_required=True)
        connection.wait_closed(10)

    with ScriptedPeer(silent) as peer:
        with pytest.raises(NoServersError, match="timed out"):
            jetstream_sync.connect(peer.url, connect_timeout=0.3, **CREDENTIALS)


@pytest.mark.parametrize("injected", [b"PING\r\n", b"P", b"INFO {}\r\n", b"MSG a 1 1\r\nx\r\n", b"\x16\x03\x01"])
def test_bytes_before_the_handshake_are_refused(injected: bytes) -> None:
    """Bytes that follow INFO before the TLS handshake, as from an attacker, end the attempt without a reply."""

    def inject(connection: PeerConnection) -> None:
        connection.send(b'INFO {"tls_required":true,"max_payload":1048576}\r\n' + injected)
        connection.wait_closed(5)

    with ScriptedPeer(inject) as peer:
        with pytest.raises(NoServersError, match="before the TLS handshake"):
            jetstream_sync.connect(peer.url, **CREDENTIALS)
    assert peer.connections[0].received == b""


def test_reconnect_never_falls_back_to_plain_text(cert_kit: CertKit) -> None:
    """A connection made over TLS is not continued in the clear when the server comes back without TLS."""
    with LocalServer(jetstream=False, config=cert_kit.server_tls_config(*cert_kit.server())) as server:
        with FaultProxy(server) as proxy:
            nc = jetstream_sync.connect(
                proxy.url, tls=trusting(cert_kit.ca_file), **CREDENTIALS, reconnect_time_wait_max=0.1
            )
            server.stop()
            server.config = ""
            server.start()
            eventually(lambda: sum(b"INFO" in one.to_client for one in proxy.captured) >= 3, 10)
            assert not nc.is_connected
            nc.close()
            assert_nothing_said(proxy)


# --- life -----------------------------------------------------------------------------------------


class Checked:
    """Publishes checksummed messages of many sizes over one connection, and verifies what another gets."""

    def __init__(self, out: Connection, into: Connection, name: str, sizes: list[int]) -> None:
        self._out = out
        self._sizes = sizes
        self._subject = f"checked.{name}"
        self.received: list[int] = []
        self.wrong: list[str] = []
        into.subscribe(self._subject, cb=self._verify, pending_bytes_limit=0)
        into.flush()

    def publish_all(self) -> None:
        for number, size in enumerate(self._sizes):
            filling = random.Random(size).randbytes(size)
            self._out.publish(self._subject, b"%d %d " % (number, zlib.crc32(filling)) + filling)

    def _verify(self, msg: Message) -> None:
        number, checksum, filling = msg.data.split(b" ", 2)
        if zlib.crc32(filling) != int(checksum) or len(filling) != self._sizes[int(number)]:
            self.wrong.append(f"{self._subject} {int(number)}")
        self.received.append(int(number))

    def finish(self) -> None:
        eventually(lambda: len(self.received) == len(self._sizes), 30, self._subject)
        assert self.received == list(range(len(self._sizes)))
        assert self.wrong == []


def test_many_threads_both_ways(server: LocalServer, cert_kit: CertKit, eager_switching: None) -> None:
    """Several threads publish and receive on two connections at once; every message arrives whole and in order."""
    rng = random.Random(0)
    sizes = [0, 1, 16_383, 16_384, 16_385, 200_000] + [rng.choice((1, 50, 500, 5_000)) for _ in range(300)]
    context = trusting(cert_kit.ca_file)
    with jetstream_sync.connect(server.url, tls=context, **CREDENTIALS) as one:
        with jetstream_sync.connect(server.url, tls=context, **CREDENTIALS) as two:
            pairs = [(one, two), (two, one), (one, one), (two, one)]
            checks = [Checked(out, into, str(n), sizes) for n, (out, into) in enumerate(pairs)]
            threads = [threading.Thread(target=check.publish_all, daemon=True) for check in checks]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            for check in checks:
                check.finish()
            assert one.stats.reconnects == two.stats.reconnects == 0


@pytest.mark.parametrize("size", [1_000_000, 8 * 1024 * 1024 - 100])
def test_big_payload(size: int, server: LocalServer, cert_kit: CertKit) -> None:
    """Payloads far over a TLS record and the socket's buffers go there and back."""
    with jetstream_sync.connect(server.url, tls=trusting(cert_kit.ca_file), **CREDENTIALS) as nc:
        check = Checked(nc, nc, "big", [size, 10, size])
        check.publish_all()
        check.finish()


def test_requests_over_tls(server: LocalServer, cert_kit: CertKit) -> None:
    """Requests of many threads get their own answers."""
    with jetstream_sync.connect(server.url, tls=trusting(cert_kit.ca_file), **CREDENTIALS) as nc:
        nc.subscribe("echo", cb=lambda msg: msg.respond(msg.data))
        wrong: list[bytes] = []

        def ask(name: int) -> None:
            for number in range(100):
                payload = b"%d %d" % (name, number)
                if nc.request("echo", payload, timeout=10).data != payload:
                    wrong.append(payload)

        threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert wrong == []


def test_reconnect_over_tls(server: LocalServer, cert_kit: CertKit) -> None:
    """A lost TLS connection is made again over TLS; subscriptions and waiting publishes go on."""
    with FaultProxy(server) as proxy:
        with jetstream_sync.connect(proxy.url, tls=trusting(cert_kit.ca_file), **CREDENTIALS) as nc:
            sub = nc.subscribe("again")
            for end in (proxy.cut, proxy.reset):
                proxy.refuse()
                end()
                eventually(lambda: not nc.is_connected)
                nc.publish("again", b"waited")
                proxy.heal()
                assert sub.next_msg(timeout=5).data == b"waited"
        assert_nothing_said(proxy)


def test_small_segments(server: LocalServer, cert_kit: CertKit) -> None:
    """TLS records that arrive in pieces of a few bytes are put together again."""
    with FaultProxy(server) as proxy:
        proxy.chunk(7)
        with jetstream_sync.connect(proxy.url, tls=trusting(cert_kit.ca_file), **CREDENTIALS) as nc:
            check = Checked(nc, nc, "small", [0, 1, 1000, 20_000])
            check.publish_all()
            check.finish()


def test_close_leaves_nothing_unsent(server: LocalServer, cert_kit: CertKit) -> None:
    """Messages published right before close() arrive over TLS, too."""
    context = trusting(cert_kit.ca_file)
    with jetstream_sync.connect(server.url, tls=context, **CREDENTIALS) as observer:
        sub = observer.subscribe("parting")
        observer.flush()
        for number in range(20):
            nc = jetstream_sync.connect(server.url, tls=context, **CREDENTIALS)
            nc.publish("parting", b"%d" % number)
            nc.close()
            assert sub.next_msg(timeout=5).data == b"%d" % number
