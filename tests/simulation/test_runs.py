"""Whole simulations: they violate no invariant, are repeatable, and have the right results."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from spark_ehbalance.group.strategies import DECLARATIONS, DEFAULT_STRATEGY, STRATEGIES
from spark_ehbalance.simulation.measures import ScenarioResult
from spark_ehbalance.simulation.members import START_MS
from spark_ehbalance.simulation.run import Simulation, simulate
from spark_ehbalance.simulation.scenario import READY_MADE, Scenario, ScenarioEvent, StoreSettings, load, parse


def small(name: str) -> Scenario:
    """The ready-made scenario with few partitions and members, so that it runs fast."""
    scenario = load(name)
    return replace(scenario, partitions=8, members=min(scenario.members, 6))


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        pytest.param(strategy, name, marks=() if strategy == its else pytest.mark.heavy)
        for name, its in zip(READY_MADE, itertools.cycle(STRATEGIES), strict=False)
        for strategy in STRATEGIES
    ],
)
def test_no_event_is_skipped_and_no_partition_has_two_owners(name: str, strategy: str) -> None:
    """The simulation would raise an error in both cases. At the end, the running members must have read everything."""
    simulation = Simulation(small(name), strategy, seed=1)
    result = simulation.run()
    hub, leases = simulation.hub, simulation.store.snapshot.leases
    read = {partition: row.read for partition, row in hub.partitions.items()}
    assert result.events - result.duplicates == sum(row.read - row.start for row in hub.partitions.values())
    for partition, lease in leases.items():
        assert lease.checkpoint is not None
        assert lease.checkpoint.next <= read[partition], "only events that a sink has finished are checkpointed"
    epochs = dict.fromkeys(read, 0)
    for change in result.changes:
        assert change.epoch >= epochs[change.partition]
        epochs[change.partition] = change.epoch
    waiting = sum(hub.end(p, result.seconds) - read[p] for p in read)
    rate = sum(hub.rates().values())
    assert waiting < 60 * rate, "no partition was left unread for long"
    declared = DECLARATIONS[strategy]
    assert result.seconds_to_balance is not None or declared.tolerates_uneven_loads, "it never became even"


@pytest.mark.parametrize("partitions", [1, 48, 300])
def test_latest_is_the_time_of_the_groups_first_start_for_every_partition(partitions: int) -> None:
    """Queries start one after the other, and each cycle claims only some of the partitions that were never read. The
    simulation would raise an error if an event between the first start and the first claim was skipped."""
    joins = ScenarioEvent(at=3, do="join", count=2, every=7)
    scenario = Scenario(partitions=partitions, members=1, cycles=12, settled=False, events=(joins,))
    simulation = Simulation(scenario, DEFAULT_STRATEGY, seed=1)
    simulation.run()
    assert simulation.store.snapshot.table.latest_ms == START_MS
    assert all(row.start < row.read for row in simulation.hub.partitions.values())


def test_settled_group_gets_the_lease_duration_that_it_needs() -> None:
    scenario = replace(load("crash"), members=20, cycles=20, store=StoreSettings(latency=0.1), events=())
    assert simulate(scenario, "greedy").lease_duration > 30


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_results_depend_on_the_seed_only(strategy: str) -> None:
    scenario = replace(small("several-crashes"), cycles=15)
    first, again, other = (simulate(scenario, strategy, seed) for seed in (3, 3, 4))
    assert first == again
    assert first.to_json() != other.to_json()


# --- results ------------------------------------------------------------------------------------------------


def play(text: str, strategy: str = "cooperative", **event: object) -> ScenarioResult:
    """Simulate twelve partitions and three members, unless `text` sets other numbers, with an event at 50 s."""
    scenario = parse(text if text.startswith("partitions") else f"partitions = 12\nmembers = 3\n{text}", "mine")
    return simulate(
        replace(scenario, events=(ScenarioEvent(at=50.0, **event),) if event else scenario.events), strategy
    )


@pytest.mark.parametrize(
    ("event", "group"),
    [
        ({}, ""),
        ({"do": "pause", "lasts": 15.0}, ""),
        ({}, "[group]\nclock_skew = 900"),
        ({"do": "outage", "lasts": 200.0}, ""),
        ({"do": "read-only", "count": 3, "lasts": 90.0}, ""),
    ],
    ids=["nothing happens", "a short pause", "wrong clocks", "an outage", "nobody can write"],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_moves(event: dict[str, object], group: str, strategy: str) -> None:
    result = play(f"cycles = 30\n{group}", strategy, **event)
    assert (result.moves, result.fewest_moves, result.duplicates) == (0, 0, 0)
    assert result.unowned == (pytest.approx(4 * 15) if event.get("do") == "pause" else 0)
    assert "Release" not in {change.event for change in result.changes}


@pytest.mark.parametrize(
    ("event", "moves", "kinds", "unowned"),
    [
        ({"do": "join"}, 3, {"HandOver"}, (0, 0)),
        # A lease duration from the last renewal (up to a third of a lease ago), plus the time to the next read.
        ({"do": "crash"}, 4, {"Claim"}, (4 * 20, 4 * 32)),
        ({"do": "pause", "lasts": 60.0}, 4 + 4, {"Claim", "HandOver"}, (4 * 20, 4 * 32)),
    ],
    ids=["a join", "a crash", "a long pause"],
)
def test_a_change_moves_a_share(
    event: dict[str, object], moves: int, kinds: set[str], unowned: tuple[float, float]
) -> None:
    result = play("cycles = 30", **event)
    assert (result.moves, result.fewest_moves) == (moves, moves)
    assert {change.event for change in result.changes} == kinds
    assert unowned[0] <= result.unowned <= unowned[1]
    assert result.seconds_to_balance is not None
    assert event["do"] != "join" or (0 < result.seconds_to_balance < 10 and result.duplicates == 0)


def test_only_member_that_cannot_write_is_declared_dead() -> None:
    result = play("", do="read-only", lasts=90.0)
    assert result.moves == 4 + 4
    assert result.duplicates < 4 * 100 * (30 + 10), (
        "the events of a lease duration and a batch: after that, the member has stopped and others have taken over"
    )


def test_added_partitions_are_read_from_their_first_event() -> None:
    scenario = parse('partitions = 4\nmembers = 2\nevents = [{ at = 55, do = "add-partitions", count = 2 }]', "mine")
    simulation = Simulation(scenario, "cooperative", 0)
    result = simulation.run()
    assert simulation.store.snapshot.leases.keys() == set("012345")
    assert all(row.read > 0 for row in simulation.hub.partitions.values())
    assert (result.moves, result.fewest_moves) == (2, 2)


def test_slow_store_causes_conflicts_and_fast_one_hardly_any() -> None:
    slow, quick = (
        play(f"partitions = 32\nmembers = 16\ncycles = 20\n[store]\ncommit = {commit}") for commit in (0.2, 0.002)
    )
    assert slow.conflicts > 5 * quick.conflicts
    assert slow.moves == quick.moves == 0


def test_a_limit_leaves_the_rest_unowned() -> None:
    result = play("partitions = 12\nmembers = 2\ncycles = 20\nsettled = false\n[group]\nmax_owned = 5")
    assert result.seconds_to_balance is not None
    assert 2 * 190 < result.unowned < 2 * 200 + 12 * 10
    assert result.moves == 10
