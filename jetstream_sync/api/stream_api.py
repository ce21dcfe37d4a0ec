"""Stream requests of the JetStream API, and Direct Get.

Thread-safe. Each call sends one request and blocks for its reply, up to the client's timeout; the lists send one
request per page. All raise what `ApiClient.request` raises, and BadSubjectError for an invalid name or subject.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any

from ..errors import JetStreamError, MessageNotFoundError, StreamNotFoundError, api_error
from ..protocol.headers import Headers, status_of
from ..protocol.parser import RawMessage
from ..protocol.subjects import subscribe_subject, valid_name
from .client import ApiClient
from .config import StreamConfig
from .direct import direct_reply
from .info import RawStreamMsg, StreamInfo
from .kinds import at_least, parse_time
from .tail import last_messages


class StreamApi:
    """The STREAM and DIRECT requests."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def create(self, config: StreamConfig) -> StreamInfo:
        """Create a stream. Raises StreamNameInUseError when it exists with another configuration."""
        return self._configure("CREATE", config)

    def update(self, config: StreamConfig) -> StreamInfo:
        """Change the configuration of a stream. Raises StreamNotFoundError when there is none of that name."""
        return self._configure("UPDATE", config)

    def create_or_update(self, config: StreamConfig) -> StreamInfo:
        """Change the configuration of a stream, or create it when there is none of that name."""
        try:
            return self.update(config)
        except StreamNotFoundError:
            return self.create(config)

    def _configure(self, verb: str, config: StreamConfig) -> StreamInfo:
        name = valid_name("stream", config.name)
        return StreamInfo.from_wire(self._client.request("STREAM", verb, name, body=config.to_wire()))

    def info(self, name: str, *, deleted_details: bool = False, subjects_filter: str | None = None) -> StreamInfo:
        """The state of a stream. `deleted_details` adds the sequences of deleted messages, `subjects_filter` the
        number of messages of each matching subject, which may take several requests."""
        body = _given(deleted_details=deleted_details or None, subjects_filter=_subject(subjects_filter))
        stream = valid_name("stream", name)
        answer = self._client.request("STREAM", "INFO", stream, body=body or None)
        info = StreamInfo.from_wire(answer)
        if subjects_filter is None:
            return info
        subjects = info.state.subjects
        offset = len(subjects)
        while offset < answer.get("total", 0):
            answer = self._client.request("STREAM", "INFO", stream, body={**body, "offset": offset})
            page = StreamInfo.from_wire(answer).state.subjects
            if not page:
                break  # subjects were removed between two pages
            subjects.update(page)
            offset += len(page)  # not len(subjects): new subjects may shift an earlier one into this page
        return info

    def delete(self, name: str) -> None:
        """Delete a stream with its messages. Raises StreamNotFoundError when there is none of that name."""
        self._client.request("STREAM", "DELETE", valid_name("stream", name))

    def list(self, subject: str | None = None) -> Iterator[StreamInfo]:
        """All streams, or those that store `subject`."""
        pages = self._client.pages("STREAM", "LIST", key="streams", body=_given(subject=_subject(subject)))
        return map(StreamInfo.from_wire, pages)

    def names(self, subject: str | None = None) -> Iterator[str]:
        """The names of all streams, or of those that store `subject`."""
        return self._client.pages("STREAM", "NAMES", key="streams", body=_given(subject=_subject(subject)))

    def name_by_subject(self, subject: str) -> str:
        """The name of the stream that stores `subject`. Raises StreamNotFoundError for none or several."""
        names = list(self.names(subject))
        if len(names) != 1:
            found = f"several streams: {', '.join(names)}" if names else "no stream"
            raise StreamNotFoundError(404, 10059, f"{found} on subject {subject!r}: name the stream")
        return names[0]

    def purge(self, name: str, *, subject: str | None, sequence: int | None, keep: int | None) -> int:
        """Delete messages and return how many; see `Stream.purge`."""
        if sequence is not None and keep is not None:
            raise ValueError("give sequence or keep, not both")
        body = _given(
            filter=_subject(subject),
            seq=None if sequence is None else at_least("sequence", sequence, 1),
            keep=None if keep is None else at_least("keep", keep, 0),
        )
        answer = self._client.request("STREAM", "PURGE", valid_name("stream", name), body=body or None)
        return int(answer.get("purged", 0))

    def delete_message(self, name: str, seq: int, *, erase: bool) -> None:
        """Delete a message; see `Stream.delete_message`."""
        body = _given(seq=at_least("seq", seq, 1), no_erase=None if erase else True)
        self._client.request("STREAM", "MSG", "DELETE", valid_name("stream", name), body=body)

    def get_message(
        self, name: str, *, direct: bool, seq: int | None, last_by_subject: str | None, next_by_subject: str | None
    ) -> RawStreamMsg:
        """A stored message; see `Stream.get_message`. Raises MessageNotFoundError when there is none."""
        body = _get_body(seq, last_by_subject, next_by_subject)
        stream = valid_name("stream", name)
        if direct:
            return self._direct_get(stream, body)
        return self._leader_get(stream, body)

    def tail(self, name: str, count: int, subject: str | None) -> builtins.list[RawStreamMsg]:
        """The last messages; see `Stream.tail`."""
        at_least("n", count, 0)
        wanted = _subject(subject) or ">"
        stream = valid_name("stream", name)
        state = self.info(stream).state

        def first_at(seq: int) -> RawStreamMsg | None:
            # From the leader: a replica that serves Direct Get may not have the newest messages yet.
            try:
                return self._leader_get(stream, {"seq": seq, "next_by_subj": wanted})
            except MessageNotFoundError:
                return None

        return last_messages(first_at, state.first_seq, state.last_seq, count)

    def _leader_get(self, stream: str, body: dict[str, Any]) -> RawStreamMsg:
        answer = self._client.request("STREAM", "MSG", "GET", stream, body=body)
        return RawStreamMsg.from_wire(answer.get("message"))  # type: ignore[arg-type]  # which checks it

    def _direct_get(self, stream: str, body: dict[str, Any]) -> RawStreamMsg:
        subject = self._client.subject("DIRECT", "GET", stream)
        if set(body) == {"last_by_subj"}:
            # The subject is part of the request's subject, so that permissions can cover it.
            raw = self._client.request_raw(f"{subject}.{body['last_by_subj']}", None)
        else:
            raw = self._client.request_raw(subject, body)
        message = _direct_message(raw)
        if message is not None:
            return message
        status = status_of(raw[2])
        if status is None:
            raise JetStreamError("the server's Direct Get reply cannot be read: subject or sequence is missing")
        if status.code == 404:
            raise MessageNotFoundError(404, 10037, status.description or "no message found", stream=stream)
        if status.code == 503:
            return self._leader_get(stream, body)  # no replica serves Direct Get at the moment
        raise api_error(status.code, 0, status.description, stream=stream)


