"""Decisions as log lines: content and level."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import replace

from spark_ehbalance.group.member.decision_log import DecisionLog, Shortage
from spark_ehbalance.group.model import Author, Handover, Lease, MemberLoad, Pin
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.strategies import Decision, View
from tests.group.strategies.members import snapshot_of


def view(version: int = 7) -> View:
    """Ann's view: one partition is hers, one free, one Bob's and expired, one on its way from Bob to Ann, pinned."""
    leases = [
        Lease("0", "ann", 1, checkpoint=Position(4)),
        Lease("1"),
        Lease("2", "bob", 2, checkpoint=Position(5)),
        Lease("3", "bob", 2, checkpoint=Position(6), handover=Handover("ann", 1), pin=Pin("ann", "operator", "so")),
    ]
    snapshot = snapshot_of(["ann", "bob", "cat"], leases)
    ann = replace(snapshot.members["ann"], strategy="greedy", load=MemberLoad(10.0, 3.0, 0.5, 0.2))
    return View(
        me=Author("ann", "1"),
        at_ms=0,
        snapshot=replace(snapshot, version=version, members={**snapshot.members, "ann": ann}),
        expired=frozenset({"2"}),
        live=frozenset({"ann", "bob"}),
        rng=random.Random(1),
        overdue=frozenset({"3"}),
        max_owned=5,
    )


def told(line: str, begin: str) -> dict[str, object]:
    assert line.startswith(begin)
    assert "\n" not in line
    value: dict[str, object] = json.loads(line.removeprefix(begin))
    return value


def test_a_line_says_what_was_seen_what_is_done_and_why() -> None:
    seen = view()
    decision = Decision("claim, because it is free", (seen.claim("1"), seen.claim("2"), seen.cancel("3")))
    level, line = DecisionLog().note("ann", seen, decision)
    assert level == logging.INFO
    assert told(line, "balance: ") == {
        "member": "ann",
        "strategy": "greedy",
        "version": 7,
        "seen": {
            "members": 3,
            "live": 2,
            "partitions": 4,
            "own": 1,
            "free": 1,
            "expired": ["2"],
            "pending": ["3"],
            "overdue": ["3"],
            "pinned": ["3"],
        },
        "decided": {"Claim": ["1", "2"], "CancelHandover": ["3"]},
        "why": "claim, because it is free",
    }


def test_doing_nothing_again_is_for_debugging_only() -> None:
    log, nothing = DecisionLog(), Decision("nothing, because all is owned")
    assert log.note("ann", view(), nothing)[0] == logging.INFO
    assert log.note("ann", view(8), nothing)[0] == logging.DEBUG, "only signs of life came in between"
    assert log.note("ann", replace(view(9), expired=frozenset()), nothing)[0] == logging.INFO, "something else is seen"
    assert log.note("ann", replace(view(9), expired=frozenset()), nothing)[0] == logging.DEBUG
    other = Decision("nothing, because this member is leaving")
    assert log.note("ann", replace(view(9), expired=frozenset()), other)[0] == logging.INFO, "for another reason"
    claim = Decision("claim", (view().claim("1"),))
    assert [log.note("ann", view(), claim)[0] for _ in range(2)] == [logging.INFO] * 2, "what is done is told each time"
    assert [log.note("ann", None, nothing)[0] for _ in range(2)] == [logging.INFO, logging.DEBUG]


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
