"""An interpreter that has what Spark's workers need, pyspark and pyarrow, but not this library.

`-S` leaves out the `site` module, and with it the finder of an editable install. So the packages are linked into a
folder, which is the only entry of the path besides the standard library.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

NEEDED = ("pyspark", "py4j", "pyarrow")


def bare_packages(folder: Path) -> Path:
    """A folder with links to the packages that a worker needs."""
    packages = folder / "packages"
    if not packages.exists():
        packages.mkdir(parents=True)
        for name in NEEDED:
            spec = find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            (packages / name).symlink_to(Path(spec.origin).parent)
    return packages


def bare_python(folder: Path) -> Path:
    """A program to be named in PYSPARK_PYTHON. It keeps what Spark adds to PYTHONPATH, and adds the packages."""
    program = folder / "bare-python"
    if not program.exists():
        packages = bare_packages(folder)
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{packages}" exec "{sys.executable}" -S "$@"\n'
        )
        program.chmod(0o755)
    return program
