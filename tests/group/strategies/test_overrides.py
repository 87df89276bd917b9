"""Operators' orders come before every strategy: pins, transfers, and what becomes of both when a member is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_ehbalance.group.changes import CancelHandover, Claim
from spark_ehbalance.group.model import Handover, Lease, Pin
from spark_ehbalance.group.orders import PinTo, Transfer, Unpin
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import Decision, View
from spark_ehbalance.group.strategies.overrides import with_overrides
from tests.group.strategies.groups import EVEN
from tests.group.strategies.members import OPERATOR, Members, snapshot_of
from tests.group.strategies.views import view_of

EACH = pytest.mark.parametrize("strategy", EVEN)

#: Cycles after which any of the strategies has come to rest with what these tests ask of it.
ENOUGH = 40


def pin(partition: str, to: str) -> PinTo:
    return PinTo(by=OPERATOR, at_ms=0, partition=partition, to=to, timeout_ms=30_000, why="as ordered")


def transfer(partition: str, to: str) -> Transfer:
    return Transfer(by=OPERATOR, at_ms=0, partition=partition, to=to, timeout_ms=30_000)


def assert_as_ordered(group: Members, pins: Mapping[str, str]) -> None:
    """All is owned by the living, what is pinned by whom it is pinned to, and the rest makes up for it."""
    leases = group.snapshot.leases
    assert {lease.owner for lease in leases.values()} <= group.nodes.keys()
    assert {p: leases[p].owner for p in pins} == dict(pins)
    assert not any(lease.handover for lease in leases.values())


def assert_at_rest(group: Members) -> None:
    before = group.layout()
    group.cycles(5)
    assert group.layout() == before


def assert_balanced(group: Members, pins: Mapping[str, str]) -> None:
    """Nobody has two more than another, unless all that it has was pinned to it."""
    counts = group.counts()
    least = min(counts.values())
    for name, count in counts.items():
        given = sum(to == name for to in pins.values())
        assert count <= max(given, least + 1), (counts, pins)


@st.composite
def pinned_groups(draw: st.DrawFn) -> tuple[int, int, dict[str, str], int]:
    """How many members and partitions, what is pinned to whom, and a seed."""
    members, partitions = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    names = st.sampled_from([f"member-{number}" for number in range(members)])
    pins = draw(st.dictionaries(st.sampled_from([str(number) for number in range(partitions)]), names))
    return members, partitions, pins, draw(st.integers(0, 1000))


@EACH
@given(pinned_groups())
@example((3, 7, {f"{number}": "member-0" for number in range(5)}, 1))
@settings(max_examples=2, deadline=None)
def test_pinned_partitions_move_to_their_member_and_stay_while_it_is_there(
    strategy: str, drawn: tuple[int, int, dict[str, str], int]
) -> None:
    count, partitions, pins, seed = drawn
    group = Members(partitions, seed=seed, strategy=strategy)
    group.join_many(count + 1)
    group.cycles(2)
    group.order(*(pin(partition, to) for partition, to in pins.items()))
    group.cycles(ENOUGH)
    assert_as_ordered(group, pins)
    assert_at_rest(group)
    assert_balanced(group, pins)
    for gone, lost in (("member-0", group.crash), ("member-0", group.leave)):
        lost(gone)
        group.cycles(ENOUGH)
        assert_as_ordered(group, {partition: to for partition, to in pins.items() if to != gone})
        group.join(gone)
        group.cycles(ENOUGH)
        assert_as_ordered(group, pins)
    group.drain("member-0")
    group.cycles(ENOUGH)
    assert group.counts()["member-0"] == 0
    assert_as_ordered(group, {partition: to for partition, to in pins.items() if to != "member-0"})
    group.drain("member-0", undo=True)
    group.cycles(ENOUGH)
    assert_as_ordered(group, pins)
    assert_at_rest(group)


@EACH
def test_a_transfer_order_holds_for_the_minimum_tenure_and_then_ends(strategy: str) -> None:
    group = Members(4, strategy=strategy)
    ann, bob = group.join("ann", "bob")
    group.cycles(ENOUGH)
    moving = group.snapshot.owned_by(ann)[0].partition
    group.order(transfer(moving, bob))
    group.run(2)
    assert group.snapshot.leases[moving].owner == bob, "without waiting for anybody's cycle"
    epoch = group.snapshot.leases[moving].epoch
    group.cycles(20)
    lease = group.snapshot.leases[moving]
    assert (lease.owner, lease.epoch) == (bob, epoch), "whatever the strategy makes of the others"
    assert lease.pin is not None
    assert_at_rest(group)
    group.cycles(20)
    assert group.snapshot.leases[moving].pin is None
    assert group.counts() == {ann: 2, bob: 2}


@EACH
def test_a_transfer_order_waits_for_the_batch_in_flight_up_to_its_deadline(strategy: str) -> None:
    group = Members(2, strategy=strategy)
    ann, bob = group.join("ann", "bob")
    group.cycles(ENOUGH)
    moving = group.snapshot.owned_by(ann)[0].partition
    group.begin_batch(ann, 8.0)
    group.order(transfer(moving, bob))
    group.run(7)
    assert group.snapshot.leases[moving].owner == ann
    group.run(2)
    assert group.snapshot.leases[moving].owner == bob
    assert [move.planned for move in group.moves if move.partition == moving][-1:] == [True]

    group.order(transfer(moving, ann))
    group.begin_batch(bob, 500.0)
    group.run(25)
    assert group.snapshot.leases[moving].owner == bob
    group.run(20)
    assert group.snapshot.leases[moving].owner == ann, "taken after the deadline"


@EACH
@pytest.mark.parametrize("how", ["crash", "leave", "drain"])
def test_a_transfer_order_to_a_member_that_leaves_ends_and_the_owner_reads_on(strategy: str, how: str) -> None:
    group = Members(2, strategy=strategy)
    ann, bob = group.join("ann", "bob")
    group.cycles(ENOUGH)
    moving = group.snapshot.owned_by(ann)[0].partition
    group.begin_batch(ann, 15.0)
    group.order(transfer(moving, bob))
    getattr(group, how)(bob)
    group.cycles(10)
    lease = group.snapshot.leases[moving]
    assert (lease.owner, lease.handover, lease.pin) == (ann, None, None)
    assert moving in group.nodes[ann].member.plannable()


@EACH
def test_the_strategy_decides_about_unpinned_partitions_again(strategy: str) -> None:
    group = Members(6, strategy=strategy)
    ann, _ = group.join("ann", "bob")
    group.cycles(ENOUGH)
    group.order(*(pin(str(number), ann) for number in range(6)))
    group.cycles(ENOUGH)
    assert group.counts() == {"ann": 6, "bob": 0}
    group.order(*(Unpin(by=OPERATOR, at_ms=0, partition=str(number)) for number in range(6)))
    group.cycles(ENOUGH)
    assert group.counts() == {"ann": 3, "bob": 3}


# --- the wrapper by itself --------------------------------------------------------------------------------------


def view(*leases: Lease, leaving: tuple[str, ...] = (), **more: Any) -> View:
    """Ann's view of these leases; Ann, Bob and Cat are alive, and Ann, the oldest, leads."""
    snapshot = snapshot_of(["ann", "bob", "cat"], leases, leaving=leaving)
    return view_of(snapshot, "ann", **more)


