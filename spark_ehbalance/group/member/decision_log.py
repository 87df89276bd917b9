"""Decisions as log lines in JSON: what a member has seen, what it does and why. Pure.

A `balance:` line summarizes the view and the decision.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from spark_ehbalance.group.changes import LeaseTransition, Transition
from spark_ehbalance.group.position import partition_order
from spark_ehbalance.group.strategies.base import Decision, View


class DecisionLog:
    """Turns one member's decisions into log lines."""

    def __init__(self) -> None:
        self._last: object = None

    def note(self, member: str, view: View | None, decision: Decision) -> tuple[int, str]:
        """The level and the line for `decision`, made by `member` on `view` (None if the strategy was not asked).

        A repeated decision to do nothing, for the same reason and on an equal view, has level DEBUG.
        """
        what = {
            "seen": None if view is None else seen(view),
            "decided": by_kind(decision.transitions),
            "why": decision.reason,
        }
        repeated = not decision.transitions and what == self._last
        self._last = what
        head: dict[str, Any] = {"member": member}
        if view is not None:
            head |= {"strategy": view.snapshot.members[member].strategy, "version": view.snapshot.version}
        return logging.DEBUG if repeated else logging.INFO, f"balance: {json.dumps(head | what)}"


def seen(view: View) -> dict[str, Any]:
    """A summary of `view`: counts of what is normal, names of what is not."""
    leases = view.snapshot.leases
    return {
        "members": len(view.snapshot.members),
        "live": len(view.live),
        "partitions": len(leases),
        "own": len(view.snapshot.owned_by(view.me.id)),
        "free": sum(lease.owner is None for lease in leases.values()),
        "expired": _in_order(view.expired),
        "pending": [partition for partition, lease in leases.items() if lease.handover],
        "overdue": _in_order(view.overdue),
        "pinned": [partition for partition, lease in leases.items() if lease.pin],
    }


def by_kind(transitions: Iterable[Transition]) -> dict[str, list[str]]:
    """Kind of transition → the partitions of the transitions of that kind."""
    kinds: dict[str, list[str]] = {}
    for each in transitions:
        if isinstance(each, LeaseTransition):
            kinds.setdefault(type(each).__name__, []).append(each.partition)
    return kinds


def _in_order(partitions: Iterable[str]) -> list[str]:
    return sorted(partitions, key=partition_order)
