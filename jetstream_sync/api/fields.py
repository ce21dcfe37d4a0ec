"""The codec of JetStream's configs and infos: one table of fields per class, one encoder, one decoder.

A class lists its fields with `wire(form)`; a form is a type, a class of the codec, or a kind (`kinds.kind_of()`).
Fields that the server sends and the table does not name are kept in the object's `unknown_fields` and sent back.
So a program that reads, modifies and updates a config loses no field of a newer server.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..errors import JetStreamError, did_you_mean
from .kinds import Kind, Nested, bad_answer, kind_of

__all__ = ["Config", "FieldSpec", "Info", "described", "fields_of", "merged", "wire", "wire_object"]

_Object = TypeVar("_Object", bound="_WireObject")
_Config = TypeVar("_Config", bound="Config")


def described(form: Any, *, key: str = "", since: str = "", zero_is_default: bool = False) -> dict[str, Any]:
    """The metadata of a field: its form, its JSON name if it differs, the first server version that has it, and
    whether the server replaces zero by its default."""
    return {"form": form, "key": key, "since": since, "zero_is_default": zero_is_default}


def wire(form: Any, default: Any = None, **facts: Any) -> Any:
    """A dataclass field of the table. `default` is a value or a factory, `facts` are keywords of described()."""
    metadata = described(form, **facts)
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


if TYPE_CHECKING:
    from dataclasses import dataclass as wire_object
else:

    def wire_object(cls):
        """Make `cls` a dataclass with slots that inherits its methods from `_WireObject`.

        A dataclass usually generates and compiles its methods on import. For all these classes together that would
        take longer than the rest of the import.
        """
        return dataclass(slots=True, init=False, repr=False, eq=False, match_args=False)(cls)


class FieldSpec:
    """A row of the table: what the codec knows of one field."""

    def __init__(self, cls: type[Any], item: dataclasses.Field[Any]) -> None:
        self.name: str = item.name
        self.key: str = item.metadata["key"] or item.name
        self.kind: Kind = kind_of(item.metadata["form"])
        self.since: str = item.metadata["since"]
        self.zero_is_default: bool = item.metadata["zero_is_default"]
        self.where: str = f"{cls.__name__}.{item.name}"
        # The JSON type of values that need no decoding; None when all do.
        self.plain: type | None = self.kind.json_type if type(self.kind).decode is Kind.decode else None
        self.is_object: bool = isinstance(self.kind, Nested)
        # Whether a wire form that is more precise than the Python form is kept, to be sent back.
        self.keeps_exact: bool = self.kind.lossy and issubclass(cls, Config)
        self.default: Callable[[], Any] | None = _default_of(item)  # None when the field is required


class _Table:
    """The rows of one class, and indexes of them."""

    def __init__(self, cls: type[Any]) -> None:
        items = dataclasses.fields(cls)
        self.rows = tuple(FieldSpec(cls, item) for item in items if "form" in item.metadata)
        self.positional = [item.name for item in items if not item.kw_only]
        self.defaults = {item.name: _default_of(item) for item in items}
        self.compared = [item.name for item in items if item.compare]
        self.by_name = {spec.name: spec for spec in self.rows}
        self.by_key = {spec.key: spec for spec in self.rows}
        # The initial values of an object that is read from the server. Each gets lists and dicts of its own.
        self.constants = {item.name: item.default for item in items if item.default is not dataclasses.MISSING}
        self.others = {name: make for name, make in self.defaults.items() if name not in self.constants}


class _Tables(dict[type[Any], _Table]):
    def __missing__(self, cls: type[Any]) -> _Table:
        table = self[cls] = _Table(cls)  # if two threads do this at once, the tables are equal
        return table


_tables = _Tables()


def fields_of(cls: type[Any]) -> tuple[FieldSpec, ...]:
    """The table of `cls`, in the order in which fields are sent."""
    return _tables[cls].rows


def _default_of(item: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    """A function that returns the default of a field; None when it has none."""
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory
    if item.default is not dataclasses.MISSING:
        return lambda: item.default
    return None


class _Deferring:
    # Not a field of the table: the JSON of nested objects that from_wire() has not decoded yet, by field name.
    __slots__ = ("_deferred",)
    _deferred: dict[str, Any]


class _LazySignature:
    """What inspect.signature() and help() show of a class: its fields. Made when it is asked for."""

    def __get__(self, instance: object, cls: type[Any]) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")  # the objects are not callable
        shown = [item for item in dataclasses.fields(cls) if not item.name.startswith("_")]
        return inspect.Signature([_parameter(item) for item in sorted(shown, key=lambda item: bool(item.kw_only))])


def _parameter(item: dataclasses.Field[Any]) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if item.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    make = _default_of(item)
    default = inspect.Parameter.empty if make is None else make()
    return inspect.Parameter(item.name, kind, default=default, annotation=item.type)


@wire_object
class _WireObject(_Deferring):
    # Keys of an API reply that belong to the reply, not to the object in it.
    _ENVELOPE: ClassVar[frozenset[str]] = frozenset()
    # Whether nested objects are decoded on first access: most of an info is never read.
    _DEFERS: ClassVar[bool] = False

    unknown_fields: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """Fields that the server sent and this version does not know, by JSON name; sent back unchanged."""

    if not TYPE_CHECKING:  # type checkers derive the signature from the fields
        __signature__ = _LazySignature()

        def __init__(self, *values: Any, **fields: Any) -> None:
            table, name_of_class = _tables[type(self)], type(self).__name__
            if len(values) > len(table.positional):
                raise TypeError(f"{name_of_class}() takes {len(table.positional)} values at most")
            for name, value in zip(table.positional, values, strict=False):
                if name in fields:
                    raise TypeError(f"{name_of_class}() got two values for {name!r}")
                fields[name] = value
            for name, default in table.defaults.items():
                if name in fields:
                    setattr(self, name, fields.pop(name))
                elif default is not None:
                    setattr(self, name, default())
                else:
                    raise TypeError(f"{name_of_class}() missing a required argument: {name!r}")
            if fields:
                unknown = next(iter(fields))
                hint = did_you_mean(unknown, table.defaults)
                raise TypeError(f"{name_of_class}() got an unexpected keyword argument {unknown!r}{hint}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _tables[type(self)].compared)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # the objects are mutable

    @classmethod
    def from_wire(cls: type[_Object], wire: dict[str, Any]) -> _Object:
        """The object of the JSON `wire`. Raises JetStreamError when a value is missing or of a wrong type."""
        if not isinstance(wire, dict):
            raise bad_answer(cls.__name__, "an object", wire)
        table = _tables[cls]
        values = table.constants.copy()
        unknown = values["unknown_fields"] = {}
        deferred = values["_deferred"] = {}
        by_key = table.by_key
        for key, value in wire.items():
            spec = by_key.get(key)
            if spec is None:
                if key not in cls._ENVELOPE:
                    unknown[key] = value
            elif type(value) is spec.plain:
                values[spec.name] = value
            elif spec.is_object and cls._DEFERS and type(value) is dict:
                deferred[spec.name] = value
            elif value is not None:
                decoded = values[spec.name] = spec.kind.decode(value, spec.where)
                if spec.keeps_exact and decoded is not None and not spec.kind.is_exact(value, decoded):
                    values.setdefault("_exact_wire", {})[spec.name] = value
        for name in deferred:
            values.pop(name, None)  # no default: __getattr__ is called only for a slot that is not set
        for name, default in table.others.items():
            if name not in values and name not in deferred:
                if default is None:
                    raise JetStreamError(f"the server's reply cannot be read: {cls.__name__}.{name} is missing")
                values[name] = default()
        return _restore(cls, values)

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            """Decode a nested object on its first access. Raises JetStreamError like from_wire()."""
            spec = _tables[type(self)].by_name.get(name)
            if spec is None or name not in self._deferred:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            # The JSON is kept: another thread may be decoding it at the same time, with an equal result.
            value = spec.kind.decode(self._deferred[name], spec.where)
            object.__setattr__(self, name, value)
            return value

    def to_wire(self) -> dict[str, Any]:
        """The JSON object: the fields that are not None in the order of the table, then the unknown fields."""
        sent = {}
        for spec in fields_of(type(self)):
            value = self._encoded(spec)
            if value is not None:
                sent[spec.key] = value
        sent.update(copy.deepcopy(self.unknown_fields))
        return sent

    def _encoded(self, spec: FieldSpec) -> Any:
        value = getattr(self, spec.name)
        return None if value is None else spec.kind.encode(value)

    def __repr__(self) -> str:
        names = [spec.name for spec in fields_of(type(self))] + ["unknown_fields"]
        shown = ((name, self._shown(name)) for name in names)
        listed = ", ".join(f"{name}={value!r}" for name, value in shown if value not in (None, [], {}))
        return f"{type(self).__name__}({listed})"

    def _shown(self, name: str) -> Any:
        try:
            return getattr(self, name, None)  # None where __init__ raised before
        except JetStreamError:
            return self._deferred[name]  # cannot be decoded: as the server sent it

    # Copying and unpickling do not check values: what a server sent need not pass the checks of user input.
    def __reduce__(self) -> tuple[Any, ...]:
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return (_restore, (type(self), values))


def _restore(cls: type[_Object], values: dict[str, Any]) -> _Object:
    restored = cls.__new__(cls)
    store = object.__setattr__  # Config.__setattr__ would check the value
    for name, value in values.items():
        store(restored, name, value)
    return restored


@wire_object
class Info(_WireObject):
    """Data that the server sends. Values are not checked when a field is set."""

    _DEFERS = True
    _ENVELOPE = frozenset({"type", "error", "total", "offset", "limit", "did_create", "success"})


@wire_object
class Config(_WireObject):
    """Settings that a user chooses. A value is checked and normalised whenever a field is set.

    Raises TypeError, ValueError or BadSubjectError, which name the field. `to_wire()` checks again, because lists
    and dicts may have been changed in place.
    """

    _exact_wire: dict[str, Any] = field(default_factory=dict, kw_only=True, repr=False, compare=False)
    """The wire form of times and durations that are more precise than in Python; sent back while unchanged."""

    def validate(self) -> None:
        """Check every field, as `to_wire()` does. Raises TypeError, ValueError, BadSubjectError."""
        self.to_wire()

    def _encoded(self, spec: FieldSpec) -> Any:
        value = _checked(spec, getattr(self, spec.name))
        if value is None:
            return None
        exact = self._exact_wire.get(spec.name)
        if exact is not None and spec.kind.decode(exact, spec.where) == value:
            return copy.copy(exact)
        return spec.kind.encode(value)

    def __setattr__(self, name: str, value: Any) -> None:
        spec = _tables[type(self)].by_name.get(name)
        object.__setattr__(self, name, value if spec is None else _checked(spec, value))


def _checked(spec: FieldSpec, value: Any) -> Any:
    if value is not None:
        return spec.kind.coerce(value, spec.where)
    if spec.default is None:
        raise TypeError(f"{spec.where} must be given")
    return spec.default()


def merged(cls: type[_Config], config: _Config | Mapping[str, Any] | None, fields: Mapping[str, Any]) -> _Config:
    """The config that a caller passed: as an object, as a dict of fields, as keywords, or as a mix of these.

    The keywords in `fields` override those of `config`, which is not changed. Raises TypeError for a field that
    does not exist.
    """
    if isinstance(config, cls):
        return dataclasses.replace(copy.deepcopy(config), **copy.deepcopy(dict(fields)))
    if config is None or isinstance(config, Mapping):
        return cls(**copy.deepcopy({**(config or {}), **fields}))
    raise TypeError(f"expected {cls.__name__}, a dict of its fields, or keywords, not {type(config).__name__}")
