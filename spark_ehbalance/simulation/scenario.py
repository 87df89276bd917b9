"""What happens to a simulated group, read from TOML: how it begins, and what is done to it when.

A scenario sets what it is about; everything else has its default. Values have the forms of the source's options, as
TOML values or as text: `lasts = 90` and `lasts = "90 seconds"` are the same. Times of events are since the beginning.
`READY_MADE` are the scenarios that come with the package.
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
from spark_ehbalance.settings.declared import declarations, declared
from spark_ehbalance.settings.parsing import (
    flag,
    number,
    one_of,
    parse_delay,
    parse_duration,
    parse_shift,
    positive,
    whole,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SCENARIOS = resources.files(__package__) / "scenarios"

READY_MADE: tuple[str, ...] = tuple(
    sorted(each.name.removesuffix(".toml") for each in _SCENARIOS.iterdir() if each.name.endswith(".toml"))
)

#: What can be done to a group; each with the keys that it knows besides `at` and `do`.
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


#: Seconds of a request and of a commit on a local disk.
_DISK_LATENCY, _DISK_COMMIT = 0.000_03, 0.000_5


class ScenarioError(OptionError):
    """A scenario that cannot be simulated: names the key, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that is done to the group. Times are in seconds.

    It is done to `count` members or partitions chosen at random, one after each `every` (0: all at once). `lasts` is
    the duration of a pause, an outage, a burst or a restart, or of the time in which members can only read the store.
    `factor` is how many times more events come in, or how many times slower something is, `offset` how far a clock is
    moved.
    """

    at: float = declared(0.0, parse_delay)
    do: str = declared("", one_of(*ACTIONS))
    count: int = declared(1, whole(1))
    every: float = declared(0.0, parse_delay)
    lasts: float = declared(30.0, parse_duration)
    factor: float = declared(2.0, positive)
    offset: float = declared(0.0, parse_shift)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The options of the group's members, as those of the source."""

    balance_interval: float = declared(BALANCE_INTERVAL, parse_duration)
    checkpoint_interval: float = declared(0.0, parse_delay)
    lease_duration: float = declared(LEASE_DURATION, parse_duration)
    handover_timeout: float = declared(HANDOVER_TIMEOUT, parse_duration)
    max_owned: int | None = declared(None, whole(0))
    clock_skew: float = declared(0.0, parse_delay)  # members' wall clocks are up to so far off, either way


