"""Scenarios of simulated groups, read from TOML.

Missing keys have defaults. Values are written like the source's options, as TOML values or as text: `lasts = 90` equals
`lasts = "90 seconds"`. Times of events count from the start. `READY_MADE` lists the names of the package's scenarios.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from spark_ehbalance.errors import OptionError
from spark_ehbalance.group.defaults import BALANCE_INTERVAL, HANDOVER_TIMEOUT, LEASE_DURATION
from spark_ehbalance.settings.option_specs import declarations, option_field
from spark_ehbalance.settings.parsing import (
    flag,
    number,
    one_of,
    parse_delay,
    parse_duration,
    parse_positive_number,
    parse_shift,
    whole_number,
)
from spark_ehbalance.settings.secrets import redacted

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SCENARIOS = resources.files(__package__) / "scenarios"

READY_MADE: tuple[str, ...] = tuple(
    sorted(file.name.removesuffix(".toml") for file in _SCENARIOS.iterdir() if file.name.endswith(".toml"))
)

#: Action → the keys that it accepts, in addition to `at` and `do`.
ACTIONS: Mapping[str, frozenset[str]] = {
    "join": frozenset({"count", "every"}),
    "leave": frozenset({"count", "every"}),
    "crash": frozenset({"count", "every"}),
    "restart": frozenset({"count", "every", "lasts"}),
    "pause": frozenset({"count", "every", "lasts"}),
    "slow": frozenset({"count", "factor", "lasts"}),
    "skew-clock": frozenset({"count", "offset"}),
    "burst": frozenset({"count", "factor", "lasts"}),
    "add-partitions": frozenset({"count"}),
    "outage": frozenset({"lasts"}),
    "read-only": frozenset({"count", "every", "lasts"}),
    "slow-store": frozenset({"factor", "lasts"}),
}

#: Durations of a request and of a commit on a local disk, in seconds.
_DISK_LATENCY, _DISK_COMMIT = 0.000_03, 0.000_5


class ScenarioError(OptionError):
    """A scenario is invalid."""


@dataclass(frozen=True, slots=True)
class ScenarioEvent:
    """An action on the group. Times are in seconds.

    The action affects `count` random members or partitions, one every `every` seconds, or all at once if this is 0.
    `lasts` is the duration of a pause, outage, burst, restart or read-only store. `factor` multiplies the rate of
    events, or the time that operations take. `offset` is the shift of a clock.
    """

    at: float = option_field(0.0, parse_delay)
    do: str = option_field("", one_of(*ACTIONS))
    count: int = option_field(1, whole_number(1))
    every: float = option_field(0.0, parse_delay)
    lasts: float = option_field(30.0, parse_duration)
    factor: float = option_field(2.0, parse_positive_number)
    offset: float = option_field(0.0, parse_shift)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Options of the group's members, with the meaning that they have for the source."""

    balance_interval: float = option_field(BALANCE_INTERVAL, parse_duration)
    lease_duration: float = option_field(LEASE_DURATION, parse_duration)
    handover_timeout: float = option_field(HANDOVER_TIMEOUT, parse_duration)
    max_owned: int | None = option_field(None, whole_number(0))
    clock_skew: float = option_field(0.0, parse_delay)  # maximum error of a wall clock, in either direction


