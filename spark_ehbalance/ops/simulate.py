"""`ehbalance simulate`: runs strategies in simulated time while members join and crash, and under bursts."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import active_children, get_context
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from spark_ehbalance.errors import OptionError
from spark_ehbalance.group.strategies import DEFAULT_STRATEGY, STRATEGIES
from spark_ehbalance.ops.arguments import AsJson
from spark_ehbalance.ops.common import console
from spark_ehbalance.settings.parsing import duration_text
from spark_ehbalance.settings.secrets import redacted
from spark_ehbalance.simulation.measures import ScenarioResult
from spark_ehbalance.simulation.run import simulate as play
from spark_ehbalance.simulation.scenario import READY_MADE, Scenario, load

#: Maximum number of concurrent simulations.
_PROCESSES = 2


def simulate(
    scenario: Annotated[
        str, typer.Option(metavar="NAME|FILE", help=f"A TOML file, or one of {', '.join(READY_MADE)}.")
    ] = "start-up",
    strategy: Annotated[str, typer.Option(help=f"One of {', '.join(STRATEGIES)}.")] = DEFAULT_STRATEGY,
    compare: Annotated[bool, typer.Option("--compare", help="Compare all strategies.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Run a scenario in simulated time and print measurements.

    The simulation uses the real strategies and the real lease code.
    """
    if strategy not in STRATEGIES:
        allowed = f"one of {', '.join(STRATEGIES)}"
        raise OptionError("EHB_OPTION_INVALID", option="--strategy", value=redacted(strategy), allowed=allowed)
    loaded = load(scenario)
    results = _compare(loaded, seed) if compare else [play(loaded, strategy, seed)]
    if as_json:
        tables = [result.to_json() for result in results]
        typer.echo(json.dumps(tables if compare else tables[0], indent=2))
    else:
        console().print(Text(_heading(loaded, seed)), _table(results), sep="\n")


def _compare(scenario: Scenario, seed: int) -> list[ScenarioResult]:
    """The results of all strategies. Each strategy runs in its own process."""
    with ProcessPoolExecutor(_PROCESSES, get_context("spawn")) as pool:
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: a process would print a traceback
        try:
            futures = [pool.submit(play, scenario, name, seed) for name in STRATEGIES]
        finally:
            signal.signal(signal.SIGINT, interrupt)
        try:
            return [future.result() for future in futures]
        except KeyboardInterrupt:
            for process in active_children():
                process.terminate()
            raise


def _heading(scenario: Scenario, seed: int) -> str:
    group = (
        f"{scenario.partitions} partitions, {scenario.members} members, {scenario.cycles} cycles of "
        f"{scenario.group.balance_interval:g} s, seed {seed}"
    )
    store = scenario.store
    read, commit = duration_text(store.read_seconds), duration_text(store.commit_seconds)
    store_times = f"reading the lease table takes {read}, a commit {commit}"
    return f"{scenario.name}: {scenario.description or 'a custom scenario.'}\n{group}\n{store_times}"


def _table(results: Sequence[ScenarioResult]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for result in results:
        table.add_column(result.strategy, justify="right", overflow="fold")
    for name, show in _ROWS:
        table.add_row(name, *(show(result) for result in results))
    return table


def _or_never(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def _short(value: float) -> str:
    """`value` in at most six characters."""
    for least, factor, letter in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if value >= least:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


#: Rows of the table: name and format.
_ROWS: tuple[tuple[str, Callable[[ScenarioResult], str]], ...] = (
    ("seconds to balance", lambda result: _or_never(result.seconds_to_balance)),
    ("moves", lambda result: _short(result.moves)),
    ("fewest possible", lambda result: _short(result.fewest_moves)),
    ("moves afterwards", lambda result: _short(result.later_moves)),
    ("lease duration (s)", lambda result: _short(result.lease_duration)),
    ("silence (leases)", lambda result: f"{result.longest_silence:.2f}"),
    ("unowned (seconds)", lambda result: _short(result.unowned)),
    ("events read", lambda result: _short(result.events)),
    ("events read again", lambda result: _short(result.duplicates)),
    ("commits a minute", lambda result: _short(60 * result.commits / result.seconds)),
    ("conflicts a minute", lambda result: _short(60 * result.conflicts / result.seconds)),
    ("spread of load", lambda result: f"{result.spread:.1%}"),
    ("worst spread", lambda result: f"{result.spread_worst:.1%}"),
)
