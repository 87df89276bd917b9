"""`ehbalance demo`: what this package is for, in a minute and a half."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from spark_ehbalance.cli.options import StorageOptions
from spark_ehbalance.cli.picture import need_plotly
from spark_ehbalance.cli.report import report
from spark_ehbalance.demo.requirements import check
from spark_ehbalance.errors import OptionError


def demo(
    seconds: Annotated[float, typer.Option(help="How long the flights are sent.")] = 40,
    limit: Annotated[float, typer.Option(help="Fail after this many seconds.")] = 300,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines, also on a terminal.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Also draw who owned what, as `report` does.")
    ] = None,
) -> None:
    """Try it: an emulator, a producer, and two Spark queries that share a hub and write one table. One is killed."""
    for name, number in (("seconds", seconds), ("limit", limit)):
        if not number > 0:
            raise OptionError(f"--{name} {number:g}: allowed are numbers over 0")
    if out is not None:
        need_plotly()
        if not os.access(out.parent, os.W_OK) or out.is_dir():
            raise OptionError(f"--out {out}: allowed is a file in a folder that is there and can be written")
    check()
    from spark_ehbalance.demo.run import run  # imports what `check` has looked for

    def draw(lease_table: str) -> None:
        if out is not None:
            report(lease_table, StorageOptions(), out)

    raise typer.Exit(run(seconds=seconds, limit=limit, plain=plain, at_end=draw))
