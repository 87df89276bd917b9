"""`ehbalance simulate`: how the strategies handle joins, crashes and bursts, in simulated time."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from spark_ehbalance.errors import OptionError
from spark_ehbalance.group.strategies import DEFAULT_STRATEGY, STRATEGIES
from spark_ehbalance.ops.arguments import AsJson
from spark_ehbalance.ops.common import console
from spark_ehbalance.settings.parsing import duration_text
from spark_ehbalance.simulation.measures import Result
from spark_ehbalance.simulation.run import simulate as play
from spark_ehbalance.simulation.scenario import READY_MADE, Scenario, StoreSettings, load
from spark_ehbalance.simulation.services import PRICES_OF, SERVICES

#: Simulations that run at the same time.
_PROCESSES = 2

_override = functools.partial(typer.Option, rich_help_panel="Instead of the scenario's")


@dataclass(frozen=True, slots=True)
class Overrides:
    """Sizes and a store that replace the scenario's."""

    partitions: Annotated[int | None, _override(min=1, help="Partitions of the hub.")] = None
    members: Annotated[int | None, _override(min=1, help="Members at the beginning.")] = None
    cycles: Annotated[int | None, _override(min=1, help="Balance intervals to play.")] = None
    store: Annotated[
        str | None,
        _override(
            metavar="NAME",
            help=f"Store of the lease table, with its list prices and latency: {', '.join(SERVICES)}. The latency of "
            "local is measured, the others' are assumptions.",
        ),
    ] = None

    def scenario(self, name: str) -> Scenario:
        """The scenario called `name` with these values. Raises `OptionError`."""
        given: dict[str, Any] = {each: value for each, value in asdict(self).items() if value is not None}
        if "store" in given:
            if self.store not in SERVICES:
                raise OptionError(f"--store {self.store} is wrong: allowed is one of {', '.join(SERVICES)}")
            given["store"] = StoreSettings(str(self.store))
        return replace(load(name), **given)


def simulate(
    overrides: Overrides,
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
    played = overrides.scenario(scenario)
    results = _compared(played, seed) if compare else [_run_with_progress(played, strategy, seed)]
    if as_json:
        tables = [result.to_json() for result in results]
        typer.echo(json.dumps(tables if compare else tables[0], indent=2))
    else:
        console().print(Text(_heading(played, seed)), _table(results), _PRICES, sep="\n")


def _run_with_progress(scenario: Scenario, strategy: str, seed: int) -> Result:
    with _progress() as progress:
        task = progress.add_task(strategy, total=1.0)
        return play(scenario, strategy, seed, lambda part: progress.update(task, completed=part))


def _compared(scenario: Scenario, seed: int) -> list[Result]:
    """The result of each strategy, some run at the same time, each in its own process."""
    with _progress() as progress, ProcessPoolExecutor(_PROCESSES, get_context("spawn")) as pool:
        futures = [pool.submit(play, scenario, name, seed) for name in STRATEGIES]
        for _ in progress.track(as_completed(futures), len(futures), description="strategies"):
            pass
        return [future.result() for future in futures]


def _progress() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _heading(scenario: Scenario, seed: int) -> str:
    what = (
        f"{scenario.partitions} partitions, {scenario.members} members, {scenario.cycles} cycles of "
        f"{scenario.group.balance_interval:g} s, seed {seed}"
    )
    store = scenario.store
    look, commit = duration_text(store.look_seconds), duration_text(store.commit_seconds)
    where = f"store {store.service}: a look takes {look}, a commit {commit}"
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


#: What the table does not say about its prices.
_PRICES = f"Prices are list prices of {PRICES_OF}, for requests alone: check them."

#: The rows of the table, each with how a result is shown in it.
_ROWS: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("cycles to balance", lambda each: _or_never(each.cycles_to_balance)),
    ("seconds to balance", lambda each: _or_never(each.seconds_to_balance)),
    ("moves", lambda each: _short(each.moves)),
    ("fewest possible", lambda each: _short(each.fewest_moves)),
    ("moves afterwards", lambda each: _short(each.later_moves)),
    ("lease duration (s)", lambda each: _short(each.lease_duration)),
    ("silence (leases)", lambda each: f"{each.longest_silence:.2f}"),
    ("unowned (seconds)", lambda each: _short(each.unowned)),
    ("events read", lambda each: _short(each.events)),
    ("of them again", lambda each: _short(each.duplicates)),
    ("commits a minute", lambda each: _short(each.commits_per_minute)),
    ("lost races a minute", lambda each: _short(each.conflicts_per_minute)),
    ("requests a day", lambda each: _short(each.operations_per_day)),
    ("of them PUT, LIST", lambda each: _short(each.writes_per_day)),
    ("of them GET", lambda each: _short(each.reads_per_day)),
    ("US dollars a day", lambda each: f"{each.dollars_per_day:.2f}"),
    ("spread of load", lambda each: f"{each.spread:.1%}"),
    ("spread at worst", lambda each: f"{each.spread_worst:.1%}"),
)
