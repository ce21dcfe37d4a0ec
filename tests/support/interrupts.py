"""Signal handlers that run at an exact place: every place where one could run can be tried in turn.

CPython runs a signal handler in the main thread only where it looks for signals: behind a call into C, at the
start of a function and at the jump back of a loop. `InterruptAt` runs a handler at the n-th such place that a
call passes in the given code. `everywhere` tries one place after another.
"""

from __future__ import annotations

import _weakrefset
import dis
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from tests.support.signals import Interrupted

# The instructions after which CPython looks for signals, by the beginning of their names.
LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
# These begin like that, but CPython does not look for signals after them.
NO_LOOKS = ("CALL_INTRINSIC", "JUMP_BACKWARD_NO_INTERRUPT")

# The name of an instruction, and the offset of the one that follows it in the code.
Instruction = tuple[str, int]
NONE: Instruction = ("", -1)
START: Instruction = ("RESUME", -1)


def raise_interrupted() -> None:
    raise Interrupted


class Code:
    """The code in which a handler is to run: some functions, or all that some modules define.

    Behind the call of a Python function CPython 3.11 and later do not look for signals. With whole modules this
    is no place. With functions it is one: it stands for the places inside the function that is called.
    """

    def __init__(self, *parts: Callable[..., Any] | ModuleType) -> None:
        self.whole_modules = any(isinstance(part, ModuleType) for part in parts)
        if self.whole_modules:
            files = {part.__file__ for part in parts if isinstance(part, ModuleType)}
            functions = [one for one in gc.get_objects() if type(one) is FunctionType]
            codes = [one.__code__ for one in functions if one.__code__.co_filename in files]
        else:
            codes = [part.__code__ for part in parts if isinstance(part, FunctionType)]
        self.instructions = {code: _instructions(code) for code in _with_inner(codes)}


def _instructions(code: CodeType) -> dict[int, Instruction]:
    found = list(dis.get_instructions(code))
    following = [at.offset for at in found[1:]] + [-1]
    return {at.offset: (at.opname, after) for at, after in zip(found, following, strict=True)}


def _with_inner(codes: list[CodeType]) -> Iterator[CodeType]:
    """The codes, and those of the functions and comprehensions defined inside them."""
    for code in codes:
        yield code
        yield from _with_inner([const for const in code.co_consts if isinstance(const, CodeType)])


class InterruptAt:
    """Runs `handler` once, at the n-th place (counted from 0) where a signal handler could run in `code`."""

    def __init__(self, code: Code, place: int, handler: Callable[[], None] = raise_interrupted) -> None:
        self._instructions = code.instructions
        self._whole_modules = code.whole_modules
        self._left = place
        self._handler = handler
        self._thread = threading.get_ident()
        self._previous: dict[int, Instruction] = {}  # by the id of a frame: what it executed last
        self.where = ""
        """The function and line where the handler ran; empty: the call passed fewer places."""

    @property
    def done(self) -> bool:
        """Whether the handler ran."""
        return self.where != ""

    def call(self, work: Callable[[], object]) -> None:
        """Call `work`. Interrupted, which the handler may raise, ends here."""
        handled = sys.exc_info()[1]
        try:
            with self._observed():
                work()
        except Interrupted:
            pass
        assert sys.exc_info()[1] is handled, f"{self.where} is no place: the interpreter took it for a handler"

    def _before_instruction(self, frame: FrameType) -> None:
        """`frame` is about to execute an instruction: run the handler if the place is the one."""
        instruction = self._instructions[frame.f_code].get(frame.f_lasti, NONE)
        (previous, following), self._previous[id(frame)] = self._previous.get(id(frame), NONE), instruction
        if self.done or instruction[0] == "RESUME":
            return
        if not previous.startswith(LOOKS) or previous.startswith(NO_LOOKS):
            return
        if previous.startswith("CALL") and frame.f_lasti != following:
            # The call raised, so CPython went on to an exception handler without a look. An exception raised here
            # would leave that of the call as the context of all that the thread raises later.
            return
        if in_finalizer(frame):
            return
        self._left -= 1
        if self._left < 0:
            name = frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name
            self.where = f"{name}:{frame.f_lineno}"
            self._handler()

    @contextmanager
    def _observed(self) -> Iterator[None]:
        if sys.version_info >= (3, 12):
            with self._monitored():
                yield
            return
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    # --- until Python 3.11: sys.settrace ---

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call" and self._whole_modules and frame.f_code.co_name != "__init__":
            self._previous[id(frame.f_back)] = NONE  # the caller called a Python function
        if frame.f_code not in self._instructions:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "call":
            self._previous[id(frame)] = START
        elif event == "opcode":
            self._before_instruction(frame)
        return self._trace

    # --- from Python 3.12 on: sys.monitoring ---

    if sys.version_info >= (3, 12):

        @contextmanager
        def _monitored(self) -> Iterator[None]:
            monitoring, tool, events = sys.monitoring, sys.monitoring.DEBUGGER_ID, sys.monitoring.events
            callbacks = {
                events.PY_START: self._on_start,
                events.PY_RESUME: self._on_start,
                events.INSTRUCTION: self._on_instruction,
                events.CALL: self._on_call,
            }
            monitoring.use_tool_id(tool, "interrupts")
            for event, callback in callbacks.items():
                monitoring.register_callback(tool, event, callback)
            for code in self._instructions:
                monitoring.set_local_events(tool, code, sum(callbacks))
            try:
                yield
            finally:
                for code in self._instructions:
                    monitoring.set_local_events(tool, code, 0)
                for event in callbacks:
                    monitoring.register_callback(tool, event, None)
                monitoring.free_tool_id(tool)

        def _on_start(self, _: CodeType, offset: int) -> None:
            if threading.get_ident() == self._thread:
                self._previous[id(sys._getframe(1))] = START  # for RESUME there is no instruction event

        def _on_instruction(self, _: CodeType, offset: int) -> None:
            if threading.get_ident() == self._thread:
                self._before_instruction(sys._getframe(1))

        def _on_call(self, _: CodeType, offset: int, called: object, argument: object) -> None:
            python = isinstance(called, (FunctionType, MethodType))
            if python and self._whole_modules and threading.get_ident() == self._thread:
                self._previous[id(sys._getframe(1))] = NONE


def in_finalizer(frame: FrameType | None) -> bool:
    """Whether `frame` runs in a finalizer: the interpreter prints what is raised there, and goes on.

    That is a `__del__`, or the callback of a weak reference, which the set of all threads has for each of them.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or code.co_filename == _weakrefset.__file__:
            return True
        frame = frame.f_back
    return False


def everywhere(
    prepare: Callable[[], Callable[[], object]], check: Callable[[str], None], *modules: ModuleType
) -> int:
    """Interrupt what `prepare` returns at one place of `modules` after another; return how many there are.

    It ends when a call passes uninterrupted. `check` is called after each interrupted one, with the place.
    """
    code = Code(*modules)
    place = 0
    while True:
        interrupt = InterruptAt(code, place)
        interrupt.call(prepare())
        if not interrupt.done:
            return place
        check(interrupt.where)
        place += 1
