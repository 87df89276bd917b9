"""What must hold for any group under strategies that claim and steal, however it began and whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_ehbalance.strategies import DECLARATIONS
from tests.strategies.simulation import Simulation

EACH = pytest.mark.parametrize("strategy", [name for name, each in DECLARATIONS.items() if each.moves == "steal"])
MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

members = st.integers(1, 32)
partitions = st.integers(1, 128)
seeds = st.integers(0, 2**32)


@st.composite
def layouts(draw: st.DrawFn, strategy: str) -> Simulation:
    """A group in any layout: partitions of live members, of dead ones and of nobody, in any proportion."""
    count = draw(partitions)
    group = Simulation(strategy, partitions=count, seed=draw(seeds))
    owners: list[str | None] = [*group.join(draw(members))]
    dead = group.join(draw(st.integers(0, 3)))
    favourites = draw(st.lists(st.sampled_from([*owners, *dead, None]), min_size=1, max_size=40))
    group.give((favourites * count)[:count])
    for name in dead:
        group.crash(name)
    return group


def assert_balanced(group: Simulation) -> None:
    counts = group.counts()
    assert sum(counts) == len(group.snapshot.leases), "all are owned by the living"
    assert max(counts) - min(counts) <= 1


def assert_at_rest(group: Simulation) -> None:
    for _ in range(5):
        happened = group.round()
        assert not happened.moves
        assert not any(decision.transitions for each in happened.decisions.values() for decision in each)


@EACH
@MANY
@given(data=st.data())
def test_any_layout_comes_to_a_balanced_rest(strategy: str, data: st.DataObject) -> None:
    group = data.draw(layouts(strategy))
    group.settle(within=20 + 2 * len(group.snapshot.leases))
    assert_balanced(group)
    assert_at_rest(group)


@EACH
@MANY
@given(data=st.data())
def test_a_group_comes_to_rest_after_anything_that_happens(strategy: str, data: st.DataObject) -> None:
    """Joins, leaves, crashes and new partitions while members act on views that are rounds old."""
    group = data.draw(layouts(strategy))
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["join", "leave", "crash", "grow", "wait"])):
            case "join" if len(group.live) < 32:
                group.join(data.draw(st.integers(1, 3)))
            case "leave" if len(group.live) > 1:
                group.leave(data.draw(st.sampled_from(group.live)))
            case "crash" if len(group.live) > 1:
                group.crash(data.draw(st.sampled_from(group.live)))
            case "grow" if len(group.snapshot.leases) < 128:
                group.add_partitions(data.draw(st.integers(1, 128 - len(group.snapshot.leases))))
        for _ in range(data.draw(st.integers(0, 3))):
            group.round(stalest=2)
    group.settle(within=20 + 2 * len(group.snapshot.leases))
    assert_balanced(group)
    assert_at_rest(group)


@EACH
@settings(MANY, max_examples=30)
@given(data=st.data())
def test_a_group_comes_to_rest_with_stale_views(strategy: str, data: st.DataObject) -> None:
    group = data.draw(layouts(strategy))
    group.settle(within=20 + 4 * len(group.snapshot.leases), stalest=1)
    group.settle(within=20 + 2 * len(group.snapshot.leases))  # a round without moves may have been one of refusals
    assert_balanced(group)


@EACH
@MANY
@given(count=partitions, limits=st.lists(st.none() | st.integers(0, 20), min_size=1, max_size=32), seed=seeds)
def test_no_member_owns_more_than_its_limit(strategy: str, count: int, limits: list[int | None], seed: int) -> None:
    group = Simulation(strategy, partitions=count, seed=seed)
    names = [group.join(max_owned=limit)[0] for limit in limits]
    moved = True
    for _ in range(20 + 2 * count):
        moved = bool(group.round().moves)
        for name, limit in zip(names, limits, strict=True):
            assert limit is None or len(group.snapshot.owned_by(name)) <= limit
        if not moved:
            break
    assert not moved, "limits keep nobody from coming to rest"


@EACH
@MANY
@given(count=partitions, limit=st.integers(1, 128), seed=seeds)
def test_a_single_member_takes_as_much_as_its_limit_allows(strategy: str, count: int, limit: int, seed: int) -> None:
    group = Simulation(strategy, partitions=count, seed=seed)
    group.join(max_owned=limit)
    group.settle(within=130)
    assert group.counts() == [min(count, limit)]
