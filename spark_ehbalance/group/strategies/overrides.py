"""Operators' commands, which take precedence over every strategy.

A pinned partition is taken only by the member that it is pinned to, as long as that member is live, active and below
its limit. Otherwise, any member may take it, so that a pin never leaves a partition unread. A member at
`maxPartitionsOwned` does not release another partition to make room for a pinned one.

Inspired by the transfer shedders of message brokers such as Pulsar, where operators name a destination.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from spark_ehbalance.group.changes import EndTransfer, LeaseTransition, Transition
from spark_ehbalance.group.strategies.base import Decision, Strategy, View


def with_overrides(strategy: Strategy) -> Strategy:
    """Wrap `strategy` so that operators' commands are carried out. `View.pinned` contains the partitions that they
    concern."""

    def overridden(view: View) -> Decision:
        if not view.snapshot.ownership.pins:
            return strategy(view)
        pins, refused = effective_pins(view)
        ordered = _ordered(view, pins)
        decision = strategy(replace(view, pinned=frozenset(pins)))
        # Strategies may ignore pins, so their decisions about pinned partitions are dropped.
        decided = [
            transition
            for transition in decision.transitions
            if not (isinstance(transition, LeaseTransition) and transition.partition in pins)
        ]
        counts = Counter(type(transition).__name__ for transition in ordered)
        reasons = [f"{count} × {name} requested by operators" for name, count in counts.items()]
        reasons += [decision.reason, f"{len(pins)} pinned"]
        reasons += [
            f"partition {partition} is pinned here, but maxPartitionsOwned={view.max_owned} is reached"
            for partition in refused
        ]
        return replace(decision, reason="; ".join(reasons), transitions=(*ordered, *_ended(view), *decided))

    return overridden


def effective_pins(view: View) -> tuple[dict[str, str], list[str]]:
    """Pinned partition → the member that should own it; and the partitions pinned to this member beyond its limit."""
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
    """The transitions by which this member gets its pinned partitions."""
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
    """The transitions that end transfers: this member's own transfers after the minimum tenure and, if it is the oldest
    active member, transfers to members that have left."""
    me, active, leases, recently_moved = view.me, view.active, view.snapshot.leases, view.recently_moved
    ended: list[Transition] = []
    for partition, pin in view.snapshot.ownership.pins.items():
        lease = leases[partition]
        kept = lease.owner == pin.to == me.id and partition not in recently_moved
        if pin.transfer and (kept or (pin.to not in active and active[:1] == (me.id,))):
            ended.append(EndTransfer(by=me, at_ms=view.at_ms, partition=partition, epoch=lease.epoch))
    return ended
