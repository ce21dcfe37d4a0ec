"""The options of `format("jetstream")`, checked and typed. No I/O, no pyspark.

Spark passes every option as text, with its name in lower case. An unknown name or an invalid value raises a
ValueError that names the option. The value of a secret is never shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from ..protocol.subjects import api_prefix, publish_subject, subscribe_subject, valid_name
from .offsets import EARLIEST, LATEST, Position, parse_position

# Options that Spark itself adds to those of a query.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})

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
    credentials: str | None = field(default=None, metadata=_option("credentials", _text))
    user: Secret | None = field(default=None, metadata=_option("user", _secret))
    password: Secret | None = field(default=None, metadata=_option("password", _secret))
    token: Secret | None = field(default=None, metadata=_option("token", _secret))
    tls_ca_file: str | None = field(default=None, metadata=_option("tlsCaFile", _text))
    tls_cert_file: str | None = field(default=None, metadata=_option("tlsCertFile", _text))
    tls_key_file: str | None = field(default=None, metadata=_option("tlsKeyFile", _text))
    domain: str | None = field(default=None, metadata=_option("domain", _domain))
    api_prefix: str | None = field(default=None, metadata=_option("apiPrefix", api_prefix))

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
                names = ", ".join(sorted(option.metadata["name"] for option in known.values()))
                raise ValueError(f"unknown option {name!r} for format jetstream; known are: {names}")
            values[option.name] = _parsed(option.metadata["name"], option.metadata["parse"], text)
        return cls(**values)

    def __post_init__(self) -> None:
        if self.domain is not None and self.api_prefix is not None:
            raise ValueError("give option 'domain' or 'apiPrefix', not both")
        if self.password is not None and self.user is None:
            raise ValueError("option 'password' needs option 'user'")
        if self.tls_key_file is not None and self.tls_cert_file is None:
            raise ValueError("option 'tlsKeyFile' needs option 'tlsCertFile'")


def _check_servers(servers: Secret | None) -> None:
    """Reject credentials in URLs. In plans, Spark redacts the options password and token, but not URLs."""
    if servers is not None and "@" in servers.value:
        raise ValueError(
            "option 'servers' holds a user, a password or a token, which Spark would show in plans: "
            "use the options 'user' and 'password', 'token' or 'credentials'"
        )


def _parsed(name: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(str(text))
    except ValueError as error:
        shown = "" if parse in (_secret, _servers) else f" (given: {str(text)[:200]!r})"
        raise ValueError(f"option {name!r}: {error}{shown}") from None


@dataclass(frozen=True)
class ReadOptions(ConnectionOptions):
    """The options of `spark.read` and `spark.readStream`."""

    stream: str = field(default="", metadata=_option("stream", _stream))
    subjects: tuple[str, ...] = field(default=(), metadata=_option("subjects", _subjects))
    starting_offsets: Position | None = field(default=None, metadata=_option("startingOffsets", parse_position))
    ending_offsets: Position | None = field(default=None, metadata=_option("endingOffsets", parse_position))
    max_messages_per_trigger: int | None = field(default=None, metadata=_option("maxMessagesPerTrigger", _count))
    min_partitions: int | None = field(default=None, metadata=_option("minPartitions", _count))
    max_messages_per_partition: int | None = field(
        default=None, metadata=_option("maxMessagesPerPartition", _count)
    )
    fail_on_data_loss: bool = field(default=True, metadata=_option("failOnDataLoss", _flag))
    delete_on_commit: bool = field(default=False, metadata=_option("deleteOnCommit", _flag))
    ts_nanos: bool = field(default=False, metadata=_option("tsNanos", _flag))

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_servers(self.servers)
        if not self.stream:
            raise ValueError("option 'stream' is required: the name of the stream to read")
        if self.ending_offsets == EARLIEST:
            raise ValueError("option 'endingOffsets': earliest would read nothing")
        if self.starting_offsets == LATEST and self.ending_offsets is not None:
            raise ValueError("option 'endingOffsets' makes no sense with startingOffsets latest")


@dataclass(frozen=True)
class WriteOptions(ConnectionOptions):
    """The options of `df.write` and `df.writeStream`."""

    subject: str | None = field(default=None, metadata=_option("subject", _subject))
    stream: str | None = field(default=None, metadata=_option("stream", _stream))
    exactly_once: bool = field(default=False, metadata=_option("exactlyOnce", _flag))
    marker_subject: str | None = field(default=None, metadata=_option("markerSubject", _subject))
    max_pending: int = field(default=4000, metadata=_option("maxPending", _count))
    publish_timeout: float = field(default=60.0, metadata=_option("publishTimeout", _seconds))

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_servers(self.servers)
        if self.exactly_once and self.marker_subject is None:
            raise ValueError(
                "option 'exactlyOnce' needs option 'markerSubject': a subject of the same stream, below which "
                "the progress of the query is kept"
            )
        if self.marker_subject is not None and not self.exactly_once:
            raise ValueError("option 'markerSubject' is for exactlyOnce=true only")
