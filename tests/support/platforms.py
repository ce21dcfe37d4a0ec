"""What a test needs of the platform, where not every platform has it. One name for each reason."""

from __future__ import annotations

import pytest

from jetstream_sync import _platform

needs_fork_hooks = pytest.mark.skipif(
    not _platform.FORK_HOOKS, reason="checks what a forked child does, and this platform has no fork hooks"
)
