"""How the package is divided, counted over its syntax trees. The limits are the constants below.

A *foreign private access* is an attribute `x._name` (one leading underscore) where `x` is not `self`, `cls`,
`super()` or `type(self)`. All modules count but those of `testing`. An access inside the class that owns the name
counts as well (`other._entries` in `Headers.__eq__`), and so do the documented methods of named tuples
(`_replace`): the limit per 1 000 lines leaves room for them. By this definition commit 9732de7, the last one
before the connection was divided into parts, has 173 on the connection and 11.9 per 1 000 lines in all.

*On the connection* is an access whose object is a Connection or a Link, by its name or by its annotation, in
another module than the one that defines that class; and inside net/ every access to a name that the accessing
module itself does not define.

*Across packages* is an access to a name that the accessing package does not define, or one on an object whose
annotation names a class of another package.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.source_tree import (
    CLASSES,
    FUNCTIONS,
    MODULES,
    PACKAGE,
    RUNTIME,
    Definition,
    Function,
    Scope,
    ancestors,
    below,
    called_functions,
    is_self,
    last_name,
    lines_of,
    mentioned,
    names_of,
    package_of,
    scopes,
    tree_of,
    types_of,
)

MAX_PRIVATE_ACCESSES_ON_THE_CONNECTION = 0
MAX_PRIVATE_ACCESSES_PER_1000_LINES = 2.0
MAX_PLACES_THAT_ASSEMBLE_A_PULL = 1
MAX_TAKE_LOOPS = 5
MAX_REGISTRIES_OF_RECEIVERS = 1
MAX_LINES_OF_A_FILE = 600
MAX_LINES_OF_A_FUNCTION = 60
# 11 600 of the rebuilt core, and the second day: the window, what is handed back and kept alive, look-ups, the
# story of an outage, settings, health, one retry policy, docstrings that explain each parameter; publish_many()
# with the bulk publisher, which the Spark sink had for itself before.
MAX_LINES_OF_NET_CONSUMERS_API = 15_450

# Private accesses across packages that are allowed: (module, name). Remove what no longer occurs; add nothing.
ACROSS_PACKAGES: set[tuple[str, str]] = set()
# Functions that may be longer, with the reason. Remove what no longer needs it; add nothing.
LONGER_FUNCTIONS = {
    "protocol.parser: Parser._find": "the loop that receives: a call per message would slow it down",
}
# Locks that serve nothing but the start of one thread. All other locks are wanted by threads that do other work,
# and no thread is started under them.
LOCKS_FOR_A_START = {"net.callbacks: CallbackRunner._starting"}

# The class of an object by the name it usually has, and the module that defines the class.
CONNECTION_NAMES = {"nc": "Connection", "_nc": "Connection", "link": "Link", "_link": "Link"}
CONNECTION_CLASSES = {"Connection": "net.connection", "Link": "net.link"}
NAMED_TUPLE_METHODS = {"_asdict", "_fields", "_make", "_replace"}

# Calls that start a thread, and how many calls deep they are looked for.
THREAD_STARTERS = {"spawn", "detached", "run_detached", "start_new_thread", "beside"}
CALL_DEPTH = 2

REPOSITORY = PACKAGE.parent


# --- foreign private accesses -----------------------------------------------------------------------------


class Access(NamedTuple):
    """One foreign private access."""

    module: str
    line: int
    holder: str
    name: str
    types: frozenset[str]

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.holder}.{self.name}"


def _is_own(holder: ast.AST) -> bool:
    """`self`, `cls`, `super()`, `type(self)`."""
    return is_self(holder) or (isinstance(holder, ast.Call) and last_name(holder.func) in ("super", "type"))


def _accesses() -> Iterator[Access]:
    for module in RUNTIME:
        for scope in scopes(module):
            node = scope.node
            if isinstance(node, ast.Attribute) and re.match("_(?!_)", node.attr) and not _is_own(node.value):
                types = frozenset(types_of(node.value, scope))
                yield Access(module, node.lineno, ast.unparse(node.value), node.attr, types)


ACCESSES = list(_accesses())
# The modules that define a name, in a class or for themselves.
DEFINED_IN: dict[str, set[str]] = defaultdict(set)
for _classes in CLASSES.values():
    for _class in _classes:
        for _name in _class.names:
            DEFINED_IN[_name].add(_class.module)
for _module in RUNTIME:
    for _name in names_of(_module):
        DEFINED_IN[_name].add(_module)


def _is_on_the_connection(access: Access) -> bool:
    by_name = CONNECTION_NAMES.get(access.holder.rpartition(".")[2])
    kinds = access.types & set(CONNECTION_CLASSES) or ({by_name} if by_name else set())
    if kinds:
        return any(access.module != CONNECTION_CLASSES[kind] for kind in kinds)
    inside_net = package_of(access.module) == "net"
    ours = access.name not in NAMED_TUPLE_METHODS and bool(DEFINED_IN[access.name])
    return inside_net and ours and access.module not in DEFINED_IN[access.name]


def _is_across_packages(access: Access) -> bool:
    if access.name in NAMED_TUPLE_METHODS or not DEFINED_IN[access.name]:
        return False  # `sys._getframe`: a name of Python's
    here = package_of(access.module)
    if access.types:
        return here not in {package_of(one.module) for name in access.types for one in CLASSES[name]}
    return here not in {package_of(module) for module in DEFINED_IN[access.name]}


def test_no_private_access_on_the_connection() -> None:
    """A connection is used through public names: above net/ those of Link, inside net/ those of its parts."""
    found = [str(one) for one in ACCESSES if _is_on_the_connection(one)]
    assert len(found) <= MAX_PRIVATE_ACCESSES_ON_THE_CONNECTION, "\n".join([f"{len(found)}:", *found])


def test_private_access_across_packages_only_where_listed() -> None:
    """What a package keeps private stays in it. A listed exception that no longer occurs must be removed."""
    found = defaultdict(list)
    for one in ACCESSES:
        if _is_across_packages(one) and not _is_on_the_connection(one):
            found[one.module, one.name].append(str(one))
    forbidden = [place for key, places in found.items() if key not in ACROSS_PACKAGES for place in places]
    assert forbidden == []
    assert set(found) >= ACROSS_PACKAGES, "remove these from ACROSS_PACKAGES"


def test_few_private_accesses_in_all() -> None:
    """Objects are used through public names; the few exceptions are mostly inside one class."""
    rate = 1000 * len(ACCESSES) / sum(map(lines_of, RUNTIME))
    listing = "\n".join(map(str, ACCESSES))
    assert rate <= MAX_PRIVATE_ACCESSES_PER_1000_LINES, f"{len(ACCESSES)}, {rate:.1f} per 1 000 lines:\n{listing}"


# --- one pull, few loops, one registry ------------------------------------------------------------------------


def test_pull_requests_are_assembled_in_one_place() -> None:
    """One function makes the frame of a pull request.

    Counted: functions that pass a `next_subject` to something called publish, frame or pull_frame, and functions
    that call pull_frame. The function pull_frame itself counts through its callers.
    """
    found = []
    for definition in FUNCTIONS:
        calls = [scope.node for scope in definition.nodes() if isinstance(scope.node, ast.Call)]
        makes_one = any(last_name(call) == "pull_frame" for call in calls) or any(
            last_name(call) in ("publish", "frame") and any("next_subject" in mentioned(one) for one in call.args)
            for call in calls
        )
        if makes_one and definition.function.name != "pull_frame":
            found.append(definition.place)
    assert 1 <= len(found) <= MAX_PLACES_THAT_ASSEMBLE_A_PULL, found


# Calls that take or wait for the next raw message, and what tells a status from a message.
TAKING = {"popleft", "get", "acquire", "wait", "_wait", "take", "_take", "take_one", "_take_one"}
JUDGING = {"ArrivedStatus", "StampedStatus", "read_status", "is_status", "on_status", "classify", "_judge"}


def test_few_take_loops() -> None:
    """The loop that takes messages, judges statuses, counts and hands out is written for each way of taking once.

    Counted: functions of net/ and consumers/ with a loop that calls one of TAKING, and in the same loop mentions
    one of JUDGING or yields. They are meant to be `loop`, `take_one` and `runs` of a feed, `next_message`, and the
    iteration of a plain subscription.
    """
    found = [
        definition.place
        for definition in FUNCTIONS
        if package_of(definition.module) in ("net", "consumers") and _is_take_loop(definition)
    ]
    assert 1 <= len(found) <= MAX_TAKE_LOOPS, "\n".join([f"{len(found)}:", *found])


def _is_take_loop(definition: Definition) -> bool:
    """A local name stands for what was assigned to it: `pop = feed.items.popleft`."""
    own = [scope.node for scope in definition.nodes()]
    aliases = dict(alias for node in own if isinstance(node, ast.Assign) for alias in _aliases(node))

    def name_of(node: ast.AST) -> str:
        return aliases.get(last_name(node), last_name(node))

    for loop in own:
        if isinstance(loop, (ast.While, ast.For)):
            inside = list(ast.walk(loop))
            takes = any(name_of(node) in TAKING for node in inside if isinstance(node, ast.Call))
            judges = any(isinstance(node, ast.Yield) or name_of(node) in JUDGING for node in inside)
            if takes and judges:
                return True
    return False


def _aliases(node: ast.Assign) -> Iterator[tuple[str, str]]:
    """(`pop`, `popleft`) for `pop = items.popleft`, one alone or in a tuple."""
    for target in node.targets:
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=False))
        for left, right in pairs:
            if isinstance(left, ast.Name) and isinstance(right, (ast.Name, ast.Attribute)):
                yield left.id, last_name(right)


def test_one_registry_of_receivers() -> None:
    """A connection knows what it delivers to, and tells of a loss, from one container.

    Counted: fields of classes in net/ that are annotated as a container of Receiver or of a class derived from it.
    Before there was a Receiver, these were Inlet, Listener and SingleUse.
    """
    receivers = {"Inlet", "Listener", "SingleUse"} | {one for one in CLASSES if "Receiver" in ancestors(one)}
    containers = {"dict", "list", "set", "deque", "WeakSet", "WeakValueDictionary", "OrderedDict"}
    found = []
    for module in RUNTIME:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.AnnAssign) and package_of(module) == "net":
                names = mentioned(node.annotation)
                if isinstance(node.target, ast.Attribute) and names & receivers and names & containers:
                    found.append(f"{module}:{node.lineno} {ast.unparse(node.target)}")
    assert 1 <= len(found) <= MAX_REGISTRIES_OF_RECEIVERS, found


# --- threads and locks ----------------------------------------------------------------------------------------


def _lock_names() -> set[str]:
    """Names that are assigned a lock somewhere."""
    found = set()
    for module in RUNTIME:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if last_name(node.value) in ("allocate_lock", "Lock", "RLock", "Condition"):
                    found |= {last_name(target) for target in targets}
    return found


LOCK_NAMES = _lock_names()


def _lock_of(scope: Scope) -> str:
    """The lock that a `with` takes, as in LOCKS_FOR_A_START; "" when it takes none."""
    for item in scope.node.items if isinstance(scope.node, ast.With) else ():
        lock = item.context_expr
        if isinstance(lock, (ast.Name, ast.Attribute)) and last_name(lock) in LOCK_NAMES:
            if scope.owner is not None and isinstance(lock, ast.Attribute) and is_self(lock.value):
                return f"{scope.module}: {scope.owner.name}.{lock.attr}"
            return f"{scope.module}: {ast.unparse(lock)}"
    return ""


def _starts_a_thread(scope: Scope, depth: int) -> bool:
    """Whether a node is a call that starts a thread, by itself or in functions called `depth` levels down."""
    if not isinstance(scope.node, ast.Call):
        return False
    if last_name(scope.node) in THREAD_STARTERS:
        return True
    return depth > 0 and any(
        _starts_a_thread(inner, depth - 1)
        for definition in called_functions(scope.node, scope)
        for inner in definition.nodes()
    )


def test_no_thread_is_started_under_a_lock() -> None:
    """To start a thread takes locks of Python's and waits for the thread: other threads would wait with it.

    Looked at: the blocks of `with <lock>`, and the functions that are called there.
    """
    found = defaultdict(list)
    for module in RUNTIME:
        for scope in scopes(module):
            lock = _lock_of(scope)
            for inner in below(scope) if lock else ():
                if inner.around == scope.around and _starts_a_thread(inner, CALL_DEPTH):
                    found[lock].append(ast.unparse(inner.node))
    listing = [f"{lock}: {call}" for lock, calls in found.items() for call in calls]
    assert set(found) == LOCKS_FOR_A_START, "\n".join(listing)


# --- language and size ----------------------------------------------------------------------------------------

FORBIDDEN_WORDS = re.compile("whoever|nobody|somebody", re.IGNORECASE)
WRITTEN = [
    *(path for folder in ("jetstream_sync", "pyspark_jetstream", "tests", "examples", "benchmarks", "tools", ".ci")
      for path in sorted((REPOSITORY / folder).rglob("*.py"))),
    *sorted(REPOSITORY.glob("*.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
    REPOSITORY / "Makefile",
]  # fmt: skip


def _remarks(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of the comments and docstrings of a Python file; of any other file, all its lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        # A string that stands alone is a docstring, or a remark on the assignment before it.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield from enumerate(str(node.value.value).splitlines(), node.lineno)


def test_remarks_name_the_thread_or_object() -> None:
    """Comments, docstrings and documents say which thread or object does something."""
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {text.strip()}"
        for path in WRITTEN
        for line, text in _remarks(path)
        if FORBIDDEN_WORDS.search(text)
    ]
    assert not found, "\n".join([f"{len(found)}:", *found])


def test_no_file_is_long() -> None:
    """A file is read as a whole."""
    found = {module: lines_of(module) for module in MODULES if lines_of(module) > MAX_LINES_OF_A_FILE}
    assert found == {}


def test_no_function_is_long() -> None:
    """A function fits on a screen: its docstring counts, the lines of its signature do not."""
    found = {}
    for module in MODULES:
        for scope in scopes(module):
            node = scope.node
            if isinstance(node, Function):
                length = (node.end_lineno or 0) - node.body[0].lineno + 1
                if length > MAX_LINES_OF_A_FUNCTION:
                    found[f"{module}: {Definition(scope, node).name}"] = length
    assert set(found) == set(LONGER_FUNCTIONS), found


def test_net_consumers_and_api_stay_small() -> None:
    """The parts that were rebuilt do not grow back to what they were."""
    lines = dict.fromkeys(("net", "consumers", "api"), 0)
    for module in MODULES:
        if package_of(module) in lines:
            lines[package_of(module)] += lines_of(module)
    assert sum(lines.values()) <= MAX_LINES_OF_NET_CONSUMERS_API, lines
