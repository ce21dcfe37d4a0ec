"""Consumer requests of the JetStream API.

Thread-safe. Each call sends one request and blocks for its reply, up to the client's timeout; the lists send one
request per page. All raise what `ApiClient.request` raises, and BadSubjectError for an invalid name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ..protocol.subjects import next_nuid, valid_name
from .client import ApiClient
from .config import ConsumerConfig
from .info import ConsumerInfo, ConsumerPause
from .kinds import TIMESTAMP


class ConsumerApi:
    """The CONSUMER requests."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def create(self, stream: str, config: ConsumerConfig, *, timeout: float | None = None) -> ConsumerInfo:
        """Create a consumer. Raises ConsumerExistsError when it exists with another configuration."""
        return self._configure(stream, config, "create", timeout)

    def update(self, stream: str, config: ConsumerConfig) -> ConsumerInfo:
        """Change the configuration of a consumer. Raises ConsumerNotFoundError when there is none of that name."""
        return self._configure(stream, config, "update")

    def create_or_update(self, stream: str, config: ConsumerConfig) -> ConsumerInfo:
        """Create a consumer, or change its configuration when it exists."""
        return self._configure(stream, config, "")

    def _configure(
        self, stream: str, config: ConsumerConfig, action: str, timeout: float | None = None
    ) -> ConsumerInfo:
        config = copy.copy(config)
        name = config.name or config.durable_name
        if name is None and action == "update":
            raise ValueError("to update a consumer, give its name")
        config.name = name = valid_name("consumer", next_nuid() if name is None else name)
        tokens = ["CONSUMER", "CREATE", valid_name("stream", stream), name]
        if config.filter_subject and not config.filter_subjects:
            tokens.append(config.filter_subject)
        body: dict[str, Any] = {"stream_name": stream, "config": config.to_wire()}
        if action:
            body["action"] = action
        return ConsumerInfo.from_wire(self._client.request(*tokens, body=body, timeout=timeout))

    def info(self, stream: str, name: str, *, timeout: float | None = None) -> ConsumerInfo:
        """The state of a consumer. Raises ConsumerNotFoundError, StreamNotFoundError."""
        tokens = _names(stream, name)
        return ConsumerInfo.from_wire(self._client.request("CONSUMER", "INFO", *tokens, timeout=timeout))

    def delete(self, stream: str, name: str, *, timeout: float | None = None) -> None:
        """Delete a consumer. Raises ConsumerNotFoundError when there is none of that name."""
        self._client.request("CONSUMER", "DELETE", *_names(stream, name), timeout=timeout)

    def list(self, stream: str) -> Iterator[ConsumerInfo]:
        """The consumers of a stream."""
        pages = self._client.pages("CONSUMER", "LIST", valid_name("stream", stream), key="consumers")
        return map(ConsumerInfo.from_wire, pages)

    def names(self, stream: str) -> Iterator[str]:
        """The names of the consumers of a stream."""
        return self._client.pages("CONSUMER", "NAMES", valid_name("stream", stream), key="consumers")

    def pause(self, stream: str, name: str, until: datetime | None) -> ConsumerPause:
        """Have the consumer deliver nothing until `until`; None resumes it."""
        body = None if until is None else {"pause_until": TIMESTAMP.encode(TIMESTAMP.coerce(until, "until"))}
        return ConsumerPause.from_wire(self._client.request("CONSUMER", "PAUSE", *_names(stream, name), body=body))

    def reset(self, stream: str, name: str, seq: int, *, timeout: float | None = None) -> ConsumerInfo:
        """Have the consumer go on at `seq`, as if all before it was acknowledged. Since 2.14.

        Raises TimeoutError when there is no such consumer, or an older server.
        """
        answer = self._client.request(
            "CONSUMER", "RESET", *_names(stream, name), body={"seq": seq}, timeout=timeout
        )
        return ConsumerInfo.from_wire(answer)

    def unpin(self, stream: str, name: str, group: str) -> None:
        """Unpin the client that is pinned in a priority group; the server then pins another one."""
        self._client.request("CONSUMER", "UNPIN", *_names(stream, name), body={"group": group})


def _names(stream: str, name: str) -> tuple[str, str]:
    return valid_name("stream", stream), valid_name("consumer", name)
