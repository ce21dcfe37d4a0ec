"""The schema of the source in Spark's types. arrow.py has the corresponding types of Arrow."""

from __future__ import annotations

from pyspark.sql.types import StructType

COLUMNS = {
    "stream": "string",
    "subject": "string",
    "seq": "bigint",
    "ts": "timestamp",
    "headers": "map<string, array<string>>",
    "data": "binary",
}
TS_NANOS = {"ts_ns": "bigint"}


def default_schema(*, ts_nanos: bool) -> str:
    """The schema when the user gives none."""
    columns = COLUMNS | TS_NANOS if ts_nanos else COLUMNS
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def checked_columns(schema: StructType) -> tuple[str, ...]:
    """The columns to read. Raises ValueError for a column that does not exist or has another type."""
    known = COLUMNS | TS_NANOS
    for column in schema.fields:
        kind = known.get(column.name)
        if kind is None:
            raise ValueError(f"format jetstream has no column {column.name!r}; it has {', '.join(known)}")
        if column.dataType.simpleString() != kind.replace(" ", ""):
            raise ValueError(
                f"column {column.name!r} of format jetstream is {kind}, not {column.dataType.simpleString()}"
            )
    return tuple(schema.fieldNames())
