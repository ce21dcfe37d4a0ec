"""The loggers of this library, one per area; every record names its connection.

Each `Link` owns a `Logs`. There is no handler here: an application that does not set up logging sees warnings and
errors on stderr, which is what Python does by itself. No payload, header or secret is ever logged.

Handlers of the log never run on the main thread: what it logs is written by a detached job, for which it waits
half a second at most. That job ends when the handlers return.
"""

from __future__ import annotations

import logging
import sys
import threading
from _thread import LockType, get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, TypedDict

from ._threads import HANDLER_SECONDS, acquire, detached, locked

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # cannot be subscripted before Python 3.11

AREAS: tuple[str, ...] = ("connection", "consumer", "publish", "worker", "spark")


class MessageFacts(TypedDict):
    """What a record says of a message: never its payload or headers."""

    stream: str | None
    consumer: str | None
    subject: str
    sequence: int | None


class Log(_Adapter):
    """The logger of one area for one connection.

    Records have the connection's name as their attribute `connection` (None without a name), and their text begins
    with it. `extra` of a call adds attributes. Where the level is off, nothing is formatted.
    """

    def __init__(self, area: str, connection: str | None) -> None:
        assert area in AREAS
        super().__init__(logging.getLogger(f"jetstream_sync.{area}"), {})
        self._connection = connection
        # A name is the user's: a line break in it would forge a line of the log.
        self._prefix = connection if not connection or connection.isprintable() else repr(connection)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        # Not isEnabledFor(): it may take logging's lock.
        if level < self.logger.getEffectiveLevel() or level <= self.logger.manager.disable:
            return
        if self._prefix:
            text, args = (f"%s: {msg}", args) if args else ("%s: %s", (msg,))
            msg, args = text, (self._prefix, *args)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_back is not None and frame.f_globals.get("__name__") == "logging":
            frame = frame.f_back  # info(), error() and so on of the base class
        code, line = (frame.f_code, frame.f_lineno) if frame is not None else (self.log.__code__, 0)
        error = kwargs.get("exc_info")
        if isinstance(error, BaseException):
            error = (type(error), error, error.__traceback__)
        elif error and not isinstance(error, tuple):
            error = sys.exc_info()
        extra = {"connection": self._connection, **(kwargs.get("extra") or {})}
        where = (self.logger.name, level, code.co_filename, line, msg, args, error or None, code.co_name, extra)
        self._hand_over(self.logger.makeRecord(*where))

    def _hand_over(self, record: logging.LogRecord) -> None:
        """Have the handlers write `record`: on another thread when this is the main one.

        A signal handler may raise in the main thread at any place. Inside of logging it would leave a lock taken
        for ever, on which every thread that logs would hang, or a log handler would swallow what it raised.
        """
        if get_ident() != threading.main_thread().ident:
            self._handle(record)
            return
        written = locked()
        if detached(self._handle, record, written):
            acquire(written, HANDLER_SECONDS)
        else:
            self._handle(record)  # the interpreter is shutting down

    def _handle(self, record: logging.LogRecord, written: LockType | None = None) -> None:
        try:
            self.logger.handle(record)
        except Exception as error:  # noqa: BLE001 - of a filter of the user's: it must not end the thread
            details = (type(error), error, error.__traceback__, threading.current_thread())
            threading.excepthook(threading.ExceptHookArgs(details))
        finally:
            if written is not None:
                written.release()

    def callback_raised(self, error: BaseException, facts: MessageFacts) -> None:
        """The user's callback raised `error` on a message: with the traceback, because no code gets to see it."""
        known = ", ".join(f"{name} {value!r}" for name, value in facts.items() if value is not None)
        self.error("the callback raised %s: %s", type(error).__name__, known, exc_info=error, extra=dict(facts))


class Logs:
    """The loggers of one connection."""

    __slots__ = ("connection", "consumer", "publish", "spark", "worker")

    def __init__(self, connection: str | None) -> None:
        self.connection: Log = Log("connection", connection)
        self.consumer: Log = Log("consumer", connection)
        self.publish: Log = Log("publish", connection)
        self.spark: Log = Log("spark", connection)
        self.worker: Log = Log("worker", connection)
