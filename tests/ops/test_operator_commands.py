"""Orders (`ehbalance transfer`, `pin`, `seek`, `drain`) and their `history`."""

from __future__ import annotations

import getpass
import json
import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.clock import now_ms
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.model import Lease, Member, MemberState, Pin
from spark_ehbalance.group.position import Position
from tests.lease_table.histories import NOT_RECORDED, make_unwritable
from tests.ops.command import assert_error
from tests.ops.groups import Group, change, fill, history


@pytest.fixture
def leases(group: Group, emulator: Emulator) -> Group:
    """A group of ann, who owns partition 0, and bob; partition 1 is unowned. Both partitions have ten events."""
    fill(emulator, 10)
    group("init")
    partitions = {"0": Lease("0", "ann", 3, checkpoint=Position(4)), "1": Lease("1", None, 2, checkpoint=Position(7))}
    members = {
        name: Member(name, f"{name}-1", number, renewed_at_ms=now_ms()) for number, name in enumerate(("ann", "bob"))
    }
    change(group.table, leases=partitions, members=members)
    return group


def test_transfer_requests_a_handover(leases: Group) -> None:
    printed = leases.done("transfer", "0", "--to", "bob", "--why", "upgrade", "--handover-timeout", "5s")
    assert printed == "Partition 0 moves to bob: ann hands it over within 5 s.\n"
    lease = leases.state.leases["0"]
    assert lease.handover is not None
    assert (lease.handover.to, lease.handover.timeout_ms) == ("bob", 5000)
    assert lease.pin is not None
    assert (lease.pin.to, lease.pin.why, lease.pin.transfer) == ("bob", "upgrade", True)
    assert lease.pin.by.startswith(f"operator:{getpass.getuser()}@")


