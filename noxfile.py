"""Checks with other versions of Spark: `make test-matrix ARGS="4.0 4.3"`, and `make test-lowest`.

Each session has an environment of its own below `.nox`, with this project as a user installs it.
"""

from __future__ import annotations

from pathlib import Path

import nox
from nox.command import CommandFailed
from packaging.requirements import Requirement

#: The newest patch releases of the supported Sparks. That of 4.2 is newer than the one in `.venv`.
SPARKS = {"4.0": "4.0.5", "4.1": "4.1.4", "4.2": "4.2.1", "4.3": "4.3.0"}

OLDEST = "4.0"

_EXTRAS = ("blob", "emulator", "spark")
_TEST_TOOLS = ("hypothesis", "prometheus-client", "pytest", "pytest-timeout", "pytest-xdist")

#: Packages whose version depends on Spark's.
_SPARKS_OWN = ("delta-spark", "py4j", "pyspark")

nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True


@nox.session(tags=["matrix"])
@nox.parametrize("version", [nox.param(version, id=version) for version in SPARKS])
def spark(session: nox.Session, version: str) -> None:
    """Batch, stream, leases, restart and sink with one Spark; with the oldest one, all dependencies are the lowest."""
    install(session, version)
    session.run("python", "scripts/fetch_jars.py")
    try:
        run_pytest(session, "tests/versions/checks.py")
    except CommandFailed:  # Spark gives its Python 10 s to start, too few for a busy machine
        session.log("running the failed checks once more")
        run_pytest(session, "tests/versions/checks.py", "--last-failed")


@nox.session
def lowest(session: nox.Session) -> None:
    """Tests without Spark, with the lowest versions that pyproject.toml allows."""
    install(session, OLDEST)
    run_pytest(session, "-m", "not spark", *(session.posargs or ["tests/lease_table", "tests/eventhub", "tests/query"]))


def install(session: nox.Session, version: str) -> None:
    lowest = lowest_versions() if version == OLDEST else {}
    lines = Path("constraints.txt").read_text().splitlines()
    kept = [line for line in lines if line.partition("==")[0] not in (*_SPARKS_OWN, *lowest)]
    constraints = Path(session.create_tmp(), "constraints.txt")
    constraints.write_text("\n".join([*kept, *(f"{name}=={lowest[name]}" for name in lowest), ""]))
    extras = f".[{','.join(_EXTRAS)}]"
    session.install("-q", "-c", str(constraints), "-e", extras, f"pyspark=={SPARKS[version]}", *_TEST_TOOLS)


def lowest_versions() -> dict[str, str]:
    """The lowest version that `pyproject.toml` allows of each package that users get, but for pyspark."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    extras = project["optional-dependencies"]
    texts = (*project["dependencies"], *(text for extra in _EXTRAS for text in extras[extra]))
    needed = [found for found in map(Requirement, texts) if found.marker is None or found.marker.evaluate()]
    bounds = {found.name: [bound.version for bound in found.specifier if bound.operator == ">="] for found in needed}
    if missing := [name for name, found in bounds.items() if not found]:
        raise ValueError(f"pyproject.toml has no lower bound for {', '.join(missing)}")
    return {name: found[0] for name, found in bounds.items() if name != "pyspark"}


def run_pytest(session: nox.Session, *arguments: str) -> None:
    python = f"{session.bin}/python"
    own = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "SPARK_HOME": None}
    session.run("pytest", "-q", "-o", f"cache_dir={session.create_tmp()}/cache", *arguments, env=own)
