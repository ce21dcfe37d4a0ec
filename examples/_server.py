"""For the examples: the server of NATS_URL, or one that is started for the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from jetstream_sync.testing import LocalServer


@contextmanager
def server_url() -> Iterator[str]:
    if "NATS_URL" in os.environ:
        yield os.environ["NATS_URL"]
    else:
        with LocalServer() as server:
            yield server.url