def _get_body(seq: int | None, last_by_subject: str | None, next_by_subject: str | None) -> dict[str, Any]:
    if last_by_subject is not None:
        if seq is not None or next_by_subject is not None:
            raise ValueError("last_by_subject goes with neither seq nor next_by_subject")
        return {"last_by_subj": _subject(last_by_subject)}
    if seq is None and next_by_subject is None:
        raise ValueError("give seq, last_by_subject or next_by_subject")
    checked_seq = None if seq is None else at_least("seq", seq, 1)
    return _given(seq=checked_seq, next_by_subj=_subject(next_by_subject))


def _given(**fields: Any) -> dict[str, Any]:
    """The body of a request: the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _subject(subject: str | None) -> str | None:
    if subject is not None:
        subscribe_subject(subject)
    return subject


def _direct_message(raw: RawMessage) -> RawStreamMsg | None:
    """The message in a Direct Get reply; None when the reply is a status."""
    reply = direct_reply(raw[2])
    if reply is None:
        return None
    return RawStreamMsg(
        subject=reply.subject.decode("utf-8", "surrogateescape"),
        seq=reply.seq,
        data=raw[3],
        headers=None if reply.own is None else Headers.from_wire(reply.own),
        time=None if reply.time is None else parse_time(reply.time),
    )
