"""How the stress tests print what they have found, and end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

import typer
from rich.console import Console

from spark_ehbalance.cli.common import table


def log(line: object) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str) -> None:
    """All columns but the first are aligned to the right."""
    Console(width=None if sys.stdout.isatty() else 150).print(table(columns, rows, title=title, right=columns[1:]))


def finish(passed: bool) -> NoReturn:
    """End the program; the exit code is 1 if a bar was missed."""
    log("OK" if passed else "FAILED")
    raise typer.Exit(not passed)
