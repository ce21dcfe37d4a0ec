"""What editors and type checkers see of configurations: the keywords of create_stream() and its like."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from typing import Any

import pytest

from jetstream_sync import AccountInfo, Connection, ConsumerConfig, JetStream, PubAck, StreamConfig, StreamInfo
from tools import field_types


def test_keyword_types_are_those_of_the_config_classes() -> None:
    """The generated file is up to date: `make reference` writes it."""
    assert field_types.PATH.read_text(encoding="utf-8") == field_types.text()


def test_keyword_types_do_not_exist_at_run_time() -> None:
    """They are for type checkers: importing the library does not load them, and cannot."""
    assert importlib.util.find_spec("jetstream_sync.api.field_types") is None


@pytest.mark.parametrize("cls", [StreamConfig, ConsumerConfig, StreamInfo, AccountInfo, PubAck])
def test_signature_lists_the_fields(cls: type[Any]) -> None:
    """inspect.signature() and help() show each field with its default, and nothing that is not for users."""
    parameters = inspect.signature(cls).parameters
    assert set(parameters) == {item.name for item in dataclasses.fields(cls) if not item.name.startswith("_")}
    required = [name for name, one in parameters.items() if one.default is one.empty]
    assert required == {StreamConfig: ["name"], StreamInfo: ["config"], PubAck: ["stream", "seq"]}.get(cls, [])


def test_signature_binds_what_the_class_accepts() -> None:
    """Fields may be given by position, in the order of the signature; the last ones by keyword only."""
    bound = inspect.signature(StreamConfig).bind("S", "text", unknown_fields={})
    assert StreamConfig(*bound.args, **bound.kwargs) == StreamConfig(name="S", description="text")


def test_objects_have_no_signature() -> None:
    """The class can be called, its objects cannot."""
    with pytest.raises(TypeError):
        inspect.signature(StreamConfig("S"))  # type: ignore[arg-type]


def test_jetstream_takes_what_its_class_takes() -> None:
    """nc.jetstream() has the options of JetStream, with the same defaults."""
    context = inspect.signature(JetStream).parameters.values()
    method = inspect.signature(Connection.jetstream).parameters.values()
    assert [(one.name, one.default) for one in context][1:] == [(one.name, one.default) for one in method][1:]
