"""A sample group with four queries, one of which hangs, a handover, a pin and an hour of history.

`python -m tests.ops.dashboard.sample_group > page.html` writes the group's page. With the argument `difficult`, it
writes a page with groups that are hard to draw.
"""

from __future__ import annotations

import sys
from typing import Any

from spark_ehbalance.group.group_view import GroupView
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.model import Handover, Lease, Load, Member, MemberLoad, Pin, QueryRecord
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.ops.dashboard.page import facts, page

#: The time at which the group is shown. It is constant, so that screenshots do not change.
NOW = 1_770_000_000_000

_OPERATOR = "operator:ines@bastion"


def view(partitions: int = 32, suffix: str = "") -> GroupView:
    names = [f"orders-{kind}-{number}{suffix}" for kind in ("eu", "spot") for number in (1, 2)]
    members, leases, quarter = {}, {}, partitions // 4
    for at, name in enumerate(names):
        load = MemberLoad(3100.0 + 700 * at, 900.0, 2.4 + 0.3 * at)
        host = f"{'spot' if at > 1 else 'aks-stream'}-{at % 2 + 1}.internal{suffix}"
        members[name] = Member(
            name, f"run-{at}", at, 9, NOW - 400 * at, NOW - (58 - 14 * at) * 60_000, host, strategy="cooperative",
            load=load, lease_duration_ms=30_000, asked_ms=NOW - 900,
        )  # fmt: skip
    for number in range(partitions):
        at, id = min(3, number // quarter), str(number)
        hangs, events, next = at == 3, 120 + 37 * (number % 7), number * 90_000 + 51_000
        events = events * 40 if hangs else events
        lag = Lag(next, next + events, NOW - (400_000 if hangs else 9 * events), NOW - 1200)
        leases[id] = Lease(
            id, names[at], 2 + at, 9, NOW - 400 * at, NOW - (50 - 12 * at) * 60_000, Position(next - 1),
            Handover(names[1], 30_000, NOW - 4000) if number == quarter - 1 else None,
            Load(520.0, float(events)), Pin(names[0], _OPERATOR, "near the ledger") if number == 0 else None, lag=lag,
        )  # fmt: skip
    history = [
        *_changes(50, "Claim", None, names[0], range(2 * quarter)),
        *_changes(38, "HandOver", names[0], names[1], range(quarter, 2 * quarter)),
        *_changes(26, "Claim", None, names[2], range(2 * quarter, 3 * quarter)),
        *_changes(14, "Claim", None, names[3], range(3 * quarter, partitions)),
        OwnershipChange(
            NOW - 480_000, "0", "PinTo", names[0], names[0], 2, 50_999, _OPERATOR, f"to {names[0]}: near the ledger"
        ),
    ]
    hung = QueryRecord("lineage", "run-3", names[3], 1, 41, 42, "run-3", NOW - 380_000, "spot-2.internal")
    group = Group("contoso-trading.servicebus.windows.net", f"orders{suffix}", "billing")
    snapshot = Snapshot(group, 3600, leases, members, lease_duration_ms=30_000, queries={"lineage": hung})
    return GroupView(snapshot, NOW, history)


def _changes(minute: int, event: str, before: str | None, owner: str, partitions: range) -> list[OwnershipChange]:
    at_ms = NOW - minute * 60_000
    return [
        OwnershipChange(at_ms, str(partition), event, before, owner, 2, -1, before or owner) for partition in partitions
    ]


def difficult() -> list[dict[str, Any]]:
    """A large group with long names, an empty group, and a missing one."""
    empty = GroupView(Snapshot(Group("contoso-trading.servicebus.windows.net", "returns", "billing")), NOW)
    long = f"-of-the-team-that-has-long-names-{'0123456789abcdef' * 4}"
    return [
        facts("leases/large", view(256, long)),
        facts("leases/empty", empty),
        facts("leases/missing", None, "There is no lease table at leases/missing"),
    ]


if __name__ == "__main__":
    print(page(difficult() if sys.argv[1:] == ["difficult"] else [facts("leases/orders", view())]))
