"""No module but the platform's depends on an operating system: checked on the syntax tree.

`testing` starts processes and sends signals, and has its own rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.source_tree import RUNTIME, tree_of

# What only some modules may use: the rule and the modules.
ONLY_PLATFORM = {"_platform"}
OWNERS: dict[str, set[str]] = {
    "import select": ONLY_PLATFORM,
    "import selectors": ONLY_PLATFORM,
    "import fcntl": ONLY_PLATFORM,
    "import signal": ONLY_PLATFORM,
    "import socket": {"_platform", "net.transport"},
    "MSG_": ONLY_PLATFORM,
    "SIG": ONLY_PLATFORM,
    "register_at_fork": ONLY_PLATFORM,
    "fork": ONLY_PLATFORM,
    "/proc": ONLY_PLATFORM,
    ".sock": {"net.transport"},
    "sys.platform": ONLY_PLATFORM,
    "os.name": ONLY_PLATFORM,
    # A wait for a lock with a bound is sliced where signals do not interrupt it: in one place.
    "acquire(timeout=)": {"_threads"},
}
MODULE_RULES = {rule.removeprefix("import ") for rule in OWNERS if rule.startswith("import ")}


def uses(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each use of what a rule is about: the rule and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [(node.module or "").split(".")[0], *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and is_bounded_acquire(node):
            yield "acquire(timeout=)", node.lineno
            continue
        elif isinstance(node, ast.Attribute):
            yield from attribute_uses(node)
            continue
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "/proc/" in node.value:
            yield "/proc", node.lineno
            continue
        else:
            continue
        for name in names:
            if name in MODULE_RULES:
                yield f"import {name}", node.lineno


def is_bounded_acquire(node: ast.Call) -> bool:
    """Whether a call is `lock.acquire(timeout=…)`, in whichever way it is written."""
    if not (isinstance(node.func, ast.Attribute) and node.func.attr == "acquire"):
        return False
    return len(node.args) > 1 or any(keyword.arg == "timeout" for keyword in node.keywords)


def attribute_uses(node: ast.Attribute) -> Iterator[tuple[str, int]]:
    holder = node.value.id if isinstance(node.value, ast.Name) else ""
    if f"{holder}.{node.attr}" in OWNERS:
        yield f"{holder}.{node.attr}", node.lineno
    if node.attr == "sock":
        yield ".sock", node.lineno
    if holder == "os" and node.attr in ("fork", "forkpty", "register_at_fork"):
        yield ("register_at_fork" if node.attr == "register_at_fork" else "fork"), node.lineno
    if node.attr.startswith("MSG_"):
        yield "MSG_", node.lineno
    if holder == "signal" and node.attr.startswith("SIG"):
        yield "SIG", node.lineno


def trespasses(module: str, tree: ast.AST) -> list[str]:
    return [f"{module}:{line} {rule}" for rule, line in uses(tree) if module not in OWNERS[rule]]


@pytest.mark.parametrize("module", RUNTIME)
def test_only_the_platform_module_knows_the_platform(module: str) -> None:
    """Sockets, select, flags, signals and fork hooks are used where they belong, and nowhere else."""
    assert trespasses(module, tree_of(module)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import select",
        "from select import poll",
        "import socket as s",
        "import fcntl",
        "os.register_at_fork(after_in_child=f)",
        "os.fork()",
        "flags = socket.MSG_DONTWAIT",
        "signal.SIGTERM",
        "open('/proc/self/fd')",
        "transport.sock.send(b'')",
        "if sys.platform == 'win32': pass",
        "lock.acquire(timeout=1)",
        "lock.acquire(True, 1)",
    ],
)
def test_guard_sees(source: str) -> None:
    """The guard itself finds what it forbids."""
    assert trespasses("net.link", ast.parse(source)) != []
