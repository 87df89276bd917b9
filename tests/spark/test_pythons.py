"""A program that runs in an environment that is not activated: Spark's `python3` is another Python."""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.shipping import CONF, make_environment

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("own spark")]

Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Runs a program by the path of its Python, with arguments. The PATH's python3 has no packages."""
    python = make_environment(tmp_path / "environment", package=True)
    venv.create(tmp_path / "bare", symlinks=True)
    (tmp_path / "conf").mkdir()
    quick = ("spark.ui.enabled", "spark.driver.extraJavaOptions")
    lines = [f"{name} {CONF[name]}\n" for name in quick] + ["spark.sql.shuffle.partitions 7\n"]
    (tmp_path / "conf" / "spark-defaults.conf").write_text("".join(lines))
    ours = ("PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    environment = {name: value for name, value in os.environ.items() if name not in ours} | {
        "PATH": f"{tmp_path}/bare/bin:{os.environ['PATH']}",
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
    }

    def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "job.py").write_text(code)
        words = [python, "job.py", *arguments]
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=420)

    return run


REGISTER = """
import spark_ehbalance
from pyspark.sql import SparkSession
spark_ehbalance.register(SparkSession.builder.getOrCreate())
"""


def test_register_says_which_python_spark_starts_and_what_mends_it(program: Program, tmp_path: Path) -> None:
    done = program(REGISTER)
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert f"Spark's Python is {tmp_path}/bare/bin/python3, the python3 of the PATH, as PYSPARK_PYTHON is not" in line
    assert line.endswith(
        f"; this program's is another. Before you start it: export PYSPARK_PYTHON={tmp_path}/environment/bin/python"
    )
