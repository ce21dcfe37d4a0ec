"""Which server to try next, and when: URLs, pool, rotation, back-off. No sockets."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.errors import AuthorizationError, ServerNotInPoolError
from jetstream_sync.net.servers import (
    Backoff,
    PoolServer,
    Server,
    ServerAddress,
    ServerPool,
    choose,
    parse_server,
    redact,
    unique,
)

# --- URLs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nats://host:1234", ServerAddress("host", 1234)),
        ("nats://host", ServerAddress("host", 4222)),
        ("nats://host/", ServerAddress("host", 4222)),
        ("host", ServerAddress("host", 4222)),
        ("host:99", ServerAddress("host", 99)),
        ("tls://host", ServerAddress("host", 4222, tls=True)),
        ("NATS://HOST:1", ServerAddress("host", 1)),
        ("nats://127.0.0.1:1", ServerAddress("127.0.0.1", 1)),
        ("nats://[::1]:1", ServerAddress("::1", 1)),
        ("[::1]:1", ServerAddress("::1", 1)),
        ("nats://u:p@h:1", ServerAddress("h", 1, user="u", password="p")),
        ("u:p@h:1", ServerAddress("h", 1, user="u", password="p")),
        ("nats://token@h:1", ServerAddress("h", 1, user="token")),
        ("nats://u%40x:p%3Aq@h:1", ServerAddress("h", 1, user="u@x", password="p:q")),
    ],
)
def test_parse_server_understands(url: str, expected: ServerAddress) -> None:
    """Scheme, host, port and credentials are taken from the URL; scheme and port have defaults."""
    assert parse_server(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nats://",
        "nats://:4222",
        "http://h",
        "ws://h",
        "nats://h:0",
        "nats://h:65536",
        "nats://h:-1",
        "nats://h:x",
        "nats://h:1/path",
        "nats://h?q",
        "nats://h#f",
        "nats://h h",
        "nats://h\r\n",
        "nats://h\0",
        "nats://h\x7f",
        "nats://[::1",
    ],
)
def test_parse_server_refuses(url: str) -> None:
    """What is no server URL is a ValueError."""
    with pytest.raises(ValueError):
        parse_server(url)


@pytest.mark.parametrize(
    "url",
    [
        "nats://joe:hush@h:0",
        "nats://joe:hush@h:x",
        "http://joe:hush@h",
        "nats://joe:hush@h /",
        "joe:hush@h:x",
        "nats://h?password=a@hush",
        "nats://hush?a@h",
    ],
)
def test_parse_server_errors_and_reprs_hold_no_credentials(url: str) -> None:
    """No error text, repr or shown URL carries a user, a password, or what may be one."""
    with pytest.raises(ValueError) as caught:
        parse_server(url)
    assert "hush" not in str(caught.value)
    address = parse_server("nats://joe:hush@h:1")
    assert "hush" not in repr(address)
    assert "hush" not in repr(Server(address))
    assert address.url == "nats://h:1"
    assert redact("nats://joe:h@ush@h:1") == "nats://h:1"


def test_url_of_an_ipv6_address_has_brackets() -> None:
    """An address's URL can be parsed again."""
    address = parse_server("tls://[::1]:7")
    assert address.url == "tls://[::1]:7"
    assert parse_server(address.url) == address


def parse_servers(urls: Iterable[str]) -> tuple[ServerAddress, ...]:
    return unique(map(parse_server, urls))


def test_unique_drops_repetitions() -> None:
    """One host and port is one server, however often it is named; the order stays."""
    addresses = parse_servers(["nats://a:1", "a:1", "nats://A:1", "b:1", "a:2"])
    assert [address.key for address in addresses] == [("a", 1), ("b", 1), ("a", 2)]


@given(st.text(max_size=40))
def test_parse_server_returns_or_raises_value_error(text: str) -> None:
    """Any text is either a server's address or a ValueError, nothing else."""
    try:
        address = parse_server(text)
    except ValueError:
        return
    assert address.host
    assert 0 < address.port < 65536


# --- the pool -------------------------------------------------------------------------------------------------


def make_pool(*urls: str, **options: Any) -> ServerPool:
    return ServerPool(parse_servers(urls), **({"shuffle": False} | options))


def hosts(pool: ServerPool) -> list[str]:
    return [server.address.host for server in pool.round()]