def test_user_without_a_name_is_recorded_by_id(leases: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", no_name)
    leases.done("drain", "ann")
    assert leases.json("history")[-1]["by"].startswith(f"operator:{os.getuid()}@")


def test_pinning_and_unpinning(leases: Group) -> None:
    assert "ann hands it over within 30 s" in leases.done("pin", "0", "--to", "bob")
    assert leases.done("pin", "1", "--to", "ann").endswith("claims it in its next cycle.\n")
    pins = {partition: lease.pin and lease.pin.to for partition, lease in leases.state.leases.items()}
    assert pins == {"0": "bob", "1": "ann"}
    assert "which owns it" in leases.done("pin", "0", "--to", "ann")
    assert leases.done("pin", "0", "--remove", "--why", "over") == "Partition 0 is no longer pinned.\n"
    assert leases.state.leases["0"].pin is None
    assert_error(leases.fails(1, "pin", "0", "--remove"), "EHB_COMMAND_REJECTED", "partition 0 is not pinned", "1")


@pytest.mark.parametrize("obstacle", [{"max_owned": 1}, {"state": MemberState.LEAVING}])
def test_pin_to_a_full_or_leaving_member_promises_no_claim(leases: Group, obstacle: dict[str, Any]) -> None:
    change(leases.table, members={"ann": replace(leases.state.members["ann"], **obstacle)})
    pinned = leases.done("pin", "1", "--to", "ann")
    assert pinned == "Partition 1 is pinned to ann, which claims it once active and below its limit.\n"


def test_invalid_order_is_rejected_and_changes_nothing(leases: Group) -> None:
    before = leases.state
    for command, *more in (["transfer", "0", "--to", "eve"], ["pin", "7", "--to", "bob"], ["drain", "eve"]):
        error = leases.fails(1, command, *more)
        assert_error(error, "EHB_COMMAND_REJECTED")
        assert "eve is not a" in error or "partition 7 is unknown" in error
    assert leases.state == before
    assert history(leases.table) == []


def test_order_involving_a_dead_member_warns(leases: Group) -> None:
    dead = replace(leases.state.members["bob"], renewed_at_ms=now_ms() - 3_600_000)
    change(leases.table, leases={"1": replace(leases.state.leases["1"], owner="bob")}, members={"bob": dead})
    for command in ("pin 0 --to bob", "drain bob", "drain bob --undo", "seek 1 --to 3 --force"):
        outcome = leases(*command.split())
        assert outcome.code == 0
        assert outcome.err.startswith("Warning: bob last renewed 60 min ago")
    assert leases("pin", "0", "--to", "ann").err == ""


def test_invalid_option_is_rejected(leases: Group, tmp_path: Path) -> None:
    new = replace(leases, table=tmp_path / "new")
    new.done("init")
    assert_error(new.fails(1, "seek", "--all", "--to", "earliest"), "EHB_COMMAND_REJECTED", "init --positions")
    assert_error(leases.fails(2, "pin", "0"), "EHB_OPTION_REQUIRED", "--to or --remove")
    both = leases.fails(2, "pin", "0", "--remove", "--to", "bob")
    assert_error(both, "EHB_OPTIONS_CONFLICT", "--to and --remove")
    error = leases.fails(2, "pin", "0", "--to", "bob", "--handover-timeout", "soon")
    assert_error(error, "EHB_OPTION_INVALID", "--handover-timeout='soon'", "a duration")


# --- seek -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("to", "at"), [("earliest", 0), ("latest", 10), ("3", 3), ('{"next": 10}', 10)])
def test_seek_in_an_unowned_partition(leases: Group, to: str, at: int) -> None:
    printed = leases.done("seek", "1", "--to", to)
    assert printed.startswith(f"Partition 1 continues at sequence number {at}.\n")
    assert ("Events of partition 1 will be read again." in printed) is (at < 7)
    lease = leases.state.leases["1"]
    assert lease.checkpoint is not None
    assert (lease.owner, lease.epoch, lease.checkpoint.next) == (None, 3, at)


def test_seek_to_a_time(leases: Group) -> None:
    now = datetime.now(timezone.utc)
    before, after = ((now + timedelta(minutes=minutes)).isoformat() for minutes in (-60, 2))
    assert "sequence number 0" in leases.done("seek", "1", "--to", before)
    assert "sequence number 10" in leases.done("seek", "1", "--to", after)


def test_seek_without_positions_changes_nothing(leases: Group, tmp_path: Path) -> None:
    (file := tmp_path / "positions.json").write_text("{}")
    before = leases.state
    assert leases.done("seek", "--positions", file) == "The file contains no positions, so nothing was changed.\n"
    assert leases.state == before


def test_seek_in_an_owned_partition_requires_force(leases: Group) -> None:
    for which in (["0"], ["--all"]):
        error = leases.fails(1, "seek", *which, "--to", "earliest")
        assert_error(error, "EHB_COMMAND_REJECTED", "partition 0 is owned by ann")
        assert {lease.epoch for lease in leases.state.leases.values()} == {3, 2}, "all or nothing"
    leases.done("seek", "--all", "--to", "earliest", "--force")
    sought = leases.state.leases
    assert {lease.checkpoint.next for lease in sought.values() if lease.checkpoint} == {0}
    assert [(lease.owner, lease.epoch) for lease in sought.values()] == [("ann", 4), (None, 3)]


@pytest.mark.parametrize(
    ("arguments", "code", "condition", "values"),
    [
        (["1", "--to", "11"], 2, "EHB_POSITION_INVALID", ("partition 1", "number 11", "0 to 10")),
        (["1", "--to", "soon"], 2, "EHB_OPTION_INVALID", ("--to='soon'", "earliest, latest, a sequence number")),
        (["1", "--to", '{"1": 3}'], 2, "EHB_OPTION_INVALID", ("earliest",)),
        (["1", "--to", "2099-01-01T00:00:00Z"], 2, "EHB_OPTION_INVALID", ("--to='2099", "in the past")),
        (["--to", "3"], 2, "EHB_OPTION_REQUIRED", ("PARTITION, --all or --positions",)),
        (["1", "--all", "--to", "3"], 2, "EHB_OPTIONS_CONFLICT", ("PARTITION, --all and --positions",)),
        (["1"], 2, "EHB_OPTION_REQUIRED", ("--to or --positions",)),
        (["9", "--to", "3"], 1, "EHB_COMMAND_REJECTED", ("partition 9", "0, 1")),
        (
            ["1", "--to", "3", "--consumer-group", "other"],
            1,
            "EHB_LEASE_TABLE_FOREIGN",
            ("not to localhost",),
        ),
    ],
)
def test_invalid_seek_is_rejected(
    leases: Group, arguments: list[str], code: int, condition: str, values: tuple[str, ...]
) -> None:
    before = leases.state
    assert_error(leases.fails(code, "seek", *arguments), condition, *values)
    assert leases.state == before


# --- history ----------------------------------------------------------------------------------------------------


def test_history_contains_authors_and_reasons_of_orders(leases: Group) -> None:
    leases.done("transfer", "0", "--to", "bob", "--why", "upgrade of ann's host")
    leases.done("pin", "1", "--to", "ann")
    leases.done("pin", "1", "--remove", "--why", "a mistake")
    leases.done("seek", "1", "--to", "2", "--why", "a bad batch")
    leases.done("drain", "ann", "--why", "its host goes")
    leases.done("drain", "ann", "--undo")
    rows = json.loads(leases.done("history", "--json"))
    assert all(row["by"].startswith("operator:") for row in rows)
    assert sorted((row["event"], row["partition"], row["why"]) for row in rows if row["partition"]) == [
        ("PinTo", "1", "to ann"),
        ("Seek", "1", "to sequence number 2: a bad batch"),
        ("Transfer", "0", "to bob: upgrade of ann's host"),
        ("Unpin", "1", "a mistake"),
    ]
    drains = [row for row in rows if row["event"] == "Drain"]
    assert {(row["owner"], row["epoch"], row["why"]) for row in drains} == {
        ("ann", None, "its host goes"),
        ("ann", None, "may claim partitions again"),
    }
    (sought,) = (row for row in rows if row["event"] == "Seek")
    assert (sought["owner_before"], sought["owner"], sought["epoch"], sought["sequence_number"]) == (None, None, 3, 1)
    shown = leases.done("history")
    assert "its host goes" in shown
    assert "operator:" in shown


def test_unwritable_history_is_a_warning(leases: Group) -> None:
    make_unwritable(leases.table)
    outcome = leases("pin", "0", "--to", "bob")
    assert outcome.code == 0
    assert f"Warning: {NOT_RECORDED}{leases.table}_history could not be written" in outcome.err
    assert leases.state.leases["0"].pin == Pin("bob", leases.state.leases["0"].pin.by, "")
