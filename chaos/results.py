"""The options of a scenario, and functions that print its results."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from spark_ehbalance.ops.common import table


@dataclass(frozen=True)
class RunOptions:
    """The options of a run; see `chaos.__main__`."""

    minutes: float
    seed: int
    plain: bool = False
    short: bool = False
    keep: Path | None = None


def log(line: object) -> None:
    """Print a line immediately, even if the output is a pipe."""
    print(line, flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str) -> None:
    """Print a table. All columns except the first are aligned to the right."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(title, table(columns, rows, right=columns[1:]), sep="\n")
