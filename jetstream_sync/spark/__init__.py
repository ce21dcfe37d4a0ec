"""JetStream as a source and a sink of Spark. Needs the extra `spark`: pyspark 4.0 or later, and pyarrow.

The names that need pyspark are imported on first use, so that the other modules work without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .lag import Lag
from .shared import connection

if TYPE_CHECKING:
    from .lag_listener import LagListener
    from .source import JetStreamDataSource, register

__all__ = ["JetStreamDataSource", "Lag", "LagListener", "connection", "register"]


def __getattr__(name: str) -> Any:
    if name in ("JetStreamDataSource", "register"):
        from . import source  # an optional extra

        return getattr(source, name)
    if name == "LagListener":
        from .lag_listener import LagListener  # an optional extra

        return LagListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
