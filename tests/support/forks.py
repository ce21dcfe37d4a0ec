"""Forked children in tests. Each has a time limit: a child that hangs would keep the test runner from ending."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

CHILD_SECONDS = 10.0


def end_in_time() -> None:
    """In a child: have SIGALRM kill it if it hangs, whichever lock it waits for."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(CHILD_SECONDS))


def in_child(work: Callable[[], Any]) -> Any:
    """Run `work` in a forked child and return its result as JSON. Fails if the child fails or takes too long."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        end_in_time()
        try:
            answer = json.dumps({"result": work()})
        except BaseException:  # noqa: BLE001 - the parent fails the test with it
            answer = json.dumps({"failure": traceback.format_exc()})
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with status {status}"
    told = json.loads(answer)
    assert "failure" not in told, told["failure"]
    return told["result"]


def raised_by(call: Callable[[], object]) -> str:
    """The class name of the error that `call` raises, or "nothing"."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - the caller compares it
        return type(error).__name__
    return "nothing"
