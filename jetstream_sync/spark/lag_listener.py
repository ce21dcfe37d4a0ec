"""A listener of Spark's progress reports that tells how far streaming queries are behind.

Who owns what, and why it ends. Spark calls the listener on threads of its own, which must not wait. So the
listener only notes the newest progress of each query. The thread `js-spark-lag` takes the notes, asks the server,
and calls the user's callback. It owns the connection: it opens it for the first note, and closes it when it ends.
It ends when no query is running any more, or with close(). Progress that comes later starts another thread.
`_lock` guards the notes, the set of running queries and the decision to end; nothing is asked, called or started
under it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from .._threads import Wakeup, join_quietly, spawn
from .lag import REQUEST_SECONDS, Lag, LagMeter, Progress, progress_of
from .options import ReadOptions
from .stream_view import log

CLOSE_SECONDS = 2 * REQUEST_SECONDS


class LagListener(StreamingQueryListener):
    """Tells after each batch how far streaming queries are behind their streams, in sequences and in seconds.

    `on_lag` is called with a Lag for each stream. With and without it, the log says the same at level INFO
    (`jetstream_sync.spark`). `options` are those of the source: `stream`, `servers` and so on. Only the streams
    they name are looked at; with `subjects`, only messages that match count for the seconds. Raises ValueError for
    options that are wrong.

    Add it with `spark.streams.addListener()`. While queries run, it has a thread and a connection of its own, and
    it never slows a query. If batches end faster than the server replies or the callback returns, it leaves some
    out.
    """

    def __init__(self, on_lag: Callable[[Lag], object] | None = None, **options: Any) -> None:
        self._on_lag = on_lag
        self._options = ReadOptions.parse({name: str(value) for name, value in options.items()})
        self._lock = threading.Lock()
        self._notes: dict[str, list[Progress]] = {}  # the newest of each query
        self._queries: set[str] = set()
        self._running = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._wakeup = Wakeup()

    def __repr__(self) -> str:
        return f"LagListener(streams={list(self._options.streams)!r}, queries={len(self._queries)})"

    # --- Spark's threads --------------------------------------------------------------------------------

    def onQueryStarted(self, event: Any) -> None:
        """Called by Spark. There is nothing to tell yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Called by Spark. Note the progress, and return."""
        sources = list(progress_of(event.progress))
        if not sources:
            return
        query = sources[0].query_id
        with self._lock:
            if self._closed:
                return
            self._notes[query] = sources
            self._queries.add(query)
            start, self._running = not self._running, True
        if start:
            self._start()
        self._wakeup.set()

    def _start(self) -> None:
        try:
            self._thread = spawn("spark-lag", self._run)
        except BaseException:
            with self._lock:
                self._running = False  # the next progress tries again
            raise

    def onQueryIdle(self, event: Any) -> None:
        """Called by Spark. The progress of the last batch has told it."""

    def onQueryTerminated(self, event: Any) -> None:
        """Called by Spark. With the last query the thread ends."""
        with self._lock:
            self._queries.discard(str(event.id))
        self._wakeup.set()

    def close(self) -> None:
        """End the thread and close its connection: after `removeListener()`, or before the queries end.

        Blocks a few seconds at most. Later progress is ignored.
        """
        with self._lock:
            self._closed = True
        self._wakeup.set()
        join_quietly(self._thread, CLOSE_SECONDS)

    # --- the thread js-spark-lag --------------------------------------------------------------------------

    def _run(self) -> None:
        meter = LagMeter(self._options)
        try:
            while (sources := self._next()) is not None:
                for progress in sources:
                    for lag in meter.lags(progress):
                        self._tell(lag)
        finally:
            meter.close()

    def _next(self) -> list[Progress] | None:
        """What was noted of a query; None when the thread is to end. Blocks."""
        while True:
            with self._lock:
                if self._closed or not (self._notes or self._queries):
                    self._running = False
                    return None
                if self._notes:
                    return self._notes.pop(next(iter(self._notes)))
            self._wakeup.wait()

    def _tell(self, lag: Lag) -> None:
        query = lag.query_name or lag.query_id
        age = "unknown" if lag.seconds is None else f"{lag.seconds:.1f}"
        log.info("query %r, stream %r: %d sequences, %s seconds behind", query, lag.stream, lag.sequences, age)
        if self._on_lag is None:
            return
        try:
            self._on_lag(lag)
        except Exception as error:  # noqa: BLE001 - the user's callback must not end the thread
            log.error("on_lag of a LagListener raised %s", type(error).__name__, exc_info=error)
