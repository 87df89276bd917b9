"""What a group does whose members have been given different strategies, as while it is changed query by query.

Two strategies that both keep a group balanced may still undo each other's moves. So as long as the active members that
are alive do not all name the same one, each of them decides by `cooperative`: it only asks for a surplus, everybody
computes the same target, and pending handovers of any strategy count as done. No pair has to be refused. When the
last member of the old strategy has gone the others find a balanced group, and go on by their own rule.
"""

from __future__ import annotations

from spark_ehbalance.strategies.base import Decision, Strategy, View
from spark_ehbalance.strategies.cooperative import cooperative


def unless_mixed(strategy: Strategy) -> Strategy:
    """`strategy` in a group in which all have the same, `cooperative` in any other."""

    def decide(view: View) -> Decision:
        names = view.shared("strategies", lambda: _strategies(view))
        if len(names) <= 1:
            return strategy(view)
        decision = cooperative(view)
        shown = ", ".join(sorted(name or "unnamed" for name in names))
        why = f"by cooperative, because the members' strategies are {shown}"
        return Decision(f"{decision.reason}; {why}", decision.transitions)

    return decide


def _strategies(view: View) -> frozenset[str]:
    return frozenset(view.snapshot.members[id].strategy for id in view.active)
