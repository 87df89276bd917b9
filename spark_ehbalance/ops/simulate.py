"""`ehbalance simulate`: how the strategies handle joins, crashes and bursts, in simulated time."""

from __future__ import annotations

import functools
import json
import math
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

#: Columns in which a table is as wide as it wants to be.
_WIDER_THAN_ANY = 1000

#: The name for all ready-made scenarios.
_ALL = "all"


_override = functools.partial(typer.Option, rich_help_panel="Instead of the scenario's")


@dataclass(frozen=True, slots=True)
class SizeOptions:
    """Sizes that replace the scenario's."""

    partitions: Annotated[int | None, _override(help="Partitions of the hub.")] = None
    members: Annotated[int | None, _override(help="Members at the beginning.")] = None
    cycles: Annotated[int | None, _override(help="Balance intervals to play.")] = None

    def scenario(self, name: str) -> Scenario:
        """The scenario called `name`, in these sizes. Raises `OptionError`."""
        given: dict[str, Any] = {size: value for size, value in asdict(self).items() if value is not None}
        for size, value in given.items():
            if value < 1:
                raise OptionError(f"--{size} {value} is wrong: allowed is 1 or more")
        return replace(load(name), **given)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """A store that replaces the scenario's."""

    store: Annotated[
        str | None,
        _override(
            metavar="NAME",
            help=f"Store of the lease table, with its list prices and latency: {', '.join(SERVICES)}. The latency of "
            "local is measured, the others' are assumptions.",
        ),
    ] = None
    latency: Annotated[float | None, _override(metavar="MS", help="Milliseconds of a request to it.")] = None

    def under(self, scenario: Scenario) -> Scenario:
        """`scenario` with this store. Raises `OptionError`."""
        service, latency = self.store, self.latency
        if service is not None and service not in SERVICES:
            raise OptionError(f"--store {service} is wrong: allowed is one of {', '.join(SERVICES)}")
        if latency is not None and not 0 < latency < math.inf:
            raise OptionError(f"--latency {latency:g} is wrong: allowed is a number above 0, in milliseconds")
        if service is None and latency is None:
            return scenario
        seconds = None if latency is None else latency / 1000
        if service is None:
            return replace(scenario, store=replace(scenario.store, latency=seconds, look=None, commit=None))
        return replace(scenario, store=StoreSettings(service, seconds))


def simulate(
    sizes: SizeOptions,
    place: StoreOptions,
    scenario: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE", help=f"A TOML file, or one of {', '.join(READY_MADE)}, or {_ALL} with --compare."
        ),
    ] = "start-up",
    strategy: Annotated[str, typer.Option(help=f"One of {', '.join(STRATEGIES)}.")] = DEFAULT_STRATEGY,
    compare: Annotated[bool, typer.Option("--compare", help="All strategies, side by side.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Run a scenario in simulated time with the real strategies and lease code, and measure the result."""
    if strategy not in STRATEGIES:
        raise OptionError(f"--strategy {strategy} is wrong: allowed is one of {', '.join(STRATEGIES)}")
    if scenario == _ALL and not compare:
        raise OptionError(f"--scenario {_ALL} is for --compare: set both, or name one scenario")
    scenarios = [place.under(sizes.scenario(name)) for name in (READY_MADE if scenario == _ALL else (scenario,))]
    results = _compared(scenarios, seed) if compare else [_run_with_progress(scenarios[0], strategy, seed)]
    if as_json:
        tables = [result.to_json() for result in results]
        typer.echo(json.dumps(tables if compare else tables[0], indent=2))
    elif scenario == _ALL:
        console().print(_overview(results))
    else:
        console().print(Text(_heading(scenarios[0], seed)), *_tables(results), _PRICES, sep="\n")


def _run_with_progress(scenario: Scenario, strategy: str, seed: int) -> Result:
    with _progress() as progress:
        task = progress.add_task(strategy, total=1.0)
        return play(scenario, strategy, seed, lambda part: progress.update(task, completed=part))


def _compared(scenarios: Sequence[Scenario], seed: int) -> list[Result]:
    """The result of each strategy in each of `scenarios`, some run at the same time, each in its own process."""
    with _progress() as progress, ProcessPoolExecutor(_PROCESSES, get_context("spawn")) as pool:
        futures = [pool.submit(play, scenario, name, seed) for scenario in scenarios for name in STRATEGIES]
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


def _tables(results: Sequence[Result]) -> list[Table]:
    """The strategies side by side; those for which the terminal is too narrow in tables of their own."""
    table, half = _table(results), (len(results) + 1) // 2
    if len(results) > 1 and Console(width=_WIDER_THAN_ANY).measure(table).maximum > console().width:
        return [*_tables(results[:half]), *_tables(results[half:])]
    return [table]


def _table(results: Sequence[Result]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for result in results:
        table.add_column(result.strategy, justify="right", no_wrap=True)
    for name, show in _ROWS:
        table.add_row(name, *(show(result) for result in results))
    return table


def _overview(results: Sequence[Result]) -> Table:
    """Moves, partition-seconds without an owner and events read again: a row per scenario, a column per strategy."""
    table = Table(
        title="moves / partition-seconds without an owner / events read again",
        title_justify="left",
        box=box.MARKDOWN,
        pad_edge=False,
    )
    table.add_column("scenario", no_wrap=True)
    table.add_column("fewest moves", justify="right")
    by_scenario: dict[str, list[Result]] = {}
    for result in results:
        by_scenario.setdefault(result.scenario, []).append(result)
    for result in next(iter(by_scenario.values())):
        table.add_column(result.strategy, justify="right", no_wrap=True)
    for name, side_by_side in by_scenario.items():
        cells = [f"{each.moves} / {each.unowned:.0f} / {_short(each.duplicates)}" for each in side_by_side]
        table.add_row(name, str(side_by_side[0].fewest_moves), *cells)
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
