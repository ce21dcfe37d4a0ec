"""The JetStream context: publishing, streams and consumers on one connection."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload

from ._deadline import Deadline, seconds
from .api.batch import BatchMessage, PublishBatch, publish_all
from .api.client import DEFAULT_PREFIX, ApiClient
from .api.config import ConsumerConfigLike, StreamConfig, StreamConfigLike
from .api.consumer_api import ConsumerApi
from .api.fields import merged
from .api.info import AccountInfo, PubAck, StreamInfo
from .api.kinds import at_least
from .api.publish import publish_and_wait, publish_block
from .api.publish_async import DEFAULT_MAX_PENDING, AsyncPublisher
from .api.publish_many import PublishMany, PublishSummary
from .api.publish_retry import DEFAULT_RETRIES, DEFAULT_RETRY_WAIT
from .api.stream_api import StreamApi
from .consumers.binding import SubscribeRequest, subscribe
from .consumers.consumer import Consumer
from .consumers.ordered import OrderedConsumer
from .consumers.pull_subscription import PullSubscription, subscribe_pull
from .consumers.push import Callback, PushSubscription
from .nats_py import JetStreamNames
from .net.connection import Connection, link_of
from .net.subscription import DEFAULT_PENDING_BYTES, DEFAULT_PENDING_MSGS
from .protocol.subjects import publish_subject
from .stream import ConsumerManager, Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .api.field_types import ConsumerFields, OrderedFields, StreamFields, SubscribeFields

Duration = float | timedelta


class JetStream(JetStreamNames):
    """JetStream on one connection, as returned by `nc.jetstream()`. Thread-safe.

    `domain` or `prefix` selects another JetStream than the one of the account. `publish_async_max_pending` limits
    how many asynchronous publishes may wait for their acknowledgement at once. `timeout` (default 5 s) is how long
    a call blocks for the server's reply; then it raises TimeoutError. Every call may also raise
    ConnectionLostError, and APIError or a subclass when the server replies with an error.
    """

    __slots__ = ("__weakref__", "_async_publisher", "_client", "_consumer_api", "_consumers", "_streams")

    def __init__(
        self,
        nc: Connection,
        *,
        domain: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeout: Duration = 5.0,
        publish_async_max_pending: int = DEFAULT_MAX_PENDING,
    ) -> None:
        link = link_of(nc)
        self._client = ApiClient(link, domain=domain, prefix=prefix, timeout=timeout)
        self._streams = StreamApi(self._client)
        self._consumer_api = ConsumerApi(self._client)
        self._consumers = ConsumerManager(self._client)
        self._async_publisher = AsyncPublisher(link, self._client.timeout, publish_async_max_pending)
        # When the context is garbage collected, the thread and the inbox of its publisher must end.
        weakref.finalize(self, self._async_publisher.retire).atexit = False

    # --- publishing -----------------------------------------------------------------------------------

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, Any] | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        expected_last_subject_seq_subject: str | None = None,
        expected_last_msg_id: str | None = None,
        ttl: Duration | str | None = None,
        timeout: Duration | None = None,
        retry_attempts: int = DEFAULT_RETRIES,
        retry_wait: Duration = DEFAULT_RETRY_WAIT,
    ) -> PubAck:
        """Publish `payload` to `subject` and wait for the stream's acknowledgement: then the message is stored.

        `headers` are names and values. `msg_id` makes the stream ignore duplicates. The stream stores the message
        only if it is `expected_stream`, if its last message has the sequence `expected_last_seq` and the id
        `expected_last_msg_id`, and if the last message of the subject (or of `expected_last_subject_seq_subject`,
        wildcards allowed) has the sequence `expected_last_subject_seq`. `ttl` is how long the stream keeps the
        message: whole seconds, a timedelta, or "never".

        While no stream responds, or it is unavailable for the moment, the publish is repeated up to
        `retry_attempts` times, `retry_wait` apart. When an answer does not come, or the connection is lost, it is
        repeated only with a `msg_id`: each attempt waits for a share of the timeout then. While the stream says
        that a message of this id is in process, it is asked until the timeout. `timeout` covers all attempts
        together; by default it is that of the context.

        Raises NoStreamResponseError when no stream stores the subject, WrongLastSequenceError or another APIError
        when the stream rejects the message, TimeoutError or ConnectionLostError when it is unknown whether the
        message was stored.
        """
        block, has_msg_id = publish_block(
            headers,
            msg_id,
            expected_stream,
            expected_last_seq,
            expected_last_subject_seq,
            expected_last_subject_seq_subject,
            expected_last_msg_id,
            ttl,
        )
        return publish_and_wait(
            self._client.link,
            publish_subject(subject),
            payload,
            block,
            has_msg_id=has_msg_id,
            timeout=self._client.timeout if timeout is None else timeout,
            retry_attempts=retry_attempts,
            retry_wait=retry_wait,
        )

    def publish_async(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, Any] | None = None,
        msg_id: str | None = None,
        expected_stream: str | None = None,
        expected_last_seq: int | None = None,
        expected_last_subject_seq: int | None = None,
        expected_last_subject_seq_subject: str | None = None,
        expected_last_msg_id: str | None = None,
        ttl: Duration | str | None = None,
        timeout: Duration | None = None,
        retry_attempts: int = DEFAULT_RETRIES,
        retry_wait: Duration = DEFAULT_RETRY_WAIT,
    ) -> Future[PubAck]:
        """Publish a message without waiting. The future's result is the acknowledgement, or what publish() raises.

        The parameters are those of publish(). Blocks only while `publish_async_max_pending` publishes wait for
        their acknowledgement; after `timeout` it raises TooManyStalledMsgsError. Attempts are repeated as those of
        publish() are. After a reconnect, messages with a `msg_id` that were not acknowledged are sent again; the
        others fail with ConnectionLostError.
        """
        block, has_msg_id = publish_block(
            headers,
            msg_id,
            expected_stream,
            expected_last_seq,
            expected_last_subject_seq,
            expected_last_subject_seq_subject,
            expected_last_msg_id,
            ttl,
        )
        return self._async_publisher.publish(
            publish_subject(subject),
            payload,
            block,
            has_msg_id=has_msg_id,
            timeout=timeout,
            retry_attempts=retry_attempts,
            retry_wait=retry_wait,
        )

    @property
    def publish_async_max_pending(self) -> int:
        """How many asynchronous publishes may wait for their acknowledgement at once; may be set at any time."""
        return self._async_publisher.max_pending

    @publish_async_max_pending.setter
    def publish_async_max_pending(self, limit: int) -> None:
        self._async_publisher.max_pending = limit

    @property
    def publish_async_pending(self) -> int:
        """How many asynchronous publishes wait for their acknowledgement."""
        return len(self._async_publisher.pending)

    def publish_async_wait(self, timeout: Duration | None = None) -> None:
        """Block until every asynchronous publish is acknowledged or has failed.

        Raises TimeoutError after `timeout` seconds; the default None waits without a limit.
        """
        self._async_publisher.wait(Deadline(timeout))

    @overload
    def publish_batch(self, *, timeout: Duration | None = None) -> PublishBatch: ...

    @overload
    def publish_batch(
        self, messages: Iterable[BatchMessage | tuple[Any, ...]], *, timeout: Duration | None = None
    ) -> PubAck: ...

    def publish_batch(
        self,
        messages: Iterable[BatchMessage | tuple[Any, ...]] | None = None,
        *,
        timeout: Duration | None = None,
    ) -> PublishBatch | PubAck:
        """Publish up to 1000 messages to one stream, which stores all of them or none (ADR-50).

        Needs server 2.12 or later and a stream with `allow_atomic`. Without `messages`, returns a batch to fill in
        a `with` block. With an iterable of (subject, payload[, headers]), publishes them and returns the
        acknowledgement of the last. PublishBatch says what blocks and what is raised.
        """
        batch = PublishBatch(self._client.link, self._client.timeout if timeout is None else timeout)
        return batch if messages is None else publish_all(batch, messages)

    def publish_many(
        self,
        messages: Iterable[tuple[Any, ...]],
        *,
        expected_stream: str | None = None,
        max_pending: int = DEFAULT_MAX_PENDING,
        timeout: Duration | None = None,
        progress: Callable[[PublishSummary], object] | None = None,
    ) -> PublishSummary:
        """Publish all `messages` pipelined, and wait until each is acknowledged: then all are stored.

        `messages` is an iterable of (subject, payload[, headers[, msg_id]]), read as far as there is room: at most
        `max_pending` messages are unacknowledged at once. A message without `msg_id` gets a generated one. So a
        message that is sent again, after a reconnect or for want of an acknowledgement, is stored once. Messages
        leave in runs: the last ones before the iterable blocks may wait for its next message. They are stored only
        if their stream is `expected_stream`, if that is given.

        `timeout` is how long to wait without any acknowledgement, also while the connection is lost or a stream
        has no leader; by default it is that of the context. The whole may take any time. `progress` is called with
        a PublishSummary about once a second and at the end, by the calling thread; what it raises ends the call.
        Several threads may call at once.

        Raises PublishManyError for the first message that is not valid, or that a stream refuses: it has the
        position, the subject and a summary. All that came before an invalid message is stored then. Raises
        TimeoutError, ConnectionClosedError and PermissionsError with the attribute `summary`. An exception of the
        iterable comes out when what it has given is stored.
        """
        call = PublishMany(
            self._client.link,
            timeout=self._client.timeout if timeout is None else seconds(timeout) or 0.0,
            max_pending=at_least("max_pending", max_pending, 1),
            expected_stream=expected_stream,
            progress=progress,
        )
        return call.publish(messages)

    # --- streams --------------------------------------------------------------------------------------

    def create_stream(self, config: StreamConfigLike = None, /, **fields: Unpack[StreamFields]) -> Stream:
        """Create a stream from `config` (a StreamConfig or a dict of its fields), keywords `fields`, or both.

        For example `create_stream(name="ORDERS", subjects=["orders.>"])`. A stream that exists with the same
        configuration is returned. Raises StreamNameInUseError when it exists with another one.
        """
        return self._stream(self._streams.create(merged(StreamConfig, config, fields)))

    def update_stream(self, config: StreamConfigLike = None, /, **fields: Unpack[StreamFields]) -> Stream:
        """Change the configuration of a stream, given as for create_stream(): fields left out get their defaults.

        Raises StreamNotFoundError when there is none of that name.
        """
        return self._stream(self._streams.update(merged(StreamConfig, config, fields)))

    def create_or_update_stream(
        self, config: StreamConfigLike = None, /, **fields: Unpack[StreamFields]
    ) -> Stream:
        """Create a stream, or change its configuration if it exists. Parameters: see create_stream()."""
        return self._stream(self._streams.create_or_update(merged(StreamConfig, config, fields)))

    def get_stream(self, name: str) -> Stream:
        """The stream called `name`. Raises StreamNotFoundError when there is none."""
        return self._stream(self._streams.info(name))

    def delete_stream(self, name: str) -> None:
        """Delete the stream `name`, its messages and consumers. Raises StreamNotFoundError when there is none."""
        self._streams.delete(name)

    def list_streams(self, subject: str | None = None) -> Iterator[StreamInfo]:
        """Iterate over all streams, or those that store `subject`. The iterator requests page after page."""
        return self._streams.list(subject)

    def stream_names(self, subject: str | None = None) -> Iterator[str]:
        """Iterate over the names of all streams, or of those that store `subject`."""
        return self._streams.names(subject)

    def find_stream_name_by_subject(self, subject: str) -> str:
        """The name of the stream that stores `subject`. Raises StreamNotFoundError unless there is exactly one."""
        return self._streams.name_by_subject(subject)

    def _stream(self, info: StreamInfo) -> Stream:
        return Stream(self._client, info)

    # --- consumers ------------------------------------------------------------------------------------

    def create_consumer(
        self, stream: str, config: ConsumerConfigLike = None, /, **fields: Unpack[ConsumerFields]
    ) -> Consumer:
        """Create a consumer of `stream`. Parameters and errors: see Stream.create_consumer()."""
        return self._consumers.create(stream, config, fields)

    def update_consumer(
        self, stream: str, config: ConsumerConfigLike = None, /, **fields: Unpack[ConsumerFields]
    ) -> Consumer:
        """Change the configuration of a consumer of `stream`, given as for Stream.create_consumer().

        Raises ConsumerNotFoundError when there is none of that name.
        """
        return self._consumers.update(stream, config, fields)

    def create_or_update_consumer(
        self, stream: str, config: ConsumerConfigLike = None, /, **fields: Unpack[ConsumerFields]
    ) -> Consumer:
        """Create a consumer of `stream`, or change its configuration. See Stream.create_consumer()."""
        return self._consumers.create_or_update(stream, config, fields)

    def get_consumer(self, stream: str, name: str) -> Consumer:
        """The consumer `name` of `stream`. Raises ConsumerNotFoundError when there is none."""
        return self._consumers.get(stream, name)

    def delete_consumer(self, stream: str, name: str) -> None:
        """Delete the consumer `name` of `stream`. Raises ConsumerNotFoundError when there is none."""
        self._consumer_api.delete(stream, name)

    def ordered_consumer(self, stream: str, **fields: Unpack[OrderedFields]) -> OrderedConsumer:
        """A consumer that delivers every message of `stream` once and in order, without acks (ADR-17).

        It recovers from lost connections and from servers that restart. This call sends no request. `fields` may
        be: filter_subject or filter_subjects, deliver_policy, opt_start_seq, opt_start_time, replay_policy,
        headers_only, description, metadata; inactive_threshold (the server deletes the consumer after so many
        seconds without use; default 300), name_prefix (for the consumer's names on the server), max_reset_attempts
        (how many attempts in a row to create the consumer again may fail; default None: no limit). Raises
        ConsumerConfigError for a field that an ordered consumer cannot have.
        """
        return self._consumers.ordered(stream, **fields)

    # --- subscriptions --------------------------------------------------------------------------------

    def subscribe(
        self,
        subject: str | None = None,
        queue: str | None = None,
        cb: Callback | None = None,
        *,
        durable: str | None = None,
        stream: str | None = None,
        consumer: str | None = None,
        config: ConsumerConfigLike = None,
        manual_ack: bool = False,
        ordered_consumer: bool = False,
        idle_heartbeat: Duration | None = None,
        flow_control: bool = False,
        pending_msgs_limit: int = DEFAULT_PENDING_MSGS,
        pending_bytes_limit: int = DEFAULT_PENDING_BYTES,
        **fields: Unpack[SubscribeFields],
    ) -> PushSubscription:
        """Subscribe through a push consumer: the server sends messages without being asked for each (ADR-15).

        `stream` defaults to the stream that stores `subject`. `consumer` binds to an existing consumer. `durable`
        uses the durable consumer of that name, or creates it. Without both, an ephemeral consumer is created.
        `queue` shares the messages of a durable consumer among the members of the queue; the durable is named like
        the queue unless it has another name. `config` and `fields` configure a new consumer; an existing one must
        match them.

        With `cb`, a thread of this subscription calls it for each message. A message is acked when `cb` returns
        and nak'ed when it raises, unless `manual_ack` is true: it comes again after the consumer's `backoff`, or
        after 1 s, 2 s, 4 s … up to 60 s. Without `cb`, iterate or call next_msg(). `ordered_consumer` delivers
        every message once and in order, without acks, and recovers from lost connections (ADR-17); DataLossError
        ends it when the stream was made anew or lost its end.
        `idle_heartbeat` and `flow_control` are those of ConsumerConfig. Messages beyond `pending_msgs_limit` or
        `pending_bytes_limit` are dropped.

        Unsubscribing deletes the consumer if this call created it. Raises ConsumerConfigError for options that
        contradict each other and for an existing consumer that does not match, StreamNotFoundError unless exactly
        one stream stores the subject, ConsumerNotFoundError for a `consumer` that does not exist.
        """
        return subscribe(
            self._client,
            subject,
            queue=queue,
            cb=cb,
            durable=durable,
            stream=stream,
            consumer=consumer,
            config=config,
            fields=fields,
            manual_ack=manual_ack,
            ordered_consumer=ordered_consumer,
            idle_heartbeat=idle_heartbeat,
            flow_control=flow_control,
            limits=(pending_msgs_limit, pending_bytes_limit),
        )

    def pull_subscribe(
        self,
        subject: str | None = None,
        durable: str | None = None,
        *,
        stream: str | None = None,
        consumer: str | None = None,
        config: ConsumerConfigLike = None,
        **fields: Unpack[ConsumerFields],
    ) -> PullSubscription:
        """Subscribe through a pull consumer, to call fetch() (ADR-13). Parameters and errors: see subscribe().

        `subject`, `durable`, `stream`, `config` and `fields` are as there. With `consumer`, a failing look-up is
        no error: a client that may pull need not be allowed to look it up.
        """
        request = SubscribeRequest.make(
            subject, stream=stream, bind=consumer, durable=durable, config=config, fields=fields, pull=True
        )
        return subscribe_pull(self._client, request)

    # --- account --------------------------------------------------------------------------------------

    def account_info(self) -> AccountInfo:
        """What the account uses of JetStream, and its limits. Raises JetStreamNotEnabledError."""
        return AccountInfo.from_wire(self._client.request("INFO"))

    def __repr__(self) -> str:
        link = self._client.link
        session = link.session
        where = link.status.value if session is None else session.address.url
        return f"<JetStream {self._client.prefix} on {where} publish_async_pending={self.publish_async_pending}>"


def client_of(js: JetStream) -> ApiClient:
    """The API client of a context, for what is built on it."""
    return js._client
