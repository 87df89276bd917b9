"""The findings (code and parameters) in the view of a group for each state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import Formatter
from typing import Any

import pytest

from spark_ehbalance.group.group_view import FINDINGS, GroupView, ranges
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.model import Handover, Lease, Member, MemberLoad, MemberState, QueryRecord
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot

NOW = 1_770_000_000_000


def ago(seconds: float) -> int:
    return NOW - int(1000 * seconds)


def member(id: str, **values: Any) -> Member:
    row = Member(id, f"run-{id}", 1 if id == "ann" else 2, 9, ago(3), ago(3600), f"host-{id}", strategy="cooperative")
    load = MemberLoad(100.0, 0.0, 2.5)
    return replace(row, **{"load": load, "lease_duration_ms": 30_000, "asked_ms": ago(1)} | values)


def query(id: str, **values: Any) -> QueryRecord:
    row = QueryRecord(f"lineage-{id}", f"run-{id}", id, batch=4, begun=4, at_ms=ago(2), host=f"host-{id}")
    return replace(row, **values)


def lease(partition: str, owner: str | None, waited: float = 1, **values: Any) -> Lease:
    """A lease with a backlog of twenty events, the oldest enqueued `waited` seconds ago."""
    lag = Lag(100, 120, ago(waited), ago(5))
    return replace(Lease(partition, owner, 3, 17, ago(3), ago(600), Position(99)), **{"lag": lag} | values)


def view(
    *leases: Lease,
    members: Sequence[Member] = (member("ann"), member("bob")),
    queries: Sequence[QueryRecord] = (query("ann"), query("bob")),
    **values: Any,
) -> GroupView:
    """The view of a group with the members Ann and Bob."""
    snapshot = Snapshot(
        Group.from_names("ns", "flights", "$Default"),
        7,
        {lease.partition: lease for lease in leases},
        {member.id: member for member in members},
        lease_duration_ms=30_000,
        queries={query.lineage: query for query in queries},
    )
    return GroupView(snapshot, NOW, **values)


def claim(seconds: float, before: str | None, owner: str, at: int = 99) -> OwnershipChange:
    return OwnershipChange(ago(seconds), "0", "Claim", before, owner, 3, at, owner)


CASES: Mapping[str, tuple[GroupView, str, str, dict[str, Any]]] = {
    "all members have left": (
        view(lease("0", None), members=[], queries=[query("ann", run="")]),
        "no_live_member",
        "",
        {"silence": 2},
    ),
    "a free partition": (view(lease("1", None, renewed_at_ms=ago(90))), "unowned", "1", {"unowned": 90}),
    "a partition that was never owned": (view(Lease("1")), "unowned", "1", {"unowned": 3600}),
    "limits below the number of partitions": (
        view(lease("0", "ann"), lease("1", None), members=[member("ann", max_owned=1)]),
        "limits_too_small",
        "1",
        {"limit": 1, "count": 2},
    ),
    "all live members are drained": (
        view(
            lease("0", None, renewed_at_ms=ago(90)),
            lease("1", None),
            members=[member("ann", state=MemberState.LEAVING, max_owned=1), member("bob", renewed_at_ms=ago(100))],
        ),
        "all_leaving",
        "0",
        {"unowned": 90},
    ),
    "a member that is gone": (
        view(*(lease(p, "ann") for p in "01"), observed_ms={"ann": ago(100)}),
        "stale_member",
        "01",
        {"member": "ann", "silence": 100, "duration": 30},
    ),
    "one query that is restarted again and again": (
        view(
            lease("0", "ann"),
            history=[claim(300, None, "ann", at=60), *(claim(s, "ann", "ann") for s in (200, 120, 40))],
        ),
        "crash_loop",
        "0",
        {"members": ["ann"], "times": 3, "within": 160},
    ),
    "one query that fails at an event that arrived after the lag was measured": (
        view(
            lease("0", "ann", lag=Lag(100, 100, None, ago(20))),
            history=[claim(s, None, "ann") for s in (90, 50, 10)],
        ),
        "crash_loop",
        "0",
        {"members": ["ann"], "times": 3, "within": 80},
    ),
    "two queries that fail at one event in turn": (
        view(
            lease("0", "ann"),
            history=[claim(300, "bob", "ann", at=60), *(claim(90 - 10 * n, None, "ab"[n % 2]) for n in range(4))],
        ),
        "crash_loop",
        "0",
        {"members": ["a", "b"], "times": 4, "within": 30},
    ),
    "two checkpoints with one owner id": (
        view(lease("0", "ann"), queries=[query("ann"), query("ann", lineage="copy", host="host-copy")]),
        "fenced",
        "",
        {"member": "ann", "hosts": ["host-ann", "host-copy"]},
    ),
    "a batch that hangs": (
        view(lease("0", "ann", 600), queries=[query("ann", begun=5, at_ms=ago(252))]),
        "long_batch",
        "0",
        {"member": "ann", "batch": 5, "ran": 252},
    ),
    "a query that does not reach the hub": (
        view(lease("0", "ann", lag=Lag(100, 100, None, ago(43))), lease("1", "bob")),
        "hub_unreachable",
        "0",
        {"member": "ann", "silence": 40},
    ),
    "left out of its batches": (
        view(lease("0", "ann", 600), lease("1", "ann"), members=[member("ann", left_out={"0": "limit", "1": "state"})]),
        "paused",
        "0",
        {"member": "ann", "events": 20, "reason": "limit"},
    ),
    "a partition that delivers nothing": (
        view(
            lease("0", "ann", 600, stall_count=2),
            lease("1", "bob"),
            lease("2", "bob", 600, stall_count=1),
            history=[claim(s, None, "ann", at=99) for s in (200, 120, 40)],
        ),
        "stalled",
        "02",
        {"events": 40},
    ),
    "a long trigger interval": (
        view(lease("0", "ann", 600), members=[member("ann", asked_ms=ago(601))]),
        "paused",
        "0",
        {"member": "ann", "events": 20, "reason": "trigger"},
    ),
    "a query that is too slow": (
        view(*(lease(p, "ann", 600) for p in "01")),
        "behind",
        "01",
        {"member": "ann", "events": 40, "waited": 600},
    ),
    "another SDK's consumer that hangs": (
        view(lease("0", "ann", 600), members=[], queries=[], keeps_members=False),
        "behind",
        "0",
        {"member": "ann", "events": 20, "waited": 600},
    ),
    "a table that cannot be read": (view(lease("0", "ann"), problem="403"), "table_unreadable", "", {"problem": "403"}),
}


@pytest.mark.parametrize("case", CASES)
def test_state_yields_exactly_the_expected_finding(case: str) -> None:
    known, code, partitions, parameters = CASES[case]
    (found,) = known.findings
    assert (found.code, found.partitions, found.parameters) == (code, tuple(partitions), parameters)
    names = {name for _, name, _, _ in Formatter().parse(FINDINGS[code].text) if name}
    assert names == parameters.keys() | ({"partitions"} if partitions else set()), "the sentence shows all parameters"
    assert found.text
    for partition in known.snapshot.leases:
        assert (found in known.partition_findings(partition)) == (partition in found.partitions or not found.partitions)


def test_every_finding_code_is_covered() -> None:
    assert {code for _, code, _, _ in CASES.values()} == FINDINGS.keys()


@pytest.mark.parametrize(
    "healthy",
    [
        view(lease("0", "ann"), lease("1", "bob")),
        view(lease("0", "bob"), history=[claim(90 - 10 * n, None, "ann" if n else "bob", at=50) for n in range(4)]),
        view(
            lease("0", "cat"),
            history=[claim(90 - 10 * n, None, owner) for n, owner in enumerate(("ann", "bob", "cat"))],
        ),
        view(lease("0", "ann"), history=[claim(s, None, "ann", at=99 - s) for s in (60, 30, 0)]),
        view(lease("0", "ann"), history=[claim(s, "ann", "ann", at=98) for s in (200, 120, 40)]),
        view(
            lease("0", "ann", lag=Lag(100, 100, None, ago(5))),
            history=[claim(s, None, "ann") for s in (200, 120, 40)],
        ),
        view(lease("0", "ann"), lease("1", None)),
        view(lease("0", None, renewed_at_ms=ago(40)), members=[member("ann", state=MemberState.LEAVING)]),
        view(lease("0", "ann", 600, lag=None)),
        view(lease("0", "ann"), queries=[query("ann"), query("ann", lineage="old", at_ms=ago(3600))]),
        view(lease("0", "ann", 600, handover=Handover("bob", 30_000, ago(12)))),
        view(),
        view(Lease("0", checkpoint=Position(4)), members=[], queries=[]),
    ],
    ids=[
        "two queries",
        "read on after others failed",
        "one claim each",
        "restarts with progress",
        "progress after failures",
        "restarts without events",
        "just freed",
        "just released by a query that stops",
        "no lag",
        "a new checkpoint",
        "handover",
        "empty",
        "created from positions",
    ],
)
def test_healthy_group_has_no_findings(healthy: GroupView) -> None:
    assert healthy.findings == []


def test_most_severe_finding_comes_first() -> None:
    known = view(
        lease("1", None, renewed_at_ms=ago(90)),
        lease("2", "eve", renewed_at_ms=ago(50)),
        lease("3", "ann", 600),
        lease("4", "ann", 600),
    )
    assert [finding.code for finding in known.findings] == ["unowned", "behind", "stale_member"]


def test_partition_numbers_are_formatted_as_ranges() -> None:
    assert ranges(["3"]) == "partition 3"
    assert ranges(["0", "1", "2", "7", "x", "9", "10"]) == "partitions 0-2, 7, x, 9-10"
