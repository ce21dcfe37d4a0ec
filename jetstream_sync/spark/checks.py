"""Checks that a stream supports the options of a write."""

from __future__ import annotations

from .._log import Log
from ..api.config import StreamConfig
from ..api.stream_api import StreamApi
from ..jetstream import JetStream, client_of
from ..protocol.subjects import subject_matches
from .markers import can_roll_up, limits_that_remove_markers, takes_markers
from .options import WriteOptions
from .patience import Patience
from .stream_view import PASSING

# With a shorter window the stream may forget the message ids of a batch before Spark runs the batch again.
DUPLICATE_WINDOW = 120.0

# A process remembers so many checks; then it begins anew.
MOST_CHECKED = 1000

_checked: set[tuple[str, str]] = set()


def stream_of(js: JetStream, options: WriteOptions) -> str | None:
    """The stream that will be written to; None when the options do not tell.

    Raises StreamNotFoundError when no stream stores the subject, and ValueError when markers are in another one.
    """
    if options.stream is not None:
        return options.stream
    rows = None if options.subject is None else js.find_stream_name_by_subject(options.subject)
    if options.marker_subject is None:
        return rows
    markers = js.find_stream_name_by_subject(f"{options.marker_subject}.x.0")
    if rows not in (None, markers):
        raise ValueError(
            f"option 'markerSubject': stream {markers!r} stores {options.marker_subject!r}, but {rows!r} stores "
            f"the subject {options.subject!r}: both must be in one stream"
        )
    return markers


def check_stream_once(write: str, js: JetStream, options: WriteOptions, stream: str) -> None:
    """check_stream(), unless this process has made it for the same query or job, which `write` names."""
    if (write, stream) in _checked:
        return
    patience = Patience(options.publish_timeout, "the check of the stream", client_of(js).link.logs.spark)
    patience.call(lambda: check_stream(js, options, stream), PASSING)
    if len(_checked) >= MOST_CHECKED:
        _checked.clear()
    _checked.add((write, stream))


def check_stream(js: JetStream, options: WriteOptions, stream: str) -> StreamConfig:
    """Raise ValueError for a stream that does not support the options; warn if it may forget ids too early."""
    client = client_of(js)
    config = StreamApi(client).info(stream).config
    if options.exactly_once:
        check_config(options, stream, config)
        version = str(client.link.server_info.get("version", ""))
        if not takes_markers(version):
            raise ValueError(f"option 'exactlyOnce' needs nats-server 2.12.1 or later; this one is {version}")
        _warn_of_markers(client.link.logs.spark, stream, config)
        return config
    window = config.duplicate_window or 0.0
    if window < DUPLICATE_WINDOW:
        client.link.logs.spark.warning(
            "stream %r has a duplicate_window of %g s: a batch that Spark runs again later than that is stored "
            "twice. Use a longer window, or exactlyOnce=true",
            stream,
            window,
        )
    return config


def check_config(options: WriteOptions, stream: str, config: StreamConfig) -> None:
    """Raise ValueError for a stream that cannot keep the promise of exactlyOnce.

    Each task calls it, too: the stream may have been changed since the driver checked it.
    """
    if not config.allow_atomic:
        raise ValueError(f"option 'exactlyOnce' needs a stream with allow_atomic; {stream!r} does not have it")
    if not options.allow_marker_loss and limits_that_remove_markers(config):
        raise ValueError(
            f"option 'exactlyOnce': {_loss_of_markers(stream, config)}. Use a stream without these limits (or "
            "with discard=new), or set allowMarkerLoss=true"
        )


def _loss_of_markers(stream: str, config: StreamConfig) -> str:
    limits = ", ".join(limits_that_remove_markers(config))
    return f"stream {stream!r} can remove markers by {limits}: a batch that runs again is then stored twice"


def _warn_of_markers(log: Log, stream: str, config: StreamConfig) -> None:
    if limits_that_remove_markers(config):
        log.warning("%s (allowMarkerLoss=true)", _loss_of_markers(stream, config))
    if not can_roll_up(config):
        log.warning(
            "stream %r keeps every marker of exactlyOnce, one for each 999 rows and batch: set allow_rollup_hdrs "
            "(and not deny_purge), then a marker replaces the one before",
            stream,
        )


def check_subjects(js: JetStream, options: WriteOptions, config: StreamConfig) -> None:
    """Raise an error for a subject of the options that the stream of this configuration does not store.

    It is StreamNotFoundError if no stream stores it, ValueError if another one does.
    """
    stream, stored = config.name, config.subjects or []
    markers = None if options.marker_subject is None else f"{options.marker_subject}.x.0"
    for name, subject in (("subject", options.subject), ("markerSubject", markers)):
        if subject is None or any(subject_matches(pattern, subject) for pattern in stored):
            continue
        other = js.find_stream_name_by_subject(subject)
        if other != stream:
            raise ValueError(f"option {name!r}: stream {other!r} stores {subject!r}, not stream {stream!r}")
