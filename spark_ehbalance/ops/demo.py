"""`ehbalance demo`: what this package is for, in a minute and a half."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_ehbalance.demo.requirements import check
from spark_ehbalance.errors import OptionError


def demo(
    seconds: Annotated[float, typer.Option(help="How long the flights are sent.")] = 40,
    limit: Annotated[float, typer.Option(help="Fail after this many seconds.")] = 300,
) -> None:
    """Try it: an emulator, a producer, and two Spark queries that share a hub and write one table. One is killed."""
    for name, number in (("seconds", seconds), ("limit", limit)):
        if not number > 0:
            raise OptionError(f"--{name} {number:g}: allowed are numbers over 0")
    check()
    from spark_ehbalance.demo.run import run  # imports what `check` has looked for

    raise typer.Exit(run(seconds=seconds, limit=limit))
