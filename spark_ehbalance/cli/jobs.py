"""`ehbalance jobs`: where the jobs for spark-submit are, and how to run them."""

from __future__ import annotations

import filecmp
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from spark_ehbalance import shipped
from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.values.suggestions import did_you_mean


def jobs(
    job: Annotated[str, typer.Argument(help="The job's name.")] = shipped.STREAM_TO_DELTA,
    copy_to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Copy them into this folder, to be changed there.")
    ] = None,
) -> None:
    """Show where a job for spark-submit and its settings are, and how to run it."""
    folder, names = shipped.folder(), shipped.names()
    if job not in names:
        raise EhBalanceError(f"there is no job {job!r}: there are {', '.join(names)}{did_you_mean(job, names)}")
    files = {"job": shipped.job(job), "settings": shipped.conf(job), "logging": shipped.LOG4J}
    if copy_to is not None:
        _copy(folder, copy_to, [*files.values()])
        folder = copy_to.resolve()
    for what, file in files.items():
        typer.echo(f"{what:<9} {folder / file}")
    typer.echo(f"\nOther jobs, for `ehbalance jobs JOB`: {', '.join(each for each in names if each != job)}\n")
    if copy_to is None:
        typer.echo("To use it, copy it, and set in the copy of the settings what it reads and writes:\n")
        typer.echo(f"ehbalance jobs {job} --copy-to .")
    else:
        typer.echo(f"Set in {shipped.conf(job).name} what it reads and writes. Then, in {folder}:\n")
    settings = (shipped.folder() / shipped.conf(job)).read_text(encoding="utf-8")
    secrets = [f"{name}=…" for name in dict.fromkeys(re.findall(r"EHBALANCE_\w*CONNECTION_STRING", settings))]
    packages = _packages() if "DeltaCatalog" in settings else []
    submit = ["spark-submit", *packages, "--properties-file", str(shipped.conf(job)), str(shipped.job(job))]
    typer.echo(" ".join([*secrets, *submit]))


def _copy(folder: Path, target: Path, files: list[Path]) -> None:
    """Files that are there as they are, such as those that jobs share, are left."""
    for file in files:
        if (target / file).exists() and not filecmp.cmp(folder / file, target / file, shallow=False):
            raise EhBalanceError(f"{target / file} is there already: choose another folder, or remove it")
    try:
        for file in files:
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
