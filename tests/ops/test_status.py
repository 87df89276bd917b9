"""`ehbalance status`."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.model import Load, Member, MemberLoad, MemberState, Pin, QueryRecord, TableIdentity
from spark_ehbalance.group.position import Position
from spark_ehbalance.lease_table import viewer
from tests.ops.command import assert_error
from tests.ops.groups import Group, change, record


def test_status_as_json(emulator: Emulator, used: Group) -> None:
    state = json.loads(used.done("status", "--json"))
    group = [state[name] for name in ("namespace", "eventHub", "consumerGroup", "leader")]
    assert group == [f"localhost:{emulator.port}", "hub", "$default", "alice"]
    columns = ("partition", "owner", "epoch", "sequenceNumber", "nextOwner")
    assert [tuple(lease[name] for name in columns) for lease in state["partitions"]] == [
        ("0", "alice", 3, 4711, "bob"),
        ("1", "bob", 1, -1, None),
        ("2", None, 8, 9, None),
        ("10", None, 0, None, None),
    ]
    assert datetime.fromisoformat(state["partitions"][0]["renewedAt"]).timestamp() == 1_770_000_000
    columns = ("member", "host", "state", "partitions")
    assert [tuple(member[name] for name in columns) for member in state["members"]] == [
        ("alice", "host-a", "active", ["0"]),
        ("bob", "host-b", "active", ["1"]),
    ]
    assert state["leaseDuration"] is state["lag"] is None


def test_reading_commands_write_nothing(used: Group) -> None:
    def files() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in used.table.parent.rglob("*") if file.is_file()}

    record(used.table, OwnershipChange(0, "0", "Claim", None, "alice", 1, None, "alice"))
    before = files()
    for arguments in (["status"], ["status", "--partition", "0"], ["history"]):
        assert used(*arguments).code == 0
    assert files() == before


def test_status_as_a_table(used: Group) -> None:
    printed = used.done("status")
    assert "hub/$default, 2 members" in printed
    rows = {line.split("│")[1].strip(): line for line in printed.splitlines() if line.count("│") > 3}
    assert {"0", "1", "2", "10"} <= rows.keys()
    assert all(cell in rows["0"] for cell in ("alice", "4712", "bob"))
    assert "nobody" in rows["2"]


def test_status_shows_loads_strategies_orders_and_batches(used: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Includes the age of the running batch, because a hanging query's load looks idle."""
    monkeypatch.setattr(viewer, "now_ms", lambda: NOW_MS)
    base = used.state
    lease = replace(base.leases["0"], pin=Pin("bob", "operator:jo", "nearer"), load=Load(250.5, 1200.0))
    moving = replace(base.leases["1"], pin=Pin("alice", "operator:jo", transfer=True))
    load = MemberLoad(1234.5, 6789.0, 2.5)
    bob = replace(base.members["bob"], incarnation="run-2", load=load, strategy="greedy", max_owned=3)
    bob = replace(bob, state=MemberState.LEAVING, lease_duration_ms=37_500, commit_ms=61.5)
    earlier = QueryRecord("one", "", "bob", batch=1, begun=2, at_ms=1_770_000_000_000)
    record = QueryRecord("two", "run-2", "bob", batch=4, begun=5, at_ms=1_770_000_060_000)
    change(
        used.table,
        leases={"0": lease, "1": moving},
        members={"bob": bob},
        queries={"one": earlier, "two": record},
        table=TableIdentity("one"),
        lease_duration_ms=46_875,
    )
    state = used.json("status")
    assert state["leaseDuration"] == 46.875
    zero, one, two, _ = state["partitions"]
    assert zero["pin"] == {"to": "bob", "by": "operator:jo", "why": "nearer", "transfer": False}
    assert zero["load"] == {"rate": 250.5, "backlog": 1200.0}
    assert one["pin"]["transfer"] is True
    assert (two["pin"], two["load"]) == (None, None)
    columns = ("strategy", "state", "pinned", "maxPartitionsOwned", "leaseDuration", "commitMs", "inBatchSince")
    assert [[member[name] for name in columns] for member in state["members"]] == [
        ["", "active", ["1"], None, None, None, None],
        ["greedy", "leaving", ["0"], 3, 37.5, 61.5, "2026-02-02T02:41:00.000+00:00"],
    ]
    load_shown = {"rate": 1234.5, "backlog": 6789.0, "batchSeconds": 2.5}
    assert [member["load"] for member in state["members"]] == [None, load_shown]

    printed = used("status").out
    assert "2 members, lease duration 46.875 s" in " ".join(printed.split())
    lines = printed.splitlines()
    (shown,) = (line for line in lines if "host-b" in line)
    for cell in ("bob", "leaving", "│          1 │     3 │", "2.5 s, now 40 s"):
        assert cell in shown
    rows = {line.split("│")[1].strip(): line for line in lines if line.count("│") > 3}
    assert rows["0"].count("bob") == 2, "as the next owner and in the pin"
    assert "alice (transfer)" in rows["1"]

    change(used.table, queries={"two": replace(record, batch=5)})
    assert [member["inBatchSince"] for member in used.json("status")["members"]] == [None, None]
    assert "now 40 s" not in used("status").out


