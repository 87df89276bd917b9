"""`ehbalance transfer`, `pin`, `seek`, `drain`, and the `history` of these orders."""

from __future__ import annotations

import getpass
import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.model import Lease, Member, Pin
from spark_ehbalance.group.position import Position
from tests.lease_table.histories import NOT_RECORDED, make_unwritable
from tests.ops.groups import Group, change, fill, history


@pytest.fixture
def leases(group: Group, emulator: Emulator) -> Group:
    """A group of Ann, who owns partition 0, and Bob; partition 1 has no owner. Each has ten events."""
    fill(emulator, 10)
    group("init")
    partitions = {"0": Lease("0", "ann", 3, checkpoint=Position(4)), "1": Lease("1", None, 2, checkpoint=Position(7))}
    members = {name: Member(name, f"{name}-1", number) for number, name in enumerate(("ann", "bob"))}
    change(group.table, leases=partitions, members=members)
    return group


def test_a_transfer_asks_the_owner(leases: Group) -> None:
    printed = leases.done("transfer", "0", "--to", "bob", "--why", "upgrade", "--handover-timeout", "5s")
    assert printed == "Partition 0 is to go to bob: ann was asked to hand it over within 5 s.\n"
    lease = leases.state.leases["0"]
    assert lease.handover is not None
    assert (lease.handover.to, lease.handover.timeout_ms) == ("bob", 5000)
    assert lease.pin is not None
    assert (lease.pin.to, lease.pin.why, lease.pin.transfer) == ("bob", "upgrade", True)
    assert lease.pin.by.startswith(f"operator:{getpass.getuser()}@")


def test_pinning_and_unpinning(leases: Group) -> None:
    assert "ann was asked to hand it over within 30 s" in leases.done("pin", "0", "--to", "bob")
    assert leases.done("pin", "1", "--to", "ann").endswith("takes it with its next decision.\n")
    pins = {partition: lease.pin and lease.pin.to for partition, lease in leases.state.leases.items()}
    assert pins == {"0": "bob", "1": "ann"}
    assert "which owns it" in leases.done("pin", "0", "--to", "ann")
    assert leases.done("pin", "0", "--remove", "--why", "over") == "Partition 0 is not pinned any more.\n"
    assert leases.state.leases["0"].pin is None
    assert leases.fails(1, "pin", "0", "--remove") == "Error: partition 0 is not pinned: pinned are 1\n"


def test_an_impossible_order_is_refused_and_changes_nothing(leases: Group) -> None:
    before = leases.state
    for command, *more in (["transfer", "0", "--to", "eve"], ["pin", "7", "--to", "bob"], ["drain", "eve"]):
        assert "eve is not a" in (error := leases.fails(1, command, *more)) or "partition 7 is unknown" in error
    assert leases.state == before
    assert history(leases.table) == []


def test_a_wrong_option_is_refused(leases: Group, tmp_path: Path) -> None:
    new = replace(leases, table=tmp_path / "new")
    new.done("init")
    assert "startingPosition decides" in new.fails(1, "seek", "--all", "--to", "earliest")
    for arguments in ((), ("--remove", "--to", "bob")):
        assert leases.fails(2, "pin", "0", *arguments) == "Error: pin takes either --to or --remove\n"
    message = leases.fails(2, "pin", "0", "--to", "bob", "--handover-timeout", "soon")
    assert message.startswith("Error: --handover-timeout='soon' is wrong: allowed is a length of time")


# --- seek -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("to", "at"), [("earliest", 0), ("latest", 10), ("3", 3), ('{"next": 10}', 10)])
def test_a_seek_in_a_partition_without_an_owner(leases: Group, to: str, at: int) -> None:
    printed = leases.done("seek", "1", "--to", to)
    assert printed.startswith(f"Partition 1 continues at sequence number {at}.\n")
    assert ("These partitions go back, and events are read again: 1. For a table" in printed) is (at < 7)
    lease = leases.state.leases["1"]
    assert lease.checkpoint is not None
    assert (lease.owner, lease.epoch, lease.checkpoint.next) == (None, 3, at)


