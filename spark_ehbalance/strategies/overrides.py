"""What operators have ordered comes before what any strategy thinks.

A pinned partition is taken by the member that it is pinned to, and by nobody else, as long as that member is alive,
active and has room; otherwise it is anybody's, so that a pin never leaves a partition unread. A member with
`maxPartitionsOwned` partitions does not make room for a pin: it says so, and takes the partition once it has room.

Source of the idea: brokers' transfer shedders, in which operators name a destination.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from spark_ehbalance.leases.model import MemberState
from spark_ehbalance.leases.transitions import CancelHandover, EndTransfer, LeaseTransition, Transition
from spark_ehbalance.strategies.base import Decision, Strategy, View


def with_overrides(strategy: Strategy) -> Strategy:
    """`strategy`, which sees the pinned partitions in `View.pinned`, with the operators' orders carried out."""

    def overridden(view: View) -> Decision:
        if not any(lease.pin or lease.handover for lease in view.snapshot.leases.values()):
            return strategy(view)
        pins, refused = honoured(view)
        ordered = _ordered(view, pins)
        decision = strategy(replace(view, pinned=frozenset(pins), max_owned=_room_left(view, pins)))
        decided = [each for each in decision.transitions if _partition(each) not in pins]
        called_off = {_partition(each) for each in decided if isinstance(each, CancelHandover)}
        ordered += [view.cancel(partition) for partition in _stranded(view) if partition not in called_off]
        said = [_summary(ordered), decision.reason, *([f"{len(pins)} pinned"] if pins else [])]
        said += [
            f"partition {partition} is pinned here, but maxPartitionsOwned={view.max_owned} is reached"
            for partition in refused
        ]
        return replace(decision, reason="; ".join(filter(None, said)), transitions=(*ordered, *_ended(view), *decided))

    return overridden


def honoured(view: View) -> tuple[dict[str, str], list[str]]:
    """The pinned partitions with the members that are to have them, and those that this member has no room for."""
    members, active = view.snapshot.members, _active(view)
    owners = {p: None if p in view.expired else lease.owner for p, lease in view.snapshot.leases.items()}
    comes_to = {p: lease.handover.to for p, lease in view.snapshot.leases.items() if lease.handover}
    taken = Counter((owners | comes_to).values()) + Counter(owners[p] for p in comes_to)
    pins, refused = {}, []
    for partition, lease in view.snapshot.leases.items():
        if lease.pin is None or lease.pin.to not in active:
            continue
        to = lease.pin.to
        limit = members[to].max_owned
        if to in (owners[partition], comes_to.get(partition)):
            pins[partition] = to
        elif limit is None or taken[to] < limit:
            pins[partition] = to
            taken[to] += 1
        elif to == view.me.id:
            refused.append(partition)
    return pins, refused


def _ordered(view: View, pins: dict[str, str]) -> list[Transition]:
    """What this member does to have what is pinned to it."""
    ordered: list[Transition] = []
    for partition in (partition for partition, to in pins.items() if to == view.me.id):
        lease = view.snapshot.leases[partition]
        owner = None if partition in view.expired else lease.owner
        promised = lease.handover.to if lease.handover else None
        if owner is None or (promised == view.me.id and partition in view.overdue):
            ordered.append(view.claim(partition))
            continue
        if promised not in (None, view.me.id):
            ordered.append(view.cancel(partition))
        if owner != view.me.id != promised:
            ordered.append(view.request(partition))
    return ordered


def _ended(view: View) -> list[Transition]:
    """The transfers whose mark is to be taken away: this member's after the minimum tenure, and, by the leader, those
    whose destination is gone."""
    me, active = view.me, _active(view)
    ended: list[Transition] = []
    for partition, lease in view.snapshot.leases.items():
        if lease.pin is None or not lease.pin.transfer:
            continue
        settled = lease.owner == lease.pin.to == me.id and partition in view.tenured
        if settled or (lease.pin.to not in active and view.snapshot.leader == me.id):
            ended.append(EndTransfer(by=me, at_ms=view.at_ms, partition=partition, epoch=lease.epoch))
    return ended


def _stranded(view: View) -> list[str]:
    """This member's partitions that are promised to one who is gone: not every strategy knows of handovers."""
    active = _active(view)
    return [
        partition
        for partition, lease in view.snapshot.leases.items()
        if lease.handover and lease.handover.to not in active and lease.owner == view.me.id
    ]


def _room_left(view: View, pins: dict[str, str]) -> int | None:
    """How many partitions the strategy may let this member own, what is still to come to it as pinned left out."""
    if view.max_owned is None:
        return None
    leases, me = view.snapshot.leases, view.me.id
    return view.max_owned - sum(to == me != leases[partition].owner for partition, to in pins.items())


def _active(view: View) -> set[str]:
    members = view.snapshot.members
    return {id for id in view.live if members[id].state is MemberState.ACTIVE}


def _partition(transition: Transition) -> str | None:
    return transition.partition if isinstance(transition, LeaseTransition) else None


def _summary(ordered: list[Transition]) -> str:
    names = Counter(type(each).__name__ for each in ordered)
    return f"{', '.join(f'{name} {count}' for name, count in names.items())} by operators' orders" if ordered else ""
