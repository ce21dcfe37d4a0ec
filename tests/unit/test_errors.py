"""The tree of errors: one root, facts as attributes, one registry from err_code to class."""

from __future__ import annotations

import builtins
import pickle
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import errors
from jetstream_sync.errors import APIError, NatsError, api_error

CLASSES = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.NatsError)
]

SAMPLES: list[NatsError] = [
    errors.TimeoutError("late"),
    errors.ConnectionClosedError(),
    errors.ConnectionLostError(),
    errors.NoServersError([("nats://a:1", OSError("refused"))]),
    errors.PermissionsError("denied", subject="s", operation="publish", queue="q"),
    errors.MaxPayloadError(10, 5),
    errors.SlowConsumerError("s", 1, 2),
    errors.OutboundBufferLimitError(10, 5),
    errors.NotConnectedError("not connected for 1.0 s: not sent"),
    errors.AuthorizationError("refused", credentials="user 'ann' and a password"),
    errors.StreamFullError(503, 10077, "maximum bytes exceeded", stream="S", subject="s.x"),
    errors.DataLossError("S", 5, 3),
    errors.NoRespondersError("s"),
    errors.ForkError(),
    errors.APIError(400, 10025, "bad"),
    errors.StreamNotFoundError(404, 10059, "stream not found"),
    errors.NoStreamResponseError("s"),
    errors.ConsumerConfigError("differs", field="ack_wait"),
    errors.PullError(409, "Leadership Change"),
    errors.MissedHeartbeatError(1.5),
    errors.SequenceMismatchError(1, 3, stream_seq=9),
]


@pytest.mark.parametrize(
    ("err_code", "expected"),
    [
        (10008, errors.JetStreamUnavailableError),
        (10013, errors.ConsumerExistsError),
        (10014, errors.ConsumerNotFoundError),
        (10035, errors.JetStreamNotEnabledError),
        (10037, errors.MessageNotFoundError),
        (10039, errors.JetStreamNotEnabledError),
        (10058, errors.StreamNameInUseError),
        (10059, errors.StreamNotFoundError),
        (10071, errors.WrongLastSequenceError),
        (10076, errors.JetStreamNotEnabledError),
        (10105, errors.ConsumerExistsError),
        (10148, errors.ConsumerExistsError),
        (10149, errors.ConsumerNotFoundError),
        (10164, errors.WrongLastSequenceError),
    ],
)
def test_err_code_has_its_class(err_code: int, expected: type[APIError]) -> None:
    """The server's err_code decides, whatever the code; the three facts are kept."""
    error = api_error(418, err_code, "what the server said")
    assert type(error) is expected
    assert (error.code, error.err_code, error.description) == (418, err_code, "what the server said")
    assert "what the server said" in str(error)
    assert str(err_code) in str(error)


@pytest.mark.parametrize(
    ("code", "err_code", "expected"),
    [
        (400, 10999, errors.BadRequestError),
        (503, 10999, errors.JetStreamUnavailableError),
        (404, 10999, APIError),
        (503, 10077, APIError),  # without a text that says so, the stream may not be full
        (400, 10002, errors.StreamFullError),
        (500, 10047, errors.StreamFullError),
        (400, 10122, errors.StreamFullError),
        (0, 0, APIError),
    ],
)
def test_unknown_err_code_is_judged_by_its_code(code: int, err_code: int, expected: type[APIError]) -> None:
    """400 is a bad request, 503 an outage (but for "store failed", a full stream), anything else an APIError."""
    assert type(api_error(code, err_code, "")) is expected


def test_every_error_is_under_the_root_and_public() -> None:
    """All classes are NatsErrors, listed in __all__ and importable from the package."""
    assert len(CLASSES) > 30
    for cls in CLASSES:
        assert issubclass(cls, NatsError)
        assert cls.__name__ in errors.__all__
        assert getattr(jetstream_sync, cls.__name__) is cls


def test_timeout_is_also_the_builtin_one() -> None:
    """`except TimeoutError` catches it without an import."""
    assert issubclass(errors.TimeoutError, builtins.TimeoutError)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_error_pickles_with_its_facts(error: NatsError) -> None:
    """An unpickled error has the same class, text and attributes."""
    copy: Any = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert {k: repr(v) for k, v in vars(copy).items()} == {k: repr(v) for k, v in vars(error).items()}


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("maximum messages exceeded", errors.StreamFullError),
        ("maximum bytes exceeded", errors.StreamFullError),
        ("maximum messages per subject exceeded", errors.StreamFullError),
        ("message too large", APIError),
        ("store is closed", APIError),
    ],
)
def test_not_stored_because_the_stream_is_full(description: str, expected: type[APIError]) -> None:
    """10077 has one number for all reasons: the server's text tells them apart."""
    assert type(api_error(503, 10077, description)) is expected


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({}, "gone (code 404, err_code 1)"),
        ({"stream": "S"}, "gone: stream 'S' (code 404, err_code 1)"),
        ({"stream": "S", "consumer": "C"}, "gone: consumer 'C' on stream 'S' (code 404, err_code 1)"),
        ({"stream": "S", "subject": "s.x"}, "gone: stream 'S', subject 's.x' (code 404, err_code 1)"),
        ({"stream": "S", "use": "1 of 1"}, "gone: stream 'S', 1 of 1 (code 404, err_code 1)"),
    ],
)
def test_api_error_names_its_objects(names: dict[str, str], text: str) -> None:
    error = api_error(404, 1, "gone", **names)
    assert str(error) == text
    assert error.description == "gone"
    assert {name: getattr(error, name) for name in names} == names


def test_repeating_is_safe_only_where_nothing_was_sent() -> None:
    assert errors.NotConnectedError().sent is False
    assert errors.OutboundBufferLimitError(10, 5).sent is False
    assert errors.ConnectionLostError().sent is True
    assert errors.TimeoutError().sent is None


def test_did_you_mean() -> None:
    assert errors.did_you_mean("replicas", ["num_replicas", "name"]) == ": did you mean num_replicas?"
    assert errors.did_you_mean("zzz", ["num_replicas", "name"]) == ""
