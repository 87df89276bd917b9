"""`ehbalance transfer`, `pin`, `unpin`, `seek`, `drain`, and the `history` of these orders."""

from __future__ import annotations

import getpass
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.leases.model import Handover, Lease, Member, MemberState, Pin
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.position import Position
from tests.cli.command import Command, kept
from tests.stores.histories import NOT_RECORDED, make_unwritable

HUB = "hub"


@pytest.fixture
def connection(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """A hub whose two partitions have ten events each."""
    emulator.add_hub(HUB, 2)
    for partition in (0, 1):
        emulator.append(HUB, partition, [b"x"] * 10)
    return kept(emulator.connection_string(HUB), tmp_path_factory.mktemp("secret"))


@pytest.fixture
def leases(ehbalance: Command, table: Path, connection: Sequence[str]) -> Path:
    """A table with Ann, who owns partition 0, and Bob; partition 1 has no owner."""
    ehbalance("init", table, *connection)
    with DeltaStore(str(table)) as store:
        base = store.read()
        partitions = {
            "0": Lease("0", "ann", 3, checkpoint=Position(4)),
            "1": Lease("1", None, 2, checkpoint=Position(7)),
        }
        members = {name: Member(name, f"{name}-1", number) for number, name in enumerate(("ann", "bob"))}
        store.write(base, replace(base, leases=partitions, members=members))
    return table


def state(table: Path) -> Snapshot:
    with DeltaStore(str(table)) as store:
        return store.read()


def output(ehbalance: Command, *arguments: object) -> str:
    outcome = ehbalance(*arguments)
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out


def test_a_transfer_asks_the_owner(ehbalance: Command, leases: Path) -> None:
    printed = output(ehbalance, "transfer", leases, "0", "--to", "bob", "--why", "upgrade", "--handover-timeout", "5s")
    assert printed == "Partition 0 is to go to bob: ann was asked to hand it over within 5 s.\n"
    lease = state(leases).leases["0"]
    assert lease.handover is not None
    assert (lease.handover.to, lease.handover.timeout_ms) == ("bob", 5000)
    assert lease.pin is not None
    assert (lease.pin.to, lease.pin.why, lease.pin.transfer) == ("bob", "upgrade", True)
    assert lease.pin.by.startswith(f"operator:{getpass.getuser()}@")


def test_a_transfer_of_a_partition_without_an_owner(ehbalance: Command, leases: Path) -> None:
    printed = output(ehbalance, "transfer", leases, "1", "--to", "bob")
    assert printed == "Partition 1 is to go to bob, which takes it with its next decision.\n"
    assert state(leases).leases["1"].handover is None


def test_pinning_and_unpinning(ehbalance: Command, leases: Path) -> None:
    assert "ann was asked to hand it over within 30 s" in output(ehbalance, "pin", leases, "0", "--to", "bob")
    assert output(ehbalance, "pin", leases, "1", "--to", "ann").endswith("takes it with its next decision.\n")
    pins = {partition: lease.pin and lease.pin.to for partition, lease in state(leases).leases.items()}
    assert pins == {"0": "bob", "1": "ann"}
    assert "which owns it" in output(ehbalance, "pin", leases, "0", "--to", "ann")
    assert output(ehbalance, "unpin", leases, "0", "--why", "over") == "Partition 0 is not pinned any more.\n"
    assert state(leases).leases["0"].pin is None
    assert ehbalance.fails(1, "unpin", leases, "0") == "Error: partition 0 is not pinned: pinned are 1\n"


def test_pinning_to_a_member_that_is_leaving_takes_effect_later(ehbalance: Command, leases: Path) -> None:
    output(ehbalance, "drain", leases, "bob")
    assert "from ann when it is active and has room" in output(ehbalance, "pin", leases, "0", "--to", "bob")
    assert state(leases).leases["0"].handover is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["transfer", "0", "--to", "eve"], "eve is not an active member: active are ann, bob"),
        (["transfer", "7", "--to", "bob"], "partition 7 is unknown: there are 0, 1"),
        (["transfer", "0", "--to", "ann"], "partition 0 is owned by ann already"),
        (["pin", "0", "--to", "eve"], "eve is not a member: members are ann, bob"),
        (["pin", "7", "--to", "bob"], "partition 7 is unknown: there are 0, 1"),
        (["unpin", "0"], "partition 0 is not pinned: pinned are none"),
        (["drain", "eve"], "eve is not a member: members are ann, bob"),
    ],
)
def test_an_impossible_order_is_refused_and_changes_nothing(
    ehbalance: Command, leases: Path, arguments: list[str], message: str
) -> None:
    before = state(leases)
    command, *more = arguments
    assert ehbalance.fails(1, command, leases, *more) == f"Error: {message}\n"
    assert state(leases) == before
    with DeltaStore(str(leases)) as store:
        assert store.history() == []


