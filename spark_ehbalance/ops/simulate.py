"""`ehbalance simulate`: how the strategies handle joins, crashes and bursts, in simulated time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
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
from spark_ehbalance.simulation.measures import Result
from spark_ehbalance.simulation.run import simulate as play
from spark_ehbalance.simulation.scenario import READY_MADE, Scenario, load

#: Simulations that run at the same time.
_PROCESSES = 2


def simulate(
    scenario: Annotated[
        str, typer.Option(metavar="NAME|FILE", help=f"A TOML file, or one of {', '.join(READY_MADE)}.")
    ] = "start-up",
    strategy: Annotated[str, typer.Option(help=f"One of {', '.join(STRATEGIES)}.")] = DEFAULT_STRATEGY,
    compare: Annotated[bool, typer.Option("--compare", help="All strategies, side by side.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Run a scenario in simulated time with the real strategies and lease code, and measure the result."""
    if strategy not in STRATEGIES:
        raise OptionError(f"--strategy {strategy} is wrong: allowed is one of {', '.join(STRATEGIES)}")
    played = load(scenario)
    results = _compared(played, seed) if compare else [play(played, strategy, seed)]
    if as_json:
        tables = [result.to_json() for result in results]
        typer.echo(json.dumps(tables if compare else tables[0], indent=2))
    else:
        console().print(Text(_heading(played, seed)), _table(results), sep="\n")


def _compared(scenario: Scenario, seed: int) -> list[Result]:
    """The result of each strategy, some run at the same time, each in its own process."""
    with ProcessPoolExecutor(_PROCESSES, get_context("spawn")) as pool:
        futures = [pool.submit(play, scenario, name, seed) for name in STRATEGIES]
        return [future.result() for future in futures]


def _heading(scenario: Scenario, seed: int) -> str:
    what = (
        f"{scenario.partitions} partitions, {scenario.members} members, {scenario.cycles} cycles of "
        f"{scenario.group.balance_interval:g} s, seed {seed}"
    )
    store = scenario.store
    look, commit = duration_text(store.look_seconds), duration_text(store.commit_seconds)
    where = f"a look at the lease table takes {look}, a commit {commit}"
    return f"{scenario.name}: {scenario.description or 'a scenario of your own.'}\n{what}\n{where}"


def _table(results: Sequence[Result]) -> Table:
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
    """A number in at most six characters."""
    for least, factor, letter in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if value >= least:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


#: The rows of the table, each with how a result is shown in it.
_ROWS: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("seconds to balance", lambda each: _or_never(each.seconds_to_balance)),
    ("moves", lambda each: _short(each.moves)),
    ("fewest possible", lambda each: _short(each.fewest_moves)),
    ("moves afterwards", lambda each: _short(each.later_moves)),
    ("lease duration (s)", lambda each: _short(each.lease_duration)),
    ("silence (leases)", lambda each: f"{each.longest_silence:.2f}"),
    ("unowned (seconds)", lambda each: _short(each.unowned)),
    ("events read", lambda each: _short(each.events)),
    ("of them again", lambda each: _short(each.duplicates)),
    ("commits a minute", lambda each: _short(60 * each.commits / each.seconds)),
    ("lost races a minute", lambda each: _short(60 * each.conflicts / each.seconds)),
    ("spread of load", lambda each: f"{each.spread:.1%}"),
    ("spread at worst", lambda each: f"{each.spread_worst:.1%}"),
)
