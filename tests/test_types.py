"""Type checkers know the keywords: mypy accepts tests/data/types/right.py and objects to each line of wrong.py.

`make types` asks pyright the same, which needs Node.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
CALLS = ROOT / "tests" / "data" / "types"


def test_mypy_objects_to_wrong_keywords_and_types_only() -> None:
    """`subjetcs=` and values of a wrong type are errors; correct calls are none."""
    command = [sys.executable, "-m", "mypy", "--strict", str(CALLS / "right.py"), str(CALLS / "wrong.py")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = {(Path(path).name, int(line)) for path, line in re.findall(r"^(.*?):(\d+): error:", run.stdout, re.M)}
    lines = (CALLS / "wrong.py").read_text().splitlines()
    assert found == {("wrong.py", number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")}, run
