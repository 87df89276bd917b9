"""The command line and its subcommands."""

from __future__ import annotations

import errno
import inspect
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from spark_ehbalance import __version__
from spark_ehbalance.emulator.cli import emulator
from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.ops.arguments import PUBLIC, STORAGE_OPTION
from spark_ehbalance.ops.dashboard.command import dashboard
from spark_ehbalance.ops.history import history
from spark_ehbalance.ops.init import init
from spark_ehbalance.ops.maintain import maintain
from spark_ehbalance.ops.metrics import metrics
from spark_ehbalance.ops.operator_commands import drain, pin, seek, transfer
from spark_ehbalance.ops.positions import positions
from spark_ehbalance.ops.simulate import simulate
from spark_ehbalance.ops.status import status
from spark_ehbalance.settings.option_groups import expand_groups
from spark_ehbalance.settings.secrets import REFERENCES, looks_secret

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables, which may contain secrets
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"ehbalance {__version__}")
        raise typer.Exit


@app.callback()
def ehbalance(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_print_version)] = False,
) -> None:
    """Manage groups of Spark queries that share an event hub."""


def _paragraphs(command: Callable[..., None]) -> str:
    """The command's docstring with each paragraph on one line, because typer keeps line breaks."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (inspect.getdoc(command) or "").split("\n\n"))


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
    app.command(help=_paragraphs(command))(expand_groups(command))


def main() -> None:
    """Run the command. On an `EhBalanceError`, print the error on one line and exit with 1, or with 2 for an invalid
    option."""
    logging.getLogger("azure").addHandler(
        logging.NullHandler()
    )  # hides the client's warnings, because the command prints the resulting errors
    if os.environ.get("COLUMNS") == "0":  # unknown width, as in `shutil.get_terminal_size`
        del os.environ["COLUMNS"]
    if isinstance(sys.stdout, io.TextIOWrapper):  # not every encoding has the characters of a table
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if any(map(looks_secret, sys.argv[1:])):
            raise OptionError("EHB_SECRET_EXPOSED", option="An argument", reason=PUBLIC, allowed=REFERENCES)
        app()
    except EhBalanceError as error:
        typer.echo(f"Error: {error}".replace("storageOptions.", f"{STORAGE_OPTION} "), err=True)
        sys.exit(2 if isinstance(error, ValueError) else 1)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # at exit, Python flushes the remaining output
        full = EhBalanceError("EHB_FILE_NOT_WRITTEN", file="Standard output", reason=error.strerror)
        typer.echo(f"Error: {full}", err=True)
        sys.exit(1)
