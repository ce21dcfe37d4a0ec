"""Makes the zip that ships this library to Spark's executors, where it is not installed.

    python -m jetstream_sync.spark.package out.zip
    PYTHONPATH=/path/to/out.zip spark-submit --py-files /path/to/out.zip program.py

The zip has the packages `jetstream_sync` and `pyspark_jetstream`, without the helpers for tests. It has source
files only, so it works with every Python that the library supports. The same source gives the same bytes.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("jetstream_sync", "pyspark_jetstream")
LEFT_OUT = frozenset(("__pycache__", "testing"))

# The earliest time that a zip can record. With the real one, the same source would give another zip each time.
_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644 << 16

_NEXT = """\
{path} has jetstream_sync and pyspark_jetstream, {files} files. The executors need pyarrow besides.

  PYTHONPATH={path} spark-submit --py-files {path} program.py

--py-files serves the executors, PYTHONPATH the processes of the driver that plan streaming queries.
In the program: `from jetstream_sync.spark import register; register(spark)`.
"""


def package(path: str | os.PathLike[str]) -> int:
    """Write the zip to `path`, in one step, and return how many files it has.

    Raises OSError when `path` cannot be written, and FileNotFoundError when this process itself runs from a zip.
    """
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    files = sorted(_source_files())
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, source in files:
                entry = zipfile.ZipInfo(name, _TIME)
                entry.external_attr = _MODE
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, source.read_bytes())
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return len(files)


def _source_files() -> Iterator[tuple[str, Path]]:
    """The name in the zip and the path of every source file."""
    own = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        folder = own.with_name(name)
        if not folder.is_dir():
            raise FileNotFoundError(f"no folder {str(folder)!r}: the zip is made from an installed library")
        for source in folder.rglob("*.py"):
            inside = source.relative_to(folder.parent)
            if LEFT_OUT.isdisjoint(inside.parts):
                yield inside.as_posix(), source


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m jetstream_sync.spark.package out.zip\n")
        return 2
    path = arguments[0]
    if not path.endswith(".zip"):
        sys.stderr.write(f"{path}: the name must end in .zip, or Spark does not put it on sys.path\n")
        return 2
    try:
        files = package(path)
    except OSError as error:
        sys.stderr.write(f"{path}: {error}\n")
        return 1
    sys.stdout.write(_NEXT.format(path=os.path.abspath(path), files=files))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
