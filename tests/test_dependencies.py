"""Modules that can be imported with pyspark, with pyspark-client, and without either."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (
            "spark_ehbalance.exactly_once, spark_ehbalance.spark, pyspark_ehbalance, spark_ehbalance.ops",
            ("py4j", "pyspark.core"),
        ),
        ("spark_ehbalance.ops", ("py4j", "pyspark")),
    ],
    ids=["with pyspark-client", "the command without Spark"],
)
def test_modules_need_only_their_extras(modules: str, absent: tuple[str, ...]) -> None:
    result = _import(modules, *absent)
    assert result.returncode == 0, result.stderr


def test_last_line_without_spark_names_the_extra() -> None:
    result = _import("spark_ehbalance.exactly_once", "py4j", "pyspark")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("spark_ehbalance.errors.SparkMissingError: [EHB_SPARK_MISSING] ")
    assert "pip install 'spark-ehbalance[spark]', or install 'spark-ehbalance[connect]'" in last


def test_old_spark_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text('__version__ = "3.5.7"')
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import spark_ehbalance; spark_ehbalance.register(None)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    last = result.stderr.splitlines()[-1]
    assert last.startswith("spark_ehbalance.errors.SparkMissingError: [EHB_SPARK_UNSUPPORTED] pyspark 3.5.7 ")
    assert "4.0 to 4.3" in last


#: Spark finds the class through its module, and a worker instantiates it.
_AS_SPARK = """pyspark_ehbalance
source = pyspark_ehbalance.DefaultSource
assert source.name() == "ehbalance"
source({})"""


@pytest.mark.parametrize("absent", ["azure.eventhub", "spark_ehbalance.spark.datasource"])
def test_missing_module_is_an_error_of_the_format(absent: str) -> None:
    """Spark ignores a module that cannot be imported and reports only an unknown format."""
    result = _import(_AS_SPARK, absent)
    last = result.stderr.splitlines()[-1]
    error = "spark_ehbalance.errors.InstallationError: [EHB_NOT_IMPORTABLE] The ehbalance data source cannot start in"
    assert last.startswith(f"{error} {sys.executable}")
    assert absent in last


def test_missing_package_is_an_error_of_the_format() -> None:
    result = _import(_AS_SPARK, "spark_ehbalance.errors")
    assert "ImportError: The source ehbalance cannot start" in result.stderr.splitlines()[-1]


def test_only_an_extra_installs_spark() -> None:
    """pyspark and pyspark-client install the same files, so every extra installs only one of them."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brings = {
        extra: {name for name in needed if name.startswith(("pyspark", "delta-spark"))}
        for extra, needed in {"": project["dependencies"], **project["optional-dependencies"]}.items()
    }
    assert not brings[""]
    assert [len(brings[extra]) for extra in ("spark", "connect")] == [1, 1]
