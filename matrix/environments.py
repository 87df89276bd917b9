"""A virtual environment for each version of Spark, below `.venv-matrix`: made once, kept until its inputs change.

It has a pyspark, the Delta jars that go with it, and this project of its own. All other packages are those of `.venv`;
with the oldest Spark, those that the project depends on are the lowest versions that `pyproject.toml` allows.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".venv-matrix"

#: The newest patch releases of the supported Sparks. That of 4.2 is newer than the one in `.venv`.
SPARKS = {"4.0": "4.0.5", "4.1": "4.1.4", "4.2": "4.2.1", "4.3": "4.3.0"}

#: The extras whose packages an environment has.
_EXTRAS = ("blob", "dashboard", "delta", "emulator", "spark")

#: What decides what an environment has.
_INPUTS = (
    "constraints.txt",
    "matrix/environments.py",
    "pyproject.toml",
    "scripts/fetch_jars.py",
    "spark_ehbalance/spark_versions.py",
)


class EnvironmentFailed(Exception):
    """An environment could not be made; the message has the end of what pip or Spark said."""


@dataclass(frozen=True)
class Environment:
    spark: str

    @property
    def folder(self) -> Path:
        return FOLDER / self.spark

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """The environment variables of a process that uses it."""
        mine = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "VIRTUAL_ENV")}
        return mine | {
            "PATH": f"{self.folder / 'bin'}:{mine.get('PATH', '')}",
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
        }

    def make(self) -> None:
        """Make it, unless it is there and its inputs are the same. Raises `EnvironmentFailed`."""
        stamp, inputs = self.folder / "stamp", _digest(self.spark)
        if stamp.exists() and stamp.read_text() == inputs:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self._run(sys.executable, "-m", "venv", "--without-pip", str(self.folder))
        self._pip("--no-deps", f"pyspark=={self.spark}")
        self._share()
        # As a user would, with pip's own choice of versions: none may take the place of the pyspark that is there.
        self._pip("--constraint", str(self._constraints()), "--editable", f"{ROOT}[{','.join(_EXTRAS)}]")
        found = self._run(str(self.python), "-c", "import pyspark; print(pyspark.__version__)").strip()
        if found != self.spark:
            raise EnvironmentFailed(f"pip has put pyspark {found} in the place of {self.spark}")
        self._run(str(self.python), str(ROOT / "scripts" / "fetch_jars.py"))
        stamp.write_text(inputs)

    def _share(self) -> None:
        """Let it import the packages of `.venv`, after its own. `site` reads no .pth files there: that of this project
        among them."""
        ours, shared = (Path(self._packages(python)) for python in (str(self.python), sys.executable))
        (ours / "shared.pth").write_text(f"{shared}\n")

    def _packages(self, python: str) -> str:
        return self._run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()

    def _constraints(self) -> Path:
        """The versions that `.venv` has, or the lowest; but for those that depend on Spark's."""
        ours = ("pyspark", "py4j", "delta-spark")
        lowest = lowest_versions() if self.spark == SPARKS["4.0"] else {}
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        kept = [line for line in lines if line.partition("==")[0] not in (*ours, *lowest)]
        file = self.folder / "constraints.txt"
        file.write_text("\n".join([*kept, *(f"{name}=={version}" for name, version in lowest.items()), ""]))
        return file

    def _pip(self, *arguments: str) -> None:
        quiet = ("--quiet", "--no-input", "--disable-pip-version-check")
        self._run(sys.executable, "-m", "pip", "--python", str(self.python), "install", *quiet, *arguments)

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.variables(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900
        )
        if done.returncode:
            end = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            raise EnvironmentFailed(f"{end}\nno environment for Spark {self.spark}: {command[0]} failed")
        return done.stdout


def lowest_versions() -> dict[str, str]:
    """The lowest version that `pyproject.toml` allows, of each package that users get, but for pyspark.

    Raises `EnvironmentFailed` for one without a lower bound.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    found = {}
    for text in (*project["dependencies"], *(each for extra in _EXTRAS for each in extras[extra])):
        each = Requirement(text)
        if each.name != "pyspark" and (each.marker is None or each.marker.evaluate()):
            bound = next((one.version for one in each.specifier if one.operator == ">="), None)
            if bound is None:
                raise EnvironmentFailed(f"pyproject.toml has no lower bound for {each.name}")
            found[each.name] = bound
    return found


def _digest(spark: str) -> str:
    digest = hashlib.sha256(f"{spark} {ROOT} {sys.version}".encode())
    for name in _INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":  # for `make test-lowest`
    oldest = Environment(SPARKS["4.0"])
    oldest.make()
    print(oldest.python)
