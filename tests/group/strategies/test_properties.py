"""Properties of every strategy. The storm plays groups of all strategies with faults and operators' commands."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.group.changes import Claim, RequestHandover, Steal
from spark_ehbalance.group.expiry import Observations
from spark_ehbalance.group.model import Handover, Pin
from spark_ehbalance.group.strategies import DECLARATIONS, STRATEGIES
from spark_ehbalance.simulation.measures import fewest_moves
from tests.group.strategies.groups import (
    EVEN,
    FEW,
    MANY,
    assert_at_rest,
    given_layout,
    is_balanced,
    run_until,
    seeds,
)
from tests.group.strategies.members import CYCLE, LEASE, LOOK, Members, snapshot_of
from tests.group.strategies.views import view_of

ALL_STRATEGIES = pytest.mark.parametrize("strategy", EVEN)

#: Seconds within which a group is balanced: the transfer shedder waits for some cycles and cools down.
SOON = 1920.0

#: Cycles after which all changes of these tests are over.
ENOUGH = 60


@ALL_STRATEGIES
def test_dead_members_partitions_are_claimed_in_time_and_the_group_comes_to_rest(strategy: str) -> None:
    """Within the lease duration plus two reads and a cycle, or as many cycles as there are partitions."""
    count = 13
    group = Members(count, seed=1, strategy=strategy)
    group.join_many(2)
    run_until(group, SOON, lambda: is_balanced(group))
    group.crash("member-0")
    cycles = count if DECLARATIONS[strategy].one_per_cycle else 1
    group.run(LEASE + 1.2 * (LOOK + cycles * (CYCLE + LOOK)))
    assert {lease.owner for lease in group.snapshot.leases.values()} <= group.nodes.keys()
    run_until(group, SOON, lambda: is_balanced(group))
    assert_at_rest(group)


CHANGES = ("join", "leave", "crash", "drain", "add_partitions")


@pytest.mark.parametrize(
    ("strategy", "event"),
    # The transfer shedder might shed again, and members that steal start before they know all others.
    [*((name, "join") for name in EVEN if name != "transfer"), *(("cooperative", event) for event in CHANGES[1:])],
)
@FEW
@given(members=st.integers(2, 8), count=st.integers(1, 32), seed=seeds)
def test_change_causes_the_fewest_moves(strategy: str, event: str, members: int, count: int, seed: int) -> None:
    group = Members(count, seed=seed, strategy=strategy)
    group.join_many(members)
    group.cycles(ENOUGH)
    group.moves.clear()
    owned = group.counts()
    if event == "join":
        owned |= dict.fromkeys(group.join(), 0)
    elif event == "add_partitions":
        group.add_partitions(5)
    else:
        del owned["member-0"]
        getattr(group, event)("member-0")
    group.cycles(ENOUGH)
    assert len(group.moves) == fewest_moves(owned, len(group.partitions))


@pytest.mark.parametrize("names", [*combinations(EVEN, 2)], ids="-".join)
def test_members_started_together_share_without_a_move(names: tuple[str, str]) -> None:
    group = Members(9, seed=1)
    for name in (*names, names[0]):
        group.strategy = name
        group.join()
    run_until(group, 10 * CYCLE, lambda: is_balanced(group))
    assert_at_rest(group)
    assert len(group.moves) == 9


@ALL_STRATEGIES
@MANY
@given(data=st.data(), limit=st.none() | st.integers(0, 8))
def test_decisions_respect_pins_and_limits(strategy: str, data: st.DataObject, limit: int | None) -> None:
    names = ["ann", "bob", "cat"]
    leases = given_layout(data.draw, names, data.draw(st.integers(1, 20)))
    coming = Handover("ann", 30_000)
    leases = [
        replace(lease, handover=coming if lease.owner not in (None, "ann") and data.draw(st.booleans()) else None)
        for lease in leases
    ]
    snapshot = snapshot_of({"ann": limit, "bob": None, "cat": None}, leases)
    pinned = data.draw(st.sets(st.sampled_from(sorted(snapshot.leases))))
    pins = {p: replace(snapshot.leases[p], pin=Pin("bob", "operator")) for p in pinned}
    snapshot = replace(snapshot, leases={**snapshot.leases, **pins})
    seen = Observations().updated(snapshot, 0.0)
    view = view_of(snapshot, "ann", pinned=pinned, max_owned=limit, observations=seen)
    first = STRATEGIES[strategy](view)
    later = STRATEGIES[strategy](replace(view, now=view.now + (first.rebalance_after or 0.0), memory=first.memory))
    for decision in (first, later):
        changes = [
            transition for transition in decision.transitions if isinstance(transition, (Claim, Steal, RequestHandover))
        ]
        assert pinned.isdisjoint(change.partition for change in changes)
        takes = Counter(change.to if isinstance(change, RequestHandover) else "ann" for change in changes)
        owned = {lease.partition for lease in snapshot.owned_by("ann")} - pinned
        coming = {p for p, handover in snapshot.ownership.pending.items() if handover.to == "ann"} - pinned
        assert limit is None or not takes["ann"] or len(owned | coming) + takes["ann"] <= limit
        assert DECLARATIONS[strategy].moves == "steal" or not any(isinstance(change, Steal) for change in changes)
