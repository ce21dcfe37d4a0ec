"""Configs: what a user may write, what is sent, and that nothing read is lost."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import itertools
import json
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from jetstream_sync.api import config as config_module
from jetstream_sync.api import info as info_module
from jetstream_sync.api.config import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    Placement,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamSource,
    SubjectTransform,
    differences,
)
from jetstream_sync.api.fields import Config, Info, fields_of, merged
from jetstream_sync.api.kinds import UnknownChoice, WireEnum
from jetstream_sync.errors import BadSubjectError, JetStreamError

UTC = timezone.utc
NOON = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)


# --- choices --------------------------------------------------------------------------------------


def test_choice_equals_and_prints_as_its_string() -> None:
    """A policy equals, prints and formats as its string."""
    assert AckPolicy.EXPLICIT == "explicit"
    assert f"{AckPolicy.EXPLICIT} {AckPolicy.EXPLICIT:>9}" == "explicit  explicit"
    assert str(AckPolicy.EXPLICIT) == "explicit"
    assert json.dumps(AckPolicy.EXPLICIT) == '"explicit"'


def test_plain_string_becomes_the_enum() -> None:
    """A policy may be given as a string, also by assignment."""
    config = StreamConfig("S", retention="workqueue")
    assert config.retention is RetentionPolicy.WORKQUEUE
    config.storage = "memory"
    assert config.storage is StorageType.MEMORY


def test_unknown_choice_of_the_user_is_refused_with_the_valid_ones() -> None:
    """A misspelt policy is a ValueError that lists the valid ones."""
    with pytest.raises(
        ValueError, match=r"ConsumerConfig\.ack_policy cannot be 'explicitly'.*'explicit', 'all', 'none'"
    ):
        ConsumerConfig(ack_policy="explicitly")


@pytest.mark.parametrize("value", [1, None.__class__, AckPolicy.NONE])
def test_other_types_for_a_choice_are_refused(value: Any) -> None:
    """Another enum's member is a mistake even when its string would do."""
    with pytest.raises(TypeError, match=r"StreamConfig\.compression must be StoreCompression"):
        StreamConfig("S", compression=value)


def test_unknown_choice_of_the_server_survives() -> None:
    """A policy of a newer server is a string that can be copied, replaced around, and sent back."""
    config = ConsumerConfig.from_wire({"ack_policy": "telepathic"})
    assert config.ack_policy == "telepathic"
    assert isinstance(config.ack_policy, UnknownChoice)
    changed = merged(ConsumerConfig, pickle.loads(pickle.dumps(config)), {"description": "x"})
    assert changed.to_wire() == {"description": "x", "ack_policy": "telepathic"}


# --- what is sent ---------------------------------------------------------------------------------


def test_unset_fields_are_not_sent() -> None:
    """Only what was set is sent, but for the ack policy, whose default on the server is another."""
    assert StreamConfig("S").to_wire() == {"name": "S"}
    assert ConsumerConfig().to_wire() == {"ack_policy": "explicit"}
    assert ConsumerConfig(ack_policy=None).to_wire() == {"ack_policy": "explicit"}


def test_false_zero_and_empty_are_sent() -> None:
    """A field that was set is sent even if it is zero, false or empty."""
    config = StreamConfig("S", description="", max_msgs=0, no_ack=False, subjects=[], metadata={}, max_age=0)
    assert config.to_wire() == {
        "name": "S",
        "description": "",
        "subjects": [],
        "max_msgs": 0,
        "max_age": 0,
        "no_ack": False,
        "metadata": {},
    }


def test_keys_are_sent_in_the_order_of_the_table() -> None:
    """The JSON does not depend on the order in which fields were set."""
    late = StreamConfig("S", metadata={"a": "b"})
    late.subjects = ["a"]
    assert list(late.to_wire()) == ["name", "subjects", "metadata"]
    assert json.dumps(late.to_wire()) == '{"name": "S", "subjects": ["a"], "metadata": {"a": "b"}}'


