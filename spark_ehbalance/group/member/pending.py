"""A member's transitions other than the strategy's decisions: membership, renewals, progress, releases. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import filterfalse

from spark_ehbalance.group.changes import (
    AddPartitions,
    Advance,
    CancelHandover,
    Checkpoint,
    Claim,
    HandOver,
    Heartbeat,
    Leave,
    RecordHub,
    RecordLatest,
    Release,
    Renew,
    Reset,
    Transition,
    apply,
)
from spark_ehbalance.group.member.membership import Clocks, Membership
from spark_ehbalance.group.member.query_state import QueryState
from spark_ehbalance.group.model import Lease, Load
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot

#: The transitions on which no other member's decisions depend.
_ROUTINE = frozenset({Advance, Checkpoint, Heartbeat, Renew})

#: A load is written again only if it changed by more than this fraction and by more than this rate (events per second),
#: because each change makes all members decide again. A backlog counts as a rate over this many seconds.
_LOAD_CHANGE, _MIN_LOAD_CHANGE, _BACKLOG_SECONDS = 0.05, 0.1, 60.0


def is_routine(transitions: Iterable[Transition]) -> bool:
    """Whether all of `transitions` may wait for the next due commit."""
    return all(type(transition) in _ROUTINE for transition in transitions)


def pending(
    member: Membership, query: QueryState, in_flight: frozenset[str], now: Clocks, *, leaving: bool
) -> list[Transition]:
    """The transitions after a read, other than balancing: join, heartbeat, progress, releases, renewals.

    A member that is `leaving` releases all partitions that are not `in_flight`. Every commit includes early renewals,
    so that few commits contain nothing but renewals.
    """
    by, at_ms, snapshot, part = member.author, now.wall_ms, member.snapshot, member.settings.early_renewal_part
    transitions: list[Transition] = [*member.join(at_ms, query)]
    if not member.joined:
        transitions += _progress(member, query, at_ms)
        return transitions + _resumed(member, apply(snapshot, transitions).after, at_ms)
    transitions += _claims(member, member.unclaimed, len(member.owned), at_ms)
    if by.id in snapshot.members and member.commit_state.heartbeat + part * member.duration.own <= now.monotonic:
        transitions.append(member.heartbeat(at_ms, query))
    transitions += _progress(member, query, at_ms)
    for partition, holding in member.owned.items():
        epoch, at_rest = holding.epoch, partition not in in_flight
        if leaving and at_rest:
            transitions.append(Release(by=by, at_ms=at_ms, partition=partition, epoch=epoch))
        elif holding.handover_pending and at_rest:
            transitions.append(HandOver(by=by, at_ms=at_ms, partition=partition, epoch=epoch))
        elif holding.renewed + part * holding.lasts <= now.monotonic and (
            partition not in query.progress or not member.settings.capabilities.atomic  # else the checkpoint renews it
        ):
            load = _changed_load(member, query, partition)
            transitions.append(Renew(by=by, at_ms=at_ms, partition=partition, epoch=epoch, load=load))
    return transitions + (member.advance(at_ms, query) if transitions else [])


def found(
    member: Membership,
    partitions: Iterable[str],
    hub_created_ms: int | None,
    latest_ms: int,
    ends: Mapping[str, Position],
    at_ms: int,
) -> Iterator[Transition]:
    """Transitions that record new `partitions` of the hub, the hub's creation time, and the meaning of `latest` for the
    whole group (`latest_ms` and `ends`)."""
    by, snapshot, members = member.author, member.snapshot, member.settings.capabilities.members
    new_table, creates = not snapshot.leases, False
    if member.joined or new_table:
        # Partitions added while the group runs are read from their first event, as in Kafka.
        start = Position.before(0) if member.joined and member.group_state.leases and members else None
        for partition in filterfalse(member.group_state.leases.__contains__, partitions):
            creates = new_table
            yield AddPartitions(by=by, at_ms=at_ms, partitions=(partition,), checkpoint=start)
    if creates and hub_created_ms is not None:
        yield RecordHub(by=by, at_ms=at_ms, created_ms=hub_created_ms)
    if members and (creates or snapshot.table) and snapshot.latest_ms is None:
        # Part of the first commit, so that a query stopped before its first batch counts as started.
        yield RecordLatest(by=by, at_ms=at_ms, latest_ms=latest_ms, ends=ends)


def shutdown(member: Membership, query: QueryState, now: Clocks) -> list[Transition]:
    """The transitions of the last commit: progress, then releases, then `Leave`."""
    if not member.joined:
        return []
    by, at_ms = member.author, now.wall_ms
    transitions = _progress(member, query, at_ms)
    for lease in member.unclaimed:
        if lease.owner == by.id:
            transitions.append(Release(by=by, at_ms=at_ms, partition=lease.partition, epoch=lease.epoch))
    for partition, holding in member.owned.items():
        if holding.handover_pending:
            transitions.append(HandOver(by=by, at_ms=at_ms, partition=partition, epoch=holding.epoch))
        # If the handover was accepted, the epoch has changed and this release is rejected. If the next owner has left,
        # the release is accepted.
        transitions.append(Release(by=by, at_ms=at_ms, partition=partition, epoch=holding.epoch))
    return [*transitions, *member.advance(at_ms, query), Leave(by=by, at_ms=at_ms)]


def _progress(member: Membership, query: QueryState, at_ms: int) -> list[Transition]:
    """Resets and checkpoints. Resets come first, because the checkpoints continue from them.

    If writes are not atomic, a checkpoint does not fail when another member has taken the partition since the read. A
    batch that finished during the read may have ended early for that reason, so its checkpoint waits for the next read.
    """
    by, progress = member.author, query.progress
    if not member.settings.capabilities.atomic:
        progress = {p: to for p, to in query.progress_before_read.items() if p in query.progress}
    resets: list[Transition] = [
        Reset(by=by, at_ms=at_ms, partition=p, epoch=to.epoch, position=to.position) for p, to in query.resets.items()
    ]
    return resets + [
        Checkpoint(
            by=by,
            at_ms=at_ms,
            partition=p,
            epoch=to.epoch,
            position=to.position,
            load=_changed_load(member, query, p),
        )
        for p, to in progress.items()
    ]


def _changed_load(member: Membership, query: QueryState, partition: str) -> Load | None:
    """The load of `partition`, or None if it hardly differs from the load in the table."""
    load, lease = query.loads.get(partition), member.group_state.leases.get(partition)
    if load is None or lease is None or lease.load is None:
        return load
    known = lease.load
    change = abs(load.rate - known.rate) + abs(load.backlog - known.backlog) / _BACKLOG_SECONDS
    least = max(_LOAD_CHANGE * (known.rate + known.backlog / _BACKLOG_SECONDS), _MIN_LOAD_CHANGE)
    return load if change > least else None


def _resumed(member: Membership, snapshot: Snapshot, at_ms: int) -> list[Transition]:
    """Claims of an earlier process's leases. Each start thereby gets a new epoch, which fences the earlier process.

    Leases beyond this member's limit are released, starting with those that the earlier process was not reading.
    Pending handovers that would exceed the limit are cancelled.
    """
    by, limit = member.author, member.settings.max_owned
    own = member.resumable(snapshot.leases)
    transitions: list[Transition] = []
    if limit is not None:  # before the claims, because pending handovers count towards the limit
        coming = [p for p, handover in snapshot.ownership.pending.items() if handover.to == by.id]
        transitions += [
            CancelHandover(by=by, at_ms=at_ms, partition=p, epoch=snapshot.leases[p].epoch)
            for p in coming[max(0, limit - len(own)) :]
        ]
    return transitions + _claims(member, own, 0, at_ms)


def _claims(member: Membership, own: Sequence[Lease], held: int, at_ms: int) -> list[Transition]:
    """Claims of an earlier process's leases (`own`). Leases beyond the limit are released; `held` partitions already
    count towards the limit. A release ends the tenure, because this process runs the earlier process's batch again
    without the partition."""
    by, limit = member.author, member.settings.max_owned
    kept = own if limit is None else own[: max(0, limit - held)]
    transitions: list[Transition] = []
    for lease in own[len(kept) :]:  # before the claims, which the limit would reject
        transitions.append(Claim(by=by, at_ms=at_ms, partition=lease.partition, epoch=lease.epoch))
        transitions.append(
            Release(by=by, at_ms=at_ms, partition=lease.partition, epoch=lease.epoch + 1, ends_tenure=True)
        )
    for lease in kept:
        since = member.earlier(lease.partition).since_ms
        claim = Claim(by=by, at_ms=at_ms, partition=lease.partition, epoch=lease.epoch, owned_since_ms=since)
        transitions.append(claim)
    return transitions
