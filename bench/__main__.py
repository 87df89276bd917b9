"""All benchmarks: `python -m bench [SUBJECT]... [--short]`. Each result is printed with its bar and its comparison."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import (
    connections,
    exactly_once,
    kafka,
    latency,
    leases,
    partitions,
    planner,
    processors,
    reader,
    simulator,
    tasks,
    throughput,
)
from bench.common import Log, Row, session
from bench.shapes import SHAPES

_ALL = reader, connections, leases, processors, simulator, planner, latency, throughput, exactly_once, tasks, partitions
SUBJECTS = {each.SUBJECT: each for each in (*_ALL, kafka)}


def rows(subjects: list[str], folder: Path, log: Log, *, short: bool) -> Iterator[Row]:
    """Measure `subjects` and yield each result at once. With `short` only to see that every part works."""
    if reader.SUBJECT in subjects:
        few: Any = {"shapes": ["1 KB"], "partitions": [8], "events": 2_000, "runs": 1}
        all_: Any = {"shapes": [*SHAPES], "partitions": [8, 32], "events": 60_000, "runs": 5}
        yield from reader.measure(log, **(few if short else all_))
    if connections.SUBJECT in subjects:
        yield from connections.measure(log, partitions=4 if short else 32, runs=1 if short else 5)
    if leases.SUBJECT in subjects:
        yield from leases.measure(folder, log, commits=40 if short else 20_000, runs=1 if short else 3)
    if processors.SUBJECT in subjects:
        little: Any = {"members": 2, "partitions": 4, "interval": 1.0, "intervals": 3}
        whole: Any = {"members": 4, "partitions": 32, "interval": 10.0, "intervals": 15}
        yield from processors.measure(folder, log, **(little if short else whole))
    if simulator.SUBJECT in subjects:
        yield from simulator.measure(log, cycles=1 if short else 100, runs=1)
    if not {*subjects} - {each.SUBJECT for each in (reader, connections, leases, processors, simulator)}:
        return
    jars = None
    if kafka.SUBJECT in subjects:
        log("fetching Kafka's broker and connector")
        try:
            jars = kafka.fetch(folder / "jars")
        except kafka.Unavailable as why:
            log(f"kafka is left out: {why}")
    log("starting Spark")
    spark = session(folder, jars=jars.connector if jars else ())
    try:
        if planner.SUBJECT in subjects:
            yield from planner.measure(spark, folder, log, seconds=1 if short else 8, runs=1 if short else 3)
        if latency.SUBJECT in subjects:
            yield from latency.measure(spark, folder, log, seconds=2 if short else 15, runs=1 if short else 2)
        if throughput.SUBJECT in subjects:
            few = {"cases": [throughput.CASES[0], throughput.CASES[-1]], "share": 0.005, "runs": 1}
            all_ = {"cases": throughput.CASES, "runs": 3}
            yield from throughput.measure(spark, folder, log, **(few if short else all_))
        if exactly_once.SUBJECT in subjects:
            few = {"cases": exactly_once.CASES[:1], "events": 8_000, "commits": 0, "warm_up": 1, "runs": 1}
            all_ = {"events": 160_000, "commits": 2_000, "warm_up": 3, "runs": 9}
            yield from exactly_once.measure(spark, folder, log, **(few if short else all_))
        if tasks.SUBJECT in subjects:  # last, because workers that keep many receivers are large
            size = {"partitions": 16, "count": 3, "runs": 1} if short else {"partitions": 256, "count": 40, "runs": 3}
            yield from tasks.measure(spark, folder, log, **size)
        if partitions.SUBJECT in subjects:
            size = {"partitions": 150, "seconds": 5} if short else {"partitions": 1024, "seconds": 60}
            yield from partitions.measure(spark, folder, log, **size)
        if jars is not None:
            few = {"cases": kafka.CASES[:1], "share": 0.01, "seconds": 2, "runs": 1}
            all_ = {"cases": kafka.CASES, "share": 1.0, "seconds": 15, "runs": 5}
            yield from kafka.measure(spark, jars, folder, log, **(few if short else all_))
    finally:
        spark.stop()


def report(found: list[Row]) -> Table:
    """The table for people: the median of each row, with its smallest and largest run."""
    table = Table(title="measured", title_justify="left")
    for column in ("what", "median", "range", "unit", "bar", "held", "compared with"):
        table.add_column(column, justify="right" if column in ("median", "range", "bar") else "left")
    subject = None
    for row in found:
        if row.subject != subject:
            table.add_section()
            table.add_row(f"[bold]{row.subject}")
            subject = row.subject
        bar = "" if row.bar is None else f"{'≤≥'[row.bar.which == 'least']} {_short(row.bar.value)}"
        held = {None: "", True: "yes", False: "[red]no"}[row.held]
        spread = f"{_short(min(row.runs))} to {_short(max(row.runs))}" if len(row.runs) > 1 else ""
        compared = ", ".join(f"{who} {_short(value)}" for who, value in row.medians().items())
        table.add_row(row.what, _short(row.median), spread, row.unit, bar, held, compared)
    return table


def _short(value: float) -> str:
    """`value` with three digits: more are not reproducible."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def main(
    subjects: Annotated[
        list[str] | None, typer.Argument(help=f"Any of {', '.join(SUBJECTS)}. Default: all but kafka.")
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="Only check that every part works; bars do not count.")
    ] = False,
    output: Annotated[Path, typer.Option(help="The file for the results, as JSON.")] = Path("artifacts/bench.json"),
) -> None:
    """Measure, print each number with its bar, and save them. The exit code is 1 if a bar was missed."""
    unknown = sorted({*(subjects or ())} - {*SUBJECTS})
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r}: allowed are {', '.join(SUBJECTS)}")
    console = Console(width=None if sys.stdout.isatty() else 160)
    found: list[Row] = []
    began, before = time.time(), os.getloadavg()
    columns = SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    try:
        with tempfile.TemporaryDirectory() as folder, Progress(*columns, console=console) as bar:
            task = bar.add_task("starting", total=None)

            def log(what: str) -> None:
                bar.update(task, description=what)
                if not console.is_terminal:
                    console.print(f"{time.time() - began:5.0f} s  {what}", highlight=False)

            found += rows(subjects or [each.SUBJECT for each in _ALL], Path(folder), log, short=short)  # row by row
    finally:  # also report what was measured before an error or an interruption
        after = os.getloadavg()
        console.print(report(found))
        loads = f"load average {before[0]:.1f} before, {after[0]:.1f} after"
        console.print(f"{time.time() - began:.0f} s, {os.cpu_count()} cores, {loads}", highlight=False)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(_as_json(found, began, before, after, short), indent=2))
    missed = sum(row.held is False for row in found)
    if missed and not short:
        console.print(f"FAILED: {missed} bars were missed; all numbers are in {output}")
        raise typer.Exit(1)
    console.print(f"OK; all numbers are in {output}")


def _as_json(found: list[Row], began: float, before: Any, after: Any, short: bool) -> dict[str, Any]:
    return {
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "seconds": round(time.time() - began),
        "cores": os.cpu_count(),
        "load_before": before,
        "load_after": after,
        "python": platform.python_version(),
        "short": short,
        "rows": [row.to_json() for row in found],
    }


if __name__ == "__main__":
    typer.run(main)
