"""When a member asks its strategy, what it shows it, and what the leader does besides. No clock, no I/O."""

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
from spark_ehbalance.group.strategies.base import Decision, View
from spark_ehbalance.group.strategies.overrides import with_overrides


class Balancer:
    """Asks the strategy of one member, and keeps what it wants to remember."""

    def __init__(self, member: Membership, rng: random.Random) -> None:
        self._member = member
        self._rng = rng
        self._ownership: Ownership | None = None  # at the last balancing
        self._memory: Any = None  # the strategy's

    def unsettled(self, now: Clocks) -> bool:
        """Whether there is a reason to balance before the next interval: members or leases have changed since the last
        balancing, or a lease or a handover has expired."""
        member, snapshot = self._member, self._member.snapshot
        if self._ownership is not snapshot.ownership and self._ownership != snapshot.ownership:
            return True
        durations, observations = member.duration.durations, member.belief.observations
        return bool(
            expired_leases(observations, snapshot, durations, now.monotonic, now.wall_ms)
            or overdue_handovers(observations, snapshot, now.monotonic)
        )

    def leads(self, snapshot: Snapshot, now: Clocks) -> bool:
        """Whether this member is the group's leader, or would be without the members whose heartbeats have expired."""
        durations, observations = self._member.duration.durations, self._member.belief.observations
        return self._leads(snapshot, expired_members(observations, snapshot, durations, now.monotonic, now.wall_ms))

    def decide(
        self, pending: list[Transition], now: Clocks, abstain: str | None, partitions: Collection[str]
    ) -> tuple[Decision, View]:
        """What the strategy decides when `pending` is written first, and what it was shown: of the leases those of the
        hub's `partitions`, all if they are not known. It is not asked if this member is to `abstain` for a reason."""
        member = self._member
        self._ownership = member.snapshot.ownership
        view = _only(partitions, self._view(pending, now))
        strategy = with_overrides(member.settings.strategy)
        decision = Decision(f"nothing, because {abstain}") if abstain else strategy(view)
        self._memory = decision.memory
        return decision, view

    def forget_dead(self, view: View) -> list[Transition]:
        """What removes members that died and own nothing any more, if this member is the leader."""
        snapshot = view.snapshot
        dead = snapshot.members.keys() - view.live
        if not self._leads(snapshot, dead):
            return []
        return [
            Forget(by=view.me, at_ms=view.at_ms, member=each, counter=snapshot.members[each].counter)
            for each in sorted(dead)
            if not snapshot.owned_by(each)
        ]

    def _view(self, pending: list[Transition], now: Clocks) -> View:
        member, draft, observations = self._member, self._member.snapshot, self._member.belief.observations
        settings, duration = member.settings, member.duration
        durations, times = duration.durations, (now.monotonic, now.wall_ms)
        if not is_routine(pending):  # which changes nothing that a strategy goes by
            draft = apply(draft, pending).after
            observations, durations = observations.updated(draft, now.monotonic), duration.durations_of(draft)
        handover = settings.handover_timeout + durations.needs  # till the owner can write it
        dead = expired_members(observations, draft, durations, *times) - {member.author.id}
        return View(
            me=member.author,
            at_ms=now.wall_ms,
            snapshot=draft,
            # Its own are being renewed.
            expired=expired_leases(observations, draft, durations, *times).difference(member.holdings),
            live=frozenset(draft.members.keys() - dead),
            rng=self._rng,
            max_owned=settings.max_owned,
            overdue=overdue_handovers(observations, draft, now.monotonic),
            handover_timeout_ms=round(1000 * handover),
            now=now.monotonic,
            observations=observations,
            lease_duration=duration.group,
            memory=self._memory,
        )

    def _leads(self, snapshot: Snapshot, dead: Set[str]) -> bool:
        me = self._member.author.id
        if not dead:
            return snapshot.leader == me
        return oldest_active(row for id, row in snapshot.members.items() if id not in dead or id == me) == me


def _only(partitions: Collection[str], view: View) -> View:
    """`view` without leases of partitions that the hub does not have: it was recreated with fewer, or somebody else has
    written them."""
    leases = view.snapshot.leases
    if not partitions or len(leases) <= len(partitions):  # the leases have all of the hub's
        return view
    hub = frozenset(partitions)
    snapshot = replace(view.snapshot, leases={p: lease for p, lease in leases.items() if p in hub})
    return replace(view, snapshot=snapshot, expired=view.expired & hub, overdue=view.overdue & hub)
