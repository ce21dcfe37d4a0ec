"""What the driver does before a sink writes: it finds the stream, checks it, and learns the cluster's servers.

Spark runs the driver's part of a streaming sink in two Python processes, once per micro-batch each. The first one
builds a writer, which Spark copies to the tasks. The second one builds a writer from a copy of the data source and
calls its `commit` or `abort`: this needs no server, and asks none.

Spark keeps the first process while the query runs, and ends it when it was idle for a minute. So the check is made
once per process and options: once per query, unless its batches are more than a minute apart. Nothing that Spark
passes to that process tells one query from another.
"""

from __future__ import annotations

from functools import lru_cache

from .._log import Log
from ..errors import StreamNotFoundError
from ..jetstream import JetStream
from .checks import MOST_CHECKED, check_stream, check_subjects, stream_of
from .discovered import Discovered, discovered_by
from .identity import PLANNER
from .missing_stream import NO_STREAM_SECONDS
from .options import WriteOptions
from .patience import Patience
from .shared import jetstream_of, open_patiently
from .stream_view import PASSING

log: Log = Log("spark", None)


def check_sink(options: WriteOptions) -> Discovered:
    """Check that the stream supports the options, and return the servers that the cluster advertises.

    Waits up to publishTimeout for a server that is away. Raises ValueError for options that cannot work with the
    stream, StreamNotFoundError when none stores the subject, and the error of a wait that was too long.
    """
    nc = open_patiently(options, "spark plan write", PLANNER, seconds=options.publish_timeout)
    with nc:
        patience = Patience(options.publish_timeout, "the check of the stream", log)
        patience.call(lambda: _check(jetstream_of(nc, options), options), PASSING)
        return discovered_by(nc)


@lru_cache(maxsize=MOST_CHECKED)
def check_sink_once(options: WriteOptions) -> Discovered:
    """Like check_sink(), for the micro-batches of a query: only the first one in this process is checked."""
    return check_sink(options)


def _check(js: JetStream, options: WriteOptions) -> None:
    patience = Patience(NO_STREAM_SECONDS, "the check of the stream", log)
    stream = patience.call(lambda: stream_of(js, options), (StreamNotFoundError,))
    if stream is None:
        return
    config = patience.call(lambda: check_stream(js, options, stream), (StreamNotFoundError,))
    if options.stream is not None:
        patience.call(lambda: check_subjects(js, options, config), (StreamNotFoundError,))
