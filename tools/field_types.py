"""Makes `jetstream_sync/api/field_types.pyi`: the keywords of create_stream() and its like, for type checkers.

    python -m tools.field_types       write the file

A keyword takes what its field accepts, which is more than the field then holds: a timedelta for a duration, a
tuple for a list, a dict for a nested configuration.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from jetstream_sync.api import config as config_module
from jetstream_sync.api.config import ConsumerConfig, StreamConfig
from jetstream_sync.api.fields import Config, FieldSpec, fields_of
from jetstream_sync.api.kinds import (
    Choice,
    Duration,
    Flag,
    Integer,
    Kind,
    ListOf,
    MapOf,
    Nested,
    Text,
    Timestamp,
    WireEnum,
)
from jetstream_sync.consumers.ordered import CHOSEN

PATH = Path(__file__).resolve().parent.parent / "jetstream_sync" / "api" / "field_types.pyi"

# What subscribe() has as parameters of its own: a keyword cannot be both.
PARAMETERS_OF_SUBSCRIBE = ("idle_heartbeat", "flow_control")

HEAD = '''\
"""The keywords of create_stream() and its like, for type checkers alone. Made by `make reference`: do not edit.

Import it under `if TYPE_CHECKING`: there is no such module when the program runs.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from typing_extensions import Required, TypedDict

'''


def type_of(kind: Kind) -> str:
    """What a field of that kind accepts, None aside."""
    match kind:
        case Nested(cls=cls):
            return f"{cls.__name__} | {name_of(cls)}"
        case Choice(enum=enum):
            return f"{enum.__name__} | str"
        case ListOf(item=Text()):
            return "list[str] | tuple[str, ...]"  # a str is a Sequence[str], too, and is refused
        case ListOf(item=item):
            return f"Sequence[{type_of(item)}]"
        case MapOf(item=item):
            return f"Mapping[str, {type_of(item)}]"
    plain = {Flag: "bool", Integer: "int", Text: "str", Duration: "float | timedelta", Timestamp: "datetime"}
    return plain[type(kind)]


def name_of(cls: type[Config]) -> str:
    return f"{cls.__name__.removesuffix('Config')}Fields"


def lines_of(specs: Iterable[FieldSpec], *, required: bool = False) -> Iterator[str]:
    for spec in specs:
        if spec.default is not None:
            yield f"    {spec.name}: {type_of(spec.kind)} | None"
        else:
            yield f"    {spec.name}: Required[{type_of(spec.kind)}]" if required else f"    {spec.name}: str"


def table(name: str, doc: str, lines: Iterable[str], base: str = "") -> str:
    return "\n".join([f"class {name}({base or 'TypedDict'}, total=False):", f'    """{doc}"""', "", *lines, ""])


def text() -> str:
    """The whole file."""
    classes = [one for one in vars(config_module).values() if inspect.isclass(one)]
    classes = [cls for cls in classes if cls.__module__ == config_module.__name__]
    configs = [cls for cls in classes if issubclass(cls, Config)]
    nested = [cls for cls in configs if cls not in (StreamConfig, ConsumerConfig)]
    choices = [cls for cls in classes if issubclass(cls, WireEnum)]
    names = sorted(cls.__name__ for cls in [*nested, *choices])
    of_consumer = fields_of(ConsumerConfig)
    unknown = "    unknown_fields: dict[str, Any]"
    parts = [
        HEAD + "from .config import (\n" + "".join(f"    {name},\n" for name in names) + ")\n",
        *(
            table(name_of(cls), f"A dict in place of `{cls.__name__}`.", lines_of(fields_of(cls), required=True))
            for cls in sorted(nested, key=lambda cls: cls.__name__)
        ),
        table("StreamFields", "The fields of a StreamConfig.", [*lines_of(fields_of(StreamConfig)), unknown]),
        table(
            "SubscribeFields",
            "The fields of a ConsumerConfig, but for what subscribe() has as parameters of its own.",
            [*lines_of(spec for spec in of_consumer if spec.name not in PARAMETERS_OF_SUBSCRIBE), unknown],
        ),
        table(
            "ConsumerFields",
            "The fields of a ConsumerConfig.",
            lines_of(spec for spec in of_consumer if spec.name in PARAMETERS_OF_SUBSCRIBE),
            base="SubscribeFields",
        ),
        table(
            "OrderedFields",
            "What can be chosen for an ordered consumer.",
            [
                *lines_of(spec for spec in of_consumer if spec.name in CHOSEN),
                "    name_prefix: str | None",
                "    max_reset_attempts: int | None",
            ],
        ),
    ]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
