"""Threads, descriptors and memory stay where they were, over many connections and reconnects."""

from __future__ import annotations

import gc
import os
import re
import threading
from pathlib import Path

import pytest

from jetstream_sync import connect
from jetstream_sync.net.connection import link_of
from jetstream_sync.testing import FaultProxy, LocalServer
from tests.support.eventually import eventually

MEGABYTE = 1024 * 1024


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def memory() -> int:
    """Resident memory in bytes, after a collection."""
    gc.collect()
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def objects() -> int:
    """How many objects of the library are alive."""
    gc.collect()
    # str(): `__module__` of a type made in C may be anything.
    return sum(1 for one in gc.get_objects() if str(type(one).__module__).startswith("jetstream_sync.net"))


def connect_and_close(server: LocalServer, times: int) -> None:
    for number in range(times):
        nc = connect(server.url, closed_cb=lambda _: None)
        sub = nc.subscribe("soak", cb=lambda msg: None)
        nc.publish("soak", b"x")
        if number % 3 == 0:
            sub.drain()
        if number % 2:
            nc.drain()
        else:
            nc.close()


def reconnect(proxy: FaultProxy, times: int) -> None:
    options = {"reconnect_time_wait": 0.001, "reconnect_time_wait_max": 0.002, "connect_timeout": 2.0}
    with connect(proxy.url, error_cb=lambda _: None, **options) as nc:
        sub = nc.subscribe("soak")
        steady_descriptors = steady_threads = 0
        for number in range(times):
            proxy.cut()
            eventually(lambda number=number: nc.stats.reconnects == number + 1, timeout=10)
            nc.publish("soak", b"%d" % number)
            assert sub.next_msg(timeout=5).data == b"%d" % number
            if number == 5:
                steady_descriptors, steady_threads = descriptors(), threading.active_count()
        eventually(lambda: descriptors() <= steady_descriptors + 2)
        eventually(lambda: threading.active_count() <= steady_threads + 1)
        assert len(link_of(nc).router.receivers) == 1
        assert len(link_of(nc).pings.waiters) == 0


def check_connect_and_close(server: LocalServer, times: int) -> None:
    connect_and_close(server, 10)
    before = (threading.active_count(), descriptors(), objects())
    started = memory()
    connect_and_close(server, times)
    eventually(lambda: threading.active_count() <= before[0])
    assert descriptors() <= before[1]
    assert objects() <= before[2] + 5
    assert memory() - started < 8 * MEGABYTE


def check_reconnects(server: LocalServer, times: int) -> None:
    with FaultProxy(server, record=False) as proxy:
        reconnect(proxy, 10)
        threads, started = threading.active_count(), memory()
        reconnect(proxy, times)
        eventually(lambda: threading.active_count() <= threads)
        # The proxy keeps a few objects for each connection it has served.
        assert memory() - started < 8 * MEGABYTE + times * 20_000


def test_fifty_connections_leave_nothing_behind(nats_server: LocalServer) -> None:
    """50 times connect/close: threads, descriptors, objects and memory are where they were."""
    check_connect_and_close(nats_server, 50)


def test_fifty_reconnects_leave_nothing_behind(nats_server: LocalServer) -> None:
    """50 reconnects: threads, descriptors, subscriptions and memory are where they were."""
    check_reconnects(nats_server, 50)


@pytest.mark.soak
def test_two_hundred_connections_leave_nothing_behind(nats_server: LocalServer) -> None:
    """200 times connect/close: threads, descriptors, objects and memory are where they were."""
    check_connect_and_close(nats_server, 200)


@pytest.mark.soak
def test_a_thousand_reconnects_leave_nothing_behind(nats_server: LocalServer) -> None:
    """1 000 reconnects: threads, descriptors, subscriptions and memory are where they were."""
    check_reconnects(nats_server, 1000)