def test_a_wrong_timeout_is_refused(ehbalance: Command, leases: Path) -> None:
    message = ehbalance.fails(2, "pin", leases, "0", "--to", "bob", "--handover-timeout", "soon")
    assert message.startswith("Error: --handover-timeout='soon' is wrong: allowed is a length of time")


# --- seek -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("to", "at"), [("earliest", 0), ("latest", 10), ("3", 3), ("10", 10)])
def test_a_seek_in_a_partition_without_an_owner(
    ehbalance: Command, leases: Path, connection: Sequence[str], to: str, at: int
) -> None:
    printed = output(ehbalance, "seek", leases, "1", "--to", to, *connection)
    assert printed.startswith(f"Partition 1 goes on at sequence number {at}.\n")
    assert ("Partition 1 goes back, and events are read again. For a table" in printed) is (at < 7)
    lease = state(leases).leases["1"]
    assert lease.checkpoint is not None
    assert (lease.owner, lease.epoch, lease.checkpoint.next) == (None, 3, at)


def test_a_seek_to_a_time(ehbalance: Command, leases: Path, emulator: Emulator, connection: Sequence[str]) -> None:
    now = datetime.now(timezone.utc)
    before, after = ((now + timedelta(minutes=minutes)).isoformat() for minutes in (-60, 2))
    assert "sequence number 0" in output(ehbalance, "seek", leases, "1", "--to", before, *connection)
    assert "sequence number 10" in output(ehbalance, "seek", leases, "1", "--to", after, *connection)


def test_a_seek_in_an_owned_partition_must_be_forced(
    ehbalance: Command, leases: Path, connection: Sequence[str]
) -> None:
    for which in (["0"], ["--all"]):
        message = ehbalance.fails(1, "seek", leases, *which, "--to", "earliest", *connection)
        assert message == "Error: partition 0 is owned by ann: stop that query first, or use --force\n"
        assert {lease.epoch for lease in state(leases).leases.values()} == {3, 2}, "all or nothing"
    output(ehbalance, "seek", leases, "--all", "--to", "earliest", "--force", *connection)
    sought = state(leases).leases
    assert {lease.checkpoint.next for lease in sought.values() if lease.checkpoint} == {0}
    assert [(lease.owner, lease.epoch) for lease in sought.values()] == [("ann", 4), (None, 3)]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["1", "--to", "11"], 2, "partition 1 cannot go on at sequence number 11: allowed is 0 to 10, which is"),
        (["1", "--to", "soon"], 2, "--to='soon' is wrong: allowed is earliest, latest, a sequence number, a time"),
        (["1", "--to", '{"1": 3}'], 2, "is wrong: allowed is earliest"),
        (["--to", "3"], 2, "seek takes either a partition or --all"),
        (["1", "--all", "--to", "3"], 2, "seek takes either a partition or --all"),
        (["9", "--to", "3"], 1, "partition 9 is unknown: there are 0, 1"),
        (["1", "--to", "3", "--consumer-group", "other"], 1, "/hub/$default, not to localhost"),
    ],
)
def test_a_seek_beyond_the_hub_is_refused(
    ehbalance: Command, leases: Path, connection: Sequence[str], arguments: list[str], code: int, message: str
) -> None:
    before = state(leases)
    assert message in ehbalance.fails(code, "seek", leases, *arguments, *connection)
    assert state(leases) == before


