"""The cooperative strategy: known before owning, free partitions at once, only the surplus moves, by handover."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_ehbalance.group.changes import Claim, RequestHandover
from spark_ehbalance.group.model import Handover, Lease, Load
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies.cooperative import assignment, cooperative
from spark_ehbalance.simulation.ideal import fair_counts, fewest_moves
from tests.group.strategies.groups import assert_balanced, assert_stable, given_layout, groups, seeds, started
from tests.group.strategies.members import (
    BATCH,
    CYCLE,
    HANDOVER_TIMEOUT,
    LEASE,
    Members,
    layout_of,
    snapshot_of,
)
from tests.group.strategies.views import view_of

FEW = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
SOME = settings(FEW, max_examples=10)
MANY = settings(FEW, max_examples=100)  # of single decisions

#: Within which a group has come to rest after a join, a leave or a drain.
TWO_CYCLES = 2 * CYCLE
#: The same after a crash, which is noticed by a lease's standing still.
AFTER_A_CRASH = LEASE + CYCLE

sizes = st.integers(1, 64)
partition_counts = st.integers(1, 256)


# --- from any layout, through anything that happens ------------------------------------------------------------


@FEW
@given(group=groups("cooperative", 24, 96))
def test_any_layout_is_balanced_by_the_fewest_moves_and_stays_so(group: Members) -> None:
    owned = {name: len(group.snapshot.owned_by(name)) for name in group.nodes}
    gone = len(group.snapshot.owned_by("gone"))
    group.run(TWO_CYCLES + (LEASE if gone else 0))
    assert_balanced(group)
    # What looks like the lease of somebody unknown is nobody's only once it has stood still for long enough.
    fewest = fewest_moves(owned, len(group.partitions) - gone)
    assert fewest <= len(group.moves) <= fewest + gone + (len(group.nodes) if gone else 0)
    assert_stable(group)


@FEW
@given(members=st.integers(1, 16), joining=st.integers(1, 8), count=st.integers(1, 96), seed=seeds)
def test_members_that_join_together_get_their_share_and_nothing_else_moves(
    members: int, joining: int, count: int, seed: int
) -> None:
    group = started(count, members=members, seed=seed)
    assert_balanced(group)
    assert len(group.moves) == count, "who starts together shares at once"

    group.moves.clear()
    owned = group.counts()
    new = group.join_many(joining)
    group.run(TWO_CYCLES)
    assert_balanced(group)
    assert len(group.moves) == fewest_moves(owned | dict.fromkeys(new, 0), count)
    assert {move.after for move in group.moves} <= set(new)
    assert all(move.planned for move in group.moves)
    assert_stable(group, 10)


@SOME
@given(data=st.data(), members=st.integers(2, 12), count=st.integers(1, 48), seed=seeds)
@pytest.mark.parametrize("how", ["leave", "crash", "drain"])
def test_the_partitions_of_members_that_go_move_to_the_others_and_nothing_else_moves(
    how: str, data: st.DataObject, members: int, count: int, seed: int
) -> None:
    group = started(count, members=members, seed=seed)
    names = list(group.nodes)
    # Of several that crash together each is missed at another moment, so that no one can know the fewest moves then.
    most = 1 if how == "crash" else members - 1
    going = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=most, unique=True))
    owned = {name: count for name, count in group.counts().items() if name not in going}
    group.moves.clear()
    for name in going:
        getattr(group, how)(name)
    group.run(AFTER_A_CRASH if how == "crash" else TWO_CYCLES)
    if how == "drain":
        assert all(group.counts()[name] == 0 for name in going)
        for name in going:
            group.leave(name)
    assert_balanced(group)
    assert len(group.moves) == fewest_moves(owned, count)
    assert_stable(group, 10)


@FEW
@given(data=st.data(), group=groups("cooperative", 12, 48))
def test_whatever_happens_a_group_comes_to_a_balanced_rest(data: st.DataObject, group: Members) -> None:
    """Joins, leaves, crashes, drains, new partitions and batches of any length; `Members` checks every write."""
    for _ in range(data.draw(st.integers(1, 10))):
        names = list(group.nodes)
        name = data.draw(st.sampled_from(names))
        match data.draw(st.sampled_from(["join", "leave", "crash", "drain", "undo", "grow", "batch", "batch", "wait"])):
            case "join":
                group.join_many(data.draw(st.integers(1, 3)))
            case "leave" if len(names) > 1:
                group.leave(name)
            case "crash" if len(names) > 1:
                group.crash(name)
            case "drain":
                group.drain(name)
            case "undo":
                group.drain(name, undo=True)
            case "grow":
                group.add_partitions(data.draw(st.integers(1, 8)))
            case "batch":
                for each in names:
                    group.begin_batch(each, data.draw(st.floats(0.1, 60)))
        group.run(data.draw(st.floats(0, 15)))
    for name in group.nodes:
        group.drain(name, undo=True)
    group.run(120)
    assert_balanced(group)
    assert_stable(group, 10)


@SOME
@given(members=st.integers(1, 8), count=st.integers(1, 64), seed=seeds, batch=st.floats(0.1, 20))
def test_planned_moves_under_load_skip_nothing_and_repeat_nothing(
    members: int, count: int, seed: int, batch: float
) -> None:
    group = started(count, members=members, seed=seed)
    drained = next(iter(group.nodes))
    for step in range(12):
        if step == 3:
            group.join_many(2)
        if step == 7:
            group.drain(drained)
        for name in group.nodes:
            group.begin_batch(name, batch * group.rng.random())
        group.run(batch)
    reads: dict[str, list[tuple[int, int]]] = {p: [] for p in group.partitions}
    for partition, first, end in group.read:
        reads[partition].append((first, end))
    for ranges in reads.values():
        assert ranges == [(BATCH * number, BATCH * (number + 1)) for number in range(len(ranges))]
    assert any(move.planned for move in group.moves) or count < members + 2


# --- who claims what -------------------------------------------------------------------------------------------


@MANY
@given(data=st.data(), count=partition_counts, members=sizes)
def test_no_two_members_want_the_same_partition_on_the_same_snapshot(
    data: st.DataObject, count: int, members: int
) -> None:
    names = [f"member-{number}" for number in range(members)]
    leases = given_layout(data.draw, names, count)
    snapshot = snapshot_of([*names, "gone"], leases)
    live = data.draw(st.sets(st.sampled_from(names), min_size=1))
    expired = {lease.partition for lease in leases if lease.owner is not None and lease.owner not in live}
    wanted: Counter[str] = Counter()
    for name in live:
        seen = view_of(snapshot, name, live=live, expired=expired)
        first = cooperative(seen)
        decision = cooperative(replace(seen, now=seen.now + (first.rebalance_after or 0.0), memory=first.memory))
        wanted.update(each.partition for each in decision.transitions if isinstance(each, (Claim, RequestHandover)))
    free = {lease.partition for lease in leases if lease.owner is None or lease.partition in expired}
    assert max(wanted.values(), default=0) <= 1
    assert free <= wanted.keys(), "and somebody claims whatever is free"


@MANY
@given(data=st.data(), count=partition_counts, members=sizes)
def test_all_members_compute_the_same_balanced_target(data: st.DataObject, count: int, members: int) -> None:
    names = [f"member-{number}" for number in range(members)]
    limits = {name: data.draw(st.none() | st.integers(0, 20)) for name in names}
    leaving = data.draw(st.sets(st.sampled_from(names)))
    snapshot = snapshot_of(limits, given_layout(data.draw, names, count), leaving=leaving)
    gone = {lease.partition for lease in snapshot.owned_by("gone")}
    target = assignment(view_of(snapshot, names[0], expired=gone))
    for name in names[1:4]:
        assert assignment(view_of(snapshot, name, expired=gone)) == target
    active = [name for name in names if name not in leaving]
    assert set(target.values()) <= set(active), "who is leaving gets nothing"
    if active:
        got = Counter(target.values())
        owned = {name: min(len(snapshot.owned_by(name)), got[name]) for name in active}
        fair = fair_counts(owned, count, {name: limits[name] for name in active})
        assert sorted(got[name] for name in active) == sorted(fair)
        assert all(limit is None or got[name] <= limit for name, limit in limits.items())


_PRINT_TARGETS = """
import random
from tests.group.strategies.test_cooperative import assignment, random_skewed_group, view_of
for seed in range(40):
    snapshot = random_skewed_group(random.Random(seed))
    print(sorted(assignment(view_of(snapshot, "member-0", untenured=sorted(snapshot.leases)[1::2])).items()))