def test_what_is_sent_is_independent_of_the_config() -> None:
    """Changing the JSON object changes nothing in the config."""
    config = StreamConfig.from_wire({"name": "S", "subjects": ["a"], "new": {"list": [1]}})
    wire = config.to_wire()
    wire["subjects"].append("b")
    wire["new"]["list"].append(2)
    assert config.to_wire() == {"name": "S", "subjects": ["a"], "new": {"list": [1]}}


# --- what is refused ------------------------------------------------------------------------------

BAD_NAMES = ["", "a b", "a.b", "a*", ">", "a/b", "a\\b", "a\tb", "a\r\nb", "a\x00", "a\x7f"]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize(
    ("cls", "field"),
    [(StreamConfig, "name"), (ConsumerConfig, "name"), (ConsumerConfig, "durable_name"), (StreamSource, "name")],
)
def test_bad_name_is_refused(cls: type[Config], field: str, name: str) -> None:
    """Names with blanks, dots, wildcards, path separators or control characters never leave the client."""
    with pytest.raises(BadSubjectError, match=rf"{cls.__name__}\.{field}"):
        cls(**{field: name})


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (StreamConfig, {"name": "S", "subjects": ["ok", "a b"]}),
        (StreamConfig, {"name": "S", "subjects": ["a..b"]}),
        (StreamConfig, {"name": "S", "subjects": [""]}),
        (StreamConfig, {"name": "S", "subjects": ["a.>.b"]}),
        (StreamConfig, {"name": "S", "mirror": {"name": "O", "filter_subject": "a\r\n"}}),
        (ConsumerConfig, {"filter_subject": ".a"}),
        (ConsumerConfig, {"filter_subjects": ["a."]}),
        (ConsumerConfig, {"deliver_subject": "a.*"}),
        (ConsumerConfig, {"deliver_group": "a b"}),
    ],
)
def test_bad_subject_is_refused(cls: type[Config], fields: dict[str, Any]) -> None:
    """Subjects that are none, and wildcards where none belong, never leave the client."""
    with pytest.raises(BadSubjectError):
        cls(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"subjects": "foo"}, r"StreamConfig\.subjects must be a list, not a single str: write \['foo'\]"),
        ({"subjects": {"a": 1}}, r"StreamConfig\.subjects must be a list, not dict"),
        ({"subjects": 5}, r"StreamConfig\.subjects must be a list, not int"),
        ({"subjects": ["a", 5]}, r"StreamConfig\.subjects\[1\] must be a string, not int"),
        ({"name": None}, r"StreamConfig\.name must be given"),
        ({"name": b"S"}, r"StreamConfig\.name must be a string, not bytes"),
        ({"max_msgs": "5"}, r"StreamConfig\.max_msgs must be an integer, not str"),
        ({"max_msgs": 5.0}, r"StreamConfig\.max_msgs must be an integer, not float"),
        ({"max_msgs": True}, r"StreamConfig\.max_msgs must be an integer, not bool"),
        ({"no_ack": 1}, r"StreamConfig\.no_ack must be a bool, not int"),
        ({"mirror": "ORIGIN"}, r"StreamConfig\.mirror must be StreamSource or a dict of its fields, not str"),
        ({"mirror": Placement()}, r"StreamConfig\.mirror must be StreamSource .*, not Placement"),
        ({"metadata": ["a"]}, r"StreamConfig\.metadata must be a dict, not list"),
        ({"metadata": {"a": 1}}, r"StreamConfig\.metadata\['a'\] must be a string, not int"),
        ({"metadata": {1: "a"}}, r"a key of StreamConfig\.metadata must be a string, not int"),
        ({"subject": ["a"]}, r"unexpected keyword argument 'subject'"),
        ({"placement": {"clusters": "a"}}, r"unexpected keyword argument 'clusters'"),
    ],
)
def test_wrong_type_is_refused_naming_the_field(fields: dict[str, Any], message: str) -> None:
    """A value of the wrong type is a TypeError that says which field wants what."""
    with pytest.raises(TypeError, match=message):
        StreamConfig(**{"name": "S", **fields})


