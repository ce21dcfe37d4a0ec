"""Exceptions from a signal handler at an exact place: every place where one could come can be tried in turn."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

# Where CPython lets signal handlers run: behind a call, at a function's start, at a loop's jump back.
OPENINGS = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")


class Interrupted(Exception):
    """What a signal handler of the user's raises."""


def raise_interrupted() -> None:
    raise Interrupted


class Codes:
    """The functions in which a signal handler is to run."""

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        codes = [function.__code__ for function in functions if isinstance(function, FunctionType)]
        self.operations: dict[CodeType, dict[int, str]] = {
            code: {at.offset: at.opname for at in dis.get_instructions(code)} for code in codes
        }


class InterruptAt:
    """Does what a signal handler might, at the n-th place where one could run within `codes`."""

    def __init__(self, codes: Codes, place: int, handler: Callable[[], None] = raise_interrupted) -> None:
        self._codes = codes.operations
        self._left = place
        self._handler = handler
        self._thread = threading.get_ident()
        self._before: dict[CodeType, str] = {}
        self.done = False

    def call(self, work: Callable[[], object]) -> None:
        """Call `work`; what the handler raises ends here."""
        try:
            with self._observed():
                work()
        except Interrupted:
            pass

    def _step(self, code: CodeType, offset: int) -> None:
        """An instruction is about to be executed."""
        if self.done or threading.get_ident() != self._thread:
            return
        before = self._before.get(code, "")
        self._before[code] = self._codes[code].get(offset, "")
        if before.startswith(OPENINGS):
            self._left -= 1
            if self._left < 0:
                self.done = True
                self._handler()

    @contextmanager
    def _observed(self) -> Iterator[None]:
        if sys.version_info < (3, 12):
            before = sys.gettrace()
            sys.settrace(self._trace)
            try:
                yield
            finally:
                sys.settrace(before)
            return
        monitoring, tool = sys.monitoring, sys.monitoring.DEBUGGER_ID
        monitoring.use_tool_id(tool, "interrupts")
        monitoring.register_callback(tool, monitoring.events.INSTRUCTION, self._step)
        for code in self._codes:
            monitoring.set_local_events(tool, code, monitoring.events.INSTRUCTION)
        try:
            yield
        finally:
            for code in self._codes:
                monitoring.set_local_events(tool, code, 0)
            monitoring.register_callback(tool, monitoring.events.INSTRUCTION, None)
            monitoring.free_tool_id(tool)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in self._codes:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            self._step(frame.f_code, frame.f_lasti)
        return self._trace
