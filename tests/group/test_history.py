"""Ownership changes in the history."""

from __future__ import annotations

import pytest

from spark_ehbalance.group.changes import Claim, apply
from spark_ehbalance.group.history import ownership_changes
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Author, Handover, Lease, Member, Pin
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot

REQUESTED = Handover("bob", 30_000, 7)


@pytest.mark.parametrize(
    ("owner", "pin", "evidence", "why"),
    [
        ("ann", None, {"unchanged_counter": (3, 9)}, "no heartbeat for the lease duration"),
        ("ann", None, {"overdue_handover": REQUESTED}, "not handed over in time"),
        ("ann", Pin("bob", "jo", "nearer"), {"overdue_handover": REQUESTED}, "requested by jo: nearer"),
        ("bob", None, {}, None),
        (None, None, {}, None),
    ],
)
def test_claim_from_another_owner_is_recorded_with_a_reason(
    owner: str | None, pin: Pin | None, evidence: dict[str, object], why: str | None
) -> None:
    lease = Lease("0", owner, 3, 9, checkpoint=Position(4), handover=REQUESTED, pin=pin)
    before = Snapshot(
        Group.from_names("ns", "hub", "$Default"), leases={"0": lease}, members={"bob": Member("bob", "run", 1)}
    )
    claim = Claim(by=Author("bob", "run"), at_ms=1, partition="0", epoch=3, **evidence)
    (change,) = ownership_changes(apply(before, [claim]))
    assert (change.owner_before, change.owner, change.why) == (owner, "bob", why)
