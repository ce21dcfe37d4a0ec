"""The table of guarantees in docs/spark.md: every cell names a test, and every test exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
HEADING = "### Case by case"
COLUMNS = ["case", "reading", "default sink", "`exactlyOnce` sink"]

LINES = (ROOT / "docs" / "spark.md").read_text().partition(HEADING)[2].partition("\n##")[0].splitlines()
TABLE = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in LINES if line.startswith("|")]
CASES = TABLE[2:]
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
}


def test_table_is_complete() -> None:
    """Four columns in every row; otherwise the tests below would miss cells."""
    assert TABLE[0] == COLUMNS
    assert len(CASES) >= 20
    assert [row for row in CASES if len(row) != len(COLUMNS)] == []


@pytest.mark.parametrize("row", CASES, ids=lambda row: row[0])
def test_every_cell_has_its_test(row: list[str]) -> None:
    """A cell says what happens and names tests that exist, or that the case does not touch that side."""
    for cell in row[1:]:
        named = re.findall(r"`(test_\w+)`", cell)
        assert bool(named) != cell.startswith("—"), cell
        assert [name for name in named if name not in TESTS] == []
