"""Fixtures of all tests. No thread of the library may outlive the test that started it."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Iterator

import pytest

from jetstream_sync._threads import detached_jobs
from tests.support.fixtures import (  # noqa: F401
    cert_kit,
    eager_switching,
    jwt_kit,
    mute,
    observer,
    operator_server,
    other_js,
    proxy,
    reported,
    server,
    stream,
    token_server,
)
from tests.support.threads import library_threads

faulthandler.enable()

# connect() reads them: those of the developer's shell are not meant for the servers of the tests.
for _variable in [name for name in os.environ if name.startswith("NATS_") and name != "NATS_SERVER"]:
    del os.environ[_variable]


def leaked_since(before: set[threading.Thread]) -> list[str]:
    return sorted([thread.name for thread in library_threads() - before] + detached_jobs())


@pytest.fixture(autouse=True)
def no_leaked_threads() -> Iterator[None]:
    """Fail the test that leaves a `js-` thread or a detached job behind."""
    before = library_threads()
    yield
    deadline = time.monotonic() + 3.0
    while (leaked := leaked_since(before)) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert leaked == []