def test_round_tries_the_current_server_last() -> None:
    """After a loss the server in use goes to the end; the others keep their order."""
    pool = make_pool("a", "b", "c")
    assert hosts(pool) == ["a", "b", "c"]
    for expected in (["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]):
        pool.connected(pool.round()[0])
        assert hosts(pool) == expected


def test_pool_shuffles_unless_told_not_to() -> None:
    """The order is random by default, and nothing is lost by it."""
    urls = [f"h{number}" for number in range(30)]
    pool = make_pool(*urls, shuffle=True, rng=random.Random(1))
    assert hosts(pool) != urls
    assert sorted(hosts(pool)) == sorted(urls)
    assert hosts(make_pool(*urls)) == urls


def test_server_leaves_after_its_attempts_while_reconnecting_only() -> None:
    """max_attempts failures in a row remove a server; a success starts the count anew."""
    pool = make_pool("a", "b", max_attempts=2)
    first, second = pool.servers
    pool.failed(first, OSError(), reconnecting=False)
    pool.connected(first)
    for server in (first, second, second):
        pool.failed(server, OSError(), reconnecting=True)
    assert hosts(pool) == ["a"]
    pool.failed(first, OSError("no"), reconnecting=True)
    assert pool.servers == []
    assert str(first.last_error) == "no"


def test_server_that_refuses_twice_in_a_row_leaves() -> None:
    """Two authorization errors in a row give up a server; anything between them starts the count anew."""
    pool = make_pool("a")
    server = pool.servers[0]
    for error in (AuthorizationError(), OSError(), AuthorizationError()):
        pool.failed(server, error, reconnecting=True)
        assert pool.servers
    pool.failed(server, AuthorizationError(), reconnecting=True)
    assert not pool.servers


def test_without_max_attempts_servers_stay_for_ever() -> None:
    """With no limit a server is tried as often as it takes."""
    pool = make_pool("a")
    for _ in range(1000):
        pool.failed(pool.servers[0], OSError(), reconnecting=True)
    assert hosts(pool) == ["a"]


def test_advertised_servers_join_and_leave() -> None:
    """Discovered servers come and go with the advertisement; those the user named stay."""
    pool = make_pool("a")
    pool.connected(pool.servers[0])
    assert pool.advertise(["b:4222", "c:4222", "a:4222"]) is True
    assert hosts(pool) == ["b", "c", "a"]
    assert pool.advertise(["b:4222", "c:4222"]) is False
    assert pool.advertise(["c:4222"]) is False
    assert hosts(pool) == ["c", "a"]
    assert [server.discovered for server in pool.servers] == [True, False]


def test_advertised_server_in_use_stays() -> None:
    """The server in use stays in the pool although it is no longer advertised."""
    pool = make_pool("a")
    pool.connected(pool.servers[0])
    pool.advertise(["b:4222"])
    pool.connected(pool.round()[0])
    pool.advertise(["c:4222"])
    assert sorted(hosts(pool)) == ["a", "b", "c"]


@pytest.mark.parametrize("urls", [[], ["::::"], [5, None, {}], ["", " "]], ids=repr)
def test_advertisement_without_any_address_changes_nothing(urls: list[Any]) -> None:
    """A server that does not advertise, or advertises nonsense, does not empty the pool."""
    pool = make_pool("a")
    pool.connected(pool.servers[0])
    pool.advertise(["b:4222"])
    assert pool.advertise(urls) is False
    assert sorted(hosts(pool)) == ["a", "b"]


def test_advertised_servers_inherit_scheme_credentials_and_tls_name() -> None:
    """Advertised addresses have no scheme and credentials: they inherit those of the advertising server."""
    pool = make_pool("tls://joe:hush@cluster.example:4222")
    pool.connected(pool.servers[0])
    pool.advertise(["10.0.0.7:4222", "other.example:4222"])
    by_host = {server.address.host: server.address for server in pool.servers}
    bare, named = by_host["10.0.0.7"], by_host["other.example"]
    assert (bare.tls, bare.user, bare.password, bare.tls_name) == (True, "joe", "hush", "cluster.example")
    assert (named.tls, named.user, named.tls_name) == (True, "joe", None)


# --- back-off ----------------------------------------------------------------------------------------------------


def test_backoff_begins_at_once_and_doubles_to_the_cap() -> None:
    """No wait at first, then the first wait, doubling, up to the cap."""
    backoff = Backoff(0.1, 5.0, 0.0)
    waits = [backoff.next_wait() for _ in range(10)]
    assert waits == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next_wait() == 0.0


def test_backoff_of_many_rounds_stays_at_the_cap() -> None:
    """After a very long time the wait is still the cap."""
    backoff = Backoff(0.1, 5.0, 0.0)
    assert [backoff.next_wait() for _ in range(5000)][-1] == 5.0


@given(
    first=st.floats(0.001, 10),
    most=st.floats(0.001, 100),
    jitter=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_backoff_jitter_never_exceeds_the_cap(first: float, most: float, jitter: float, seed: int) -> None:
    """Jitter makes waits differ, but none is negative or longer than the longest asked for."""
    backoff = Backoff(first, most, jitter, random.Random(seed))
    for _ in range(15):
        assert 0 <= backoff.next_wait() <= max(first, most) * 1.000001


def test_backoff_jitter_makes_waits_differ() -> None:
    """Two clients that lost the same server do not reconnect at the same times."""
    one, two = Backoff(0.1, 5.0, 0.2, random.Random(1)), Backoff(0.1, 5.0, 0.2, random.Random(2))
    waits = [(one.next_wait(), two.next_wait()) for _ in range(10)]
    assert waits[0] == (0.0, 0.0)
    assert all(first != second for first, second in waits[1:])


# --- replacing the pool, and choosing from it -------------------------------------------------------------------


def test_replaced_pool_keeps_what_is_known_of_a_server() -> None:
    """A server that is named again keeps its failures, and is no discovered one any more; the others are gone."""
    pool = make_pool("a", "b")
    pool.connected(pool.servers[0])
    pool.advertise(["c:4222"])
    pool.failed(pool.servers[1], OSError(), reconnecting=True)
    pool.replace(parse_servers(["c", "b", "d"]))
    assert [server.entry for server in pool.servers] == [
        PoolServer("nats://c:4222", 0, False),
        PoolServer("nats://b:4222", 1, False),
        PoolServer("nats://d:4222", 0, False),
    ]
    assert hosts(pool) == ["c", "b", "d"]  # the current one is not among them


def test_failure_of_a_server_that_was_replaced_is_no_error() -> None:
    """The dialer may be at work on it when the pool is replaced."""
    pool = make_pool("a", max_attempts=1)
    [gone] = pool.servers
    pool.replace(parse_servers(["b"]))
    pool.failed(gone, OSError(), reconnecting=True)
    assert hosts(pool) == ["b"]


def test_uri_of_a_server_in_the_pool() -> None:
    """As nats-py's: the parts of the URL, without credentials."""
    [server] = make_pool("tls://ann:secret@h:7").servers
    assert (server.entry.uri.scheme, server.entry.uri.hostname, server.entry.uri.port) == ("tls", "h", 7)
    assert "secret" not in repr(server.entry)


@pytest.mark.parametrize(
    ("handler", "host", "wait", "error"),
    [
        (lambda pool, _: (pool[1], 0.5), "b", 0.5, None),
        (lambda pool, info: (None, info["wait"]), None, 2.0, None),
        (lambda pool, _: (pool[0]._replace(reconnects=9), 0), "a", 0.0, None),
        (lambda pool, _: (PoolServer("nats://x:1", 0, False), 1.0), None, 1.0, ServerNotInPoolError),
        (lambda pool, _: None, None, 0.0, TypeError),
        (lambda pool, _: (pool[0], -1), None, 0.0, ValueError),
        (lambda pool, _: (pool[0], "1"), None, 0.0, TypeError),
        (lambda pool, _: ("nats://a:4222", 0), None, 0.0, AttributeError),
        (lambda pool, _: pool[7], None, 0.0, IndexError),
    ],
)
def test_choice_of_a_handler(handler: Any, host: str | None, wait: float, error: type[Exception] | None) -> None:
    """A server of the pool or none, and a wait; whatever else it does is an error to report and no choice."""
    choice = choose(handler, make_pool("a", "b").servers, {"wait": 2})
    assert (choice.server.address.host if choice.server else None, choice.wait) == (host, wait)
    assert (type(choice.error) if choice.error else None) is error