"""


def random_skewed_group(rng: random.Random) -> Snapshot:
    """Members with and without limits on partitions whose loads repeat, so that there are many ties."""
    names = {f"member-{number}": rng.choice([None, None, 9]) for number in range(rng.randint(1, 9))}
    owners = [rng.choice([*names, None]) for _ in range(rng.randint(1, 60))]
    loads = [Load(rng.choice([1.0, 10.0, 10.0, 200.0]) * rng.choice([1.0, 1.0, 1.1]), 0.0) for _ in owners]
    return snapshot_of(names, [replace(each, load=load) for each, load in zip(layout_of(owners), loads, strict=True)])


def test_the_target_does_not_depend_on_the_order_of_sets() -> None:
    """Members are processes of their own, with hash seeds of their own."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _PRINT_TARGETS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(outputs) == 1
    assert outputs.pop().count("member-") > 100


# --- handovers that do not come about --------------------------------------------------------------------------


def group_with_a_long_batch() -> Members:
    """ann's query has a batch of 1,000 seconds with its four partitions; two are to be handed over to bob."""
    group = started(4, "ann", seed=3)
    group.begin_batch("ann", 1000.0)
    group.join("bob")
    group.run(5)
    assert len(promised_to(group, "bob")) == 2
    return group


def promised_to(group: Members, name: str) -> set[str]:
    return {p for p, lease in group.snapshot.leases.items() if lease.handover and lease.handover.to == name}


