"""What of the package can be imported beside pyspark, beside pyspark-client, and without either."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: A module that is None in `sys.modules` counts as not installed.
_IMPORT = """
import sys
sys.modules.update(dict.fromkeys({absent}))
import spark_ehbalance, {module}
"""


def _import(module: str, *absent: str) -> subprocess.CompletedProcess[str]:
    script = _IMPORT.format(module=module, absent=list(absent))
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)


def test_nothing_needs_py4j_which_pyspark_client_lacks() -> None:
    result = _import(
        "spark_ehbalance.delta, spark_ehbalance.driver, pyspark_ehbalance, spark_ehbalance.cli", "py4j", "pyspark.core"
    )
    assert result.returncode == 0, result.stderr


def test_the_command_needs_no_spark() -> None:
    result = _import("spark_ehbalance.cli", "py4j", "pyspark")
    assert result.returncode == 0, result.stderr


def test_without_spark_the_last_line_says_what_to_install() -> None:
    result = _import("spark_ehbalance.delta", "py4j", "pyspark")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "spark_ehbalance.errors.SparkMissingError: pyspark is not installed: "
        '`pip install "spark-ehbalance[spark]"`, or, for programs whose Spark is a Spark Connect server, '
        '`pip install "spark-ehbalance[connect]"`'
    )


def test_only_an_extra_brings_spark() -> None:
    """pyspark and pyspark-client write the same files: each extra brings one of them."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brings = {
        extra: {each for each in needed if each.startswith(("pyspark", "delta-spark"))}
        for extra, needed in {"": project["dependencies"], **project["optional-dependencies"]}.items()
    }
    assert not brings[""]
    assert [len(brings[extra]) for extra in ("spark", "connect")] == [1, 1]
