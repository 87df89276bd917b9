"""The storm: `python -m storm [--seeds N] [--first SEED] [--seconds S]`; exits with 1 at the first violation."""

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
from storm.world import Result, play

#: Lines of a violation's story.
_STORY = 60

Met = Counter[tuple[str, str]]


def _play(seed: int) -> tuple[int, Result]:
    return seed, play(draw(seed))


def in_parallel(pool: Pool, seeds: Iterator[int]) -> Iterator[tuple[int, Result]]:
    """Play `seeds`, with so few begun ahead that the end of the iterator is noticed soon."""
    ahead = deque(pool.apply_async(_play, (seed,)) for seed in itertools.islice(seeds, 2 * (os.cpu_count() or 1)))
    while ahead:
        yield ahead.popleft().get()
        ahead.extend(pool.apply_async(_play, (seed,)) for seed in itertools.islice(seeds, 1))


def coverage(met: Met) -> Table:
    """How often each kind of fault met a query in each stage; the first column counts those that meet no process."""
    stages = ("", *STAGES)
    table = Table("fault", *(stage or "world" for stage in stages), "all", title="faults", title_justify="left")
    for kind in sorted({kind for kind, _ in met}):
        counts = [met[kind, stage] for stage in stages]
        table.add_row(kind, *(str(count or "") for count in counts), str(sum(counts)))
    return table


def _report(console: Console, seed: int, chosen: list[int] | None) -> None:
    """Print the violation of `seed` as a story, with as few faults as possible."""
    plan = draw(seed)
    if chosen is not None:
        plan = replace(plan, faults=tuple(plan.faults[index] for index in chosen))
    console.print(f"seed {seed}: looking for the fewest faults", highlight=False)
    fewest, result = shrink(plan, play(plan))
    for line in result.story[-_STORY:]:
        console.print(line, highlight=False, markup=False)
    indexes = ",".join(str(draw(seed).faults.index(fault)) for fault in fewest.faults)
    console.print(f"VIOLATION of seed {seed}, {len(fewest.faults)} faults: {result.violation}", markup=False)
    console.print(f'to repeat: make storm ARGS="--first {seed} --seeds 1 --faults {indexes!r}"', markup=False)


def main(
    seeds: Annotated[int | None, typer.Option(help="How many seeds. Default: as many as there is time.")] = None,
    first: Annotated[int | None, typer.Option(help="The first seed. Default: a random one, which is printed.")] = None,
    seconds: Annotated[float | None, typer.Option(help="When to stop. Default: 60 without --seeds.")] = None,
    faults: Annotated[str | None, typer.Option(help="Play only these faults of a seed, by their numbers.")] = None,
) -> None:
    """Play groups of queries with faults of every kind, and check at every step what must hold."""
    logging.disable()
    console = Console(width=None if sys.stdout.isatty() else 160)
    first = random.SystemRandom().randrange(1_000_000_000) if first is None else first
    if faults is not None:
        _report(console, first, [int(index) for index in faults.split(",") if index])
        raise typer.Exit(1)
    until = time.monotonic() + (seconds or (60.0 if seeds is None else float("inf")))
    met, runs, failed, began = Met(), 0, None, time.monotonic()
    console.print(f"first seed {first}, {os.cpu_count()} cores", highlight=False)
    numbers = itertools.count(first) if seeds is None else iter(range(first, first + seeds))
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with multiprocessing.Pool() as pool, Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("")
        playing = itertools.takewhile(lambda _: time.monotonic() < until, numbers)
        for seed, result in in_parallel(pool, playing):
            met, runs = met + result.met, runs + 1
            if result.violation is not None:
                failed = seed
                break
            progress.update(task, description=f"{runs} runs, {met.total():,} faults")
    hours = (time.monotonic() - began) / 3600
    console.print(coverage(met))
    console.print(
        f"{runs} runs, {met.total():,} faults, {met.total() / hours:,.0f} faults an hour, "
        f"{int(failed is not None)} violations",
        highlight=False,
    )
    if failed is not None:
        _report(console, failed, None)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
