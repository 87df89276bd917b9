"""`ehbalance check`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import azure.eventhub
import pytest
from azure.eventhub import EventHubConsumerClient

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver
from spark_ehbalance.eventhub.wire.client import TESTED
from spark_ehbalance.group.position import START_OFFSET
from spark_ehbalance.lease_table.delta.folder import Folder
from tests.ops.command import Command, kept
from tests.ops.groups import HUB, Group


def checked(run: Command | Group, *arguments: object) -> tuple[int, dict[str, dict[str, Any]]]:
    outcome = run("check", *arguments, "--json")
    assert outcome.err == ""
    return outcome.code, {each["what"]: each for each in json.loads(outcome.out)}


def verdicts(found: Mapping[str, Mapping[str, Any]], verdict: str) -> set[str]:
    return {what for what, each in found.items() if each["verdict"] == verdict}


def test_all_is_well(group: Group, table: Path) -> None:
    code, found = checked(group)
    assert code == 0
    assert (
        verdicts(found, "ok")
        == found.keys()
        == {*("event hub", "reading", "lease table", "compare-and-swap", "latency")}
    )
    assert "'hub' at localhost" in found["event hub"]["text"]
    assert "has 4 partitions" in found["event hub"]["text"]
    assert "partition 0: attached" in found["reading"]["text"]
    assert "5 times of 5" in found["compare-and-swap"]["text"]
    assert list(table.parent.iterdir()) == [], "the trial table is removed"


def test_an_existing_table_stays_as_it_is(used: Group) -> None:
    before, folder = used.state, used.table.parent
    names = sorted(each.name for each in folder.iterdir())
    assert "hub/$default: 4 partitions" in checked(used)[1]["lease table"]["text"]
    assert "belongs to localhost" in checked(used, "--consumer-group", "other")[1]["lease table"]["text"]
    assert used.state == before
    assert sorted(each.name for each in folder.iterdir()) == names


def test_an_untested_version_of_the_client_is_a_warning(
    ehbalance: Command, connection: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure.eventhub, "__version__", "5.99.0")
    code, found = checked(ehbalance, *connection)
    assert (code, verdicts(found, "warning")) == (0, {"azure-eventhub"})
    assert found.keys() == {"azure-eventhub", "event hub", "reading"}, "the hub alone"


def test_a_client_that_cannot_be_used_and_a_missing_consumer_group(
    ehbalance: Command, connection: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, found = checked(ehbalance, *connection, "--consumer-group", "missing")
    assert (code, verdicts(found, "failed")) == (1, {"reading"})
    assert "consumer group 'missing' exists" in found["reading"]["remedy"]
    monkeypatch.delattr(EventHubConsumerClient, "_create_consumer")
    code, found = checked(ehbalance, *connection)
    assert (code, verdicts(found, "failed")) == (1, {"reading"})
    assert f"azure-eventhub=={TESTED}" in found["reading"]["remedy"]


def test_a_wrong_key_for_people(ehbalance: Command, emulator: Emulator, secrets: Path, table: Path) -> None:
    wrong = emulator.connection_string(HUB).replace("SharedAccessKey=", "SharedAccessKey=x")
    outcome = ehbalance("check", table, *kept(wrong, secrets))
    assert outcome.code == 1
    (line,) = [each for each in outcome.out.splitlines() if each.startswith("failed")]
    assert "refused the credentials" in line
    assert "→ check the names of namespace and hub" in outcome.out
    assert "ok       compare-and-swap" in outcome.out, "the storage is tried all the same"


def test_a_partition_that_a_query_reads(ehbalance: Command, emulator: Emulator, connection: Sequence[str]) -> None:
    given = {"connectionString": emulator.connection_string(HUB), "fullyQualifiedNamespace": None, "credential": None}
    reader = Connection.from_options({**given, "eventHubName": None})
    receiver = Receiver(PartitionAddress(reader, "$Default", "0"), START_OFFSET, owner_level=7, prefetch=1)
    try:
        receiver.receive(1, 0.1)
        _, found = checked(ehbalance, *connection)
        assert found["reading"]["verdict"] == "ok"
        assert "with owner level 7" in found["reading"]["text"]
        assert receiver.is_usable(), "it is not disturbed"
    finally:
        receiver.close()


def test_a_storage_without_compare_and_swap(group: Group, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(folder: Folder, name: str, data: bytes) -> str:
        folder.write(name, data)
        return folder.tag(name) or ""

    monkeypatch.setattr(Folder, "create", create)
    code, found = checked(group)
    assert (code, verdicts(found, "failed")) == (1, {"compare-and-swap"})
    assert "two queries would read the same partition" in found["compare-and-swap"]["text"]
    assert list(table.parent.iterdir()) == []


def test_a_storage_that_may_not_be_written(ehbalance: Command, tmp_path: Path, connection: Sequence[str]) -> None:
    (tmp_path / "file").write_text("no folder")
    code, found = checked(ehbalance, tmp_path / "file" / "leases", *connection)
    assert code == 1
    assert any("right to list, read, write and delete" in each["remedy"] for each in found.values())
