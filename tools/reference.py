"""Makes `docs/reference.md`: every public name of the library, with one line each.

    python -m tools.reference       write the page

Signatures come from the objects, texts from the docstrings, those of attributes included: a string that follows
an assignment. What needs pyspark or pytest is read from its source, so that the page can be made without them.
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jetstream_sync
from jetstream_sync import errors, nats_py, testing
from jetstream_sync.api.fields import Config, Info
from jetstream_sync.api.kinds import WireEnum

ROOT = Path(__file__).resolve().parent.parent
PATH = ROOT / "docs" / "reference.md"
PACKAGE = "jetstream_sync"

# The order of the classes of each group; the first group is what most programs use.
GROUPS = {
    "Connections": [
        "Connection",
        "Subscription",
        "Message",
        "Headers",
        "Status",
        "Stats",
        "Health",
        "PoolServer",
        "RawCredentials",
    ],
    "JetStream": ["JetStream", "Stream", "PublishBatch", "BatchMessage", "PubAck", "RawStreamMsg"],
    "Consumers": [
        "Consumer",
        "OrderedConsumer",
        "MessageBatch",
        "MessageStream",
        "ConsumeContext",
        "PullSubscription",
        "PushSubscription",
        "JetStreamMessage",
        "Metadata",
        "SequencePair",
    ],
}

HEAD = """\
# Reference