def test_a_seek_to_a_time_to_come_is_refused(ehbalance: Command, leases: Path, connection: Sequence[str]) -> None:
    """It is a slip, and would skip all that there is."""
    before = state(leases)
    message = ehbalance.fails(2, "seek", leases, "0", "--to", "2099-01-01T00:00:00Z", *connection)
    assert "--to='2099-01-01T00:00:00Z' has not come yet: allowed is a time that has, or latest" in message
    assert state(leases) == before


def test_a_seek_before_anything_was_read_is_refused(ehbalance: Command, table: Path, connection: Sequence[str]) -> None:
    ehbalance("init", table, *connection)
    assert "startingPosition says" in ehbalance.fails(1, "seek", table, "--all", "--to", "earliest", *connection)


# --- history ----------------------------------------------------------------------------------------------------


def test_history_shows_who_ordered_what_and_why(ehbalance: Command, leases: Path, connection: Sequence[str]) -> None:
    output(ehbalance, "transfer", leases, "0", "--to", "bob", "--why", "upgrade of ann's host")
    output(ehbalance, "pin", leases, "1", "--to", "ann")
    output(ehbalance, "unpin", leases, "1", "--why", "a mistake")
    output(ehbalance, "seek", leases, "1", "--to", "2", "--why", "a bad batch", *connection)
    output(ehbalance, "drain", leases, "ann", "--why", "its host goes")
    output(ehbalance, "drain", leases, "ann", "--undo")
    rows = json.loads(output(ehbalance, "history", leases, "--json"))
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
    shown = output(ehbalance, "history", leases)
    assert "its host goes" in shown
    assert "operator:" in shown
    assert "Drain" not in output(ehbalance, "history", leases, "--partition", "1")


def test_a_limit_is_named(ehbalance: Command, leases: Path) -> None:
    with DeltaStore(str(leases)) as store:
        base = store.read()
        bob = replace(base.members["bob"], max_owned=1)
        partitions = {**base.leases, "1": Lease("1", "bob", 4, checkpoint=Position(7))}
        store.write(base, replace(base, leases=partitions, members={**base.members, "bob": bob}))
    message = ehbalance.fails(1, "transfer", leases, "0", "--to", "bob")
    assert message == "Error: bob has 1 partitions, and maxPartitionsOwned=1\n"
    assert "when it is active and has room" in output(ehbalance, "pin", leases, "0", "--to", "bob")


def test_a_drain_can_be_undone(ehbalance: Command, leases: Path) -> None:
    assert output(ehbalance, "drain", leases, "ann") == "ann is leaving.\n"
    assert state(leases).members["ann"].state is MemberState.LEAVING
    assert output(ehbalance, "drain", leases, "ann", "--undo") == "ann may take partitions again.\n"
    assert ehbalance.fails(1, "drain", leases, "ann", "--undo") == "Error: ann is active already\n"


def test_an_order_replaces_a_members_request(ehbalance: Command, leases: Path) -> None:
    with DeltaStore(str(leases)) as store:
        base = store.read()
        asked = replace(base.leases["0"], handover=Handover("bob", 30_000), pin=Pin("bob", "operator:jo"))
        store.write(base, replace(base, leases={**base.leases, "0": asked}))
    output(ehbalance, "pin", leases, "0", "--to", "ann")
    assert state(leases).leases["0"].handover is None


def test_an_order_is_carried_out_with_a_warning_if_the_history_cannot_be_written(
    ehbalance: Command, leases: Path
) -> None:
    make_unwritable(leases)
    outcome = ehbalance("pin", leases, "0", "--to", "bob")
    assert outcome.code == 0
    assert f"Warning: {NOT_RECORDED}{leases}_history could not be written" in outcome.err
    assert state(leases).leases["0"].pin == Pin("bob", state(leases).leases["0"].pin.by, "")
