"""What a group does whose members have different strategies, as while it is changed query by query.

Two strategies that both keep a group balanced may still undo each other's moves. As long as the live active members
name different strategies, each of them decides by `cooperative`: it only asks for a surplus, every member computes the
same target, and pending handovers of any strategy count as done. No combination has to be refused. When the last member
of the old strategy has gone, the others find a balanced group, and go on by their own rule.

A strategy's memory is its own: it starts with none where another strategy decided before, because times that were noted
before a group was mixed mean nothing after it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from spark_ehbalance.group.model import MemberState
from spark_ehbalance.group.strategies.base import Decision, Strategy, View
from spark_ehbalance.group.strategies.cooperative import cooperative


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory that the strategy `by` left for its own next decision."""

    by: Strategy
    memory: Any


def with_mixed_fallback(strategy: Strategy) -> Strategy:
    """`strategy` in a group in which all members have the same, `cooperative` in any other."""

    def decide(view: View) -> Decision:
        names = _strategies(view)
        mixed = len(names) > 1
        if mixed and "" in names:  # a consumer, whose client balances by number and would undo moves by load
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
    return replace(decision, reason=f"{decision.reason}; by cooperative, because the members' strategies are {shown}")


def _strategies(view: View) -> frozenset[str]:
    rows = map(view.snapshot.members.__getitem__, view.live)
    return frozenset([row.strategy for row in rows if row.state is MemberState.ACTIVE])
