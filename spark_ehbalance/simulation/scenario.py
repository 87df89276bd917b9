"""What happens to a simulated group, read from TOML: how it begins, and what is done to it when.

All times are in seconds, those of events since the beginning. A scenario sets what it is about, everything else has
its default. `READY_MADE` are those that come with the package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from spark_ehbalance.errors import OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SCENARIOS = resources.files(__package__) / "scenarios"

READY_MADE: tuple[str, ...] = tuple(
    sorted(each.name.removesuffix(".toml") for each in _SCENARIOS.iterdir() if each.name.endswith(".toml"))
)


class ScenarioError(OptionError):
    """A scenario that cannot be simulated: names the key, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a value may be: its description, and the test."""

    text: str
    fits: Callable[[Any], bool]


def _number(low: float, text: str, *, above: bool = False) -> Allowed:
    def fits(value: Any) -> bool:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and (value > low if above else value >= low) and value < float("inf")

    return Allowed(text, fits)


def _count(low: int) -> Allowed:
    return Allowed(
        f"a whole number of {low} or more",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= low,
    )


_TEXT = Allowed("a text", lambda value: isinstance(value, str))
_POSITIVE = _number(0, "a number above 0", above=True)
_NOT_NEGATIVE = _number(0, "a number of 0 or more")
_ANY_NUMBER = _number(float("-inf"), "a number")
_COUNT = _count(1)

#: What can be done to a group; each with the keys that it knows besides `at` and `do`.
ACTIONS: Mapping[str, frozenset[str]] = {
    "join": frozenset({"count", "every", "max_owned"}),
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


def _value(default: Any, allowed: Allowed) -> Any:
    return field(default=default, metadata={"allowed": allowed})


@dataclass(frozen=True, slots=True)
class Event:
    """Something that is done to the group at a time.

    To `count` members or partitions chosen at random, one `every` so many seconds (0: all at once); `lasts` is how
    long a pause, an outage, a burst or a restart goes on, or members can read the store and not write it; `factor` how
    many times more events come in or how many times slower something is, `offset` how far a clock is moved, `max_owned`
    the limit of who joins.
    """

    at: float = _value(0.0, _NOT_NEGATIVE)
    do: str = _value("", Allowed(f"one of {', '.join(ACTIONS)}", lambda value: value in ACTIONS))
    count: int = _value(1, _COUNT)
    every: float = _value(0.0, _NOT_NEGATIVE)
    lasts: float = _value(30.0, _POSITIVE)
    factor: float = _value(2.0, _POSITIVE)
    offset: float = _value(0.0, _ANY_NUMBER)
    max_owned: int | None = _value(None, _count(0))


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The options of the group's members, as those of the source."""

    balance_interval: float = _value(10.0, _POSITIVE)
    lease_duration: float = _value(30.0, _POSITIVE)
    handover_timeout: float = _value(30.0, _POSITIVE)
    max_owned: int | None = _value(None, _count(0))
    clock_skew: float = _value(0.0, _NOT_NEGATIVE)  # members' wall clocks are up to so far off, either way


@dataclass(frozen=True, slots=True)
class HubSettings:
    """What comes in: `rate` events per second and partition on the average. With a `skew` above 0 the n-th partition's
    rate falls as n to the power of -skew (Zipf's law), in random order."""

    rate: float = _value(100.0, _NOT_NEGATIVE)
    skew: float = _value(0.0, _NOT_NEGATIVE)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The lease table's storage: medians in seconds of a `commit` and of a `look`; both vary by half to double.

    By default those of a local disk; on a storage account a commit takes 0.1 to 0.2 s."""

    commit: float = _value(0.012, _POSITIVE)
    look: float = _value(0.003, _POSITIVE)


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """The members' queries: a batch takes `batch` seconds, and what its events take at `capacity` events per second.
    Without events the next look for some is after `trigger` seconds. `max_events` of each partition are in a batch."""

    batch: float = _value(5.0, _POSITIVE)
    capacity: float = _value(50_000.0, _POSITIVE)
    trigger: float = _value(1.0, _POSITIVE)
    max_events: int = _value(1_000_000, _COUNT)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A group and what happens to it. `members` are there from the beginning, `settled` with a balanced layout."""

    name: str = "scenario"
    description: str = _value("", _TEXT)
    partitions: int = _value(32, _COUNT)
    members: int = _value(4, _count(0))
    cycles: int = _value(60, _COUNT)
    settled: bool = _value(True, Allowed("true or false", lambda value: isinstance(value, bool)))
    group: GroupSettings = field(default_factory=GroupSettings)
    hub: HubSettings = field(default_factory=HubSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    query: QuerySettings = field(default_factory=QuerySettings)
    events: tuple[Event, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it goes on."""
        return self.cycles * self.group.balance_interval


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
    parts: dict[str, Any] = {}
    for key, kind in (
        ("group", GroupSettings),
        ("hub", HubSettings),
        ("store", StoreSettings),
        ("query", QuerySettings),
    ):
        if key in table:
            parts[key] = _checked(kind, table.pop(key), f"{key}.", name)
    group = parts.get("group", GroupSettings())
    if group.lease_duration <= group.balance_interval:
        raise ScenarioError(
            f"scenario {name}: group.lease_duration={group.lease_duration:g} is wrong: allowed is more than "
            f"balance_interval, {group.balance_interval:g}"
        )
    events = table.pop("events", [])
    if not isinstance(events, list):
        raise ScenarioError(f"scenario {name}: events={events!r} is wrong: allowed are tables [[events]]")
    parts["events"] = tuple(_event(event, f"events[{number}].", name) for number, event in enumerate(events))
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


def _checked(kind: Callable[..., _Table], table: Any, where: str, name: str) -> _Table:
    """A `kind` made of `table`, whose keys are its fields."""
    if not isinstance(table, dict):
        key = where.rstrip(".")
        raise ScenarioError(f"scenario {name}: {key}={table!r} is wrong: allowed is a table [{key}]")
    allowed = {each.name: each.metadata["allowed"] for each in fields(kind) if "allowed" in each.metadata}  # type: ignore[arg-type]
    for key, value in table.items():
        if key not in allowed:
            raise ScenarioError(f"scenario {name}: {where}{key} is unknown: allowed is one of {', '.join(allowed)}")
        if not allowed[key].fits(value):
            raise ScenarioError(f"scenario {name}: {where}{key}={value!r} is wrong: allowed is {allowed[key].text}")
    return kind(**table)
