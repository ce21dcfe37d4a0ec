"""The public surface: what `dir()` shows users is what docs/reference.md lists, and nothing else."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import jetstream_sync
from jetstream_sync import errors, testing
from tools import reference

PAGE = reference.PATH.read_text(encoding="utf-8")
# The names under each heading of a class.
LISTED = {
    part.split("\n", 1)[0]: set(re.findall(r"^- `(\w+)", part, re.MULTILINE))
    for part in re.split(r"^###? ", PAGE, flags=re.MULTILINE)[1:]
}
CLASSES = {**reference.public_classes(), **{name: getattr(testing, name) for name in testing.__all__}}


def public(names: object) -> set[str]:
    return {name for name in names if not name.startswith("_")}  # type: ignore[attr-defined]


def test_reference_is_up_to_date() -> None:
    """`make reference` writes it, from docstrings and signatures."""
    assert reference.text() == PAGE


@pytest.mark.parametrize("name", CLASSES)
def test_class_shows_what_is_listed(name: str) -> None:
    """Each public name of a class is in the reference, and each name in the reference exists.

    Names of Python's own classes (str, tuple, MutableMapping) are not repeated there. Attributes of objects that
    are set in a constructor are listed, though the class does not show them.
    """
    cls = CLASSES[name]
    inherited = public(name for base in reference.foreign_bases(cls) for name in dir(base))
    shown = public(dir(cls))
    assert shown - inherited <= LISTED[name]
    assert LISTED[name] - shown <= {
        one for base in cls.__mro__ if reference.is_ours(base) for one in reference.attributes(base)
    }


@pytest.mark.parametrize("name", CLASSES)
def test_every_name_of_a_class_has_a_text(name: str) -> None:
    """The reference has a line of text for each name, and for the class."""
    assert inspect.getdoc(CLASSES[name])
    assert [entry.name for entry in reference.entries(CLASSES[name]) if not entry.doc] == []


def test_every_public_name_is_listed() -> None:
    """What `from jetstream_sync import *` brings is in the reference."""
    listed = set(LISTED) | LISTED["jetstream_sync"] | set(re.findall(r"^ *- `(\w+Error)`", PAGE, re.MULTILINE))
    assert set(jetstream_sync.__all__) <= listed
    assert len(jetstream_sync.__all__) == len(set(jetstream_sync.__all__))


def test_every_error_has_a_text() -> None:
    """Each error says what it means, and is exported."""
    assert [cls.__name__ for cls in reference.error_classes() if not cls.__doc__] == []
    assert {cls.__name__ for cls in reference.error_classes()} == set(errors.__all__)


def test_package_shows_public_names_only() -> None:
    """`dir(jetstream_sync)` has what is exported, and the modules of the package."""
    others = public(dir(jetstream_sync)) - set(jetstream_sync.__all__)
    assert {name for name in others if not inspect.ismodule(getattr(jetstream_sync, name))} == set()


# --- docstrings -----------------------------------------------------------------------------------------------


def functions() -> dict[str, tuple[Any, type | None]]:
    """The public functions and methods by name, with the class that has them."""
    found: dict[str, tuple[Any, type | None]] = {}
    for name, cls in CLASSES.items():
        for member in sorted(public(dir(cls))):
            owner = next((one for one in cls.__mro__ if member in vars(one)), object)
            function = getattr(vars(owner).get(member), "__func__", vars(owner).get(member))
            if reference.is_ours(owner) and inspect.isfunction(function):
                found[f"{name}.{member}"] = (function, cls)
    return found | {name: (one, None) for name, one in reference.public_functions().items()}


FUNCTIONS = functions()


def texts(name: str) -> str:
    """The docstring of a function and of its class, and those of the functions that it refers to: `fetch()`."""
    function, cls = FUNCTIONS[name]
    text = f"{function.__doc__} {cls.__doc__ if cls else ''}"
    for other in re.findall(r"([\w.]+)\(\)", function.__doc__ or ""):
        for full in (other, f"{cls.__name__}.{other}" if cls else "", f"JetStream.{other}"):
            if full in FUNCTIONS and full != name:
                text += str(FUNCTIONS[full][0].__doc__)
    return text


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_explains_its_parameters(name: str) -> None:
    """Each parameter is named in backquotes: in the docstring, in that of the class, or in one it refers to."""
    function, _ = FUNCTIONS[name]
    assert function.__doc__
    parameters = [one for one in inspect.signature(function).parameters if one not in ("self", "cls")]
    known = set(re.findall(r"`(\w+)", texts(name)))
    assert [one for one in parameters if one not in known] == []
