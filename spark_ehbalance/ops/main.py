"""The command line: registers the sub-commands."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from spark_ehbalance import __version__
from spark_ehbalance.emulator.cli import emulator
from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.ops.dashboard_command import dashboard
from spark_ehbalance.ops.history import history
from spark_ehbalance.ops.init import init
from spark_ehbalance.ops.maintain import maintain
from spark_ehbalance.ops.metrics import metrics
from spark_ehbalance.ops.orders import drain, pin, seek, transfer
from spark_ehbalance.ops.positions import positions
from spark_ehbalance.ops.simulate import simulate
from spark_ehbalance.ops.status import status
from spark_ehbalance.settings.option_groups import expanded
from spark_ehbalance.settings.secrets import REFERENCES, looks_secret

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, and those may hold secrets
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ehbalance {__version__}")
        raise typer.Exit


@app.callback()
def ehbalance(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_print_version)] = False,
) -> None:
    """Manage groups of Spark queries that share an event hub."""


def _paragraphs(command: Callable[..., None]) -> str:
    """The docstring with one line for each paragraph: typer keeps line breaks, which are for another width."""
    return "\n\n".join(" ".join(each.split()) for each in (inspect.getdoc(command) or "").split("\n\n"))


for command in (
    emulator,
    init,
    positions,
    status,
    metrics,
    dashboard,
    transfer,
    pin,
    drain,
    seek,
    history,
    maintain,
    simulate,
):
    app.command(help=_paragraphs(command))(expanded(command))


def main() -> None:
    """Run the command. An `EhBalanceError` is printed in one line; the exit code is 1, or 2 for a wrong option."""
    logging.getLogger("azure").addHandler(logging.NullHandler())  # what it warns of comes as an error as well
    try:
        if any(map(looks_secret, sys.argv[1:])):
            raise OptionError(
                f"an argument looks like a secret, and command lines are for all to see: write {REFERENCES}"
            )
        app()
    except EhBalanceError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, ValueError) else 1)
