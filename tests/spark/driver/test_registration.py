"""The advice of `register` where Spark's Python cannot use the format; `test_connect_server.py` has such a Python."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_ehbalance.spark import registration


def session(path: Path, master: str) -> SimpleNamespace:
    """A session whose JVM has that PATH."""
    system = SimpleNamespace(getenv={"PATH": str(path)}.get)
    context = SimpleNamespace(pythonExec="python3", master=master)
    return SimpleNamespace(_jvm=SimpleNamespace(System=system), sparkContext=context)


def test_it_names_the_python_that_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    (tmp_path / "python3").symlink_to(sys.executable)
    found = f"Spark's Python is {tmp_path}/python3, the python3 of the PATH, as PYSPARK_PYTHON is not set; this "
    advice = registration._remedy(session(tmp_path, "local[2]"))
    assert advice.startswith(found)
    assert advice.endswith(f"Before you start it: export PYSPARK_PYTHON={sys.executable}")
    assert "--archives or --py-files" in registration._remedy(session(tmp_path, "yarn"))
    own = registration._remedy(session(Path(sys.executable).parent, "local[2]"))
    assert own.startswith("The Python that Spark starts beside the driver needs the package")
