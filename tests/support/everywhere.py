"""Exceptions of signal handlers at every place where one can come, one place after another.

A signal handler runs, and may raise, only where CPython looks for signals: behind a call into C, at a function's
start and at a loop's jump back. `InterruptAt` raises at the n-th such place that a call passes within the given
modules.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType, ModuleType
from typing import Any

OPENINGS = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")


class Interrupted(Exception):
    """What the signal handler raises."""


class InterruptAt:
    """Interrupts one call, at the n-th place where a signal handler could run in the code of `modules`."""

    def __init__(self, place: int, *modules: ModuleType) -> None:
        self._left = place
        self._files = {module.__file__ for module in modules}
        self._codes: dict[CodeType, dict[int, str]] = {}
        self._before: dict[FrameType, str] = {}
        self.where = ""
        """The place where it raised; empty: the call had fewer places."""

    def call(self, work: Callable[[], object]) -> None:
        """Do `work`, interrupted."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            work()
        except Interrupted:
            pass
        finally:
            sys.settrace(before)
            self._before.clear()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        caller = frame.f_back
        if event == "call" and caller in self._before and frame.f_code.co_name != "__init__":
            self._before[caller] = ""  # a Python function: no look behind this call, but at its start
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "call":
            self._before[frame] = "RESUME"
        elif event == "opcode":
            self._step(frame)
        return self._trace

    def _step(self, frame: FrameType) -> None:
        """An instruction is about to be executed."""
        code = frame.f_code
        if code not in self._codes:
            self._codes[code] = {at.offset: at.opname for at in dis.get_instructions(code)}
        before = self._before.get(frame, "")
        self._before[frame] = self._codes[code].get(frame.f_lasti, "")
        if before.startswith(OPENINGS) and not self.where and not _in_finalizer(frame):
            self._left -= 1
            if self._left < 0:
                self.where = (
                    f"{code.co_qualname}:{frame.f_lineno}" if sys.version_info >= (3, 11) else code.co_name
                )
                raise Interrupted


def _in_finalizer(frame: FrameType | None) -> bool:
    """Whether the interpreter would print what is raised here, and go on."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def everywhere(
    prepare: Callable[[], Callable[[], object]], check: Callable[[str], None], *modules: ModuleType
) -> int:
    """Interrupt what `prepare` returns at one place after another, until it passes; returns how many there were.

    `check` is called after each, with the place.
    """
    place = 0
    while True:
        interrupt = InterruptAt(place, *modules)
        interrupt.call(prepare())
        if not interrupt.where:
            return place
        check(interrupt.where)
        place += 1
