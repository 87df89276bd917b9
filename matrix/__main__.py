"""The short matrix: `python -m matrix [4.0 4.3 ...]`.

Makes an environment for each of these versions of Spark (all four without arguments), runs the checks in it, and prints
what works where as a table. Two versions at a time. Exits with 1 if a check has failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer
from rich.console import Console
from rich.table import Table

from matrix.checks import titles
from matrix.environments import ROOT, SPARKS, Environment, EnvironmentFailed

FAILED = "[red]failed[/red]"

#: Seconds for the checks of one version, also on a machine with much else to do.
_TIMEOUT = 1200

#: What Spark says if its Python did not start within its 10 or 15 s, as on a machine with much else to do. Then the
#: checks are run once more.
_TOO_SLOW = ("failed to connect back", "CANNOT_OPEN_SOCKET")

Results = Mapping[str, str]


def run_checks(environment: Environment) -> Results:
    """Run the checks. Returns what to show of each, by its function, and prints the output of those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [environment.python, "-m", "pytest", "matrix/checks", "-q", "-p", "no:cacheprovider"]
        for _ in range(2):
            done = subprocess.run(
                [*map(str, command), f"--junitxml={report}", "-o", "junit_family=xunit1"],
                cwd=ROOT,
                env=environment.variables() | {"EHBALANCE_MATRIX_SPARK": environment.spark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_TIMEOUT,
            )
            if not done.returncode or not any(each in done.stdout for each in _TOO_SLOW):
                break
        if done.returncode or not report.exists():
            print(f"--- Spark {environment.spark} ---\n{done.stdout}", flush=True)
        return read_report(report) if report.exists() else {}


def read_report(report: Path) -> dict[str, str]:
    """What to show of each check, by its function; the worst of its outcomes if it has parameters."""
    results: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("name", "").partition("[")[0]
        skipped, note = case.find("skipped"), case.find("properties/property[@name='note']")
        if case.find("failure") is not None or case.find("error") is not None:
            results[name] = FAILED
        elif skipped is not None:
            results.setdefault(name, f"[yellow]{skipped.get('message')}[/yellow]")
        else:
            results.setdefault(name, "[green]ok[/green]" + (f", {note.get('value')}" if note is not None else ""))
    return results


def table_of(found: Mapping[str, Results]) -> Table:
    table = Table("", *(f"Spark {spark}" for spark in found), title="What works with which Spark", show_lines=True)
    for name, title in titles().items():
        table.add_row(title, *(results.get(name, FAILED) for results in found.values()))
    return table


def one(version: str) -> Results:
    """The environment and the checks of one version; no results if it could not be made."""
    environment = Environment(SPARKS[version])
    try:
        _tell(environment, "makes the environment, unless it is there")
        environment.make()
        _tell(environment, "runs the checks")
        results = run_checks(environment)
        _tell(environment, "has " + ("passed" if is_good(results) else "failed"))
        return results
    except (EnvironmentFailed, subprocess.TimeoutExpired) as error:
        print(f"matrix: Spark {version}: {error}", flush=True)
        return {}


def _tell(environment: Environment, what: str) -> None:
    print(f"{datetime.now():%H:%M:%S} matrix: Spark {environment.spark} {what}", flush=True)


def main(
    versions: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(SPARKS)}; all if none is given.")] = None,
) -> None:
    """What works with which Spark."""
    chosen = versions or list(SPARKS)
    if wrong := [each for each in chosen if each not in SPARKS]:
        sys.exit(f"matrix: there is no {wrong[0]}: choose of {', '.join(SPARKS)}")
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip((SPARKS[each] for each in chosen), pool.map(one, chosen), strict=True))
    Console(width=None if sys.stdout.isatty() else 140).print(table_of(found))
    if failed := [spark for spark, results in found.items() if not is_good(results)]:
        sys.exit(f"matrix: failed with Spark {', '.join(failed)}")


def is_good(results: Results) -> bool:
    return results.keys() == titles().keys() and FAILED not in results.values()


if __name__ == "__main__":
    typer.run(main)
