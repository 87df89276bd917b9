"""Resolution of stuck handovers, common to all strategies."""

from __future__ import annotations

from dataclasses import replace

from spark_ehbalance.group.changes import Transition
from spark_ehbalance.group.strategies.base import Decision, Strategy, View


def with_stuck_handovers_resolved(strategy: Strategy) -> Strategy:
    """`strategy`, extended to claim partitions whose handover to this member is overdue and, if this member is the
    owner or the leader, to cancel handovers to members that have left or are leaving."""

    def decide(view: View) -> Decision:
        decision = strategy(view)
        stuck = _stuck(view)
        if not stuck:
            return decision
        reason = f"{decision.reason}; and resolve {len(stuck)} stuck handovers"
        return replace(decision, reason=reason, transitions=(*stuck, *decision.transitions))

    return decide


def _stuck(view: View) -> list[Transition]:
    pending = view.snapshot.ownership.pending
    if not pending:
        return []
    me, leases, leader, active = view.me.id, view.snapshot.leases, view.active[:1], frozenset(view.active)
    stuck: list[Transition] = []
    for partition, handover in pending.items():
        if partition in view.pinned:
            continue
        if handover.to == me:
            if partition in view.overdue or partition in view.expired:
                stuck.append(view.claim(partition))
        elif handover.to not in active and me in (leases[partition].owner, *leader):
            stuck.append(view.cancel(partition))
    return stuck
