"""Decisions as log lines in JSON, after `balance:`: what a member does and why. Pure."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from spark_ehbalance.group.changes import LeaseTransition, Transition
from spark_ehbalance.group.strategies.base import Decision, View


@dataclass(frozen=True, slots=True)
class DecisionLog:
    """Turns one member's decisions into log lines; `last` is what the last one says."""

    last: object = None

    def note(self, member: str, view: View | None, decision: Decision) -> tuple[DecisionLog, int, str]:
        """The next log, and the level and the line for `decision`, made by `member` on `view` (None if the strategy was
        not asked).

        A repeated decision to do nothing, for the same reason, has level DEBUG.
        """
        what = {"decided": by_kind(decision.transitions), "why": decision.reason}
        level = logging.INFO if decision.transitions or what != self.last else logging.DEBUG
        head: dict[str, Any] = {"member": member}
        if view is not None:
            head |= {"strategy": view.snapshot.members[member].strategy, "version": view.snapshot.version}
        return DecisionLog(what), level, f"balance: {json.dumps(head | what)}"


@dataclass(frozen=True, slots=True)
class Shortage:
    """Since when (monotonic seconds) the members' limits leave partitions unowned, and whether that was logged."""

    since: float | None = None
    warned: bool = False

    def note(self, view: View, *, at_once: bool) -> tuple[Shortage, str | None]:
        """As of `view`, and the warning, if it is due: `at_once`, or after a lease duration, in which others may still
        be starting."""
        limits, count = [view.snapshot.members[id].max_owned for id in view.active], len(view.snapshot.leases)
        room = sum(limit for limit in limits if limit is not None)
        if not limits or None in limits or room >= count:
            return Shortage(), None
        since = view.now if self.since is None else self.since
        if self.warned or not (at_once or view.now - since >= view.lease_duration):
            return Shortage(since, self.warned), None
        return Shortage(since, warned=True), (
            f"nobody reads {count - room} of {count} partitions: maxPartitionsOwned of all members adds up to "
            f"{room}. Raise maxPartitionsOwned, or start another query"
        )


def by_kind(transitions: Iterable[Transition]) -> dict[str, list[str]]:
    """Kind of transition → the partitions of the transitions of that kind."""
    kinds: dict[str, list[str]] = {}
    for transition in transitions:
        if isinstance(transition, LeaseTransition):
            kinds.setdefault(type(transition).__name__, []).append(transition.partition)
    return kinds