def test_a_handover_past_its_deadline_is_claimed_by_force() -> None:
    group = group_with_a_long_batch()
    asked = group.now
    group.run(HANDOVER_TIMEOUT - 10)
    assert group.counts() == {"ann": 4, "bob": 0}, "not before the deadline"
    group.run(15)
    assert group.counts() == {"ann": 2, "bob": 2}
    assert all(move.at >= asked - 5 + HANDOVER_TIMEOUT for move in group.moves if move.after == "bob")
    group.run(2)
    assert len(group.nodes["ann"].member.owned) == 2, "the old owner has noticed"


def test_a_batch_that_ends_in_time_is_waited_for_and_the_others_go_on_meanwhile() -> None:
    group = started(6, "ann", "bob", seed=1)
    group.begin_batch("ann", 20.0)
    group.join("cat")
    group.run(3)
    assert group.counts() == {"ann": 3, "bob": 2, "cat": 1}, "who is between batches hands over at once"
    assert len(group.nodes["ann"].member.plannable()) == 2, "what is not promised may be planned with"
    group.run(18)
    assert group.counts() == {"ann": 2, "bob": 2, "cat": 2}
    lease = next(lease for lease in group.snapshot.owned_by("cat") if lease.checkpoint != Position(-1))
    assert lease.checkpoint == Position(BATCH - 1), "the batch's end came along"


# --- one decision, one transition ------------------------------------------------------------------------------


def lease(partition: str, owner: str | None, to: str | None = None) -> Lease:
    return Lease(partition, owner, epoch=1, checkpoint=Position(-1), handover=Handover(to, 30_000) if to else None)


def test_a_lease_of_an_unknown_owner_is_left_to_expire() -> None:
    snapshot = snapshot_of(["ann"], [lease("0", "stranger"), lease("1", None)])
    assert assignment(view_of(snapshot, "ann")) == {"1": "ann"}
    assert assignment(view_of(snapshot, "ann", expired=["0"])) == {"0": "ann", "1": "ann"}
