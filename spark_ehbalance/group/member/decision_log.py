"""Decisions as log lines in JSON: what a member has seen, what it does and why. Pure.

A `balance:` line summarizes the view and the decision.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from spark_ehbalance.group.changes import LeaseTransition, Transition
from spark_ehbalance.group.member.query_state import QueryState
from spark_ehbalance.group.position import partition_order
from spark_ehbalance.group.strategies.base import Decision, View

#: Seconds after which a batch is said to be long: one that catches up takes minutes.
LONG_BATCH = 300.0


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
        if decision.would:
            what["would"] = dict(decision.would)
        repeated = not decision.transitions and what == self._last
        self._last = what
        head: dict[str, Any] = {"member": member}
        if view is not None:
            head |= {"strategy": view.snapshot.members[member].strategy, "version": view.snapshot.version}
        return logging.DEBUG if repeated else logging.INFO, f"balance: {json.dumps(head | what)}"


class Shortage:
    """Warns once that members' limits leave partitions unread."""

    def __init__(self) -> None:
        self._since: float | None = None  # by the member's monotonic clock
        self._warned = False

    def note(self, view: View, *, at_once: bool) -> str | None:
        """The warning, if it is time for it: `at_once`, or after a lease duration, because until then others may still
        be starting."""
        unread, room = _unread(view)
        if not unread:
            self._since, self._warned = None, False
            return None
        self._since = view.now if self._since is None else self._since
        if self._warned or not (at_once or view.now - self._since >= view.lease_duration):
            return None
        self._warned = True
        return (
            f"{unread} of {len(view.snapshot.leases)} partitions are read by nobody, because maxPartitionsOwned of the "
            f"group's {len(view.active)} queries comes to {room} in all. Their events wait in the hub, as long as it "
            "retains them: raise maxPartitionsOwned or start another query"
        )


class LongBatch:
    """Warns of a batch that has been running for long: meanwhile nothing else of its query's partitions is read."""

    def __init__(self, first: float = LONG_BATCH) -> None:
        """`first`: seconds after which a batch is long, or after three times the query's mean, if that is more."""
        self._first = first
        self._began = self._next = 0.0  # the batch, by when it began; and how long it runs until the next warning

    def note(self, query: QueryState, owned: int, now: float) -> str | None:
        """The warning, if it is time for it at monotonic time `now`: once, and again whenever the batch has run for
        twice as long. Nothing of a consumer, which has no batches."""
        began, ran = query.batch_began, now - query.batch_began
        if not query.in_flight or not began:
            return None
        if began != self._began:
            mean = query.load.batch_seconds if query.load else 0.0
            self._began, self._next = began, max(self._first, 3 * mean)
        if ran < self._next:
            return None
        self._next = 2 * ran
        return (
            f"a batch with {len(query.in_flight)} of the {owned} owned partitions has been running for {ran:.0f} s: "
            "before it ends nothing else of them is read. If that is too long, see in Spark's UI whether a task or the "
            "sink hangs. With a trigger interval, and without spark_ehbalance.register(spark), it may have ended: that "
            "is known at the next trigger"
        )


def _unread(view: View) -> tuple[int, int]:
    """How many partitions nobody may own, and how many all members together may; (0, 0) where there is no limit."""
    limits = [view.snapshot.members[id].max_owned for id in view.active]
    room = sum(limit for limit in limits if limit is not None)
    return (0, 0) if None in limits or not limits else (max(0, len(view.snapshot.leases) - room), room)


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
