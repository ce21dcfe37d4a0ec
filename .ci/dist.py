"""Builds the wheel and the source distribution into dist/, and checks what is in them.

    python .ci/dist.py            build and check
    python .ci/dist.py --test     and run the unit and integration tests from the unpacked source distribution

The wheel has the packages and nothing else. The source distribution has every file of the repository.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
VENV = ROOT / ".venvs" / "dist"
PACKAGES = ("jetstream_sync", "pyspark_jetstream")
NOT_DISTRIBUTED = {".gitignore"}


def build() -> None:
    python = VENV / "bin" / "python"
    if not (VENV / "bin" / "pyproject-build").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "build", "twine"], check=True)
    for old in DIST.glob("*"):
        old.unlink()
    subprocess.run([python, "-m", "build", "--outdir", DIST, ROOT], check=True, stdout=subprocess.DEVNULL)
    # Renders the README as a package index does.
    subprocess.run([python, "-m", "twine", "check", "--strict", *DIST.glob("*")], check=True)


def repository_files() -> set[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(listed.stdout.splitlines()) - NOT_DISTRIBUTED


def check_wheel(expected: set[str]) -> None:
    names = set(zipfile.ZipFile(next(DIST.glob("*.whl"))).namelist())
    found = {name for name in names if ".dist-info/" not in name}
    _compare("wheel", found, {name for name in expected if name.split("/")[0] in PACKAGES})
    assert any(name.endswith("licenses/LICENSE") for name in names), "the wheel has no licence"


def check_source(expected: set[str]) -> None:
    with tarfile.open(next(DIST.glob("*.tar.gz"))) as archive:
        names = {member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()}
    found = {name for name in names if ".egg-info/" not in name and name != "PKG-INFO"}
    _compare("source distribution", found, expected)


def _compare(what: str, found: set[str], expected: set[str]) -> None:
    assert found == expected, f"{what}: missing {sorted(expected - found)}, too many {sorted(found - expected)}"
    print(f"{what}: {len(found)} files")


def run_tests() -> None:
    """The tests run in the unpacked archive with the interpreter that runs this, which has what they need."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(next(DIST.glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        unpacked = next(Path(folder).iterdir())
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
        subprocess.run([*command, "tests/unit", "tests/integration"], cwd=unpacked, check=True)


if __name__ == "__main__":
    build()
    check_wheel(repository_files())
    check_source(repository_files())
    if "--test" in sys.argv:
        run_tests()
