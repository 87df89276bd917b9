"""`ehbalance jobs`: where the job for spark-submit is, and how to run it."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from spark_ehbalance import shipped
from spark_ehbalance.errors import EhBalanceError

_FILES = {"job": shipped.JOB, "settings": shipped.CONF, "logging": shipped.LOG4J}


def jobs(
    copy_to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Copy them into this folder, to be changed there.")
    ] = None,
) -> None:
    """Show where the job for spark-submit and its settings are, and how to run it."""
    folder = shipped.folder()
    if copy_to is not None:
        _copy(folder, copy_to)
        folder = copy_to.resolve()
    for name, file in _FILES.items():
        typer.echo(f"{name:<9} {folder / file}")
    typer.echo()
    if copy_to is None:
        typer.echo("To use it, copy it, and set table, event hub and lease table in the copy of the settings:\n")
        typer.echo("ehbalance jobs --copy-to .")
    else:
        typer.echo(f"Set table, event hub and lease table in {shipped.CONF.name}. Then, in {folder}:\n")
    submit = ["spark-submit", *_packages(), "--properties-file", str(shipped.CONF), str(shipped.JOB)]
    typer.echo(f"EHBALANCE_CONNECTION_STRING=… {' '.join(submit)}")


def _copy(folder: Path, target: Path) -> None:
    if there := [target / file for file in _FILES.values() if (target / file).exists()]:
        raise EhBalanceError(f"{there[0]} is there already: choose another folder, or remove it")
    try:
        for file in _FILES.values():
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / file, target / file)
    except OSError as error:
        raise EhBalanceError(f"{target} cannot be written: {error.strerror}") from None


def _packages() -> list[str]:
    """The arguments with which spark-submit fetches Delta; none if Spark has it, or is not installed here."""
    if find_spec("pyspark") is None:
        return []
    from spark_ehbalance.delta.spark_settings import spark_settings  # pyspark is slow to import

    try:
        packages = spark_settings().get("spark.jars.packages")
    except EhBalanceError as error:
        typer.echo(f"Warning: {error}", err=True)
        return []
    return ["--packages", packages] if packages else []
