"""Which threads of the library are running."""

from __future__ import annotations

import threading


def library_threads(*kinds: str) -> set[threading.Thread]:
    """The running threads of the library: all, or those whose names begin with one of `kinds`."""
    return {thread for thread in threading.enumerate() if thread.name.startswith(kinds or "js-")}


def thread_names(*kinds: str) -> list[str]:
    """The names of `library_threads(*kinds)`, sorted. Threads of several connections may share a name."""
    return sorted(thread.name for thread in library_threads(*kinds))
