"""The same group simulated, and with real keepers, threads and clocks: both make the same moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.strategies import STRATEGIES
from spark_ehbalance.lease_table.memory import MemoryStore
from spark_ehbalance.simulation.measures import Result
from spark_ehbalance.simulation.run import simulate
from spark_ehbalance.simulation.scenario import Event, GroupSettings, Scenario
from tests.group.member.keepers import Keepers
from tests.waiting import wait_until

PARTITIONS = 12

#: Ten times slower than the keepers of the test, which would be too fast for the steps between two events.
GROUP = GroupSettings(balance_interval=3.0, lease_duration=15.0)

STRATEGY = pytest.mark.parametrize("strategy", ["balanced", "cooperative"])


@pytest.fixture
def real() -> Iterator[Keepers]:
    store = MemoryStore()
    group = Keepers(lambda: store, PARTITIONS)
    yield group
    group.close()


def moves(changes: Iterator[OwnershipChange] | list[OwnershipChange]) -> dict[tuple[str | None, str], int]:
    """How many partitions have come from whom to whom, the members by the order of their coming."""
    last: dict[str, str | None] = {}
    names: dict[str, str] = {}
    counted: dict[tuple[str | None, str], int] = {}
    for change in sorted(changes, key=lambda change: change.epoch):
        assert change.partition is not None
        before = last.get(change.partition)
        if change.owner is not None and change.owner != before:
            key = (before and names[before], names.setdefault(change.owner, change.owner))
            counted[key] = counted.get(key, 0) + 1
            last[change.partition] = change.owner
    return counted


def simulated(strategy: str, *events: Event) -> Result:
    scenario = Scenario(partitions=PARTITIONS, members=1, cycles=60, settled=False, group=GROUP, events=events)
    return simulate(replace(scenario, cycles=120), strategy)


def same_moves(result: Result, real: Keepers) -> None:
    simulated = moves(list(result.changes))
    # A member records what has changed after its commit.
    wait_until(lambda: sum(moves(real.history()).values()) >= sum(simulated.values()), "the history is complete")
    assert moves(real.history()) == simulated


@STRATEGY
def test_two_members_that_join_one_after_the_other_take_the_same_partitions(real: Keepers, strategy: str) -> None:
    result = simulated(strategy, Event(at=100, do="join"), Event(at=200, do="join"))
    chosen = STRATEGIES[strategy]
    real.start("member-0", strategy=chosen)
    real.wait_owned(**{"member-0": 12})
    real.start("member-1", strategy=chosen)
    real.wait_owned(**{"member-0": 6, "member-1": 6})
    real.start("member-2", strategy=chosen)
    real.wait_owned(**{"member-0": 4, "member-1": 4, "member-2": 4})
    same_moves(result, real)
    assert result.moves == 12 + 6 + 4 == result.fewest_moves


@STRATEGY
def test_partitions_of_a_leaving_member_go_to_the_same_others(real: Keepers, strategy: str) -> None:
    result = simulated(strategy, Event(at=100, do="join", count=2, every=100), Event(at=300, do="leave"))
    left = next(change.owner_before for change in result.changes if change.event == "Release")
    assert left is not None
    chosen = STRATEGIES[strategy]
    keepers = {}
    for number, counts in enumerate(([12], [6, 6], [4, 4, 4])):
        keepers[f"member-{number}"] = real.start(f"member-{number}", strategy=chosen)
        real.wait_owned(**{f"member-{n}": count for n, count in enumerate(counts)})
    keepers[left].stop()
    real.wait_owned(**{name: 6 for name in keepers if name != left})
    same_moves(result, real)
