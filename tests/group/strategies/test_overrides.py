"""Operators' orders override every strategy. `test_properties` tests groups with pins and transfers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_ehbalance.group.changes import CancelHandover, Claim
from spark_ehbalance.group.commands import Transfer
from spark_ehbalance.group.model import Handover, Lease, Pin
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.strategies import Decision, View
from spark_ehbalance.group.strategies.overrides import with_overrides
from tests.group.strategies.groups import EVEN
from tests.group.strategies.members import OPERATOR, Members, snapshot_of
from tests.group.strategies.views import view_of


@pytest.mark.parametrize("strategy", EVEN)
def test_transfer_waits_for_the_batch_and_lasts_for_the_minimum_tenure(strategy: str) -> None:
    group = Members(4, strategy=strategy)
    ann, bob = group.join("ann", "bob")
    group.cycles(40)
    moving = group.snapshot.owned_by(ann)[0].partition

    def owner_after(seconds: float) -> str | None:
        group.run(seconds)
        return group.snapshot.leases[moving].owner

    def order(to: str) -> None:
        group.order(Transfer(by=OPERATOR, at_ms=round(1000 * group.now), partition=moving, to=to, timeout_ms=30_000))

    group.begin_batch(ann, 8.0)
    order(bob)
    assert owner_after(7) == ann
    assert owner_after(2) == bob, "without waiting for anybody's cycle"
    group.begin_batch(bob, 500.0)
    order(ann)
    assert owner_after(25) == bob
    assert owner_after(20) == ann, "taken after the deadline"
    epoch = group.snapshot.leases[moving].epoch
    group.cycles(20)
    lease = group.snapshot.leases[moving]
    assert (lease.owner, lease.epoch) == (ann, epoch), "whatever the strategy makes of the others"
    group.cycles(20)
    assert group.snapshot.leases[moving].pin is None
    assert group.counts() == {ann: 2, bob: 2}


# --- the wrapper alone ------------------------------------------------------------------------------------------


def view(*leases: Lease, leaving: tuple[str, ...] = (), **more: Any) -> View:
    """Ann's view of these leases; Ann, Bob and Cat are alive, and Ann, the oldest, leads."""
    snapshot = snapshot_of({"ann": None, "bob": 1, "cat": None}, leases, leaving=leaving)
    return view_of(snapshot, "ann", **more)


def lease(owner: str | None, to: str | None = None, promised: str | None = None, partition: str = "0") -> Lease:
    pinned = None if to is None else Pin(to, "operator", "so")
    handover = None if promised is None else Handover(promised, 1)
    return Lease(partition, owner, 3, checkpoint=Position(-1), handover=handover, pin=pinned)


@pytest.mark.parametrize(
    ("seen", "pinned", "done"),
    [
        (view(lease(None, "ann")), "0", ["Claim"]),
        (view(lease("bob", "ann"), expired=frozenset("0")), "0", ["Claim"]),
        (view(lease("bob", "ann")), "0", ["RequestHandover"]),
        (view(lease("bob", "ann", "ann")), "0", []),
        (view(lease("bob", "ann", "ann"), overdue=frozenset("0")), "0", ["Claim"]),
        (view(lease("bob", "ann", "cat")), "0", ["CancelHandover", "RequestHandover"]),
        (view(lease("ann", "ann")), "0", []),
        (view(lease("ann", "ann", "cat")), "0", ["CancelHandover"]),
        (view(lease(None, "bob")), "0", []),
        (view(lease("ann", "bob")), "0", []),
        (view(lease("ann", "bob", "bob")), "0", []),
        (view(lease("bob", "ann"), leaving=("ann",)), "", []),
        (view(lease(None, "bob"), live=frozenset({"ann", "cat"})), "", []),
        (view(lease(None, "bob"), leaving=("bob",)), "", []),
        (view(lease(None, "eve")), "", []),
        (view(lease(None, "bob"), lease("bob", partition="1")), "", []),  # Bob is at his limit
    ],
)
def test_pins_are_carried_out_and_passed_to_the_strategy(seen: View, pinned: str, done: list[str]) -> None:
    shown = []

    def idle(view: View) -> Decision:
        shown.append(view.pinned)
        return Decision("nothing, because it is idle")

    assert [type(transition).__name__ for transition in with_overrides(idle)(seen).transitions] == done
    assert shown == [frozenset(pinned)]


def test_strategys_decisions_about_pinned_partitions_are_dropped() -> None:
    def grabbing(view: View) -> Decision:
        return Decision("everything is mine", (view.claim("0"), view.claim("1"), view.cancel("2")), memory="remembered")

    pinned = lease(None, "cat", partition="0"), lease("cat", "bob", "bob", "2")
    decision = with_overrides(grabbing)(replace(view(*pinned, lease(None, partition="1")), max_owned=5))
    assert [transition.partition for transition in decision.transitions if isinstance(transition, Claim)] == ["1"]
    assert not any(isinstance(transition, CancelHandover) for transition in decision.transitions)
    assert decision.memory == "remembered"
    assert "everything is mine" in decision.reason
    assert "2 pinned" in decision.reason
