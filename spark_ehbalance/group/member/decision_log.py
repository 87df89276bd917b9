"""Formats decisions and their reasons as log lines: `balance:` and a JSON object. Pure."""

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
    """Formats one member's decisions as log lines; `last` is the content of the last line."""

    last: object = None

    def note(self, member: str, view: View | None, decision: Decision) -> tuple[DecisionLog, int, str]:
        """The next log, and the level and the text of the line for the `decision` of `member` on `view` (None if the
        strategy did not run).

        If a decision to do nothing is repeated for the same reason, its level is DEBUG.
        """
        what = {"decided": by_kind(decision.transitions), "why": decision.reason}
        level = logging.INFO if decision.transitions or what != self.last else logging.DEBUG
        head: dict[str, Any] = {"member": member}
        if view is not None:
            head |= {"strategy": view.snapshot.members[member].strategy, "version": view.snapshot.version}
        return DecisionLog(what), level, f"balance: {json.dumps(head | what)}"


@dataclass(frozen=True, slots=True)
class Shortage:
    """`since`: when the members' limits began to leave partitions unowned, in monotonic seconds; None if they do not.
    `warned`: whether a warning was logged."""

    since: float | None = None
    warned: bool = False

    def note(self, view: View, *, at_once: bool) -> tuple[Shortage, str | None]:
        """The shortage as of `view`, and the warning if one is due. With `at_once`, a warning is due immediately;
        otherwise, it is due after a lease duration, so that other members have time to start."""
        limits, count = [view.snapshot.members[id].max_owned for id in view.active], len(view.snapshot.leases)
        room = sum(limit for limit in limits if limit is not None)
        if not limits or None in limits or room >= count:
            return Shortage(), None
        since = view.now if self.since is None else self.since
        if self.warned or not (at_once or view.now - since >= view.lease_duration):
            return Shortage(since, self.warned), None
        return Shortage(since, warned=True), (
            "Because of the members' limits, some partitions have no owner. Raise maxPartitionsOwned, or start another "
            f"query. unowned={count - room} partitions={count} limits={room}"
        )


def by_kind(transitions: Iterable[Transition]) -> dict[str, list[str]]:
    """Kind of transition → partitions."""
    kinds: dict[str, list[str]] = {}
    for transition in transitions:
        if isinstance(transition, LeaseTransition):
            kinds.setdefault(type(transition).__name__, []).append(transition.partition)
    return kinds
