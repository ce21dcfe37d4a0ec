"""The JetStream context: publishing, streams and consumers on one connection."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, overload

from .api.batch import BatchMessage, PublishBatch, publish_all
from .api.client import DEFAULT_PREFIX, ApiClient
from .api.config import StreamConfig
from .api.consumer_api import ConsumerApi
from .api.fields import merged
from .api.info import AccountInfo, PubAck, StreamInfo
from .api.publish import Publisher, publish_block
from .api.publish_async import DEFAULT_MAX_PENDING, AsyncPublisher
from .api.stream_api import StreamApi
from .consumers.consumer import Consumer
from .consumers.ordered import OrderedConsumer
from .consumers.pull_subscription import PullSubscription, subscribe_pull
from .consumers.push import Callback, PendingLimits, PushSubscription
from .consumers.push_workflow import SubscribeRequest
from .consumers.subscribe import subscribe
from .net.connection import Connection
from .net.subscription import DEFAULT_PENDING_BYTES, DEFAULT_PENDING_MSGS
from .protocol.subjects import publish_subject
from .stream import ConsumerFields, ConsumerManager, Stream

Duration = float | timedelta
StreamFields = StreamConfig | Mapping[str, Any] | None


class JetStream:
    """What `nc.jetstream()` returns. Thread-safe; calls block for the server's answer, `timeout` at most.

    `domain` or `prefix` choose another JetStream than the account's own. `publish_async_max_pending` is how many
    asynchronous publishes may be unanswered at once.
    """

    def __init__(
        self,
        nc: Connection,
        *,
        domain: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        timeout: Duration = 5.0,
        publish_async_max_pending: int = DEFAULT_MAX_PENDING,
    ) -> None:
        self._client = ApiClient(nc, domain=domain, prefix=prefix, timeout=timeout)
        self._streams = StreamApi(self._client)
        self._consumer_api = ConsumerApi(self._client)
        self._consumers = ConsumerManager(self._client)
        self._publisher = Publisher(nc, self._client.timeout)
        self._async_publisher = AsyncPublisher(nc, self._client.timeout, publish_async_max_pending)
        # Its thread and its inbox must not outlive a context that was dropped.
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
        retry_attempts: int = 2,
        retry_wait: Duration = 0.25,
    ) -> PubAck:
        """Publish a message and wait for the stream's acknowledgement: when this returns, it is stored.

        "No responders" is tried again `retry_attempts` times, `retry_wait` apart; a timeout or a lost connection
        only with a `msg_id`, by which the stream recognises a duplicate. `timeout` bounds all tries.
        Raises NoStreamResponseError when no stream listens, WrongLastSequenceError and other APIErrors when the
        stream refuses it, TimeoutError and ConnectionLostError when it is not known whether it was stored.
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
        return self._publisher.publish(
            subject,
            payload,
            block,
            has_msg_id=has_msg_id,
            timeout=timeout,
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
        retry_attempts: int = 2,
        retry_wait: Duration = 0.25,
    ) -> Future[PubAck]:
        """Publish a message; the future has the acknowledgement, or fails as publish() would raise.

        Blocks only while `publish_async_max_pending` publishes are unanswered, at most `timeout`, and then raises
        TooManyStalledMsgsError. After a reconnect unanswered messages with a `msg_id` are sent again, the others
        fail with ConnectionLostError.
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
    def publish_async_pending(self) -> int:
        """How many asynchronous publishes are unanswered."""
        return self._async_publisher.pending

    def publish_async_wait(self, timeout: Duration | None = None) -> None:
        """Block until every asynchronous publish is answered or has failed. Raises TimeoutError."""
        self._async_publisher.wait(timeout)

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
        """Store up to 1000 messages of one stream all together, or none (ADR-50; server 2.12 and later).

        The stream must have `allow_atomic`. Without `messages` returns a batch to fill in a `with` block; with
        an iterable of (subject, payload[, headers]) publishes them and returns the acknowledgement of the last.
        See PublishBatch for what blocks and what is raised.
        """
        batch = PublishBatch(self._client.nc, self._client.timeout if timeout is None else timeout)
        return batch if messages is None else publish_all(batch, messages)

    # --- streams --------------------------------------------------------------------------------------

    def create_stream(self, config: StreamFields = None, /, **fields: Any) -> Stream:
        """Create a stream: `create_stream(name="ORDERS", subjects=["orders.>"])`, or with a StreamConfig.

        Raises StreamNameInUseError when one of that name differs.
        """
        return self._stream(self._streams.create(merged(StreamConfig, config, fields)))

    def update_stream(self, config: StreamFields = None, /, **fields: Any) -> Stream:
        """Change an existing stream. Raises StreamNotFoundError."""
        return self._stream(self._streams.update(merged(StreamConfig, config, fields)))

    def create_or_update_stream(self, config: StreamFields = None, /, **fields: Any) -> Stream:
        return self._stream(self._streams.create_or_update(merged(StreamConfig, config, fields)))

    def get_stream(self, name: str) -> Stream:
        """Raises StreamNotFoundError."""
        return self._stream(self._streams.info(name))

    def delete_stream(self, name: str) -> None:
        """Delete a stream and everything in it."""
        self._streams.delete(name)

    def list_streams(self, subject: str | None = None) -> Iterator[StreamInfo]:
        """All streams, or those on `subject`; asks page by page as you go."""
        return self._streams.list(subject)

    def stream_names(self, subject: str | None = None) -> Iterator[str]:
        return self._streams.names(subject)

    def find_stream_name_by_subject(self, subject: str) -> str:
        """The name of the one stream on `subject`. Raises StreamNotFoundError when there is not exactly one."""
        return self._streams.name_by_subject(subject)

    def _stream(self, info: StreamInfo) -> Stream:
        return Stream(self._client, info)

    # --- consumers ------------------------------------------------------------------------------------

    def create_consumer(self, stream: str, config: ConsumerFields = None, /, **fields: Any) -> Consumer:
        """Create a consumer. Raises ConsumerExistsError when one of that name differs."""
        return self._consumers.create(stream, config, fields)

    def update_consumer(self, stream: str, config: ConsumerFields = None, /, **fields: Any) -> Consumer:
        """Change an existing consumer. Raises ConsumerNotFoundError."""
        return self._consumers.update(stream, config, fields)

    def create_or_update_consumer(self, stream: str, config: ConsumerFields = None, /, **fields: Any) -> Consumer:
        return self._consumers.create_or_update(stream, config, fields)

    def get_consumer(self, stream: str, name: str) -> Consumer:
        """Raises ConsumerNotFoundError."""
        return self._consumers.get(stream, name)

    def delete_consumer(self, stream: str, name: str) -> None:
        self._consumer_api.delete(stream, name)

    def ordered_consumer(self, stream: str, **fields: Any) -> OrderedConsumer:
        """Every message of the stream once, in order, whatever happens to server or connection (ADR-17).

        Asks nothing of the server yet. `fields`: filter_subject or filter_subjects, deliver_policy, opt_start_seq,
        opt_start_time, replay_policy, headers_only, description, metadata, inactive_threshold (seconds without
        use after which the server removes the consumer; 300), name_prefix (of the consumer's names on the
        server), max_reset_attempts (how often to try to create the consumer again in a row; None: for ever).
        Raises ConsumerConfigError for a field that an ordered consumer cannot have.
        """
        return self._consumers.ordered(stream, **fields)

    # --- subscriptions --------------------------------------------------------------------------------

    def subscribe(
        self,
        subject: str | None = None,
        *,
        queue: str | None = None,
        cb: Callback | None = None,
        durable: str | None = None,
        stream: str | None = None,
        consumer: str | None = None,
        config: ConsumerFields = None,
        manual_ack: bool = False,
        ordered_consumer: bool = False,
        idle_heartbeat: Duration | None = None,
        flow_control: bool = False,
        pending_msgs_limit: int = DEFAULT_PENDING_MSGS,
        pending_bytes_limit: int = DEFAULT_PENDING_BYTES,
        **fields: Any,
    ) -> PushSubscription:
        """Subscribe to a push consumer: the server sends, the client takes (ADR-15).

        The stream is the one on `subject` unless named. `consumer` binds to an existing consumer; `durable` uses
        the durable of that name, or creates it; with neither an ephemeral one is created. `queue` shares a
        durable's messages among its members; without another name the queue's is the durable's. `config` or
        `fields` are the consumer's: for a new one they are set, an existing one must have them.

        With `cb` a thread of the subscription's own calls it for each message, which is acked when it returns and
        nak'ed when it raises, unless `manual_ack`. `ordered_consumer` delivers every message once, in order,
        without acknowledgement, whatever happens to server or connection (ADR-17).

        Raises ConsumerConfigError for what cannot work and for an existing consumer that does not fit,
        StreamNotFoundError when not exactly one stream is on the subject, ConsumerNotFoundError for a `consumer`
        that does not exist. Unsubscribing deletes a consumer that this call created.
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
            limits=PendingLimits(pending_msgs_limit, pending_bytes_limit),
        )

    def pull_subscribe(
        self,
        subject: str | None = None,
        durable: str | None = None,
        *,
        stream: str | None = None,
        consumer: str | None = None,
        config: ConsumerFields = None,
        **fields: Any,
    ) -> PullSubscription:
        """Subscribe to a pull consumer, to fetch from it (ADR-13). Arguments and errors are those of subscribe().

        A `consumer` to bind to need not be found: who may pull from it need not be allowed to look at it.
        """
        request = SubscribeRequest.make(
            subject, stream=stream, bind=consumer, durable=durable, config=config, fields=fields, pull=True
        )
        return subscribe_pull(self._client, request)

    # --- account --------------------------------------------------------------------------------------

    def account_info(self) -> AccountInfo:
        """Limits and usage of the account. Raises JetStreamNotEnabledError."""
        return AccountInfo.from_wire(self._client.request("INFO"))

    def __repr__(self) -> str:
        return f"<JetStream {self._client.prefix}>"
