"""The fallback for a group whose members have different strategies, for example while queries are changed one by one.

Two strategies might undo each other's moves. So while the live active members have different strategies, each member
uses `cooperative`, which requests only surplus partitions, computes the same target on every member, and counts pending
handovers as done. When the last member with the old strategy has left, the others return to their own.

A strategy starts without memory after a different strategy decided, because the times in its memory are obsolete.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from spark_ehbalance.group.model import MemberState
from spark_ehbalance.group.strategies.base import Decision, Strategy, View
from spark_ehbalance.group.strategies.cooperative import cooperative


@dataclass(frozen=True, slots=True)
class _Memory:
    """The `memory` of the strategy `by`."""

    by: Strategy
    memory: Any


def with_mixed_fallback(strategy: Strategy) -> Strategy:
    """Wrap `strategy` so that `cooperative` decides while members have different strategies."""

    def decide(view: View) -> Decision:
        names = _strategies(view)
        mixed = len(names) > 1
        if mixed and "" in names:  # a consumer's client balances partition counts, so it would undo moves by load
            leases = {p: replace(lease, load=None) for p, lease in view.snapshot.leases.items()}
            view = replace(view, snapshot=replace(view.snapshot, leases=leases))
        chosen, last = cooperative if mixed else strategy, view.memory
        own = isinstance(last, _Memory) and last.by is chosen
        decision = chosen(replace(view, memory=last.memory if own else None))
        decision = replace(decision, memory=_Memory(chosen, decision.memory))
        return _explained(decision, names) if mixed else decision

    return decide


def _explained(decision: Decision, names: frozenset[str]) -> Decision:
    shown = ", ".join(sorted(name or "unnamed" for name in names))
    return replace(
        decision, reason=f"{decision.reason}; decided by cooperative, because the members' strategies are {shown}"
    )


def _strategies(view: View) -> frozenset[str]:
    rows = map(view.snapshot.members.__getitem__, view.live)
    return frozenset([row.strategy for row in rows if row.state is MemberState.ACTIVE])