NOW_MS = 1_770_000_100_000


def set_lags(used: Group) -> None:
    """Set lags: ten events and 90 s for partition 0, none as of 3 min ago for partition 1; the others are unknown."""
    leases = used.state.leases
    zero = replace(leases["0"], lag=Lag(4712, 4722, NOW_MS - 90_000, NOW_MS - 5_000))
    one = replace(leases["1"], lag=Lag(0, 0, None, NOW_MS - 180_000))
    change(used.table, leases={"0": zero, "1": one})


def test_status_shows_the_lag(used: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "now_ms", lambda: NOW_MS)
    set_lags(used)
    state = used.json("status")
    assert state["lag"] == {"events": 10, "seconds": 90.0, "partitions": 2}
    assert [row["lag"] and row["lag"]["seconds"] for row in state["partitions"]] == [90.0, 0.0, None, None]
    times = {"unreadSince": "2026-02-02T02:40:10.000+00:00", "measuredAt": "2026-02-02T02:41:35.000+00:00"}
    assert state["partitions"][0]["lag"] == times | {"next": 4712, "end": 4722, "events": 10, "seconds": 90.0}
    printed = used.done("status")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line.count("│") > 3]
    assert [row[1:5] for row in rows[2:5]] == [
        ["alice", "10", "90 s", ""],
        ["bob", "0", "", "3 min ago"],
        ["nobody", "", "", ""],
    ]
    assert [row[2] for row in rows[:2]] == ["10", "0"], "of the members"
    assert "10 unread events, the oldest 90 s old, in 2 of 4 partitions, measured up to 3 min ago" in printed
    change(used.table, leases={"1": replace(used.state.leases["1"], lag=Lag(0, 5, None, NOW_MS))})
    assert "15 unread events, the oldest at least 90 s old, in 2 of 4" in used.done("status")