@pytest.mark.parametrize(
    "fields", [{"first_seq": -1}, {"first_seq": 2**64}, {"max_msgs": 2**63}, {"max_msg_size": 2**31}]
)
def test_number_the_server_cannot_hold_is_refused(fields: dict[str, int]) -> None:
    """Numbers beyond the server's own types are refused with the bounds."""
    with pytest.raises(ValueError, match="must be between"):
        StreamConfig("S", **fields)


def test_assignment_is_checked_and_changes_nothing_when_refused() -> None:
    """Fields are checked whenever they are set; a refused value leaves the old one."""
    config = StreamConfig("S", subjects=["a"])
    with pytest.raises(TypeError, match="must be a list"):
        config.subjects = "b"  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        config.subject = ["b"]  # type: ignore[attr-defined]
    assert config == StreamConfig("S", subjects=["a"])


def test_list_changed_in_place_is_checked_when_sent() -> None:
    """A wrong value that was put into a list or a nested object in place is rejected when the config is sent."""
    config = StreamConfig("S", subjects=["a"], sources=[StreamSource("O", subject_transforms=[])])
    assert config.subjects is not None
    config.subjects.append("b c")
    with pytest.raises(BadSubjectError, match=r"StreamConfig\.subjects\[1\]"):
        config.to_wire()
    with pytest.raises(BadSubjectError):
        config.validate()


@pytest.mark.parametrize("give", [list, tuple, iter, dict.fromkeys])
def test_any_iterable_but_a_mapping_is_a_list(give: Any) -> None:
    """Tuples and iterators are taken as lists, once."""
    subjects = give(["a", "b"])
    if isinstance(subjects, dict):
        subjects = subjects.keys()
    assert StreamConfig("S", subjects=subjects).subjects == ["a", "b"]


def test_nested_dict_becomes_the_object() -> None:
    """Nested objects may be given as dicts of their fields."""
    config = StreamConfig(
        "S", sources=[{"name": "A", "subject_transforms": [{"src": "a", "dest": "b"}]}, StreamSource("B")]
    )
    assert config.sources == [
        StreamSource("A", subject_transforms=[SubjectTransform("a", "b")]),
        StreamSource("B"),
    ]


# --- read, modify, update -------------------------------------------------------------------------

FROM_NEWER_SERVER = {
    "name": "S",
    "subjects": ["a"],
    "mirror": {"name": "O", "warp": 9, "external": {"api": "$JS.x.API", "deliver": "", "hops": [1, 2]}},
    "sources": [
        {"name": "P", "warp": {"factor": 1}, "subject_transforms": [{"src": "a", "dest": "b", "c": None}]}
    ],
    "retention": "forever",
    "quantum": {"entangled": True},
    "nothing": None,
}


def test_unknown_fields_survive_read_modify_update() -> None:
    """What a newer server sent is sent back, at every depth."""
    config = StreamConfig.from_wire(copy.deepcopy(FROM_NEWER_SERVER))
    config.subjects = ["a", "b"]
    assert config.to_wire() == {**FROM_NEWER_SERVER, "subjects": ["a", "b"]}
    assert config.unknown_fields == {"quantum": {"entangled": True}, "nothing": None}


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.copy,
        copy.deepcopy,
        dataclasses.replace,
        lambda config: pickle.loads(pickle.dumps(config)),
        lambda config: pickle.loads(pickle.dumps(config, protocol=2)),
        lambda config: merged(StreamConfig, config, {}),
        lambda config: StreamConfig.from_wire(json.loads(json.dumps(config.to_wire()))),
    ],
    ids=["copy", "deepcopy", "replace", "pickle", "pickle2", "merged", "json"],
)
def test_copies_are_equal_and_keep_unknown_fields(duplicate: Any) -> None:
    """Every way to copy a config keeps what is known, unknown, and finer than Python's types."""
    wire = {**FROM_NEWER_SERVER, "max_age": 31_536_000_000_000_001}
    config = StreamConfig.from_wire(wire)
    copied = duplicate(config)
    assert copied is not config
    assert copied == config
    assert copied.to_wire() == wire


