"""Decides when a member balances, builds the view for its strategy, and does the leader's other duties. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Set
from dataclasses import replace
from typing import Any

from spark_ehbalance.group.changes import Forget, Transition, apply
from spark_ehbalance.group.expiry import expired_leases, expired_members, overdue_handovers
from spark_ehbalance.group.member.membership import Clocks, Membership
from spark_ehbalance.group.member.pending import is_routine
from spark_ehbalance.group.ownership import Ownership
from spark_ehbalance.group.snapshot import Snapshot, oldest_active
from spark_ehbalance.group.strategies.base import View


def needs_rebalance(member: Membership, balanced: Ownership | None, now: Clocks) -> bool:
    """Whether to balance before the next interval, because ownership differs from the last cycle's (`balanced`), or a
    lease or a handover expired."""
    snapshot = member.snapshot
    if balanced is not snapshot.ownership and balanced != snapshot.ownership:
        return True
    durations, observations = member.duration.durations, member.group_state.observations
    return bool(
        expired_leases(observations, snapshot, durations, now.monotonic, now.wall_ms)
        or overdue_handovers(observations, snapshot, now.monotonic)
    )


def leads(member: Membership, snapshot: Snapshot, now: Clocks) -> bool:
    """Whether `member` is the group's leader, ignoring members whose heartbeats expired."""
    durations, observations = member.duration.durations, member.group_state.observations
    dead = expired_members(observations, snapshot, durations, now.monotonic, now.wall_ms)
    return _leads(member.author.id, snapshot, dead)


def view(
    member: Membership,
    written_first: list[Transition],
    partitions: Collection[str],
    now: Clocks,
    rng: random.Random,
    memory: Any,
) -> View:
    """The view for the strategy of `member`, after applying `written_first`. It contains only leases of the hub's
    `partitions` (all leases if empty). `memory` is the strategy's memory."""
    draft, observations, settings, duration = (
        member.snapshot,
        member.group_state.observations,
        member.settings,
        member.duration,
    )
    durations, times = duration.durations, (now.monotonic, now.wall_ms)
    if not is_routine(written_first):  # strategies do not depend on routine transitions
        draft = apply(draft, written_first).after
        observations, durations = observations.updated(draft, now.monotonic), duration.group_durations(draft)
    handover = settings.handover_timeout + durations.needs  # `needs`: until the owner can write to the table
    dead = expired_members(observations, draft, durations, *times) - {member.author.id}
    shown = View(
        me=member.author,
        at_ms=now.wall_ms,
        snapshot=draft,
        # Own leases never count as expired: they are about to be renewed.
        expired=expired_leases(observations, draft, durations, *times).difference(member.owned),
        live=frozenset(draft.members.keys() - dead),
        rng=rng,
        max_owned=settings.max_owned,
        overdue=overdue_handovers(observations, draft, now.monotonic),
        handover_timeout_ms=round(1000 * handover),
        now=now.monotonic,
        observations=observations,
        lease_duration=duration.group,
        memory=memory,
    )
    return _only(partitions, shown)


def forget_dead(view: View) -> list[Transition]:
    """Transitions that remove dead members without leases, if the observer of `view` is the leader."""
    snapshot = view.snapshot
    dead = snapshot.members.keys() - view.live
    if not _leads(view.me.id, snapshot, dead):
        return []
    return [
        Forget(by=view.me, at_ms=view.at_ms, member=member, counter=snapshot.members[member].counter)
        for member in sorted(dead)
        if not snapshot.owned_by(member)
    ]


def _leads(me: str, snapshot: Snapshot, dead: Set[str]) -> bool:
    if not dead:
        return snapshot.leader == me
    return oldest_active(row for id, row in snapshot.members.items() if id not in dead or id == me) == me


def _only(partitions: Collection[str], view: View) -> View:
    """`view` without leases of partitions that the hub does not have, because it was recreated with fewer partitions or
    a foreign program wrote the leases."""
    leases = view.snapshot.leases
    if not partitions or len(leases) <= len(partitions):  # no lease beyond the hub's partitions
        return view
    hub = frozenset(partitions)
    snapshot = replace(view.snapshot, leases={p: lease for p, lease in leases.items() if p in hub})
    return replace(view, snapshot=snapshot, expired=view.expired & hub, overdue=view.overdue & hub)
