"""Decisions as log lines: content and level."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import replace

from spark_ehbalance.group.member.decision_log import DecisionLog, LongBatch, Shortage
from spark_ehbalance.group.member.query_state import QueryState
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


def test_what_a_dry_run_would_move_is_logged_once_with_its_destinations() -> None:
    log, dry = DecisionLog(), Decision("would move 2, because it is uneven", would=(("1", "bob"), ("2", "cat")))
    level, line = log.note("ann", view(), dry)
    assert level == logging.INFO
    assert told(line, "balance: ")["would"] == {"1": "bob", "2": "cat"}
    assert told(line, "balance: ")["decided"] == {}
    assert log.note("ann", view(8), dry)[0] == logging.DEBUG, "the same again"
    assert log.note("ann", view(9), replace(dry, would=(("1", "cat"),)))[0] == logging.INFO


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


def limited(now: float, *limits: int | None, partitions: int = 4, live: str = "abc") -> View:
    """What the first member sees, whose lease lasts 30 s."""
    members = dict(zip("abc", limits, strict=False))
    snapshot = snapshot_of(members, [Lease(str(number)) for number in range(partitions)])
    alive = frozenset(live).intersection(members)
    return View(Author("a", "1"), 0, snapshot, frozenset(), alive, random.Random(1), now=now, lease_duration=30.0)


def test_limits_that_leave_partitions_unread_are_told_once_when_nobody_has_come_for_a_lease() -> None:
    shortage = Shortage()
    assert [shortage.note(limited(now, 1, 2), at_once=False) for now in (100.0, 129.0)] == [None, None]
    assert shortage.note(limited(130.0, 1, 2), at_once=False) == (
        "1 of 4 partitions are read by nobody, because maxPartitionsOwned of the group's 2 queries comes to 3 in all. "
        "Their events wait in the hub, as long as it retains them: raise maxPartitionsOwned or start another query"
    )
    assert not any(shortage.note(limited(now, 1, 2), at_once=True) for now in (131.0, 500.0)), "told already"
    assert shortage.note(limited(501.0, 1, 2, 1), at_once=False) is None
    assert shortage.note(limited(502.0, 1, 2, 1, live="ab"), at_once=False) is None
    assert shortage.note(limited(532.0, 1, 2, 1, live="ab"), at_once=False), "it was over in between"


def test_a_shortage_is_logged_at_once_where_that_is_asked_for() -> None:
    assert Shortage().note(limited(100.0, 1, 2), at_once=True)


def test_limits_that_leave_nothing_unread_are_not_told() -> None:
    shortage = Shortage()
    for limits in ((1, None), (2, 2), (4,), (9, 9)):
        assert not any(shortage.note(limited(now, *limits), at_once=True) for now in (100.0, 200.0))


def long_batches(query: QueryState, *times: float) -> list[float]:
    """At which of these `times` it is said that the batch is long."""
    long = LongBatch(300.0)
    return [now for now in times if long.note(query, 4, now)]


def test_a_batch_that_runs_for_long_is_told_and_again_when_it_has_run_for_twice_as_long() -> None:
    query = QueryState(in_flight=frozenset("01"), batch_began=1000.0)
    assert long_batches(query, 1299.0, 1300.0, 1301.0, 1599.0, 1600.0, 2199.0, 2200.0) == [1300.0, 1600.0, 2200.0]
    line = LongBatch(300.0).note(query, 4, 1300.0)
    assert line
    assert line.startswith("a batch with 2 of the 4 owned partitions has been running for 300 s: ")


def test_a_batch_is_long_if_it_takes_three_times_as_long_as_the_others() -> None:
    query = QueryState(in_flight=frozenset("0"), batch_began=1000.0, load=MemberLoad(1.0, 1.0, 200.0))
    assert long_batches(query, 1300.0, 1599.0, 1600.0) == [1600.0]


def test_each_batch_is_told_by_itself() -> None:
    long = LongBatch(300.0)
    for began in (1000.0, 2000.0):
        assert long.note(QueryState(in_flight=frozenset("0"), batch_began=began), 4, began + 300.0)


def test_a_query_between_batches_and_a_consumer_have_no_long_batch() -> None:
    assert long_batches(QueryState(batch_began=1000.0), 2000.0) == []
    assert long_batches(QueryState(in_flight=frozenset("0")), 2000.0) == [], "it reads all the time"