def test_configs_with_different_unknown_fields_differ() -> None:
    """Equality sees unknown fields."""
    assert StreamConfig.from_wire({"name": "S", "new": 1}) != StreamConfig.from_wire({"name": "S", "new": 2})
    assert StreamConfig("S", max_age=5) == StreamConfig("S", max_age=timedelta(seconds=5))


def test_null_and_missing_are_unset() -> None:
    """A null in place of a list, dict or object is read as if it were missing."""
    wire = {"name": "S", "subjects": None, "metadata": None, "mirror": None, "max_age": None, "sources": []}
    assert StreamConfig.from_wire(wire) == StreamConfig("S", sources=[])


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"name": 5},
        {"name": "S", "subjects": "a"},
        {"name": "S", "subjects": [1]},
        {"name": "S", "max_age": "1s"},
        {"name": "S", "max_age": 1.5},
        {"name": "S", "max_msgs": True},
        {"name": "S", "no_ack": "yes"},
        {"name": "S", "retention": 1},
        {"name": "S", "mirror": "O"},
        {"name": "S", "mirror": {}},
        {"name": "S", "sources": {"name": "O"}},
        {"name": "S", "sources": [None]},
        {"name": "S", "metadata": []},
        {"name": "S", "metadata": {"a": 1}},
        {"name": "S", "mirror": {"name": "O", "opt_start_time": 5}},
        [],
        None,
        "S",
    ],
)
def test_wrong_json_type_is_a_clear_error(wire: Any) -> None:
    """An answer of the wrong shape is a JetStreamError that names the place."""
    with pytest.raises(JetStreamError, match=r"cannot be read: Stream(Config|Source)"):
        StreamConfig.from_wire(wire)


# --- merging --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (None, {"name": "S", "subjects": ["a"], "max_age": 5}),
        ({"name": "S", "subjects": ["a"], "max_age": 5}, {}),
        ({"name": "S", "subjects": ["b"]}, {"subjects": ["a"], "max_age": timedelta(seconds=5)}),
        (StreamConfig("S", subjects=["a"], max_age=5), {}),
        (StreamConfig("T", subjects=["a"], max_age=6), {"name": "S", "max_age": 5}),
    ],
)
def test_merged_takes_object_dict_and_keywords(config: Any, fields: dict[str, Any]) -> None:
    """A config is the same however it was given; keywords win."""
    before = copy.deepcopy(config)
    result = merged(StreamConfig, config, fields)
    assert result == StreamConfig("S", subjects=["a"], max_age=5)
    assert config == before


def test_merged_is_independent_of_what_was_given() -> None:
    """Changing the result changes nothing of the caller's."""
    given = StreamConfig("S", subjects=["a"], mirror=StreamSource("O"))
    source = StreamSource("P")
    result = merged(StreamConfig, given, {"sources": [source]})
    assert result.subjects is not None
    assert result.mirror is not None
    assert result.sources is not None
    result.subjects.append("b")
    result.mirror.name = "Q"
    result.sources[0].name = "R"
    assert given == StreamConfig("S", subjects=["a"], mirror=StreamSource("O"))
    assert source == StreamSource("P")


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (None, {}),
        (None, {"name": "S", "subject": "a"}),
        ({"nam": "S"}, {}),
        (StreamConfig("S"), {"subject": "a"}),
        (ConsumerConfig(), {}),
        ("S", {}),
    ],
)
def test_merged_refuses_what_is_no_config(config: Any, fields: dict[str, Any]) -> None:
    """Missing or unknown fields and other objects are TypeErrors."""
    with pytest.raises(TypeError):
        merged(StreamConfig, config, fields)


# --- differences ----------------------------------------------------------------------------------

