"""All benchmarks: `python -m bench [NAME]... [--short]`. Each number is printed with its bar (the limit that it must
keep) and with the result of its comparison."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench import exactly_once, leases, planner, reader, simulator, sink, source
from bench.common import Bench, Log, Row, session, three_digits
from bench.kafka import Unavailable, fetch

#: The benchmarks in the order in which they run. Those without Spark come first, so that its JVM does not take memory
#: from them.
BENCHES: dict[str, Bench] = {
    bench.name: bench
    for bench in (
        reader.BENCH,
        sink.BENCH,
        leases.BENCH,
        simulator.BENCH,
        planner.BENCH,
        source.THROUGHPUT,
        exactly_once.BENCH,
        source.KAFKA,
    )
}
_DEFAULT = [name for name, bench in BENCHES.items() if not bench.needs_maven]

Found = dict[str, list[Row]]


def run(names: list[str], folder: Path, log: Log, found: Found, *, short: bool) -> None:
    """Run these benchmarks, and add each row to `found` as soon as it is measured."""
    spark, chosen = None, [bench for name, bench in BENCHES.items() if name in names]
    with ExitStack() as stack:
        for bench in chosen:
            if bench.needs_spark and spark is None:
                log("starting Spark")
                maven = any(bench.needs_maven for bench in chosen)
                spark = session(folder, fetch(folder / "jars").connector if maven else ())
                stack.callback(spark.stop)
            place = folder / bench.name
            place.mkdir()
            log(bench.name)
            arguments: tuple[Any, ...] = (spark, place, log) if bench.needs_spark else (place, log)
            for row in bench.measure(*arguments, **(bench.short if short else bench.full)):
                found.setdefault(bench.name, []).append(row)


def holds(name: str, row: Row) -> bool | None:
    bar = BENCHES[name].bars.get(row.what)
    return None if bar is None else bar.holds(row.median)


def report(found: Found) -> Table:
    """A table with the median of each row, and its smallest and largest run."""
    table = Table(title="measured", title_justify="left")
    for column in ("what", "median", "range", "unit", "bar", "held", "compared with"):
        table.add_column(column, justify="right" if column in ("median", "range", "bar") else "left")
    for name, rows in found.items():
        table.add_section()
        table.add_row(f"[bold]{name}", *[""] * 5, BENCHES[name].compared_with)
        for row in rows:
            held = {None: "", True: "yes", False: "[red]no"}[holds(name, row)]
            spread = f"{three_digits(min(row.runs))} to {three_digits(max(row.runs))}" if len(row.runs) > 1 else ""
            medians = {who: statistics.median(runs) for who, runs in row.compared.items()}
            compared = ", ".join(f"{who} {three_digits(value)}" for who, value in medians.items())
            bar = str(BENCHES[name].bars.get(row.what, ""))
            table.add_row(row.what, three_digits(row.median), spread, row.unit, bar, held, compared)
    return table


def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(help=f"Any of {', '.join(BENCHES)}. Default: all except kafka, which needs Maven."),
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="Only check that the benchmarks work; bars do not count.")
    ] = False,
    output: Annotated[Path, typer.Option(help="The file for the results, as JSON.")] = Path("artifacts/bench.json"),
) -> None:
    """Run benchmarks, print each number with its bar, and save the numbers. The exit code is 1 if a bar is missed."""
    if unknown := sorted({*(names or ())} - BENCHES.keys()):
        raise typer.BadParameter(f"{unknown[0]!r}: allowed are {', '.join(BENCHES)}")
    console = Console(width=None if sys.stdout.isatty() else 160)
    found: Found = {}
    began, before = time.time(), os.getloadavg()[0]

    def log(what: str) -> None:
        console.print(f"{time.time() - began:5.0f} s  {what}", highlight=False)

    try:
        with tempfile.TemporaryDirectory() as folder:
            run(names or _DEFAULT, Path(folder), log, found, short=short)
    except Unavailable as why:
        sys.exit(f"bench: the comparison with Kafka is not possible: {why}")
    finally:  # also report what was measured before an error or an interruption
        console.print(report(found))
        load = f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after"
        console.print(f"{time.time() - began:.0f} s, {os.cpu_count()} cores, {load}", highlight=False)
        output.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"bench": name, **asdict(row), "median": row.median} for name in found for row in found[name]]
        output.write_text(json.dumps({"short": short, "cores": os.cpu_count(), "rows": rows}, indent=2))
    missed = [f"{name}: {row.what}" for name, rows in found.items() for row in rows if holds(name, row) is False]
    if missed and not short:
        console.print(f"FAILED: bars missed: {'; '.join(missed)}; all numbers are in {output}")
        raise typer.Exit(1)
    console.print(f"OK; all numbers are in {output}")


if __name__ == "__main__":
    typer.run(main)
