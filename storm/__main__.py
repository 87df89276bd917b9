"""The storm: `python -m storm [--seeds N] [--first SEED] [--seconds S]`. Exits with 1 at the first violation."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.pool import Pool
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from storm.plan import STAGES, draw
from storm.shrink import shrink
from storm.world import RunResult, play

#: Maximum number of lines that are printed of a violation's story.
_MAX_STORY_LINES = 60

FaultCounts = Counter[tuple[str, str]]


def _play(seed: int) -> tuple[int, RunResult]:
    return seed, play(draw(seed))


def in_parallel(pool: Pool, seeds: Iterator[int]) -> Iterator[tuple[int, RunResult]]:
    """Run `seeds` in the pool. Reads only a few seeds ahead, so that it stops soon after the iterator ends."""
    ahead = deque(pool.apply_async(_play, (seed,)) for seed in itertools.islice(seeds, 2 * (os.cpu_count() or 1)))
    while ahead:
        yield ahead.popleft().get()
        ahead.extend(pool.apply_async(_play, (seed,)) for seed in itertools.islice(seeds, 1))


def coverage(counts: FaultCounts) -> Table:
    """Table of the number of faults by kind, and by stage of the affected query. The first column counts faults outside
    processes."""
    stages = ("", *STAGES)
    table = Table("fault", *(stage or "world" for stage in stages), "all", title="faults", title_justify="left")
    for kind in sorted({kind for kind, _ in counts}):
        by_stage = [counts[kind, stage] for stage in stages]
        table.add_row(kind, *(str(count or "") for count in by_stage), str(sum(by_stage)))
    return table


def _report(console: Console, seed: int, chosen: list[int] | None) -> None:
    """Find the fewest faults that cause the violation of `seed`, and print its story. `chosen` selects faults by their
    indexes."""
    plan = draw(seed)
    if chosen is not None:
        plan = replace(plan, faults=tuple(plan.faults[index] for index in chosen))
    console.print(f"seed {seed}: looking for the fewest faults", highlight=False)
    fewest, result = shrink(plan, play(plan))
    for line in result.story[-_MAX_STORY_LINES:]:
        console.print(line, highlight=False, markup=False)
    indexes = ",".join(str(draw(seed).faults.index(fault)) for fault in fewest.faults)
    console.print(f"VIOLATION of seed {seed}, {len(fewest.faults)} faults: {result.violation}", markup=False)
    console.print(f'to repeat: make storm ARGS="--first {seed} --seeds 1 --faults {indexes!r}"', markup=False)


def main(
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds. Default: as many as the time limit allows.")
    ] = None,
    first: Annotated[int | None, typer.Option(help="First seed. Default: a random seed, which is printed.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Time limit. Default: 60 without --seeds, otherwise none.")
    ] = None,
    faults: Annotated[
        str | None, typer.Option(help="Run only these faults of the first seed, by their indexes.")
    ] = None,
) -> None:
    """Run groups of queries with faults of every kind, and check the invariants at every step."""
    logging.disable()
    console = Console(width=None if sys.stdout.isatty() else 160)
    first = random.SystemRandom().randrange(1_000_000_000) if first is None else first
    if faults is not None:
        _report(console, first, [int(index) for index in faults.split(",") if index])
        raise typer.Exit(1)
    until = time.monotonic() + (seconds or (60.0 if seeds is None else float("inf")))
    counts, runs, failed, began = FaultCounts(), 0, None, time.monotonic()
    console.print(f"first seed {first}, {os.cpu_count()} cores", highlight=False)
    numbers = itertools.count(first) if seeds is None else iter(range(first, first + seeds))
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with multiprocessing.Pool() as pool, Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("")
        playing = itertools.takewhile(lambda _: time.monotonic() < until, numbers)
        for seed, result in in_parallel(pool, playing):
            counts, runs = counts + result.fault_counts, runs + 1
            if result.violation is not None:
                failed = seed
                break
            progress.update(task, description=f"{runs} runs, {counts.total():,} faults")
    hours = (time.monotonic() - began) / 3600
    console.print(coverage(counts))
    console.print(
        f"{runs} runs, {counts.total():,} faults, {counts.total() / hours:,.0f} faults an hour, "
        f"{int(failed is not None)} violations",
        highlight=False,
    )
    if failed is not None:
        _report(console, failed, None)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
