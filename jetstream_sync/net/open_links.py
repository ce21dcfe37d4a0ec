"""The links that are not closed. Those that a forked child inherits belong to the parent."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from .._platform import on_fork

if TYPE_CHECKING:
    from .link import Link

links: weakref.WeakSet[Link] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for link in list(links):
        link.forked = True  # its locks may be held for ever: what is inherited is marked, and used no more
        link.direct_receive.orphan()


on_fork(_after_fork_in_child)
