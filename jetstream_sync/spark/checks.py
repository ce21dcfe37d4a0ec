"""Checks that a stream supports the options of a write."""

from __future__ import annotations

import logging

from ..api.stream_api import StreamApi
from ..jetstream import JetStream, client_of
from .options import WriteOptions

log = logging.getLogger("jetstream_sync.spark")

# With a shorter window the stream may forget the message ids of a batch before Spark runs the batch again.
DUPLICATE_WINDOW = 120.0


def stream_of(js: JetStream, options: WriteOptions) -> str | None:
    """The stream that will be written to; None when the options do not tell. Raises StreamNotFoundError."""
    if options.stream is not None:
        return options.stream
    subject = options.marker_subject or options.subject
    if subject is None:
        return None
    probe = f"{subject}.x.0" if options.marker_subject is not None else subject
    return js.find_stream_name_by_subject(probe)


def check_stream(js: JetStream, options: WriteOptions, stream: str) -> None:
    """Raise ValueError for a stream that does not support the options; warn if it may forget ids too early."""
    config = StreamApi(client_of(js)).info(stream).config
    if options.exactly_once:
        if not config.allow_atomic:
            raise ValueError(f"option 'exactlyOnce' needs a stream with allow_atomic; {stream!r} does not have it")
        return
    window = config.duplicate_window or 0.0
    if window < DUPLICATE_WINDOW:
        log.warning(
            "stream %r has a duplicate_window of %g s: a batch that Spark runs again later than that is stored "
            "twice. Use a longer window, or exactlyOnce=true",
            stream,
            window,
        )
