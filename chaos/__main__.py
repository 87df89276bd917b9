"""The stress tests: `python -m chaos [--scenario faults] [--minutes 10] [--seed N]`. Exits with 1 if a test fails."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from chaos import contention, jobs, moves, run, silence, soak
from chaos.results import RunOptions, log

SCENARIOS: dict[str, Callable[[RunOptions], bool]] = {
    "faults": run.faults_scenario,
    "tokens": run.tokens,
    "copy": run.copy,
    "moves": moves.run,
    "silence": silence.run,
    "jobs": jobs.run,
    "soak": soak.run,
    "contention": contention.run,
}


def main(
    scenario: Annotated[str, typer.Option(help=f"One of {', '.join(SCENARIOS)}.")] = "faults",
    minutes: Annotated[float, typer.Option(help="For how long faults are injected, or measurements run.")] = 10.0,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the schedule. Default: a random seed, which is printed.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Only append to files, without exactly once.")] = False,
    short: Annotated[
        bool, typer.Option("--short", help="Run a short form of jobs, moves, soak or contention.")
    ] = False,
    keep: Annotated[Path | None, typer.Option(help="A new folder in which logs, rows and tables are kept.")] = None,
) -> None:
    """Run a scenario, and account for every event."""
    if scenario not in SCENARIOS:
        raise typer.BadParameter(f"{scenario!r}: allowed are {', '.join(SCENARIOS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    log(f"{scenario}, seed {seed}")
    try:
        passed = SCENARIOS[scenario](RunOptions(minutes, seed, plain, short, keep))
    except (TimeoutError, OSError) as error:
        passed = False
        log(f"failed: {error}")
    more = "".join(f" {option}" for option, given in (("--plain", plain), ("--short", short)) if given)
    log(f'to repeat: make chaos MINUTES={minutes:g} SEED={seed} ARGS="--scenario {scenario}{more}"')
    log("OK" if passed else "FAILED")
    raise typer.Exit(not passed)


if __name__ == "__main__":
    typer.run(main)
