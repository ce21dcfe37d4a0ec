"""The package's modules and their syntax trees, for the tests that check how the code is divided.

What an expression is, and which function a call means, is read from names, annotations and constructor calls.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jetstream_sync

PACKAGE = Path(jetstream_sync.__file__).parent


def _modules() -> dict[str, Path]:
    """All modules by dotted name below the package; "" is the package itself."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


@cache
def tree_of(module: str) -> ast.Module:
    """The syntax tree of a module, parsed once."""
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def lines_of(module: str) -> int:
    """How many lines a module has."""
    return len(MODULES[module].read_text(encoding="utf-8").splitlines())


def package_of(module: str) -> str:
    """The first part of a module's name: "net" for "net.link", "errors" for "errors"."""
    return module.split(".")[0]


# The modules that run in programs; those of `testing` run in tests only.
RUNTIME = [module for module in MODULES if package_of(module) != "testing"]

Function = ast.FunctionDef | ast.AsyncFunctionDef


# --- nodes ----------------------------------------------------------------------------------------------------


class Scope(NamedTuple):
    """A node with the classes and functions around it, the outermost first."""

    module: str
    node: ast.AST
    around: tuple[ast.ClassDef | Function, ...]

    @property
    def owner(self) -> ast.ClassDef | None:
        """The class that `self` belongs to here."""
        return next((one for one in reversed(self.around) if isinstance(one, ast.ClassDef)), None)

    @property
    def functions(self) -> list[Function]:
        """The functions around the node, the innermost first."""
        return [one for one in reversed(self.around) if isinstance(one, Function)]


def below(top: Scope) -> Iterator[Scope]:
    """Every node below that of `top`, with what surrounds it."""
    around = (*top.around, top.node) if isinstance(top.node, (ast.ClassDef, Function)) else top.around
    for child in ast.iter_child_nodes(top.node):
        scope = Scope(top.module, child, around)
        yield scope
        yield from below(scope)


@cache
def scopes(module: str) -> list[Scope]:
    """Every node of a module, with what surrounds it."""
    return list(below(Scope(module, tree_of(module), ())))