@dataclass(frozen=True, slots=True)
class HubSettings:
    """Incoming events: on average, `rate` per second and partition. If `skew` is above 0, the rate of the n-th
    partition, in random order, is proportional to n to the power of -skew (Zipf's law)."""

    rate: float = option_field(100.0, number(0))
    skew: float = option_field(0.0, number(0))


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Storage of the lease table: the `latency` of a request, and the duration of a `commit`. If only `latency` is set,
    a commit takes twice the latency.

    Times are medians in seconds; actual times vary from half to double. The defaults were measured on a local disk with
    64 partitions.
    """

    latency: float | None = option_field(None, parse_duration)
    commit: float | None = option_field(None, parse_duration)

    @property
    def read_seconds(self) -> float:
        """Median duration of a read that finds no new version, and of each further request."""
        return self.latency or _DISK_LATENCY

    @property
    def commit_seconds(self) -> float:
        """Median duration of a commit attempt."""
        return self.commit or (2 * self.latency if self.latency else _DISK_COMMIT)


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """The members' queries. A batch of n events takes `batch` + n / `capacity` seconds, and reads at most `max_events`
    per partition. If there are no events, a query waits for `trigger` seconds."""

    batch: float = option_field(5.0, parse_duration)
    capacity: float = option_field(50_000.0, parse_positive_number)
    trigger: float = option_field(1.0, parse_duration)
    max_events: int = option_field(1_000_000, whole_number(1))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A group of `members`, and its events. If `settled`, the group starts with evenly distributed partitions."""

    name: str = "scenario"
    description: str = option_field("", str)
    partitions: int = option_field(32, whole_number(1))
    members: int = option_field(4, whole_number(0))
    cycles: int = option_field(60, whole_number(1))
    settled: bool = option_field(True, flag)
    group: GroupSettings = field(default_factory=GroupSettings)
    hub: HubSettings = field(default_factory=HubSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    query: QuerySettings = field(default_factory=QuerySettings)
    events: tuple[ScenarioEvent, ...] = ()

    @property
    def seconds(self) -> float:
        """Duration of the scenario."""
        return self.cycles * self.group.balance_interval


#: The tables that a scenario file can contain.
_TABLES: Mapping[str, type[Any]] = {
    "group": GroupSettings,
    "hub": HubSettings,
    "store": StoreSettings,
    "query": QuerySettings,
}


def load(name: str) -> Scenario:
    """The ready-made scenario `name`, or the scenario in the file `name`. Raises `ScenarioError`."""
    if name in READY_MADE:
        return parse((_SCENARIOS / f"{name}.toml").read_text(encoding="utf-8"), name)
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        allowed = f"a TOML file, or one of {', '.join(READY_MADE)}"
        raise ScenarioError("EHB_OPTION_INVALID", option="--scenario", value=redacted(name), allowed=allowed) from None
    return parse(text, path.stem)


def parse(text: str, name: str) -> Scenario:
    """The scenario `name` with the TOML content `text`. Raises `ScenarioError`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _invalid(name, str(error), "TOML") from None
    parts: dict[str, Any] = {
        key: _parse_table(kind, table.pop(key), f"{key}.", name) for key, kind in _TABLES.items() if key in table
    }
    group = parts.get("group", GroupSettings())
    if group.lease_duration <= group.balance_interval:
        problem = f"group.lease_duration={group.lease_duration:g} is invalid"
        raise _invalid(name, problem, f"more than balance_interval, {group.balance_interval:g}")
    events = table.pop("events", [])
    if not isinstance(events, list):
        raise _invalid(name, f"events={events!r} is invalid", "tables [[events]]")
    parts["events"] = tuple(_parse_event(event, f"events[{index}].", name) for index, event in enumerate(events))
    scenario = _parse_table(Scenario, table, "", name)
    return replace(scenario, name=name, **parts)


def _parse_event(table: Any, where: str, name: str) -> ScenarioEvent:
    event = _parse_table(ScenarioEvent, table, where, name)
    if not event.do:
        raise _invalid(name, f"{where}do is missing", f"one of {', '.join(ACTIONS)}")
    known = ACTIONS[event.do] | {"at", "do"}
    for key in table:
        if key not in known:
            raise _invalid(name, f"{where}{key} cannot be set for {event.do}", ", ".join(sorted(known)))
    return event


_Table = TypeVar("_Table")


def _parse_table(kind: type[_Table], table: Any, where: str, name: str) -> _Table:
    """Create a `kind` from the fields in `table`. Raises `ScenarioError`."""
    if not isinstance(table, dict):
        key = where.rstrip(".")
        raise _invalid(name, f"{key}={table!r} is invalid", f"a table [{key}]")
    allowed = declarations(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in allowed:
            raise _invalid(name, f"{where}{key} is unknown", f"one of {', '.join(allowed)}")
        try:
            parsed = allowed[key].parse(_as_text(value, allowed[key].parse))
            values[key] = parsed if isinstance(value, str) else value  # an integer must stay an integer in the results
        except ValueError as expected:
            raise _invalid(name, f"{where}{key}={value!r} is invalid", str(expected)) from None
    return kind(**values)


def _invalid(name: str, problem: str, allowed: str) -> ScenarioError:
    return ScenarioError("EHB_FILE_INVALID", file=f"Scenario {name}", problem=problem, allowed=allowed)


def _as_text(value: Any, parse: Callable[[str], Any]) -> str:
    """Convert a TOML value to the text of an option."""
    if parse is str and not isinstance(value, str):
        raise ValueError("a text")
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return str(value)
    plain = f"{Decimal(repr(value)):f}"  # without an exponent
    return plain if "." in plain else f"{plain}.0"  # so that floats such as 1e16 are not accepted as whole numbers
