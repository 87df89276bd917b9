"""Ships the package to a cluster that lacks it: a zip file, and a Python without the package."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import venv
import zipfile
from pathlib import Path

import pyspark

import spark_ehbalance
from tests.spark.settings import QUICK_JAVA, SETTINGS

_ROOT = Path(spark_ehbalance.__file__).parents[1]
_PACKAGES = ("spark_ehbalance", "pyspark_ehbalance")

_LOG_CONF = _ROOT / "conf/log4j2.properties"

SPARK = Path(pyspark.__file__).parent

#: Settings for all Spark sessions of these tests.
CONF = SETTINGS | {
    "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -Dlog4j2.configurationFile={_LOG_CONF}",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
}


def modules() -> list[Path]:
    """The package's files, relative to the folder that contains the package."""
    return [file.relative_to(_ROOT) for package in _PACKAGES for file in sorted((_ROOT / package).rglob("*.py"))]


def make_zip(target: Path) -> Path:
    """Create the zip file for `--py-files`."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for file in modules():
            made.write(_ROOT / file, file)
    return target


def make_environment(folder: Path) -> Path:
    """Create a virtual environment like this one but without the package; returns its Python.

    The dependencies, half a gigabyte, are not copied.
    """
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    ways = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (site / "needed.pth").write_text("\n".join(ways))  # of a folder that is added so Python reads no further .pth
    python = folder / "bin/python"
    found = subprocess.run([python, "-c", "import spark_ehbalance"], cwd=folder, env=environment(python), check=False)
    assert found.returncode, "this environment has the package in site-packages"
    return python


def environment(python: Path, **more: str) -> dict[str, str]:
    """Environment variables for a Spark whose Python is `python` and that cannot find the package."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
    return inherited | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), **more}


def spark_submit(*arguments: str, conf: dict[str, str] | None = None) -> list[str]:
    """The spark-submit command."""
    settings = [part for name, value in {**CONF, **(conf or {})}.items() for part in ("--conf", f"{name}={value}")]
    return [str(SPARK / "bin/spark-submit"), *settings, *arguments]
