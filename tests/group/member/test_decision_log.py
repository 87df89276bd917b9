"""The content and level of logged decisions."""

from __future__ import annotations

import json
import random

from spark_ehbalance.group.member.decision_log import DecisionLog, Shortage
from spark_ehbalance.group.model import Author, Lease
from spark_ehbalance.group.strategies import Decision, View
from tests.group.strategies.members import snapshot_of


def test_repeated_idle_decision_is_logged_at_debug_level() -> None:
    log, seen, nothing = DecisionLog(), limited(0.0, None), Decision("nothing, because all is owned")
    levels = []
    claim = Decision("claim, because they are free", (seen.claim("1"), seen.claim("2"), seen.cancel("3")))
    for decision in (nothing, nothing, claim, claim):
        log, level, line = log.note("a", seen, decision)
        levels.append(level)
    assert levels == [20, 10, 20, 20]
    assert json.loads(line.removeprefix("balance: ")) == {
        "member": "a",
        "strategy": "",
        "version": seen.snapshot.version,
        "decided": {"Claim": ["1", "2"], "CancelHandover": ["3"]},
        "why": "claim, because they are free",
    }
    other = Decision("nothing, because this member is leaving")
    for decision in (nothing, other, other):
        log, level, _ = log.note("a", None, decision)
        levels.append(level)
    assert levels[4:] == [20, 20, 10], "for another reason"


def limited(now: float, *limits: int | None) -> View:
    """The view at `now` of the first of up to three members that share 4 partitions with leases of 30 s."""
    members = dict(zip("abc", limits, strict=False))
    snapshot = snapshot_of(members, [Lease(str(number)) for number in range(4)])
    live = frozenset(members)
    return View(Author("a", "1"), 0, snapshot, frozenset(), live, random.Random(1), now=now, lease_duration=30.0)


def test_limits_that_leave_partitions_unowned_are_reported_once_after_a_lease_duration() -> None:
    shortage = Shortage()
    for now, limits, at_once, warned in (
        (100.0, (1, 2), False, False),
        (129.0, (1, 2), False, False),
        (130.0, (1, 2), False, True),
        (131.0, (1, 2), True, False),  # reported already
        (500.0, (1, 2), True, False),
        (501.0, (1, 2, 1), True, False),
        (502.0, (1, 2), True, True),  # the limit was lifted in between
    ):
        shortage, warning = shortage.note(limited(now, *limits), at_once=at_once)
        assert (warning is not None) is warned, now
    for enough in ((1, None), (2, 2), (4,)):
        assert Shortage().note(limited(100.0, *enough), at_once=True) == (Shortage(), None)
