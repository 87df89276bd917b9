"""The command line: one sub-command per file, put together here."""

from __future__ import annotations

import sys

import typer

from spark_ehbalance.cli.group import init, status
from spark_ehbalance.cli.operate import drain, history, maintain
from spark_ehbalance.cli.orders import pin, seek, transfer, unpin
from spark_ehbalance.cli.report import report
from spark_ehbalance.cli.simulate import simulate
from spark_ehbalance.emulator.cli import emulator
from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.values.secrets import REFERENCES, looks_secret

app = typer.Typer(
    help="Look after groups of Spark queries that share an event hub.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, and those may hold secrets
)
for command in (emulator, init, status, transfer, pin, unpin, drain, seek, history, maintain, report, simulate):
    app.command()(command)


def main() -> None:
    """Run the command. An error that the user can act upon is one line, and exit code 1 (2 for a wrong option)."""
    try:
        # The emulator is told keys to check, which are not those of anything real.
        if sys.argv[1:2] != ["emulator"] and any(map(looks_secret, sys.argv[1:])):
            raise OptionError(
                f"an argument looks like a secret, and command lines are for all to see: write {REFERENCES}"
            )
        app()
    except EhBalanceError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, ValueError) else 1)