@dataclass(frozen=True, slots=True)
class HubSettings:
    """What comes in: `rate` events per second and partition on the average. With a `skew` above 0 the n-th partition's
    rate falls as n to the power of -skew (Zipf's law), in random order."""

    rate: float = declared(100.0, number(0))
    skew: float = declared(0.0, number(0))


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The lease table's storage: the `latency` of a request, and the duration of a `commit`, by default two requests.

    Times are medians in seconds, and vary from half to double. The defaults are measured on a disk, with 64 partitions.
    """

    latency: float | None = declared(None, parse_duration)
    commit: float | None = declared(None, parse_duration)

    @property
    def look_seconds(self) -> float:
        """The median of a look that finds nothing, and of each further request."""
        return self.latency or _DISK_LATENCY

    @property
    def commit_seconds(self) -> float:
        """The median of an attempt to commit."""
        return self.commit or (2 * self.latency if self.latency else _DISK_COMMIT)


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """The members' queries: a batch takes `batch` seconds, plus the time of its events at `capacity` events per second.
    Without events the next look is after `trigger` seconds. A batch has up to `max_events` of each partition."""

    batch: float = declared(5.0, parse_duration)
    capacity: float = declared(50_000.0, positive)
    trigger: float = declared(1.0, parse_duration)
    max_events: int = declared(1_000_000, whole(1))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A group and what happens to it. It begins with `members`; `settled`: with the partitions evenly distributed."""

    name: str = "scenario"
    description: str = declared("", str)
    partitions: int = declared(32, whole(1))
    members: int = declared(4, whole(0))
    cycles: int = declared(60, whole(1))
    settled: bool = declared(True, flag)
    group: GroupSettings = field(default_factory=GroupSettings)
    hub: HubSettings = field(default_factory=HubSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    query: QuerySettings = field(default_factory=QuerySettings)
    events: tuple[Event, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it goes on."""
        return self.cycles * self.group.balance_interval


#: The tables of a scenario's file.
_TABLES: Mapping[str, type[Any]] = {
    "group": GroupSettings,
    "hub": HubSettings,
    "store": StoreSettings,
    "query": QuerySettings,
}


def load(name: str) -> Scenario:
    """The ready-made scenario `name`, or the one in the file of that name. Raises `ScenarioError`."""
    if name in READY_MADE:
        return parse((_SCENARIOS / f"{name}.toml").read_text(encoding="utf-8"), name)
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ScenarioError(
            f"--scenario {name} is wrong: allowed is a TOML file or one of {', '.join(READY_MADE)}"
        ) from None
    return parse(text, path.stem)


def parse(text: str, name: str) -> Scenario:
    """The scenario `name` that is written in `text`. Raises `ScenarioError`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"scenario {name} is not TOML: {error}") from None
    parts: dict[str, Any] = {
        key: _checked(kind, table.pop(key), f"{key}.", name) for key, kind in _TABLES.items() if key in table
    }
    group = parts.get("group", GroupSettings())
    if group.lease_duration <= group.balance_interval:
        raise ScenarioError(
            f"scenario {name}: group.lease_duration={group.lease_duration:g} is wrong: allowed is more than "
            f"balance_interval, {group.balance_interval:g}"
        )
    events = table.pop("events", [])
    if not isinstance(events, list):
        raise ScenarioError(f"scenario {name}: events={events!r} is wrong: allowed are tables [[events]]")
    parts["events"] = tuple(_event(event, f"events[{index}].", name) for index, event in enumerate(events))
    scenario = _checked(Scenario, table, "", name)
    return replace(scenario, name=name, **parts)


def _event(table: Any, where: str, name: str) -> Event:
    event = _checked(Event, table, where, name)
    if not event.do:
        raise ScenarioError(f"scenario {name}: {where}do is missing: allowed is one of {', '.join(ACTIONS)}")
    known = ACTIONS[event.do] | {"at", "do"}
    for key in table:
        if key not in known:
            allowed = ", ".join(sorted(known))
            raise ScenarioError(f"scenario {name}: {where}{key} does not go with {event.do}: allowed is {allowed}")
    return event


_Table = TypeVar("_Table")


def _checked(kind: type[_Table], table: Any, where: str, name: str) -> _Table:
    """A `kind` made of `table`, whose keys are its fields."""
    if not isinstance(table, dict):
        key = where.rstrip(".")
        raise ScenarioError(f"scenario {name}: {key}={table!r} is wrong: allowed is a table [{key}]")
    allowed = declarations(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in allowed:
            raise ScenarioError(f"scenario {name}: {where}{key} is unknown: allowed is one of {', '.join(allowed)}")
        try:
            parsed = allowed[key].parse(_as_text(value, allowed[key].parse))
            values[key] = parsed if isinstance(value, str) else value  # an integer stays one in the results
        except ValueError as problem:
            raise ScenarioError(f"scenario {name}: {where}{key}={value!r} is wrong: allowed is {problem}") from None
    return kind(**values)


def _as_text(value: Any, parse: Callable[[str], Any]) -> str:
    """The text of a TOML value, as an option would have it."""
    if parse is str and not isinstance(value, str):
        raise ValueError("a text")
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return str(value)
    plain = f"{Decimal(repr(value)):f}"  # without an exponent
    return plain if "." in plain else f"{plain}.0"  # 1e16 is no whole number either
