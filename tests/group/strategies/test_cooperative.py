"""The cooperative strategy: all members compute the same target, and free partitions are claimed immediately."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.group.changes import CancelHandover, Claim, RequestHandover
from spark_ehbalance.group.model import Handover, Lease, Load
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies.cooperative import assignment, cooperative
from spark_ehbalance.simulation.measures import fair_counts
from tests.group.strategies.groups import MANY, given_layout
from tests.group.strategies.members import Members, layout_of, snapshot_of
from tests.group.strategies.views import view_of

sizes = st.integers(1, 64)
partition_counts = st.integers(1, 256)


@MANY
@given(data=st.data(), count=partition_counts, members=sizes)
def test_no_two_members_claim_the_same_partition_on_the_same_snapshot(
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
        wanted.update(
            transition.partition
            for transition in decision.transitions
            if isinstance(transition, (Claim, RequestHandover))
        )
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
    print(sorted(assignment(view_of(snapshot, "member-0", recently_moved=sorted(snapshot.leases)[1::2])).items()))
"""


def random_skewed_group(rng: random.Random) -> Snapshot:
    """Members with and without limits, and partitions whose loads repeat, so that there are many ties."""
    names = {f"member-{number}": rng.choice([None, None, 9]) for number in range(rng.randint(1, 9))}
    owners = [rng.choice([*names, None]) for _ in range(rng.randint(1, 60))]
    loads = [Load(rng.choice([1.0, 10.0, 10.0, 200.0]) * rng.choice([1.0, 1.0, 1.1]), 0.0) for _ in owners]
    return snapshot_of(names, [replace(lease, load=load) for lease, load in zip(layout_of(owners), loads, strict=True)])


def test_target_does_not_depend_on_set_order() -> None:
    """Members are separate processes with different hash seeds."""
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


def test_members_started_in_quick_succession_share_without_a_move() -> None:
    group = Members(9, seed=1)
    for _ in range(3):
        group.join()
        group.run(0.2)
    group.cycles(3)
    assert list(group.counts().values()) == [3, 3, 3]
    assert len(group.moves) == 9


def test_handover_to_a_leaving_member_is_cancelled() -> None:
    lease = Lease("0", "ann", epoch=1, checkpoint=Position(-1), handover=Handover("bob", 1))
    (cancel,) = cooperative(view_of(snapshot_of(["ann", "bob"], [lease], leaving=["bob"]), "ann")).transitions
    assert isinstance(cancel, CancelHandover)


def test_lease_of_an_unknown_owner_is_left_to_expire() -> None:
    stranger = Lease("0", "stranger", epoch=1, checkpoint=Position(-1))
    snapshot = snapshot_of(["ann"], [stranger, Lease("1", checkpoint=Position(-1))])
    assert assignment(view_of(snapshot, "ann")) == {"1": "ann"}
    assert assignment(view_of(snapshot, "ann", expired=["0"])) == {"0": "ann", "1": "ann"}
