"""Groups whose members have different strategies, as while a strategy is changed query by query."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.leases.model import Author
from spark_ehbalance.strategies import STRATEGIES, View
from tests.strategies.groups import FEW, assert_at_rest, is_balanced, run_until, seeds
from tests.strategies.members import CYCLE, LEASE, Members, layout_of, snapshot_of

PAIRS = pytest.mark.parametrize(("old", "new"), list(permutations(sorted(STRATEGIES), 2)))

#: Within which a mixed group is balanced: most strategies decide once a cycle.
SOON = 4 * CYCLE


def group_of(strategy: str, *, partitions: int, members: int, seed: int) -> Members:
    """A group of one strategy that is balanced; some take their time."""
    group = Members(partitions, seed=seed, strategy=strategy)
    group.join_many(members)
    run_until(group, 3600, lambda: is_balanced(group))
    group.run(SOON)
    group.moves.clear()
    return group


@PAIRS
@FEW
@given(data=st.data(), partitions=st.integers(2, 32), members=st.integers(1, 4), seed=seeds)
def test_a_pair_is_balanced_through_joins_and_leaves(
    old: str, new: str, data: st.DataObject, partitions: int, members: int, seed: int
) -> None:
    group = group_of(old, partitions=partitions, members=members, seed=seed)
    group.strategy = new
    group.join_many(data.draw(st.integers(1, 2)))
    run_until(group, SOON, lambda: is_balanced(group))
    for _ in range(2):
        match data.draw(st.sampled_from(["join old", "join new", "leave", "crash"])):
            case "leave" if len(group.nodes) > 2:
                group.leave(data.draw(st.sampled_from(sorted(group.nodes))))
            case "crash" if len(group.nodes) > 2:
                group.crash(data.draw(st.sampled_from(sorted(group.nodes))))
            case kind:
                group.strategy = old if kind == "join old" else new
                group.join()
        names = {node.membership.settings.strategy_name for node in group.nodes.values()}
        if len(names) > 1:
            run_until(group, LEASE + SOON, lambda: is_balanced(group))
        else:
            run_until(group, 3600, lambda: is_balanced(group))
    assert_at_rest(group)


@PAIRS
def test_a_strategy_is_changed_member_by_member(old: str, new: str) -> None:
    """One of the new joins, then one of the old leaves, until only the new are there."""
    group = group_of(old, partitions=12, members=3, seed=1)
    group.strategy = new
    for name in sorted(group.nodes):
        group.join()
        run_until(group, SOON, lambda: is_balanced(group))
        group.leave(name)
        run_until(group, SOON, lambda: is_balanced(group))
    moves = len(group.moves)
    assert_at_rest(group, 600)
    assert len(group.moves) == moves
    assert moves <= 12 * 3, "each partition about twice: away from who leaves, and to who joins"


def test_a_mixed_group_steals_nothing() -> None:
    """Moves are handovers, so nothing is read twice, though both strategies would steal if they were alone."""
    group = group_of("greedy", partitions=8, members=2, seed=1)
    group.strategy = "balanced"
    group.join()
    run_until(group, SOON, lambda: is_balanced(group))
    assert group.moves
    assert all(move.planned for move in group.moves)


def test_the_reason_names_the_strategies() -> None:
    snapshot = snapshot_of(["ann", "bob"], layout_of(["ann", "ann", None]))
    names = {"ann": "greedy", "bob": "race"}
    members = {id: replace(member, strategy=names[id]) for id, member in snapshot.members.items()}
    view = View(
        me=Author("ann", "1"),
        at_ms=0,
        snapshot=replace(snapshot, members=members),
        expired=frozenset(),
        live=frozenset(members),
        rng=random.Random(0),
    )
    assert "greedy, race" in STRATEGIES["greedy"](view).reason
    assert "greedy, race" not in STRATEGIES["greedy"](replace(view, live=frozenset({"ann"}))).reason
