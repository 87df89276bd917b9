"""Decisions as log lines: content and level."""

from __future__ import annotations

import json
import random

from spark_ehbalance.group.member.decision_log import DecisionLog, Shortage
from spark_ehbalance.group.model import Author, Lease
from spark_ehbalance.group.strategies import Decision, View
from tests.group.strategies.members import snapshot_of


def test_a_line_says_what_is_done_and_why_and_doing_nothing_again_is_for_debugging_only() -> None:
    log, seen, nothing = DecisionLog(), limited(0.0, None), Decision("nothing, because all is owned")
    claim = Decision("claim, because they are free", (seen.claim("1"), seen.claim("2"), seen.cancel("3")))
    assert [log.note("a", seen, each)[0] for each in (nothing, nothing, claim, claim)] == [20, 10, 20, 20]
    line = log.note("a", seen, claim)[1]
    assert json.loads(line.removeprefix("balance: ")) == {
        "member": "a",
        "strategy": "",
        "version": seen.snapshot.version,
        "decided": {"Claim": ["1", "2"], "CancelHandover": ["3"]},
        "why": "claim, because they are free",
    }
    other = Decision("nothing, because this member is leaving")
    assert [log.note("a", None, each)[0] for each in (nothing, other, other)] == [20, 20, 10], "for another reason"


def limited(now: float, *limits: int | None) -> View:
    """The view at `now` of the first of up to three members, whose leases last 30 s, on 4 partitions."""
    members = dict(zip("abc", limits, strict=False))
    snapshot = snapshot_of(members, [Lease(str(number)) for number in range(4)])
    live = frozenset(members)
    return View(Author("a", "1"), 0, snapshot, frozenset(), live, random.Random(1), now=now, lease_duration=30.0)


def test_limits_that_leave_partitions_unread_are_reported_once_after_a_lease_duration() -> None:
    shortage = Shortage()
    assert [shortage.note(limited(now, 1, 2), at_once=False) for now in (100.0, 129.0)] == [None, None]
    assert shortage.note(limited(130.0, 1, 2), at_once=False)
    assert not any(shortage.note(limited(now, 1, 2), at_once=True) for now in (131.0, 500.0)), "reported already"
    assert shortage.note(limited(501.0, 1, 2, 1), at_once=True) is None
    assert shortage.note(limited(502.0, 1, 2), at_once=True), "it was over in between"
    for limits in ((1, None), (2, 2), (4,)):
        assert Shortage().note(limited(100.0, *limits), at_once=True) is None
