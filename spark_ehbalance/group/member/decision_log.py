"""Decisions as log lines in JSON, after `balance:`: what a member does and why. Pure."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from spark_ehbalance.group.changes import LeaseTransition, Transition
from spark_ehbalance.group.strategies.base import Decision, View


class DecisionLog:
    """Turns one member's decisions into log lines."""

    def __init__(self) -> None:
        self._last: object = None

    def note(self, member: str, view: View | None, decision: Decision) -> tuple[int, str]:
        """The level and the line for `decision`, made by `member` on `view` (None if the strategy was not asked).

        A repeated decision to do nothing, for the same reason, has level DEBUG.
        """
        what = {"decided": by_kind(decision.transitions), "why": decision.reason}
        repeated = not decision.transitions and what == self._last
        self._last = what
        head: dict[str, Any] = {"member": member}
        if view is not None:
            head |= {"strategy": view.snapshot.members[member].strategy, "version": view.snapshot.version}
        return logging.DEBUG if repeated else logging.INFO, f"balance: {json.dumps(head | what)}"


class Shortage:
    """Warns once that the members' limits leave partitions without an owner."""

    def __init__(self) -> None:
        self._since: float | None = None  # monotonic
        self._warned = False

    def note(self, view: View, *, at_once: bool) -> str | None:
        """The warning, if it is due: `at_once`, or after a lease duration, in which others may still be starting."""
        limits, count = [view.snapshot.members[id].max_owned for id in view.active], len(view.snapshot.leases)
        room = sum(limit for limit in limits if limit is not None)
        if not limits or None in limits or room >= count:
            self._since, self._warned = None, False
            return None
        self._since = view.now if self._since is None else self._since
        if self._warned or not (at_once or view.now - self._since >= view.lease_duration):
            return None
        self._warned = True
        return (
            f"nobody reads {count - room} of {count} partitions: maxPartitionsOwned of all members adds up to "
            f"{room}. Raise maxPartitionsOwned, or start another query"
        )


def by_kind(transitions: Iterable[Transition]) -> dict[str, list[str]]:
    """Kind of transition → the partitions of the transitions of that kind."""
    kinds: dict[str, list[str]] = {}
    for each in transitions:
        if isinstance(each, LeaseTransition):
            kinds.setdefault(type(each).__name__, []).append(each.partition)
    return kinds
