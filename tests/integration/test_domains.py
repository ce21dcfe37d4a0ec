"""JetStream domains: a context uses the JetStream that it names, and acks name the domain."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from jetstream_sync import Connection, JetStream, JetStreamNotEnabledError, connect
from jetstream_sync.testing import LocalServer
from jetstream_sync.testing.plugin import await_removal
from jetstream_sync.testing.proxy import FaultProxy
from tests.support.eventually import eventually


@pytest.fixture(scope="module")
def hub() -> Iterator[LocalServer]:
    with LocalServer(config="jetstream { domain: hub }") as server:
        yield server


@pytest.fixture
def nc(hub: LocalServer) -> Iterator[Connection]:
    connection = connect(hub.url)
    yield connection
    for name in list(connection.jetstream().stream_names()):
        connection.jetstream().delete_stream(name)
    connection.close()
    await_removal(hub.store_dir)


@pytest.mark.parametrize("options", [{}, {"domain": "hub"}, {"prefix": "$JS.hub.API"}])
def test_context_of_a_domain_does_everything(nc: Connection, options: dict[str, str]) -> None:
    """Streams, publishing, consuming, acks and account info work by domain, by prefix and without either."""
    js = nc.jetstream(**options)
    stream = js.create_stream(name="S", subjects=["s.>"])
    ack = js.publish("s.a", b"x")
    assert (ack.domain, ack.seq) == ("hub", 1)
    assert js.publish_async("s.a", b"y").result(5).domain == "hub"
    consumer = stream.create_consumer(durable_name="c", filter_subject="s.*")
    messages = list(consumer.fetch(2))
    assert [message.data for message in messages] == [b"x", b"y"]
    for message in messages:
        message.ack_sync()
    assert consumer.get_info().ack_floor.stream_seq == 2
    assert list(js.stream_names()) == ["S"]
    assert js.account_info().domain == "hub"
    assert stream.purge() == 2


def test_requests_carry_the_domains_prefix(hub: LocalServer) -> None:
    """Nothing of a context with a domain goes to the plain API, pulls included."""
    with FaultProxy(hub) as proxy:
        with connect(proxy.url) as nc:
            js = nc.jetstream(domain="hub")
            stream = js.create_stream(name="S", subjects=["s"])
            list(js.create_consumer("S", durable_name="c").fetch_nowait(1))
            list(js.stream_names())
            stream.purge()
            js.account_info()
            stream.delete()
        sent = proxy.captured[0].to_server
    asked = re.findall(rb"PUB (\S+) _INBOX", sent)
    assert [subject for subject in asked if not subject.startswith(b"$JS.hub.API.")] == []
    assert b"$JS.hub.API.CONSUMER.MSG.NEXT.S.c" in asked
    assert len(asked) == 7


def test_domain_that_does_not_exist_is_told_apart(nc: Connection) -> None:
    """No server serves that API: JetStreamNotEnabledError, which names the subject."""
    with pytest.raises(JetStreamNotEnabledError, match=r"\$JS\.nowhere\.API\.INFO"):
        nc.jetstream(domain="nowhere").account_info()


def test_two_domains_over_a_leaf_node(hub: LocalServer) -> None:
    """From a leaf node each domain's context reaches its own streams, and the ack names the domain."""
    with LocalServer(
        config='jetstream { domain: edge }\nleafnodes { listen: "127.0.0.1:-1" }', name="edge"
    ) as edge:
        port = edge.monitor("/varz")["leaf"]["port"]
        remote = f'leafnodes {{ remotes: [ {{ url: "nats://127.0.0.1:{port}" }} ] }}'
        with LocalServer(config=f"jetstream {{ domain: core }}\n{remote}", name="core") as core:
            eventually(lambda: core.monitor("/leafz").get("leafnodes") == 1)
            with connect(core.url) as nc:
                own, other = nc.jetstream(domain="core"), nc.jetstream(domain="edge")
                eventually(lambda: _reachable(other), timeout=10)
                own.create_stream(name="OWN", subjects=["own"])
                other.create_stream(name="OTHER", subjects=["other"])
                assert list(own.stream_names()) == ["OWN"]
                assert list(other.stream_names()) == ["OTHER"]
                assert own.publish("own").domain == "core"
                ack = other.publish("other", b"x", timeout=10, retry_attempts=20)
                assert (ack.domain, ack.stream) == ("edge", "OTHER")
                consumer = other.create_consumer("OTHER", durable_name="c")
                message = consumer.next(expires=5)
                assert message is not None
                message.ack_sync()
                assert consumer.get_info().ack_floor.stream_seq == 1


def _reachable(js: JetStream) -> bool:
    try:
        js.account_info()
        return True
    except JetStreamNotEnabledError:
        return False
