"""Pipelined publishing of very many messages with ids, without a future for each.

All that a task needs to know is that every message is stored, so acknowledgements are only counted. What is not
acknowledged is sent again, after a reconnect and whenever the stream was away: the ids make that safe.

  caller    makes frames, sends them in runs, waits while the window is full, sends again
  reader    takes acknowledgements out of `_pending`; on anything else notes it and wakes the caller

`_pending` is a dict in order of publication; its single operations are atomic. Counters are written by one thread.
"""

from __future__ import annotations

import time
from threading import Event

from ..api.publish import parse_pub_ack
from ..errors import (
    JetStreamUnavailableError,
    NatsError,
    NoStreamResponseError,
    OutboundBufferLimitError,
    PermissionsError,
    TimeoutError,
)
from ..net.connection import Connection
from ..net.outbox import Ephemeral
from ..protocol.parser import RawMessage

# Frames are handed over in runs of this many bytes: one send instead of hundreds.
RUN_BYTES = 64 * 1024
# The window is also bounded in bytes, for large messages.
WINDOW_BYTES = 32 * 1024 * 1024
# How long to wait before sending again what no stream took, and between looks at the clock.
PAUSE = 0.25


class BulkPublisher:
    """Publishes for one caller. Closed by its owner; the connection is not."""

    queue: str | None = None

    def __init__(self, nc: Connection, timeout: float, window: int) -> None:
        """`timeout` is how long nothing may be acknowledged before it gives up."""
        self._nc = nc
        self._timeout = timeout
        self._window = window
        self._pending: dict[bytes, bytes] = {}
        self._number = 0
        self._run: list[bytes] = []
        self._run_bytes = 0
        self._sent_bytes = 0  # caller
        self._stored_bytes = 0  # reader
        self.duplicates = 0  # reader
        self.first_ack = b""  # reader; tells which stream stores the messages
        self._progress = time.monotonic()
        self._again_at: float | None = None
        self._refused: NatsError | None = None
        self._failed: NatsError | None = None
        self._woken = Event()
        inbox = nc.new_inbox()
        self._prefix = f"{inbox}.".encode()
        self.sid = b""
        self.subject = f"{inbox}.*"
        self.wire_subject = self.subject.encode()
        nc._add_listener(self)
        nc._open_inlet(self._with_sid)

    # --- caller -------------------------------------------------------------------------------------

    def publish(self, subject: bytes, payload: bytes, block: bytes) -> None:
        """Send a message whose header block holds an id. Blocks while the window is full."""
        self._number += 1
        token = b"%x" % self._number
        frame, _ = self._nc._frame(subject, payload, self._prefix + token, block)
        self._pending[token] = frame
        self._run.append(frame)
        size = len(frame)
        self._run_bytes += size
        self._sent_bytes += size
        if self._run_bytes >= RUN_BYTES:
            self._send_run()
            if len(self._pending) >= self._window or self._sent_bytes - self._stored_bytes >= WINDOW_BYTES:
                self._wait(self._window // 2, WINDOW_BYTES // 2)

    def finish(self) -> None:
        """Block until every message is acknowledged. Raises what keeps one from being stored."""
        self._send_run()
        self._wait(0, 0)

    def close(self) -> None:
        self._nc._remove_listener(self)
        self._nc._close_inlet(self)

    def _send_run(self) -> None:
        run, self._run, self._run_bytes = self._run, [], 0
        if run:
            self._send(run)

    def _send(self, frames: list[bytes]) -> None:
        try:
            self._nc._outbox.publish(Ephemeral(b"".join(frames)), 0)
        except OutboundBufferLimitError:
            self._again_at = time.monotonic() + PAUSE  # disconnected for long: all is sent again later

    def _wait(self, messages: int, size: int) -> None:
        """Until no more than that is unacknowledged."""
        began = time.monotonic()
        while len(self._pending) > messages or self._sent_bytes - self._stored_bytes > size:
            if self._failed is not None:
                raise self._failed.with_traceback(None)
            now = time.monotonic()
            if now - max(began, self._progress) >= self._timeout:
                raise self._refused or TimeoutError(f"{len(self._pending)} messages were not acknowledged in time")
            if self._again_at is not None and now >= self._again_at:
                self._send_again()
            self._woken.clear()
            if len(self._pending) > messages:
                self._woken.wait(PAUSE)

    def _send_again(self) -> None:
        self._again_at = None
        self._run, self._run_bytes = [], 0  # part of what is sent here
        run, size = [], 0
        for frame in list(self._pending.values()):
            run.append(frame)
            size += len(frame)
            if size >= RUN_BYTES:
                self._send(run)
                run, size = [], 0
        if run:
            self._send(run)

    # --- reader thread ------------------------------------------------------------------------------

    def _with_sid(self, sid: bytes) -> BulkPublisher:
        self.sid = sid
        return self

    def deliver(self, messages: list[RawMessage], size: int) -> None:
        start = len(self._prefix)
        pop = self._pending.pop
        stored, plain = 0, b""
        for raw in messages:
            body = raw[3]
            if not body or b'"error"' in body or b'"seq"' not in body:
                self._judge(raw)
                continue
            frame = pop(raw[0][start:], None)
            if frame is not None:
                stored += len(frame)
                plain = body
                if b'"duplicate"' in body:
                    self.duplicates += 1
        if stored:
            self.first_ack = self.first_ack or plain
            self._stored_bytes += stored
            self._progress = time.monotonic()
        self._woken.set()

    def _judge(self, raw: RawMessage) -> None:
        """Anything but a plain acknowledgement: it passes, or it is the end."""
        frame = self._pending.get(raw[0][len(self._prefix) :])
        if frame is None:
            return  # answered before; this is the answer to its second copy
        try:
            parse_pub_ack(raw, frame.split(b" ", 2)[1])
        except (NoStreamResponseError, JetStreamUnavailableError) as error:
            self._refused = error
            self._again_at = time.monotonic() + PAUSE
        except NatsError as error:
            self._failed = self._failed or error

    def remaining(self) -> int:
        """Resubscribed without a limit."""
        return 0

    def fail(self, error: NatsError) -> None:
        """The inbox was denied: no acknowledgement can reach us."""
        self._failed = error
        self._woken.set()

    def on_disconnect(self) -> None:
        """What was on its way may be lost; on_reconnect sees to it."""

    def on_reconnect(self) -> None:
        self._again_at = time.monotonic()
        self._woken.set()

    def on_closed(self, error: NatsError) -> None:
        self.fail(error)

    def on_publish_denied(self, subject: bytes, error: PermissionsError) -> None:
        self.fail(error)
