"""Operators' orders, which precede every strategy.

A pinned partition is taken by the member that it is pinned to, and by no other, as long as that member is alive, active
and has room; otherwise any member may have it, so that a pin never leaves a partition unread. A member that owns
`maxPartitionsOwned` partitions does not make room for a pin: it logs so, and takes the partition once it has room.

Source of the idea: brokers' transfer shedders, in which operators name a destination.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from spark_ehbalance.group.changes import EndTransfer, LeaseTransition, Transition
from spark_ehbalance.group.strategies.base import Decision, Strategy, View


def with_overrides(strategy: Strategy) -> Strategy:
    """`strategy` with the operators' orders carried out; it sees the partitions that they decide in `View.pinned`."""

    def overridden(view: View) -> Decision:
        if not view.snapshot.ownership.pins:
            return strategy(view)
        pins, refused = effective_pins(view)
        ordered = _ordered(view, pins)
        decision = strategy(replace(view, pinned=frozenset(pins)))
        # A strategy need not know of pins: its decisions about pinned partitions are dropped.
        decided = [
            transition
            for transition in decision.transitions
            if not (isinstance(transition, LeaseTransition) and transition.partition in pins)
        ]
        counts = Counter(type(transition).__name__ for transition in ordered)
        reasons = [f"{name} {count} by operators' orders" for name, count in counts.items()]
        reasons += [decision.reason, f"{len(pins)} pinned"]
        reasons += [
            f"partition {partition} is pinned here, but maxPartitionsOwned={view.max_owned} is reached"
            for partition in refused
        ]
        return replace(decision, reason="; ".join(reasons), transitions=(*ordered, *_ended(view), *decided))

    return overridden


def effective_pins(view: View) -> tuple[dict[str, str], list[str]]:
    """The pinned partitions with the members that are to own them, and those that this member has no room for."""
    leases, members, active = view.snapshot.leases, view.snapshot.members, view.active
    owners = {partition: None if partition in view.expired else lease.owner for partition, lease in leases.items()}
    pending = {partition: handover.to for partition, handover in view.snapshot.ownership.pending.items()}
    taken = Counter([*owners.values(), *pending.values()])
    pins, refused = {}, []
    for partition, pin in view.snapshot.ownership.pins.items():
        if pin.to not in active:
            continue
        limit = members[pin.to].max_owned
        if pin.to in (owners[partition], pending.get(partition)):
            pins[partition] = pin.to
        elif limit is None or taken[pin.to] < limit:
            pins[partition] = pin.to
            taken[pin.to] += 1
        elif pin.to == view.me.id:
            refused.append(partition)
    return pins, refused


def _ordered(view: View, pins: Mapping[str, str]) -> list[Transition]:
    """The transitions by which this member gets what is pinned to it."""
    ordered: list[Transition] = []
    for partition in (partition for partition, to in pins.items() if to == view.me.id):
        lease = view.snapshot.leases[partition]
        owner = None if partition in view.expired else lease.owner
        pending_to = lease.handover.to if lease.handover else None
        if owner is None or (pending_to == view.me.id and partition in view.overdue):
            ordered.append(view.claim(partition))
            continue
        if pending_to not in (None, view.me.id):
            ordered.append(view.cancel(partition))
        if owner != view.me.id != pending_to:
            ordered.append(view.request(partition))
    return ordered


def _ended(view: View) -> list[Transition]:
    """The transitions that end transfer orders: to this member after the minimum tenure, and, by the oldest active
    member, to members that are gone."""
    me, active, leases, untenured = view.me, view.active, view.snapshot.leases, view.untenured
    ended: list[Transition] = []
    for partition, pin in view.snapshot.ownership.pins.items():
        lease = leases[partition]
        kept = lease.owner == pin.to == me.id and partition not in untenured
        if pin.transfer and (kept or (pin.to not in active and active[:1] == (me.id,))):
            ended.append(EndTransfer(by=me, at_ms=view.at_ms, partition=partition, epoch=lease.epoch))
    return ended
