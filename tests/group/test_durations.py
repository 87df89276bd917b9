"""How the group's lease duration is determined."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.group.durations import Durations, lowered, needed, raised
from spark_ehbalance.group.expiry import Observations, expired_leases, expired_members
from spark_ehbalance.group.model import Lease, Member, MemberState, TableIdentity
from spark_ehbalance.group.snapshot import Snapshot
from tests.lease_table.store_conformance import GROUP

EMPTY = Snapshot(GROUP, table=TableIdentity("one"))


def group(*commits: float | None) -> Snapshot:
    """Active members with these commit times in milliseconds."""
    rows = [Member(f"member-{number}", "1", number, commit_ms=commit) for number, commit in enumerate(commits)]
    return replace(EMPTY, members={row.id: row for row in rows})


def test_every_member_can_commit_within_a_third_of_the_duration() -> None:
    assert needed(group(*[60.0] * 100)) == pytest.approx(60), "100 × 60 ms are 6 s of the line, 30 % of a third of 60 s"
    assert needed(group(20.0, 180.0)) == pytest.approx(2), "one member is far away"
    assert needed(group(*[0.5] * 200)) == pytest.approx(1), "a local disk"


def test_unmeasured_members_count_as_average_and_leaving_members_do_not_count() -> None:
    assert needed(group(50.0, 150.0, None, None)) == pytest.approx(4)
    assert needed(group(None, None)) == needed(group()) == 0
    leaving = group(50.0, 50.0)
    members = {**leaving.members, "member-1": replace(leaving.members["member-1"], state=MemberState.LEAVING)}
    assert needed(replace(leaving, members=members)) == pytest.approx(0.5)


@given(configured=st.floats(1, 600), seconds=st.floats(0, 5000))
def test_duration_is_the_shortest_sufficient_step(configured: float, seconds: float) -> None:
    found = raised(configured, seconds)
    assert found >= max(configured, seconds)
    assert found == configured or found < 1.25 * seconds
    assert raised(configured, found) == found
    assert found <= lowered(configured, seconds) < max(configured * 1.001, 1.25**2 * seconds + 0.001)
    assert lowered(configured, found / 1.24 / 1.25) >= found / 1.24, "what is lowered fits 1.24 times as much"


@pytest.mark.parametrize(("commit_ms", "stated", "seconds"), [(100.0, 30, 100), (None, 30, 50), (100.0, 120, 120)])
def test_members_never_expire_earlier_than_the_group_needs(
    commit_ms: float | None, stated: int, seconds: float
) -> None:
    row = Member("ann", "ann-1", 1, lease_duration_ms=1000 * stated, commit_ms=commit_ms)
    members = {f"{number}": replace(row, id=f"{number}", joined=number) for number in range(100)}
    snapshot = replace(EMPTY, leases={"0": Lease("0", "0", 1)}, members=members)
    seen = Observations().updated(snapshot, 0.0)
    for now in (seconds - 0.1, seconds + 0.1):
        arguments = (seen.updated(snapshot, now), snapshot, Durations.from_snapshot(snapshot, 30.0, 50.0), now, 0)
        assert (expired_leases(*arguments), expired_members(*arguments)) == (
            (frozenset(), frozenset()) if now < seconds else ({"0"}, members.keys())
        )