def last_name(node: ast.AST | None) -> str:
    """`c` of the expressions `c`, `a.c`, `a.b().c`; of a call the name that is called."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def mentioned(annotation: ast.AST | None) -> set[str]:
    """The names in an annotation, quoted ones included."""
    if annotation is None:
        return set()
    nodes = list(ast.walk(annotation))
    for node in list(nodes):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            nodes += ast.walk(ast.parse(node.value, mode="eval"))
    return {last_name(node) for node in nodes if isinstance(node, (ast.Name, ast.Attribute))}


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


# --- classes and the types of objects ---------------------------------------------------------------------


def names_of(module: str) -> set[str]:
    """The names that a module defines for itself, functions and variables."""
    found = set()
    for node in tree_of(module).body:
        if isinstance(node, (ast.ClassDef, Function)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets: list[ast.expr] = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            found |= {last_name(target) for target in _unpacked(targets)}
    return found


class Class:
    """What the tests know of a class: its module, its bases, the names it defines, and the types of its fields."""

    def __init__(self, scope: Scope) -> None:
        node = scope.node
        assert isinstance(node, ast.ClassDef)
        self.module = scope.module
        self.name = node.name
        self.bases = {last_name(base) for base in node.bases}
        self.names: set[str] = set()
        self.field_types: dict[str, set[str]] = defaultdict(set)
        for statement in node.body:
            self._read_class_statement(statement)
        for inner in below(scope):
            if inner.functions:
                self._read_assignment(inner)

    def _read_class_statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.ClassDef, Function)):
            self.names.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            self.names.add(last_name(node.target))
            self.field_types[last_name(node.target)] |= mentioned(node.annotation)
        elif isinstance(node, ast.Assign):
            self.names |= {last_name(target) for target in node.targets}

    def _read_assignment(self, scope: Scope) -> None:
        node = scope.node
        if isinstance(node, ast.AnnAssign):
            pairs: list[tuple[ast.AST, ast.AST | None]] = [(node.target, node.value)]
        elif isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in _unpacked(node.targets)]
        else:
            return
        for target, value in pairs:
            if not (isinstance(target, ast.Attribute) and is_self(target.value)):
                continue
            self.names.add(target.attr)
            types = self.field_types[target.attr]
            if isinstance(node, ast.AnnAssign):
                types |= mentioned(node.annotation)
            elif isinstance(value, ast.Call):
                types.add(last_name(value.func))
            elif isinstance(value, ast.Name):
                types |= mentioned(_annotation(value.id, scope.functions))


def _unpacked(targets: list[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, (ast.Tuple, ast.List)):
            yield from _unpacked(target.elts)
        else:
            yield target


def _annotation(name: str, functions: list[Function]) -> ast.AST | None:
    """The annotation of the parameter `name` of the innermost function that has one."""
    for function in functions:
        arguments = function.args
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if one.arg == name:
                return one.annotation
    return None


CLASSES: dict[str, list[Class]] = defaultdict(list)
for _module in RUNTIME:
    for _scope in scopes(_module):
        if isinstance(_scope.node, ast.ClassDef):
            CLASSES[_scope.node.name].append(Class(_scope))


def family(name: str) -> set[str]:
    """A class, its bases and its subclasses, by name."""
    return ancestors(name) | {one for one in CLASSES if name in ancestors(one)}


@cache
def ancestors(name: str) -> set[str]:
    """A class and its bases, by name."""
    found = {name}
    for one in CLASSES.get(name, ()):
        for base in one.bases:
            if base != name:
                found |= ancestors(base)
    return found


def types_of(node: ast.AST, scope: Scope) -> set[str]:
    """The classes that annotations and constructor calls give for an expression; empty when they tell none."""
    if isinstance(node, ast.Name):
        if is_self(node) and scope.owner is not None:
            return family(scope.owner.name)
        return mentioned(_annotation(node.id, scope.functions)) & set(CLASSES)
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        returned = [mentioned(one.function.returns) for one in FUNCTIONS if one.name == name]
        return {name, *set().union(*returned)} & set(CLASSES)
    if isinstance(node, ast.Attribute):
        owners = [one for name in types_of(node.value, scope) for one in CLASSES[name]]
        return {name for owner in owners for name in owner.field_types.get(node.attr, ())} & set(CLASSES)
    return set()


# --- functions --------------------------------------------------------------------------------------------------


class Definition(NamedTuple):
    """A function, with the classes and functions around it."""

    scope: Scope
    function: Function

    @property
    def module(self) -> str:
        return self.scope.module

    @property
    def name(self) -> str:
        return ".".join(one.name for one in (*self.scope.around, self.function))

    @property
    def place(self) -> str:
        return f"{self.module}:{self.function.lineno} {self.name}"

    def nodes(self) -> Iterator[Scope]:
        """The nodes of its body, without those of functions and classes inside it."""
        around = (*self.scope.around, self.function)
        return (scope for scope in below(self.scope) if scope.around == around)


FUNCTIONS = [
    Definition(scope, scope.node)
    for module in RUNTIME
    for scope in scopes(module)
    if isinstance(scope.node, Function)
]


@cache
def _imported_modules(module: str) -> set[str]:
    """The names under which a module knows other modules."""
    found = set()
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            found |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            ours = {name.rpartition(".")[2] for name in MODULES}
            found |= {one.asname or one.name for one in node.names if one.name in ours}
    return found


def called_functions(call: ast.Call, scope: Scope) -> Iterator[Definition]:
    """The functions that a call may mean.

    A method is looked up in the class of its object, where annotations and constructors tell that class; an object
    of unknown class may be any that has such a method. A plain name is a function of a module, or one that is
    defined inside another function and may have been given as a parameter (`make(sid)`).
    """
    name = last_name(call)
    holder = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(holder, ast.Name) and holder.id in _imported_modules(scope.module):
        return  # a function of a module, `commands.subscribe()`: those that start threads are in THREAD_STARTERS
    if isinstance(holder, ast.Call) and last_name(holder) == "super":
        types = ancestors(scope.owner.name) - {scope.owner.name} if scope.owner is not None else set()
    elif holder is not None:
        types = types_of(holder, scope) or set(CLASSES)
    else:
        types = {name} & set(CLASSES)
    wanted = "__init__" if types and holder is None else name
    for definition in FUNCTIONS:
        if definition.function.name == wanted:
            around = definition.scope.around
            if around and isinstance(around[-1], ast.ClassDef):
                matches = around[-1].name in types
            else:
                matches = holder is None and not types
            if matches:
                yield definition
