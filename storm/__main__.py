"""Play runs from seeds, on all cores: `python -m storm --seeds 1000`. Each violation is printed as a short story."""

from __future__ import annotations

import logging
import time
from collections import Counter
from multiprocessing import Pool
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from storm.runs import Run, play, shortest


def play_seed(seed: int) -> tuple[int, Counter[str], str | None]:
    """The seed, its faults, and the violation."""
    logging.disable()
    violation, _, faults = play(Run.from_seed(seed))
    return seed, faults, violation


def main(
    seeds: Annotated[int, typer.Option(help="How many runs.")] = 1000,
    first: Annotated[int, typer.Option(help="The first seed; the others follow.")] = 0,
    processes: Annotated[int | None, typer.Option(help="Default: one for each core.")] = None,
) -> None:
    """Play runs. The exit code is 1 if one ended in a violation."""
    console, began = Console(), time.monotonic()
    faults, violations = Counter[str](), dict[int, str]()
    with Pool(processes) as pool:
        played = pool.imap_unordered(play_seed, range(first, first + seeds), chunksize=10)
        for seed, some, violation in track(played, "runs", seeds, console=console):
            faults += some
            if violation:
                violations[seed] = violation
    logging.disable()
    for seed in sorted(violations)[:3]:
        print_story(console, seed)
    took, count = time.monotonic() - began, sum(faults.values())
    listed = ", ".join(f"{what} {number:,}" for what, number in sorted(faults.items()))
    console.print(f"{seeds:,} runs, {count:,} faults ({3600 * count / took:,.0f} an hour): {listed}", highlight=False)
    console.print(f"violations: {len(violations)} {sorted(violations) or ''}", highlight=False)
    raise typer.Exit(bool(violations))


def print_story(console: Console, seed: int) -> None:
    """The shortest story with a violation that the seed's run contains."""
    run = shortest(Run.from_seed(seed))
    violation, story, _ = play(run)
    console.print(f"seed {seed}, {run.profiles[0].strategy}:", highlight=False)
    for line in story:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"violation: {violation}\nto repeat: python -m storm --first {seed} --seeds 1", highlight=False)


if __name__ == "__main__":
    typer.run(main)
