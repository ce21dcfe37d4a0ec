"""Requests to the JetStream API: subjects, JSON bodies, errors, paging."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from .._deadline import seconds
from ..errors import APIError, JetStreamError, JetStreamNotEnabledError, NatsError, api_error
from ..net.link import Link
from ..protocol.headers import is_no_responders
from ..protocol.parser import RawMessage
from ..protocol.subjects import api_prefix, publish_subject, subscribe_subject, valid_name
from .info import AccountInfo, Tier
from .kinds import bad_answer

DEFAULT_PREFIX = "$JS.API"
_WILDCARDS = frozenset("*>")
_ACCOUNT = ("INFO",)
# Errors that say that a limit of the account is reached: resources, consumers, streams, memory, storage.
_ACCOUNT_LIMITS = frozenset({10002, 10026, 10027, 10028, 10047, 10122})
# How long an error waits for what the account uses.
USE_SECONDS = 1.0


class ApiClient:
    """Sends requests to one JetStream: a connection, an API prefix and a default timeout. Thread-safe."""

    def __init__(self, link: Link, *, domain: str | None, prefix: str, timeout: float | timedelta) -> None:
        if domain is not None:
            if prefix != DEFAULT_PREFIX:
                raise ValueError("give domain or prefix, not both: a domain is the prefix $JS.<domain>.API")
            prefix = f"$JS.{valid_name('domain', domain)}.API"
        self.link = link
        self.prefix: str = api_prefix(prefix)
        self.timeout: float = seconds(timeout) or 0.0
        if not self.timeout:
            raise ValueError("timeout must be more than zero")

    def subject(self, *tokens: str) -> str:
        """The subject of an API request: the prefix and `tokens`."""
        return ".".join((self.prefix, *tokens))

    def request(
        self, *tokens: str, body: Mapping[str, Any] | None = None, timeout: float | timedelta | None = None
    ) -> dict[str, Any]:
        """Send an API request and return the JSON object of its reply. Blocks up to `timeout` seconds.

        `timeout` defaults to that of the client. Raises APIError or a subclass for an error reply,
        JetStreamNotEnabledError when no server serves the API, TimeoutError, ConnectionLostError,
        PermissionsError.
        """
        subject = self.subject(*tokens)
        raw = self.request_raw(subject, body, timeout)
        if not raw[3] and is_no_responders(raw[2]):
            text = f"no reply on {subject}: JetStream is not enabled there (server, account or domain)"
            raise JetStreamNotEnabledError(503, 10076, text)
        try:
            answer = json.loads(raw[3])
        except (ValueError, RecursionError):
            raise bad_answer(subject, "JSON", raw[3][:64]) from None
        if not isinstance(answer, dict):
            raise bad_answer(subject, "an object", answer)
        if answer.get("error") is not None:
            self._raise(answer, tokens)
        return answer

    def _raise(self, answer: Mapping[str, Any], tokens: tuple[str, ...]) -> None:
        stream, consumer = _named_in(tokens)
        try:
            raise_error_of(answer, stream=stream, consumer=consumer)
        except APIError as error:
            if error.err_code not in _ACCOUNT_LIMITS or tokens == _ACCOUNT:
                raise
        raise_error_of(answer, stream=stream, consumer=consumer, use=self._use())

    def _use(self) -> str:
        """What the account uses of its limits, for the text of an error; "" where that cannot be asked for."""
        try:
            info = AccountInfo.from_wire(self.request(*_ACCOUNT, timeout=min(self.timeout, USE_SECONDS)))
        except NatsError:
            return ""
        tiers = {"": info, **info.tiers} if not info.tiers else info.tiers
        return "; ".join(filter(None, (_use_of(name, tier) for name, tier in tiers.items())))

    def request_raw(
        self, subject: str, body: Mapping[str, Any] | None, timeout: float | timedelta | None = None
    ) -> RawMessage:
        """Send an API request and return its raw reply, which may be an error. Blocks like request()."""
        payload = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        # Some requests carry a filter in their subject, which may have wildcards.
        checked = publish_subject if _WILDCARDS.isdisjoint(subject.split(".")) else subscribe_subject
        return self.link.request(checked(subject), payload, seconds(self.timeout if timeout is None else timeout))

    def pages(self, *tokens: str, key: str, body: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """All items of a paged list. The iterator requests a page when the page before it is used up."""
        offset = 0
        while True:
            answer = self.request(*tokens, body={**(body or {}), "offset": offset})
            items = answer.get(key) or []
            yield from items
            offset += len(items)
            if not items or offset >= answer.get("total", 0):
                return


def _named_in(tokens: tuple[str, ...]) -> tuple[str, str]:
    """The stream and the consumer that the subject of an API request names."""
    area, *rest = [token for token in tokens if token != "MSG"]  # STREAM.MSG.GET.<stream>
    stream = rest[1] if len(rest) > 1 and area in ("STREAM", "CONSUMER") else ""
    consumer = rest[2] if len(rest) > 2 and area == "CONSUMER" else ""
    return stream, consumer


def _use_of(name: str, tier: Tier) -> str:
    limits = tier.limits
    pairs = {
        "streams": (tier.streams, limits.max_streams),
        "consumers": (tier.consumers, limits.max_consumers),
        "bytes of storage": (max(tier.storage, tier.reserved_storage), limits.max_storage),
        "bytes of memory": (max(tier.memory, tier.reserved_memory), limits.max_memory),
    }
    used = [f"{use} of {limit} {what}" for what, (use, limit) in pairs.items() if limit >= 0]
    return f"the account uses {', '.join(used)}{f' of tier {name}' if name else ''}" if used else ""


def raise_error_of(
    answer: Mapping[str, Any],
    *,
    stream: str = "",
    consumer: str = "",
    subject: str = "",
    use: str = "",
) -> None:
    """Raise the error that the field `error` of a reply describes; do nothing when it has none."""
    error = answer.get("error")
    if error is None:
        return
    if not isinstance(error, dict):
        raise JetStreamError(f"the server replied with an error that cannot be read: {error!r}")
    raise api_error(
        error.get("code", 0),
        error.get("err_code", 0),
        error.get("description", ""),
        stream=stream,
        consumer=consumer,
        subject=subject,
        use=use,
    )
