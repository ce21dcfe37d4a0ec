"""What pyright says of the public types: at least LEAST of them must be complete, and wrong calls be found.

The package `pyright` brings its own Node where there is none. It is installed into a venv of its own, because
nothing else needs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venvs" / "types"
PYRIGHT = VENV / "bin" / "pyright"
CALLS = ROOT / "tests" / "data" / "types"
LEAST = 0.98


def install() -> None:
    if not PYRIGHT.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        pip = [VENV / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "pyright"], check=True)


def completeness() -> tuple[float, list[str]]:
    """The share of public names whose type is complete, and the names of the others."""
    command = [PYRIGHT, "--verifytypes", "jetstream_sync", "--ignoreexternal", "--outputjson"]
    run = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    report = json.loads(run.stdout)["typeCompleteness"]
    incomplete = [
        symbol["name"]
        for symbol in report["symbols"]
        if symbol["isExported"] and (symbol["isTypeAmbiguous"] or not symbol["isTypeKnown"])
    ]
    return report["completenessScore"], incomplete


def objections() -> set[tuple[str, int]]:
    """The lines of right.py and wrong.py that pyright objects to."""
    run = subprocess.run([PYRIGHT, "--outputjson", CALLS], cwd=ROOT, capture_output=True, text=True)
    found = json.loads(run.stdout)["generalDiagnostics"]
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found}


def main() -> int:
    install()
    score, incomplete = completeness()
    print(f"complete types: {score:.2%}; incomplete: {', '.join(incomplete) or 'none'}")
    lines = (CALLS / "wrong.py").read_text().splitlines()
    wrong = {("wrong.py", number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    differing = sorted(objections() ^ wrong)
    print(f"calls that are judged wrongly: {differing or 'none'}")
    return score < LEAST or bool(differing)


if __name__ == "__main__":
    sys.exit(main())
