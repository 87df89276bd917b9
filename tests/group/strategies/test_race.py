"""The lease race: the least loaded member wins, grabbed leases stay for a while, and equal loads cause no moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.group.changes import Claim, Defend, RequestHandover, apply
from spark_ehbalance.group.model import Author, Lease, Load
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import Decision
from tests.group.strategies.groups import FEW, seeds
from tests.group.strategies.members import Members, layout_of, snapshot_of
from tests.group.strategies.views import Observer

#: The defaults for a lease duration of 30 s, in seconds.
NORMAL_LEASE, MINIMUM_GRAB, DELAY = 15.0, 3.75, 0.2


def observer(me: str, **parameters: Any) -> Observer:
    return Observer("race", me, parameters)


def owned(counts: Mapping[str, int], free: int = 0) -> Snapshot:
    """A group whose members, oldest first, own these numbers of partitions."""
    owners: list[str | None] = [name for name, count in counts.items() for _ in range(count)]
    return snapshot_of(list(counts), layout_of([*owners, *[None] * free]))


def kinds(decision: Decision) -> list[type]:
    return [type(transition) for transition in decision.transitions]


# --- delays ----------------------------------------------------------------------------------------------------


def test_free_lease_is_claimed_after_a_delay_per_owned_lease() -> None:
    ann, bob = observer("ann", delay_per_lease=1.0), observer("bob", delay_per_lease=1.0)
    snapshot = owned({"ann": 2, "bob": 0}, free=1)
    assert ann.decide_at(0.0, snapshot).rebalance_after == 2.5
    assert bob.decide_at(0.0, snapshot).rebalance_after == 0.5
    assert not bob.decide_at(0.4, snapshot).transitions
    assert kinds(bob.decide_at(0.5, snapshot)) == [Claim]
    assert not ann.decide_at(2.4, snapshot).transitions
    assert kinds(ann.decide_at(2.5, snapshot)) == [Claim], "though bob should have it, it does not seem to come"


# --- challenges ------------------------------------------------------------------------------------------------


def test_challenge_waits_for_the_minimum_grab_and_the_challengers_delay() -> None:
    bob, snapshot = observer("bob"), owned({"ann": 4, "bob": 0})
    assert not bob.decide_at(0.0, snapshot).transitions
    assert bob.decide_at(1.0, snapshot).rebalance_after == pytest.approx(MINIMUM_GRAB - 1)
    (request,) = bob.decide_at(MINIMUM_GRAB, snapshot).transitions[:1]
    assert isinstance(request, RequestHandover)
    assert (request.to, request.timeout_ms) == ("bob", 30_000)


def test_partition_is_challenged_once_per_normal_lease() -> None:
    bob, snapshot = observer("bob"), owned({"ann": 2, "bob": 0})
    bob.decide_at(0.0, snapshot)
    requests = [bob.decide_at(20 + at / 4, snapshot).transitions for at in range(round(8 * NORMAL_LEASE))]
    partitions = [output.partition for outputs in requests for output in outputs if isinstance(output, RequestHandover)]
    assert sorted(partitions) == ["0", "0", "1", "1"], "in twice that time, if the grabs of it come to nothing"


@pytest.mark.parametrize("counts", [{"ann": 1, "bob": 0}, {"ann": 3, "bob": 3}, {"ann": 3, "bob": 2}])
def test_hopeless_challenges_are_not_made(counts: dict[str, int]) -> None:
    bob, snapshot = observer("bob"), owned(counts)
    for at in range(0, 200, 5):
        assert not any(
            isinstance(transition, RequestHandover) for transition in bob.decide_at(float(at), snapshot).transitions
        )


# --- defence ---------------------------------------------------------------------------------------------------


def test_owner_defends_a_lease_once_per_normal_lease() -> None:
    ann, snapshot = observer("ann"), owned({"ann": 2, "bob": 2})
    defended = []
    for at in range(50):
        decision = ann.decide_at(float(at), snapshot)
        defended += [
            (at, transition.partition) for transition in decision.transitions if isinstance(transition, Defend)
        ]
        snapshot = apply(snapshot, decision.transitions).after
    assert sorted(partition for _, partition in defended) == sorted(["0", "1"] * 3)
    assert min(at for at, _ in defended) >= NORMAL_LEASE


def test_owner_does_not_defend_leases_of_the_rightful_winner() -> None:
    ann, snapshot = observer("ann"), owned({"ann": 4, "bob": 0})
    assert not any(ann.decide_at(float(at), snapshot).transitions for at in range(0, 200, 5))


def test_defended_lease_is_not_challenged_within_the_minimum_grab() -> None:
    bob, snapshot = observer("bob"), owned({"ann": 2, "bob": 0})
    bob.decide_at(0.0, snapshot)
    ann = Author("ann", "1")
    defended = apply(snapshot, [Defend(by=ann, at_ms=0, partition=p, epoch=1) for p in "01"])
    assert not defended.rejected
    snapshot = defended.after
    assert not bob.decide_at(14.0, snapshot).transitions
    assert not bob.decide_at(14.0 + MINIMUM_GRAB - 0.1, snapshot).transitions
    assert bob.decide_at(14.0 + MINIMUM_GRAB, snapshot).transitions


# --- by load ---------------------------------------------------------------------------------------------------


def test_heavy_partition_counts_more_if_the_weight_is_load() -> None:
    leases = [
        Lease(str(p), owner="ann" if p < 4 else "bob", epoch=1, checkpoint=Position(-1), load=Load(rate, 0.0))
        for p, rate in enumerate([900.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0])
    ]
    snapshot = snapshot_of(["ann", "bob"], leases)
    by_count, by_load = observer("bob"), observer("bob", weight="load")
    for member in (by_count, by_load):
        member.decide_at(0.0, snapshot)
    assert not by_count.decide_at(10.0, snapshot).transitions
    challenged = {transition.partition for transition in by_load.decide_at(10.0, snapshot).transitions}  # type: ignore[attr-defined]
    assert challenged
    assert "0" not in challenged


@FEW
@given(members=st.integers(2, 8), seed=seeds, slowness=st.floats(1.0, 10.0))
def test_single_partition_never_moves(members: int, seed: int, slowness: float) -> None:
    group = Members(1, seed=seed, strategy="race")
    for _ in range(members):
        group.join(slowness=slowness)
    group.run(NORMAL_LEASE)
    (move,) = group.moves
    group.join_many(2)
    group.run(20 * NORMAL_LEASE)
    assert group.moves == [move]
