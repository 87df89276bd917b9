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
    exactly_once,
    kafka,
    kafka_sink,
    latency,
    leases,
    partitions,
    planner,
    processors,
    reader,
    receivers,
    simulator,
    sink,
    sockets,
    tasks,
    throughput,
)
from bench.common import Log, Row, session, three_digits
from bench.shapes import SHAPES

#: What is measured, each with its settings for `--short` and for a whole run; and what needs the Spark of all.
_WITHOUT_SPARK: dict[Any, tuple[dict[str, Any], dict[str, Any]]] = {
    reader: (
        {"shapes": ["1 KB"], "partitions": [8], "events": 2_000, "runs": 1},
        {"shapes": [*SHAPES], "partitions": [8, 32], "events": 60_000, "runs": 5},
    ),
    leases: ({"commits": 40, "runs": 1}, {"commits": 20_000, "runs": 3}),
    processors: (
        {"members": 2, "partitions": 4, "interval": 1.0, "intervals": 3},
        {"members": 4, "partitions": 32, "interval": 10.0, "intervals": 15},
    ),
    simulator: ({"cycles": 1}, {"cycles": 100}),
    sockets: ({"steps": 1, "runs": 1}, {"steps": 8, "runs": 3}),
    sink: (
        {"shapes": sink.SHAPES[2:3], "events": 3_000, "runs": 1},
        {"shapes": sink.SHAPES, "events": 90_000, "runs": 5},
    ),
}
_WITH_SPARK: dict[Any, tuple[dict[str, Any], dict[str, Any]]] = {
    planner: ({"seconds": 1, "runs": 1}, {"seconds": 8, "runs": 3}),
    latency: ({"seconds": 2, "runs": 1}, {"seconds": 15, "runs": 2}),
    throughput: (
        {"cases": [throughput.CASES[0], throughput.CASES[-1]], "share": 0.005, "runs": 1},
        {"cases": throughput.CASES, "runs": 3},
    ),
    exactly_once: (
        {"cases": exactly_once.CASES[:1], "events": 8_000, "commits": 0, "warm_up": 1, "runs": 1},
        {"events": 160_000, "commits": 2_000, "warm_up": 3, "runs": 9},
    ),
    tasks: (
        {"partitions": 16, "runs": 1, "share": 0.02, "small": 40},
        {"partitions": 256, "runs": 3, "small": 2_000},
    ),
    receivers: (
        {"cases": receivers.CASES[:1], "steps": 3, "added": 1, "runs": 1},
        {"steps": 10, "added": 3, "runs": 2},
    ),
    partitions: ({"partitions": 150, "seconds": 5}, {"partitions": 1024, "seconds": 60}),
}
_WITH_KAFKA: dict[Any, tuple[dict[str, Any], dict[str, Any]]] = {
    kafka: (
        {"cases": kafka.CASES[:2], "share": 0.01, "seconds": 2, "runs": 1},
        {"cases": kafka.CASES, "share": 1.0, "seconds": 15, "runs": 5},
    ),
    kafka_sink: (
        {"cases": kafka_sink.CASES, "share": 0.01, "runs": 1},
        {"cases": kafka_sink.CASES, "share": 1.0, "runs": 5},
    ),
}
_BESIDE_KAFKA = [each.SUBJECT for each in _WITH_KAFKA]
#: What is measured if nothing is named: what needs no Maven.
_USUAL = [each.SUBJECT for each in (*_WITHOUT_SPARK, *_WITH_SPARK) if each.SUBJECT not in _BESIDE_KAFKA]
SUBJECTS = [*_USUAL, *_BESIDE_KAFKA]


def rows(subjects: list[str], folder: Path, log: Log, *, short: bool) -> Iterator[Row]:
    """Measure `subjects` and yield each result at once. With `short` only to see that every part works."""
    for each, (few, all_) in _WITHOUT_SPARK.items():
        if each.SUBJECT in subjects:
            yield from each.measure(folder, log, **(few if short else all_))
    if not {*subjects} & {each.SUBJECT for each in (*_WITH_SPARK, *_WITH_KAFKA)}:
        return
    jars = None
    if {*subjects} & {*_BESIDE_KAFKA}:
        log("fetching Kafka's broker and connector")
        try:
            jars = kafka.fetch(folder / "jars")
        except kafka.Unavailable as why:
            log(f"what is beside Kafka is left out: {why}")
    log("starting Spark")
    spark = session(folder, jars=jars.connector if jars else ())
    try:
        for each, (few, all_) in _WITH_SPARK.items():
            if each.SUBJECT in subjects:
                yield from each.measure(spark, folder, log, **(few if short else all_))
        for each, (few, all_) in _WITH_KAFKA.items():
            if jars is not None and each.SUBJECT in subjects:
                yield from each.measure(spark, jars, folder, log, **(few if short else all_))
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
        bar = "" if row.bar is None else str(row.bar)
        held = {None: "", True: "yes", False: "[red]no"}[row.held]
        spread = f"{three_digits(min(row.runs))} to {three_digits(max(row.runs))}" if len(row.runs) > 1 else ""
        compared = ", ".join(f"{who} {three_digits(value)}" for who, value in row.medians().items())
        table.add_row(row.what, three_digits(row.median), spread, row.unit, bar, held, compared)
    return table


def main(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(help=f"Any of {', '.join(SUBJECTS)}. Default: all but {', '.join(_BESIDE_KAFKA)}."),
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

            found += rows(subjects or _USUAL, Path(folder), log, short=short)  # row by row
    finally:  # also report what was measured before an error or an interruption
        after = os.getloadavg()
        console.print(report(found))
        loads = f"load average {before[0]:.1f} before, {after[0]:.1f} after"
        console.print(f"{time.time() - began:.0f} s, {os.cpu_count()} cores, {loads}", highlight=False)
        output.parent.mkdir(parents=True, exist_ok=True)
        run = {
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
            "seconds": round(time.time() - began),
            "cores": os.cpu_count(),
            "load_before": before,
            "load_after": after,
            "python": platform.python_version(),
            "short": short,
            "rows": [row.to_json() for row in found],
        }
        output.write_text(json.dumps(run, indent=2))
    missed = sum(row.held is False for row in found)
    if missed and not short:
        console.print(f"FAILED: {missed} bars were missed; all numbers are in {output}")
        raise typer.Exit(1)
    console.print(f"OK; all numbers are in {output}")


if __name__ == "__main__":
    typer.run(main)
