"""`ehbalance status`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.model import Load, MemberLoad, MemberState, Pin, TableIdentity
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.position import Position
from tests.cli.command import Command
from tests.cli.groups import connection, emulator, secrets, used

__all__ = ["connection", "emulator", "secrets", "used"]


def test_status_for_programs(ehbalance: Command, emulator: Emulator, used: Path) -> None:
    outcome = ehbalance("status", used, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    state = json.loads(outcome.out)
    assert (state["namespace"], state["eventHub"], state["consumerGroup"]) == (
        f"localhost:{emulator.port}",
        "hub",
        "$default",
    )
    assert state["leader"] == "alice"
    assert [lease["partition"] for lease in state["partitions"]] == ["0", "1", "2", "10"]
    zero, one, two, ten = state["partitions"]
    assert (zero["owner"], zero["epoch"], zero["sequenceNumber"], zero["nextOwner"]) == ("alice", 3, 4711, "bob")
    assert (one["owner"], one["sequenceNumber"], one["nextOwner"]) == ("bob", -1, None)
    assert (two["owner"], two["epoch"], two["sequenceNumber"]) == (None, 8, 9)
    assert (ten["owner"], ten["sequenceNumber"]) == (None, None)
    assert datetime.fromisoformat(zero["renewedAt"]).timestamp() == 1_770_000_000
    assert [(each["member"], each["host"], each["partitions"]) for each in state["members"]] == [
        ("alice", "host-a", ["0"]),
        ("bob", "host-b", ["1"]),
    ]
    assert {each["state"] for each in state["members"]} == {"active"}


def test_who_looks_writes_nothing(ehbalance: Command, used: Path) -> None:
    def files() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in used.parent.rglob("*") if file.is_file()}

    with DeltaStore(str(used)) as store:
        store.record([OwnershipChange(0, "0", "Claim", None, "alice", 1, None, "alice")])
    before = files()
    for arguments in (["status", used], ["history", used], ["report", used, "--out", os.devnull]):
        assert ehbalance(*arguments).code == 0
    assert files() == before


def test_status_for_people(ehbalance: Command, used: Path) -> None:
    outcome = ehbalance("status", used)
    assert (outcome.code, outcome.err) == (0, "")
    assert "hub/$default, 2 members" in outcome.out
    rows = {line.split("│")[1].strip(): line for line in outcome.out.splitlines() if line.count("│") > 3}
    assert {"0", "1", "2", "10"} <= rows.keys()
    assert "alice" in rows["0"]
    assert "4711" in rows["0"]
    assert "bob" in rows["0"]
    assert "nobody" in rows["2"]


def test_status_shows_the_lease_duration_in_force(ehbalance: Command, used: Path) -> None:
    assert json.loads(ehbalance("status", used, "--json").out)["leaseDuration"] is None
    with DeltaStore(str(used)) as store:
        base = store.read()
        bob = replace(base.members["bob"], lease_duration_ms=37_500, commit_ms=61.5)
        members, table = {**base.members, "bob": bob}, TableIdentity("one")
        store.write(base, replace(base, members=members, table=table, lease_duration_ms=46_875))
    state = json.loads(ehbalance("status", used, "--json").out)
    assert state["leaseDuration"] == 46.875
    assert [(each["leaseDuration"], each["commitMs"]) for each in state["members"]] == [(None, None), (37.5, 61.5)]
    assert state["connections"] == 2 + 2, "of two partitions that are owned, and of two members"
    assert "2 members, lease duration 46.875 s, 4 connections" in " ".join(ehbalance("status", used).out.split())


def test_status_shows_loads_strategies_and_orders(ehbalance: Command, used: Path) -> None:
    with DeltaStore(str(used)) as store:
        base = store.read()
        lease = replace(base.leases["0"], pin=Pin("bob", "operator:jo", "nearer"), load=Load(250.5, 1200.0))
        moving = replace(base.leases["1"], pin=Pin("alice", "operator:jo", transfer=True))
        load = MemberLoad(1234.5, 6789.0, 2.5, 0.42)
        bob = replace(base.members["bob"], load=load, strategy="greedy", max_owned=3, state=MemberState.LEAVING)
        leases, members = {**base.leases, "0": lease, "1": moving}, {**base.members, "bob": bob}
        store.write(base, replace(base, leases=leases, members=members))
    state = json.loads(ehbalance("status", used, "--json").out)
    zero, one, two, _ = state["partitions"]
    assert zero["pin"] == {"to": "bob", "by": "operator:jo", "why": "nearer", "transfer": False}
    assert zero["load"] == {"rate": 250.5, "backlog": 1200.0}
    assert one["pin"]["transfer"] is True
    assert (two["pin"], two["load"]) == (None, None)
    first, second = state["members"]
    assert (first["load"], first["strategy"], first["pinned"], first["maxPartitionsOwned"]) == (None, "", ["1"], None)
    assert second["load"] == {"rate": 1234.5, "backlog": 6789.0, "batchSeconds": 2.5, "cpu": 0.42}
    assert (second["strategy"], second["state"], second["pinned"]) == ("greedy", "leaving", ["0"])
    assert second["maxPartitionsOwned"] == 3

    lines = ehbalance("status", used).out.splitlines()
    (shown,) = (line for line in lines if "host-b" in line)
    for cell in ("bob", "leaving", "greedy", "1 of at most 3", "1,234", "6,789", "2.5 s", "42%"):
        assert cell in shown
    rows = {line.split("│")[1].strip(): line for line in lines if line.count("│") > 3}
    assert rows["0"].count("bob") == 2, "as the next owner, and as the one that it is pinned to"
    assert "alice (transfer)" in rows["1"]


def test_status_of_a_new_table(ehbalance: Command, table: Path, connection: Sequence[str]) -> None:
    ehbalance("init", table, *connection)
    assert "0 members" in ehbalance("status", table).out
    state = json.loads(ehbalance("status", table, "--json").out)
    assert (state["partitions"], state["members"], state["leader"]) == ([], [], None)


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_status_without_a_table(ehbalance: Command, table: Path, json_too: list[str]) -> None:
    message = ehbalance.fails(1, "status", table, *json_too)
    assert f"there is no lease table at {table}" in message
    assert "ehbalance init" in message
    assert not table.exists()


def test_status_of_a_table_that_is_no_lease_table(ehbalance: Command, table: Path) -> None:
    table.mkdir()
    (table / "file").write_text("x")
    assert str(table) in ehbalance.fails(1, "status", table)


@pytest.mark.parametrize("location", ["a[b", "a'b", "a*b", ""])
def test_status_of_a_location_that_delta_cannot_open(ehbalance: Command, location: str) -> None:
    assert f"option leaseTable={location!r} is wrong" in ehbalance.fails(2, "status", location)


def test_watch_and_json_together_are_refused(ehbalance: Command, used: Path) -> None:
    message = ehbalance.fails(2, "status", used, "--watch", "--json")
    assert "--watch and --json" in message


def test_status_with_a_wrong_storage_option(ehbalance: Command, used: Path) -> None:
    assert "NAME=VALUE" in ehbalance.fails(2, "status", used, "--storage-option", "nothing")


@pytest.mark.parametrize("owner", ["[red]x[/red]", "etl:key:1"])
def test_an_owner_id_is_shown_without_markup(ehbalance: Command, used: Path, owner: str) -> None:
    with DeltaStore(str(used)) as store:
        base = store.read()
        lease = replace(base.leases["0"], owner=owner)
        store.write(base, replace(base, leases={**base.leases, "0": lease}))
    assert owner in ehbalance("status", used).out


def test_output_into_a_file_is_not_cut_to_a_terminals_width(
    ehbalance: Command, used: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, number = "x" * 200, 2**62
    with DeltaStore(str(used)) as store:
        base = store.read()
        lease = replace(base.leases["0"], owner=owner, checkpoint=Position(number))
        store.write(base, replace(base, leases={**base.leases, "0": lease}))
    monkeypatch.delenv("COLUMNS")
    done = ehbalance("status", used).out
    assert owner in done
    assert str(number) in done
