"""Requests to the JetStream API: subjects, JSON, errors, paging."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from .._deadline import seconds
from ..errors import JetStreamError, JetStreamNotEnabledError, api_error
from ..net.link import Link
from ..protocol.headers import is_no_responders
from ..protocol.parser import RawMessage
from ..protocol.subjects import api_prefix, publish_subject, subscribe_subject, valid_name
from .kinds import bad_answer

DEFAULT_PREFIX = "$JS.API"
_WILDCARDS = frozenset("*>")
_NOT_ENABLED = 10076  # the server's own err_code for it


class ApiClient:
    """Speaks to one JetStream: a connection, an API prefix and a default timeout. Thread-safe."""

    def __init__(self, link: Link, *, domain: str | None, prefix: str, timeout: float | timedelta) -> None:
        if domain is not None:
            if prefix != DEFAULT_PREFIX:
                raise ValueError("give domain or prefix, not both: a domain is the prefix $JS.<domain>.API")
            prefix = f"$JS.{valid_name('domain', domain)}.API"
        self.link = link
        self.prefix = api_prefix(prefix)
        self.timeout = seconds(timeout) or 0.0
        if not self.timeout:
            raise ValueError("timeout must be more than zero")

    def subject(self, *tokens: str) -> str:
        return ".".join((self.prefix, *tokens))

    def request(
        self, *tokens: str, body: Mapping[str, Any] | None = None, timeout: float | timedelta | None = None
    ) -> dict[str, Any]:
        """The answer to an API request, as JSON.

        Raises APIError or one of its kinds for an error answer, JetStreamNotEnabledError when nobody answers
        the API at all, TimeoutError, ConnectionLostError, PermissionsError.
        """
        subject = self.subject(*tokens)
        raw = self.request_raw(subject, body, timeout)
        return answer_of(raw, subject)

    def request_raw(
        self, subject: str, body: Mapping[str, Any] | None, timeout: float | timedelta | None = None
    ) -> RawMessage:
        payload = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        limit = self.timeout if timeout is None else timeout
        return self.link.request(_request_subject(subject), payload, seconds(limit))

    def pages(self, *tokens: str, key: str, body: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """All items of a paged list, asking for a page when the one before is used up."""
        offset = 0
        while True:
            answer = self.request(*tokens, body={**(body or {}), "offset": offset})
            items = answer.get(key) or []
            yield from items
            offset += len(items)
            if not items or offset >= answer.get("total", 0):
                return


def _request_subject(subject: str) -> bytes:
    """Some requests carry a filter in their subject, wildcards included, which the server takes as it is."""
    return publish_subject(subject) if _WILDCARDS.isdisjoint(subject.split(".")) else subscribe_subject(subject)


def answer_of(raw: RawMessage, subject: str) -> dict[str, Any]:
    """The JSON object of an API answer; raises its error."""
    if not raw[3] and is_no_responders(raw[2]):
        raise JetStreamNotEnabledError(
            503,
            _NOT_ENABLED,
            f"nobody answers {subject}: JetStream is not enabled there (server, account or domain)",
        )
    try:
        answer = json.loads(raw[3])
    except (ValueError, RecursionError):
        raise bad_answer(subject, "JSON", raw[3][:64]) from None
    if not isinstance(answer, dict):
        raise bad_answer(subject, "an object", answer)
    raise_error_of(answer)
    return answer


def raise_error_of(answer: Mapping[str, Any]) -> None:
    """Raise what an answer's `error` says, if it has one."""
    error = answer.get("error")
    if error is None:
        return
    if not isinstance(error, dict):
        raise JetStreamError(f"the server answered with an error that cannot be read: {error!r}")
    raise api_error(error.get("code", 0), error.get("err_code", 0), error.get("description", ""))