def test_names_are_never_truncated(used: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "now_ms", lambda: NOW_MS)
    set_lags(used)
    names = [f"job-ingest-flights-eastus2-production-{n}" for n in range(2)]
    base = used.state
    leases = {p: replace(base.leases[p], owner=name) for p, name in zip("01", names, strict=True)}
    change(used.table, leases=leases, members={name: replace(base.members["bob"], id=name) for name in names})
    monkeypatch.setenv("COLUMNS", "200")
    assert all(used.done("status").count(f"│ {name} │") == 2 for name in names)
    for width in (40, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        printed = used.done("status")
        assert all(len(line) <= width for line in printed.splitlines())
        assert "…" not in printed
    change(used.table, leases={"0": replace(leases["0"], owner="x" * 200, checkpoint=Position(2**62))})
    monkeypatch.delenv("COLUMNS")
    done = used("status").out
    assert "x" * 200 in done, "files have any width"
    assert str(2**62 + 1) in done


def test_status_of_a_new_table(group: Group) -> None:
    group("init")
    lines = group.done("status").splitlines()
    assert lines[0].endswith(", 0 members")
    assert lines[1:] == ["No query has joined this group yet.", "No findings."], "and no empty table"
    state = group.json("status")
    assert (state["partitions"], state["members"], state["leader"]) == ([], [], None)


def test_status_of_a_table_created_from_positions(group: Group, tmp_path: Path) -> None:
    (file := tmp_path / "positions.json").write_text('{"*": "earliest"}')
    group.done("init", "--positions", file)
    printed = group.done("status")
    assert "No query has joined this group yet." in printed
    assert "No findings." in printed
    assert printed.count("nobody") == 4
    assert "last seen" not in printed, "no empty table of members"
    assert group.json("status")["findings"] == []


def test_status_counts_one_member_in_the_singular(group: Group) -> None:
    group.done("init")
    change(group.table, members={"ann": Member("ann", "x", 1, renewed_at_ms=NOW_MS)})
    printed = group.done("status")
    assert printed.splitlines()[0].endswith(", 1 member")
    assert "No query has joined" not in printed


def test_history_without_changes_is_one_sentence(group: Group) -> None:
    group.done("init")
    assert group.done("history") == f"No changes of ownership are recorded in {group.table}.\n"
    assert group.json("history") == []


def test_error_names_a_missing_table(group: Group, table: Path) -> None:
    for command in ("status", "history"):
        message = group.fails(1, command)
        assert f"There is no lease table at {table}" in message
        assert "[EHB_LEASE_TABLE_MISSING]" in message
    assert not table.exists()


def test_watch_with_json_or_a_partition_is_rejected(used: Group) -> None:
    for other in (["--json"], ["--partition", "0"]):
        assert_error(used.fails(2, "status", "--watch", *other), "EHB_OPTIONS_CONFLICT", f"--watch and {other[0]}")


def test_json_of_one_partition_is_rejected(used: Group) -> None:
    assert_error(
        used.fails(2, "status", "--json", "--partition", "0"), "EHB_OPTIONS_CONFLICT", "--json and --partition"
    )


def test_group_of_a_delta_table_cannot_be_selected(used: Group) -> None:
    for command in ("status", "positions"):
        error = used.fails(2, command, "--group", "localhost/hub/other")
        assert_error(error, "EHB_OPTION_NOT_APPLICABLE", "--group", f"{used.table} is not a blob container")


def test_positions_of_another_hub_are_rejected(used: Group) -> None:
    assert_error(
        used.fails(2, "positions", "--event-hub-name", "other"), "EHB_OPTION_INVALID", "'other'", "Allowed: hub."
    )
    assert used("positions", "--event-hub-name", "Hub").code == 0


def test_findings_about_the_group_and_a_partition_are_displayed(used: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = [OwnershipChange(NOW_MS - 1000 * n, "1", "Claim", None, "bob", n, -1, "bob") for n in (9, 6, 3)]
    record(used.table, *claims)
    monkeypatch.setattr(viewer, "now_ms", lambda: NOW_MS)
    codes = [
        (finding["code"], finding["severity"], finding["partitions"]) for finding in used.json("status")["findings"]
    ]
    assert codes == [("no_live_member", "error", []), ("crash_loop", "error", ["1"])]
    monkeypatch.setenv("COLUMNS", "80")
    printed = used.done("status")
    assert "ERROR: No member is live; the last heartbeat was 100 s ago." in printed
    assert max(map(len, printed.splitlines())) <= 80
    one = used.done("status", "--partition", "1")
    assert "claimed partition 1 3 times" in one
    assert one.count("  Claim  nobody → bob  by bob") == 3
    assert "claimed" not in used.done("status", "--partition", "0")
    assert_error(used.fails(2, "status", "--partition", "7"), "EHB_OPTION_INVALID", "'7'", "0, 1, 2, 10")