Every public name, with one line each. The docstrings say more: `help(jetstream_sync.Consumer.fetch)`. What is not
listed here is not for programs to use, and may change. Made by `make reference`: do not edit.
"""


class Entry(NamedTuple):
    """A public name of a class."""

    name: str
    shown: str
    doc: str


def is_ours(cls: type) -> bool:
    return cls.__module__.split(".")[0] == PACKAGE


def summary(doc: str | None) -> str:
    """The first sentence of a docstring."""
    first = " ".join((doc or "").split("\n\n")[0].split())
    match = re.match(r"(.+?\.)(?= [A-Z`]|$)", first)
    return match[1] if match else first


# --- classes --------------------------------------------------------------------------------------------


@functools.cache
def _class_node(cls: type) -> ast.ClassDef | None:
    path = inspect.getsourcefile(cls)
    tree = _tree(Path(path)) if path else None
    for node in tree.body if tree else ():
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            return node
    return None


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def attributes(cls: type) -> dict[str, str]:
    """The public attributes that a class assigns, in its body or to `self`, with their texts."""
    found: dict[str, str] = {}
    node = _class_node(cls)
    functions = [one for one in node.body if isinstance(one, ast.FunctionDef)] if node else []
    for body in [node.body if node else [], *(function.body for function in functions)]:
        for number, statement in enumerate(body):
            name = _assigned(statement, in_class=node is not None and body is node.body)
            if name and not name.startswith("_"):
                following = body[number + 1] if number + 1 < len(body) else None
                found.setdefault(name, _text(following))
    return found


def _assigned(statement: ast.stmt, *, in_class: bool) -> str:
    if isinstance(statement, ast.AnnAssign):
        target: ast.expr = statement.target
    elif isinstance(statement, ast.Assign):
        target = statement.targets[0]
    else:
        return ""
    if in_class and isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr
    return ""


def _text(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return str(statement.value.value)
    return ""


def entries(cls: type) -> list[Entry]:
    """The public names of a class, those of its base classes in this library included."""
    found: dict[str, Entry] = {}
    for owner in cls.__mro__:
        if not is_ours(owner):
            continue
        texts = attributes(owner)
        for name, value in vars(owner).items():
            # A slot is found by its assignment: Python 3.10 repeats those of base classes.
            if not name.startswith("_") and name not in found and not inspect.ismemberdescriptor(value):
                found[name] = _entry(name, value, texts)
        for name in texts:
            if name not in found:
                found[name] = Entry(name, name, summary(texts[name]))
    # Methods before properties, each in the order of the source: sorting is stable.
    return sorted(found.values(), key=lambda entry: isinstance(getattr(cls, entry.name, None), property))


def _entry(name: str, value: Any, texts: dict[str, str]) -> Entry:
    if isinstance(value, property):
        return Entry(name, name, summary(value.fget.__doc__))
    function = inspect.unwrap(getattr(value, "__func__", value))
    if inspect.isfunction(function):
        return Entry(name, name + call(function), summary(function.__doc__))
    return Entry(name, name, summary(texts.get(name)))


def call(function: Any) -> str:
    """The parameters of a function with their defaults, and what it returns."""
    signature = inspect.signature(function)
    shown, stars = [], False
    for one in signature.parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and not stars:
            shown.append("*")
            stars = True
        if one.kind is one.VAR_KEYWORD:
            shown.append(f"**{one.name}")
        elif one.default is one.empty:
            shown.append(one.name)
        else:
            shown.append(f"{one.name}={one.default!r}")
    returns = signature.return_annotation
    return f"({', '.join(shown)})" + ("" if returns in (None, "None", signature.empty) else f" → {returns}")


def foreign_bases(cls: type) -> list[type]:
    """The nearest base classes that are not of this library and bring names along."""
    found: list[type] = []
    for base in cls.__mro__[1:]:
        plain = base in (object, enum.Enum) or not any(not name.startswith("_") for name in dir(base))
        if not plain and not is_ours(base) and not any(issubclass(one, base) for one in found):
            found.append(base)
    return found


def class_part(name: str, cls: type) -> Iterator[str]:
    yield f"### {name}\n"
    bases = ", ".join(f"`{base.__name__}`" for base in foreign_bases(cls))
    yield summary(cls.__doc__) + (f" Also has what {bases} has." if bases else "") + "\n"
    for entry in entries(cls):
        yield f"- `{entry.shown}`" + (f": {entry.doc}" if entry.doc else "")
    yield ""


# --- the page -------------------------------------------------------------------------------------------


def public_classes() -> dict[str, type]:
    """The classes of the package by name, errors aside."""
    found = {name: getattr(jetstream_sync, name) for name in jetstream_sync.__all__}
    return {
        name: one for name, one in found.items() if inspect.isclass(one) and not issubclass(one, errors.NatsError)
    }


def public_functions() -> dict[str, Any]:
    found = {name: getattr(jetstream_sync, name) for name in jetstream_sync.__all__}
    return {name: one for name, one in found.items() if inspect.isfunction(one)}


def error_classes() -> list[type[errors.NatsError]]:
    """The errors, each behind its base class."""

    def below(cls: type[errors.NatsError]) -> Iterator[type[errors.NatsError]]:
        yield cls
        for one in sorted(cls.__subclasses__(), key=lambda one: one.__name__):
            if one.__module__ == errors.__name__:
                yield from below(one)

    return list(below(errors.NatsError))


def _groups() -> dict[str, list[str]]:
    left = dict(public_classes())
    for names in GROUPS.values():
        for name in names:
            del left[name]
    groups = dict(GROUPS)
    for title, kind in {"Configurations": Config, "What the server reports": Info, "Choices": WireEnum}.items():
        groups[title] = [name for name, cls in left.items() if issubclass(cls, kind)]
        left = {name: cls for name, cls in left.items() if not issubclass(cls, kind)}
    return {**groups, "More": list(left)} if left else groups


def _errors() -> Iterator[str]:
    for cls in error_classes():
        depth = len([one for one in cls.__mro__ if issubclass(one, errors.NatsError)]) - 1
        facts = [entry.name for entry in entries(cls)]
        shown = f" Attributes: {', '.join(f'`{name}`' for name in facts)}." if facts else ""
        yield f"{'  ' * depth}- `{cls.__name__}`: {summary(cls.__doc__)}{shown}"


def _alias(name: str) -> str:
    cls = getattr(nats_py, name)
    return f"Another name of `{cls.__name__}`." if cls.__name__ != name else summary(cls.__doc__)


def _from_source(path: str, only: set[str] | None = None) -> Iterator[str]:
    """Functions and classes of a module that may not be importable here; by default its pytest fixtures."""
    for node in _tree(ROOT / PACKAGE / path).body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        is_fixture = any("fixture" in ast.unparse(one) for one in node.decorator_list)
        if is_fixture if only is None else node.name in only:
            shown = node.name
            if only is not None and isinstance(node, ast.FunctionDef):
                shown += f"({ast.unparse(node.args)})"
            yield f"- `{shown}`: {summary(ast.get_docstring(node))}"


def text() -> str:
    """The whole page."""
    classes = public_classes()
    lines = [HEAD, "## jetstream_sync\n"]
    for name, function in public_functions().items():
        lines += [f"- `{name}{call(function)}`: {summary(function.__doc__)}"]
    lines.append("- `__version__`: The version of the library.\n")
    for title, names in _groups().items():
        lines.append(f"## {title}\n")
        for name in names:
            lines += class_part(name, classes[name])
    lines += ["## Errors\n", "All are in `jetstream_sync` and `jetstream_sync.errors`.\n", *_errors(), ""]
    lines += [
        "## jetstream_sync.nats_py\n",
        "Names of nats-py; see [from-nats-py.md](from-nats-py.md).\n",
    ]
    lines += [f"- `{name}`: {_alias(name)}" for name in nats_py.ERRORS]
    lines += ["", "## jetstream_sync.testing\n", summary(testing.__doc__) + "\n"]
    for name in testing.__all__:
        lines += class_part(name, getattr(testing, name))
    lines += ["### Fixtures for pytest\n", *_from_source("testing/plugin.py"), ""]
    lines += ["## jetstream_sync.spark\n", "See [spark.md](spark.md).\n"]
    lines += [*_from_source("spark/shared.py", {"connection"})]
    lines += [*_from_source("spark/source.py", {"register", "JetStreamDataSource"})]
    lines += [*_from_source("spark/lag_listener.py", {"LagListener"}), *_from_source("spark/lag.py", {"Lag"})]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
