"""The error of `register` names the Python that Spark starts."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_ehbalance.spark import registration


def session(path: Path, master: str) -> SimpleNamespace:
    """A session whose JVM has this PATH."""
    system = SimpleNamespace(getenv={"PATH": str(path)}.get)
    context = SimpleNamespace(pythonExec="python3", master=master)
    return SimpleNamespace(_jvm=SimpleNamespace(System=system), sparkContext=context)


def test_error_names_the_python_that_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    (tmp_path / "python3").symlink_to(sys.executable)
    found = f"Spark uses {tmp_path}/python3 (the first python3 on the PATH, as PYSPARK_PYTHON is not set)"
    for master, is_local in (("local[2]", True), ("yarn", False)):
        python = registration._describe_python(session(tmp_path, master))
        assert python.startswith(found)
        assert (f"`export PYSPARK_PYTHON={sys.executable}`" in python) == is_local
    own = registration._describe_python(session(Path(sys.executable).parent, "local[2]"))
    assert own.startswith("Spark uses the same Python as this program")