ACTUAL = ConsumerConfig.from_wire(
    {
        "durable_name": "d",
        "name": "d",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": 100_000_000,
        "max_deliver": -1,
        "backoff": [100_000_000, 2_000_000_000],
        "filter_subject": "a.b",
        "replay_policy": "instant",
        "max_ack_pending": 1000,
        "max_waiting": 512,
        "headers_only": True,
        "num_replicas": 0,
        "opt_start_time": "2024-02-29T12:00:00.123456789Z",
        "metadata": {"mine": "1", "_nats.ver": "2.15.1"},
        "newer": 1,
    }
)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, []),
        ({"durable_name": "d", "name": "d"}, []),
        ({"durable_name": "e"}, ["durable_name"]),
        ({"deliver_policy": DeliverPolicy.ALL, "ack_policy": "explicit"}, []),
        ({"ack_policy": "none"}, ["ack_policy"]),
        ({"ack_wait": 0.1}, []),
        ({"ack_wait": timedelta(milliseconds=100)}, []),
        ({"ack_wait": 30}, ["ack_wait"]),
        ({"ack_wait": 30, "backoff": [0.1, 2]}, []),
        ({"backoff": [0.1]}, ["backoff"]),
        ({"ack_wait": 0, "max_deliver": 0, "max_ack_pending": 0, "max_waiting": 0}, []),
        ({"max_ack_pending": 5, "max_deliver": 3}, ["max_deliver", "max_ack_pending"]),
        ({"flow_control": False, "description": "", "idle_heartbeat": 0}, []),
        ({"flow_control": True}, ["flow_control"]),
        ({"headers_only": False}, ["headers_only"]),
        ({"filter_subject": "a.b"}, []),
        ({"filter_subjects": ["a.b"]}, []),
        ({"filter_subject": "a.c"}, ["filter_subject"]),
        ({"filter_subjects": ["a.b", "a.c"]}, ["filter_subjects"]),
        ({"opt_start_time": NOON}, []),
        ({"opt_start_time": NOON + timedelta(microseconds=1)}, ["opt_start_time"]),
        ({"metadata": {"mine": "1"}}, []),
        ({"metadata": {"mine": "2"}}, ["metadata"]),
        ({"deliver_subject": "x"}, ["deliver_subject"]),
    ],
)
def test_differences_name_what_the_user_set_otherwise(fields: dict[str, Any], named: list[str]) -> None:
    """Only fields that were asked for are compared, by meaning and not by form."""
    assert differences(ConsumerConfig(**fields), ACTUAL) == named


# --- the table ------------------------------------------------------------------------------------


def test_repr_leaves_out_what_is_unset() -> None:
    """A config prints as the call that makes it."""
    config = StreamConfig("S", retention="limits", mirror={"name": "O"}, unknown_fields={"new": 1})
    shown = "StreamConfig(name='S', retention=RetentionPolicy.LIMITS, mirror=StreamSource(name='O'), "
    assert repr(config) == shown + "unknown_fields={'new': 1})"


def classes() -> list[type[Any]]:
    """Every class of the codec."""
    found = [item for module in (config_module, info_module) for item in vars(module).values()]
    return [
        cls
        for cls in dict.fromkeys(item for item in found if isinstance(item, type))
        if issubclass(cls, (Config, Info)) and cls not in (Config, Info)
    ]


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_every_field_has_a_kind_and_a_docstring(cls: type[Any]) -> None:
    """Each field stands in the table, and a string under it says what it means."""
    (definition,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(definition, ast.ClassDef)
    body = definition.body
    documented = [
        statement.target.id
        for statement, after in itertools.pairwise(body)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    ]
    inherited = {spec.name for base in cls.__bases__ for spec in fields_of(base)}
    assert documented == [spec.name for spec in fields_of(cls) if spec.name not in inherited]


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_docstring_names_the_version_of_the_table(cls: type[Any]) -> None:
    """A field that needs a newer server says so where users read it."""
    source = inspect.getsource(cls)
    for spec in fields_of(cls):
        if spec.since:
            text = source[source.index(f"    {spec.name}: ") :]
            assert f"Since {spec.since}." in text[: text.index('"""', text.index('"""') + 3)]


def test_every_choice_is_reachable_by_its_string() -> None:
    """The enums hold the server's own words, in lower case."""
    enums = [
        item for item in vars(config_module).values() if isinstance(item, type) and issubclass(item, WireEnum)
    ]
    members = [member for enum in enums for member in enum]
    assert len(enums) == 10  # nine policies and their base
    assert all(member.value == member.value.lower() == member.name.lower() for member in members)