def test_a_seek_to_a_time(leases: Group) -> None:
    now = datetime.now(timezone.utc)
    before, after = ((now + timedelta(minutes=minutes)).isoformat() for minutes in (-60, 2))
    assert "sequence number 0" in leases.done("seek", "1", "--to", before)
    assert "sequence number 10" in leases.done("seek", "1", "--to", after)


def test_a_seek_in_an_owned_partition_must_be_forced(leases: Group) -> None:
    for which in (["0"], ["--all"]):
        message = leases.fails(1, "seek", *which, "--to", "earliest")
        assert message == "Error: partition 0 is owned by ann: stop that query first, or use --force\n"
        assert {lease.epoch for lease in leases.state.leases.values()} == {3, 2}, "all or nothing"
    leases.done("seek", "--all", "--to", "earliest", "--force")
    sought = leases.state.leases
    assert {lease.checkpoint.next for lease in sought.values() if lease.checkpoint} == {0}
    assert [(lease.owner, lease.epoch) for lease in sought.values()] == [("ann", 4), (None, 3)]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["1", "--to", "11"], 2, "partition 1 cannot continue at sequence number 11: allowed is 0 to 10, which is"),
        (["1", "--to", "soon"], 2, "--to='soon' is wrong: allowed is earliest, latest, a sequence number, a time"),
        (["1", "--to", '{"1": 3}'], 2, "is wrong: allowed is earliest"),
        (["1", "--to", "2099-01-01T00:00:00Z"], 2, "has not come yet: allowed is a time that has, or latest"),
        (["--to", "3"], 2, "seek takes one of a partition, --all and --positions"),
        (["1", "--all", "--to", "3"], 2, "seek takes one of a partition, --all and --positions"),
        (["1"], 2, "seek takes either --to or --positions"),
        (["9", "--to", "3"], 1, "partition 9 is unknown: there are 0, 1"),
        (["1", "--to", "3", "--consumer-group", "other"], 1, "/hub/$default, not to localhost"),
    ],
)
def test_an_impossible_seek_is_refused(leases: Group, arguments: list[str], code: int, message: str) -> None:
    before = leases.state
    assert message in leases.fails(code, "seek", *arguments)
    assert leases.state == before


# --- history ----------------------------------------------------------------------------------------------------


def test_history_shows_who_ordered_what_and_why(leases: Group) -> None:
    leases.done("transfer", "0", "--to", "bob", "--why", "upgrade of ann's host")
    leases.done("pin", "1", "--to", "ann")
    leases.done("pin", "1", "--remove", "--why", "a mistake")
    leases.done("seek", "1", "--to", "2", "--why", "a bad batch")
    leases.done("drain", "ann", "--why", "its host goes")
    leases.done("drain", "ann", "--undo")
    rows = json.loads(leases.done("history", "--json"))
    assert all(each["by"].startswith("operator:") for each in rows)
    assert sorted((each["event"], each["partition"], each["why"]) for each in rows if each["partition"]) == [
        ("PinTo", "1", "to ann"),
        ("Seek", "1", "to sequence number 2: a bad batch"),
        ("Transfer", "0", "to bob: upgrade of ann's host"),
        ("Unpin", "1", "a mistake"),
    ]
    drains = [each for each in rows if each["event"] == "Drain"]
    assert {(each["owner"], each["epoch"], each["why"]) for each in drains} == {
        ("ann", None, "its host goes"),
        ("ann", None, "may take partitions again"),
    }
    (sought,) = (each for each in rows if each["event"] == "Seek")
    assert (sought["owner_before"], sought["owner"], sought["epoch"], sought["sequence_number"]) == (None, None, 3, 1)
    shown = leases.done("history")
    assert "its host goes" in shown
    assert "operator:" in shown


def test_an_order_is_carried_out_with_a_warning_if_the_history_cannot_be_written(leases: Group) -> None:
    make_unwritable(leases.table)
    outcome = leases("pin", "0", "--to", "bob")
    assert outcome.code == 0
    assert f"Warning: {NOT_RECORDED}{leases.table}_history could not be written" in outcome.err
    assert leases.state.leases["0"].pin == Pin("bob", leases.state.leases["0"].pin.by, "")
