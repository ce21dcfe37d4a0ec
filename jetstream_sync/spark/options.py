"""The options of `format("jetstream")`, checked and typed. No I/O, no pyspark.

Spark passes every option as text, with its name in lower case. An unknown name or an invalid value raises a
ValueError that names the option. The value of a secret is never shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from ..errors import did_you_mean
from ..protocol.subjects import api_prefix, inbox_prefix, publish_subject, subscribe_subject, valid_name
from .positions import EARLIEST, LATEST, Position, Positions, parse_positions, parse_timestamp

# Options that Spark itself adds to those of a query.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})

# Options of which one at most may be given.
_ALTERNATIVES = (
    ("domain", "apiPrefix"),
    ("credentials", "credentialsEnv", "nkeySeed", "nkeySeedFile", "nkeySeedEnv"),
    ("password", "passwordEnv"),
    ("token", "tokenEnv"),
)

# Options of one kind of read, and what the other kind does without them.
_NO_TRIGGERS = "has no triggers and reads everything from its start to its end"
_STREAMING_ONLY = {
    "maxMessagesPerTrigger": _NO_TRIGGERS,
    "minMessagesPerTrigger": _NO_TRIGGERS,
    "maxTriggerDelay": _NO_TRIGGERS,
    "deleteOnCommit": "commits nothing, and deletes nothing",
    "positionConsumer": "commits nothing, and has no position to keep",
}
_NO_END = "reads until it is stopped (trigger availableNow ends it at what is there when it starts)"
_BATCH_ONLY = {
    "endingOffsets": _NO_END,
    "endingTimestamp": _NO_END,
    "pushFilters": "gets no filters from Spark",
}

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NKEY_SEED = re.compile(r"S[A-Z2-7]{57}")
_CREDENTIALS_IN_URL = re.compile("@|[?&](password|token|nkeys_seed_str)=")

# What onReplayMismatch may be.
FAIL, APPEND = "fail", "append"

# The units of time that Spark's own options have.
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(rf"([0-9]+(?:\.[0-9]+)?)\s*({'|'.join(_UNITS)})?")

T = TypeVar("T")


@dataclass(frozen=True)
class Secret:
    """A value that repr() of the options does not show."""

    value: str = field(repr=False)


def _text(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def _secret(value: str) -> Secret:
    if not value:
        raise ValueError("must not be empty")
    return Secret(value)


def _variable(value: str) -> str:
    """The name of an environment variable. A seed that is given in its place must not end up in an error."""
    if not _VARIABLE.fullmatch(value) or _NKEY_SEED.fullmatch(value):
        raise ValueError("must be the name of an environment variable, not the secret itself")
    return value


def _seed_file(value: str) -> str:
    """The path of a file. A seed that is given in its place must not end up in an error."""
    if _NKEY_SEED.fullmatch(value.strip()):
        raise ValueError("must be the path of a file, not the seed itself")
    return _text(value)


def _flag(value: str) -> bool:
    known = {"true": True, "false": False}
    if value.strip().lower() not in known:
        raise ValueError("must be true or false")
    return known[value.strip().lower()]


def _count(value: str) -> int:
    text = value.strip()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError("must be a whole number of at least 1")
    return int(text)


def _seconds(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise ValueError("must be a number of seconds, more than 0")
    return number


def _duration(value: str) -> float:
    found = _DURATION.fullmatch(value.strip().lower())
    seconds = float(found[1]) * _UNITS[found[2] or "s"] if found else 0.0
    if not 0 < seconds < 1e9:
        raise ValueError("must be a time such as '15m', '10s' or '500ms', or a number of seconds, more than 0")
    return seconds


def _subjects(value: str) -> tuple[str, ...]:
    subjects = tuple(part.strip() for part in value.split(","))
    for subject in subjects:
        subscribe_subject(subject)
    return subjects


def _subject(value: str) -> str:
    publish_subject(value)
    return value


def _stream(value: str) -> str:
    return valid_name("stream", value)


def _on_replay_mismatch(value: str) -> str:
    if value.strip().lower() not in (FAIL, APPEND):
        raise ValueError(f"must be {FAIL} or {APPEND}")
    return value.strip().lower()


def _streams(value: str) -> tuple[str, ...]:
    streams = tuple(valid_name("stream", part.strip()) for part in value.split(","))
    if len(set(streams)) < len(streams):
        raise ValueError("names a stream twice")
    return streams


def _consumer(value: str) -> str:
    return valid_name("consumer", value)


def _write_id(value: str) -> str:
    # It is a part of message ids, between slashes.
    if not value.isprintable() or value.strip() != value or not 0 < len(value) <= 200 or "/" in value:
        raise ValueError("must be 1 to 200 printable characters without '/', and no blank at the ends")
    return value


def _epoch(value: str) -> int:
    text = value.strip()
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise ValueError("must be a whole number of at least 0")
    return int(text)


def _domain(value: str) -> str:
    return valid_name("domain", value)


def _servers(value: str) -> Secret:
    # A URL may contain a password, so it is never shown, either.
    return _secret(value)


def _option(name: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    """The metadata of a field: the name of the option, and the function that parses its text."""
    return {"name": name, "parse": parse}


@dataclass(frozen=True)
class ConnectionOptions:
    """How to reach the servers; the same for reading, writing and `connection()`."""

    servers: Secret | None = field(default=None, metadata=_option("servers", _servers))
    credentials: str | None = field(default=None, repr=False, metadata=_option("credentials", _text))
    user: Secret | None = field(default=None, metadata=_option("user", _secret))
    password: Secret | None = field(default=None, metadata=_option("password", _secret))
    token: Secret | None = field(default=None, metadata=_option("token", _secret))
    tls_ca_file: str | None = field(default=None, metadata=_option("tlsCaFile", _text))
    tls_cert_file: str | None = field(default=None, metadata=_option("tlsCertFile", _text))
    tls_key_file: str | None = field(default=None, metadata=_option("tlsKeyFile", _text))
    domain: str | None = field(default=None, metadata=_option("domain", _domain))
    api_prefix: str | None = field(default=None, metadata=_option("apiPrefix", api_prefix))
    inbox_prefix: str | None = field(default=None, metadata=_option("inboxPrefix", inbox_prefix))
    nkey_seed: Secret | None = field(default=None, metadata=_option("nkeySeed", _secret))
    nkey_seed_file: str | None = field(default=None, metadata=_option("nkeySeedFile", _seed_file))
    tls_first: bool = field(default=False, metadata=_option("tlsFirst", _flag))
    tls_hostname: str | None = field(default=None, metadata=_option("tlsHostname", _text))
    connect_timeout: float | None = field(default=None, metadata=_option("connectTimeout", _seconds))
    # Names of environment variables of the process that connects, so that no secret is in a plan or a task.
    credentials_env: str | None = field(default=None, metadata=_option("credentialsEnv", _variable))
    password_env: str | None = field(default=None, metadata=_option("passwordEnv", _variable))
    token_env: str | None = field(default=None, metadata=_option("tokenEnv", _variable))
    nkey_seed_env: str | None = field(default=None, metadata=_option("nkeySeedEnv", _variable))

    @classmethod
    def parse(cls: type[T], options: Mapping[str, str]) -> T:
        """Parse and check options. Raises ValueError, which names the option and the problem."""
        known = {option.metadata["name"].lower(): option for option in fields(cls)}  # type: ignore[arg-type]
        values: dict[str, Any] = {}
        for name, text in options.items():
            option = known.get(name.lower())
            if option is None:
                if name.lower() in _SPARKS_OWN:
                    continue
                names = sorted(option.metadata["name"] for option in known.values())
                hint = did_you_mean(name, names) or f"; known are: {', '.join(names)}"
                raise ValueError(f"unknown option {name!r} for format jetstream{hint}")
            values[option.name] = _parsed(option.metadata["name"], option.metadata["parse"], text)
        return cls(**values)

    def __post_init__(self) -> None:
        given = [each.metadata["name"] for each in fields(self) if getattr(self, each.name) is not None]
        for alternatives in _ALTERNATIVES:
            both = [name for name in alternatives if name in given]
            if len(both) > 1:
                raise ValueError(f"give option {both[0]!r} or {both[1]!r}, not both")
        for name in ("password", "passwordEnv"):
            if name in given and self.user is None:
                raise ValueError(f"option {name!r} needs option 'user'")
        if self.tls_key_file is not None and self.tls_cert_file is None:
            raise ValueError("option 'tlsKeyFile' needs option 'tlsCertFile'")


def holds_credentials(urls: str) -> bool:
    """Whether a URL holds a user, a password, a token or a seed."""
    return _CREDENTIALS_IN_URL.search(urls) is not None


def _check_plan(options: ConnectionOptions) -> None:
    """Reject secrets that Spark would show. In plans it redacts the options password and token, but no others."""
    if options.nkey_seed is not None:
        raise ValueError(
            "option 'nkeySeed' would be shown by Spark in plans: use the option 'nkeySeedEnv' or 'nkeySeedFile'"
        )
    if options.credentials is not None and "-BEGIN " in options.credentials:
        raise ValueError(
            "option 'credentials' must be the path of a file: its text would be shown by Spark in plans; "
            "the option 'credentialsEnv' names a variable that holds the text"
        )
    if options.servers is not None and holds_credentials(options.servers.value):
        raise ValueError(
            "option 'servers' holds a user, a password or a token, which Spark would show in plans: "
            "use the options 'user' and 'password', 'token' or 'credentials'"
        )


def _parsed(name: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(str(text))
    except ValueError as error:
        shown = "" if parse in (_secret, _servers, _variable, _seed_file) else f" (given: {str(text)[:200]!r})"
        raise ValueError(f"option {name!r}: {error}{shown}") from None


def _check_positions(name: str, positions: Positions | None, streams: tuple[str, ...]) -> None:
    try:
        if positions is not None:
            positions.check(streams)
    except ValueError as error:
        raise ValueError(f"option {name!r} {error}") from None


@dataclass(frozen=True)
class ReadOptions(ConnectionOptions):
    """The options of `spark.read` and `spark.readStream`."""

    streams: tuple[str, ...] = field(default=(), metadata=_option("stream", _streams))
    subjects: tuple[str, ...] = field(default=(), metadata=_option("subjects", _subjects))
    starting_offsets: Positions | None = field(default=None, metadata=_option("startingOffsets", parse_positions))
    ending_offsets: Positions | None = field(default=None, metadata=_option("endingOffsets", parse_positions))
    max_messages_per_trigger: int | None = field(default=None, metadata=_option("maxMessagesPerTrigger", _count))
    min_partitions: int | None = field(default=None, metadata=_option("minPartitions", _count))
    max_messages_per_partition: int | None = field(
        default=None, metadata=_option("maxMessagesPerPartition", _count)
    )
    fail_on_data_loss: bool = field(default=True, metadata=_option("failOnDataLoss", _flag))
    delete_on_commit: bool = field(default=False, metadata=_option("deleteOnCommit", _flag))
    ts_nanos: bool = field(default=False, metadata=_option("tsNanos", _flag))
    starting_timestamp: Position | None = field(
        default=None, metadata=_option("startingTimestamp", parse_timestamp)
    )
    ending_timestamp: Position | None = field(default=None, metadata=_option("endingTimestamp", parse_timestamp))
    min_messages_per_trigger: int | None = field(default=None, metadata=_option("minMessagesPerTrigger", _count))
    position_consumer: str | None = field(default=None, metadata=_option("positionConsumer", _consumer))
    max_trigger_delay: float | None = field(default=None, metadata=_option("maxTriggerDelay", _duration))
    push_filters: bool = field(default=False, metadata=_option("pushFilters", _flag))

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_plan(self)
        if not self.streams:
            raise ValueError("option 'stream' is required: the name of the stream to read")
        _check_positions("startingOffsets", self.starting_offsets, self.streams)
        _check_positions("endingOffsets", self.ending_offsets, self.streams)
        self._check_ends()
        limit, least = self.max_messages_per_trigger, len(self.streams)
        if limit is not None and limit < least:
            raise ValueError(f"option 'maxMessagesPerTrigger': must be at least {least}, one for each stream")
        if limit is not None and limit < (self.min_messages_per_trigger or 0):
            raise ValueError("option 'minMessagesPerTrigger' is more than 'maxMessagesPerTrigger'")
        if self.max_trigger_delay is not None and self.min_messages_per_trigger is None:
            raise ValueError("option 'maxTriggerDelay' needs option 'minMessagesPerTrigger'")

    def _check_ends(self) -> None:
        name = "endingOffsets" if self.ending_timestamp is None else "endingTimestamp"
        for stream in self.streams if self.ending_offsets or self.ending_timestamp else ():
            if self.end_in(stream) == EARLIEST:
                raise ValueError(f"option {name!r}: earliest would read nothing")
            if self.start_in(stream, EARLIEST) == LATEST:
                raise ValueError(f"option {name!r} makes no sense with startingOffsets latest")

    def for_batch(self) -> ReadOptions:
        """These options, for a batch read. Raises ValueError for one that only a streaming query has."""
        self._refuse(_STREAMING_ONLY, "is for streaming queries only: a batch read")
        return self

    def for_streaming(self) -> ReadOptions:
        """These options, for a streaming query. Raises ValueError for one that only a batch read has."""
        self._refuse(_BATCH_ONLY, "is for batch reads only: a streaming query")
        return self

    def _refuse(self, refused: Mapping[str, str], why: str) -> None:
        for option in fields(self):
            name = option.metadata["name"]
            if name in refused and getattr(self, option.name) != option.default:
                raise ValueError(f"option {name!r} {why} {refused[name]}")

    def start_in(self, stream: str, default: Position) -> Position:
        """Where to start in `stream` without a checkpoint. A timestamp comes before offsets."""
        positions = self.starting_offsets or Positions(default)
        return self.starting_timestamp or positions.of(stream)

    def end_in(self, stream: str) -> Position:
        """Where to end in `stream`: before this position. A timestamp comes before offsets."""
        positions = self.ending_offsets or Positions(LATEST)
        return self.ending_timestamp or positions.of(stream)


@dataclass(frozen=True)
class WriteOptions(ConnectionOptions):
    """The options of `df.write` and `df.writeStream`."""

    subject: str | None = field(default=None, metadata=_option("subject", _subject))
    stream: str | None = field(default=None, metadata=_option("stream", _stream))
    exactly_once: bool = field(default=False, metadata=_option("exactlyOnce", _flag))
    marker_subject: str | None = field(default=None, metadata=_option("markerSubject", _subject))
    max_pending: int = field(default=4000, metadata=_option("maxPending", _count))
    publish_timeout: float = field(default=60.0, metadata=_option("publishTimeout", _seconds))
    on_replay_mismatch: str = field(default=FAIL, metadata=_option("onReplayMismatch", _on_replay_mismatch))
    allow_marker_loss: bool = field(default=False, metadata=_option("allowMarkerLoss", _flag))
    write_id: str | None = field(default=None, metadata=_option("writeId", _write_id))
    epoch: int | None = field(default=None, metadata=_option("epoch", _epoch))

    def for_streaming(self) -> WriteOptions:
        """These options, for a streaming query. Raises ValueError for one that only a batch write has."""
        if self.write_id is not None:
            raise ValueError(
                "option 'writeId' is for batch writes, also those inside foreachBatch: a streaming query is named "
                "by its checkpoint"
            )
        return self

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_plan(self)
        if self.epoch is not None and self.write_id is None:
            raise ValueError("option 'epoch' needs option 'writeId': the name of the write whose epoch it is")
        if self.exactly_once and self.marker_subject is None:
            raise ValueError(
                "option 'exactlyOnce' needs option 'markerSubject': a subject of the same stream, below which "
                "the progress of the query is kept"
            )
        if not self.exactly_once:
            given = {
                "markerSubject": self.marker_subject is not None,
                "onReplayMismatch": self.on_replay_mismatch != FAIL,
                "allowMarkerLoss": self.allow_marker_loss,
            }
            for name in (name for name, is_given in given.items() if is_given):
                raise ValueError(f"option {name!r} is for exactlyOnce=true only")
