"""The rule for the group's lease duration, and who may set it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.group.changes import Drain, Join, SetLeaseDuration, apply
from spark_ehbalance.group.durations import fitting, lowered, needed
from spark_ehbalance.group.model import Author, Member, MemberState, TableIdentity
from spark_ehbalance.group.snapshot import Snapshot
from tests.lease_table.store_conformance import GROUP

ANN, BOB = Author("ann", "ann-1"), Author("bob", "bob-1")
EMPTY = Snapshot(GROUP, table=TableIdentity("one"))


def group(*commits: float | None) -> Snapshot:
    """Active members, by what a commit takes each in milliseconds."""
    rows = [Member(f"member-{number}", "1", number, commit_ms=each) for number, each in enumerate(commits)]
    return replace(EMPTY, members={row.id: row for row in rows})


def test_each_member_must_be_able_to_commit_once_in_a_third() -> None:
    assert needed(group(*[60.0] * 100)) == pytest.approx(60), "100 × 60 ms are 6 s of the line, 30 % of a third of 60 s"
    assert needed(group(20.0, 180.0)) == pytest.approx(2), "one member is far away"
    assert needed(group(*[0.5] * 200)) == pytest.approx(1), "a local disk"


def test_members_that_have_not_measured_count_as_the_average_and_those_that_leave_do_not() -> None:
    assert needed(group(50.0, 150.0, None, None)) == pytest.approx(4)
    assert needed(group(None, None)) == needed(group()) == 0
    leaving = group(50.0, 50.0)
    members = {**leaving.members, "member-1": replace(leaving.members["member-1"], state=MemberState.LEAVING)}
    assert needed(replace(leaving, members=members)) == pytest.approx(0.5)


@given(configured=st.floats(1, 600), seconds=st.floats(0, 5000))
def test_a_duration_is_long_enough_and_hardly_longer(configured: float, seconds: float) -> None:
    found = fitting(configured, seconds)
    assert found >= max(configured, seconds)
    assert found == configured or found < 1.25 * seconds
    assert fitting(configured, found) == found
    assert found <= lowered(configured, seconds) < max(configured * 1.001, 1.25**2 * seconds + 0.001)
    assert lowered(configured, found / 1.24 / 1.25) >= found / 1.24, "what is lowered fits 1.24 times as much"


def joined(*authors: Author, says: int | None = 30_000) -> Snapshot:
    return apply(EMPTY, [Join(by=each, at_ms=0, lease_duration_ms=says) for each in authors]).after


def set_by(author: Author) -> SetLeaseDuration:
    return SetLeaseDuration(by=author, at_ms=0, lease_duration_ms=60_000)


def test_only_the_leader_sets_the_duration() -> None:
    both = joined(ANN, BOB)
    assert apply(both, [set_by(ANN)]).after.lease_duration_ms == 60_000
    (refused,) = apply(both, [set_by(BOB)]).refused
    assert refused.reason == "ann is the leader"
    drained = Drain(by=ANN, at_ms=0, member="ann")
    assert apply(both, [drained, set_by(ANN), set_by(BOB)]).accepted == (drained, set_by(BOB))
    assert "not a member" in apply(both, [set_by(Author("cat", "1"))]).refused[0].reason


def test_a_table_without_partitions_has_no_duration() -> None:
    (refused,) = apply(replace(joined(ANN), table=None), [set_by(ANN)]).refused
    assert refused.reason == "the table has no partitions yet"