def lease(owner: str | None, to: str | None = None, promised: str | None = None, partition: str = "0") -> Lease:
    pinned = None if to is None else Pin(to, "operator", "so")
    handover = None if promised is None else Handover(promised, 1)
    return Lease(partition, owner, 3, checkpoint=Position(-1), handover=handover, pin=pinned)


def idle(view: View) -> Decision:
    return Decision("nothing, because it is idle")


def kinds(decision: Decision) -> list[str]:
    return [type(each).__name__ for each in decision.transitions]


@pytest.mark.parametrize(
    ("seen", "done"),
    [
        (view(lease(None, "ann")), ["Claim"]),
        (view(lease("bob", "ann"), expired=frozenset("0")), ["Claim"]),
        (view(lease("bob", "ann")), ["RequestHandover"]),
        (view(lease("bob", "ann", "ann")), []),
        (view(lease("bob", "ann", "ann"), overdue=frozenset("0")), ["Claim"]),
        (view(lease("bob", "ann", "cat")), ["CancelHandover", "RequestHandover"]),
        (view(lease("ann", "ann")), []),
        (view(lease("ann", "ann", "cat")), ["CancelHandover"]),
        (view(lease(None, "bob")), []),
        (view(lease("ann", "bob")), []),
        (view(lease("ann", "bob", "bob")), []),
        (view(lease("bob", "ann"), leaving=("ann",)), []),
    ],
)
def test_what_a_member_does_about_a_pin(seen: View, done: list[str]) -> None:
    assert kinds(with_overrides(idle)(seen)) == done


def test_the_strategy_sees_the_pinned_partitions_and_its_decisions_about_them_are_dropped() -> None:
    shown = []

    def grabbing(view: View) -> Decision:
        shown.append(view)
        return Decision("everything is mine", (view.claim("0"), view.claim("1"), view.cancel("2")), memory="remembered")

    seen = view(
        lease(None, "bob", partition="0"), lease(None, partition="1"), lease("cat", "bob", "bob", "2"), max_owned=5
    )
    decision = with_overrides(grabbing)(seen)
    assert shown[0].pinned == {"0", "2"}
    assert [(type(each), each.partition) for each in decision.transitions if isinstance(each, Claim)] == [(Claim, "1")]
    assert not any(isinstance(each, CancelHandover) for each in decision.transitions)
    assert decision.memory == "remembered"
    assert "everything is mine" in decision.reason
    assert "2 pinned" in decision.reason


def test_a_pin_to_a_member_that_is_gone_leaving_or_full_has_no_effect() -> None:
    def sees_pinned(seen: View) -> frozenset[str]:
        shown = []
        with_overrides(lambda view: shown.append(view.pinned) or Decision("nothing"))(seen)  # type: ignore[func-returns-value]
        return shown[0]  # type: ignore[no-any-return]

    free = lease(None, "bob")
    assert sees_pinned(view(free)) == {"0"}
    assert sees_pinned(view(free, live=frozenset({"ann", "cat"}))) == frozenset()
    assert sees_pinned(view(free, leaving=("bob",))) == frozenset()
    assert sees_pinned(view(lease(None, "eve"))) == frozenset()
    full = view(free, lease("bob", partition="1"))
    limited = replace(full.snapshot.members["bob"], max_owned=1)
    snapshot: Snapshot = replace(full.snapshot, members={**full.snapshot.members, "bob": limited})
    assert sees_pinned(replace(full, snapshot=snapshot)) == frozenset()
