"""`ehbalance check`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import azure.eventhub
import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.wire.client import TESTED
from spark_ehbalance.lease_table.delta.folder import Folder
from tests.ops.command import Command, kept
from tests.ops.groups import HUB, Group


def checked(run: Command | Group, *arguments: object) -> tuple[int, dict[str, dict[str, Any]]]:
    outcome = run("check", *arguments, "--json")
    assert outcome.err == ""
    return outcome.code, {each["what"]: each for each in json.loads(outcome.out)}


def verdicts(found: Mapping[str, Mapping[str, Any]], verdict: str) -> set[str]:
    return {what for what, each in found.items() if each["verdict"] == verdict}


def test_all_is_well(group: Group, emulator: Emulator, table: Path) -> None:
    with EventHubProducerClient.from_connection_string(emulator.connection_string(HUB)) as producer:
        producer.send_event(EventData("one"), partition_id="3")
    code, found = checked(group)
    assert code == 0
    assert verdicts(found, "ok") == found.keys()
    assert "'hub' at localhost" in found["event hub"]["text"]
    assert "has 4 partitions" in found["event hub"]["text"]
    assert "partition 3: an event came" in found["reading"]["text"]
    assert "there is none" in found["lease table"]["text"]
    assert "5 times of 5" in found["compare-and-swap"]["text"]
    assert list(table.parent.iterdir()) == [], "what was tried is removed"


def test_an_existing_table_stays_as_it_is(used: Group) -> None:
    before, folder = used.state, used.table.parent
    names = sorted(each.name for each in folder.iterdir())
    _, found = checked(used)
    assert used.state == before
    assert sorted(each.name for each in folder.iterdir()) == names
    assert found["lease table"]["verdict"] == "failed", "the hub has no partition 10"
    assert "partitions 10, which the event hub lacks" in found["lease table"]["text"]


def test_an_untested_version_of_the_client_is_said(
    ehbalance: Command, connection: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure.eventhub, "__version__", "5.99.0")
    code, found = checked(ehbalance, *connection)
    assert (code, verdicts(found, "warning")) == (0, {"azure-eventhub"})
    assert "5.99.0 has not been tested" in found["azure-eventhub"]["text"]


def test_a_client_that_cannot_be_used(
    ehbalance: Command, connection: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(EventHubConsumerClient, "_create_consumer")
    code, found = checked(ehbalance, *connection)
    assert (code, verdicts(found, "failed")) == (1, {"reading"})
    assert "has no attribute '_create_consumer'" in found["reading"]["text"]
    assert f"azure-eventhub=={TESTED}" in found["reading"]["remedy"]


def test_for_people(group: Group, table: Path) -> None:
    group("init")
    outcome = group("check", "--consumer-group", "other")
    assert outcome.code == 1
    (line,) = [each for each in outcome.out.splitlines() if each.startswith("failed")]
    assert "belongs to localhost" in line
    assert "→ give each group a table of its own" in outcome.out


def test_the_hub_alone(ehbalance: Command, connection: Sequence[str]) -> None:
    code, found = checked(ehbalance, *connection)
    assert code == 0
    assert found.keys() == {"versions", "event hub", "answers", "limits", "reading"}


def test_a_consumer_group_that_does_not_exist(ehbalance: Command, connection: Sequence[str]) -> None:
    code, found = checked(ehbalance, *connection, "--consumer-group", "missing")
    assert (code, verdicts(found, "failed")) == (1, {"reading"})
    assert "'missing'" in found["reading"]["text"]
    assert "consumer group exists" in found["reading"]["remedy"]


def test_a_wrong_key_and_a_hub_that_is_away(ehbalance: Command, emulator: Emulator, secrets: Path, table: Path) -> None:
    wrong = emulator.connection_string(HUB).replace("SharedAccessKey=", "SharedAccessKey=x")
    code, found = checked(ehbalance, table, *kept(wrong, secrets))
    assert (code, verdicts(found, "failed")) == (1, {"event hub"})
    assert "refused the credentials" in found["event hub"]["text"]
    assert found["compare-and-swap"]["verdict"] == "ok", "the storage is tried all the same"


def test_a_partition_that_a_query_reads(ehbalance: Command, emulator: Emulator, connection: Sequence[str]) -> None:
    from spark_ehbalance.eventhub.connection import Connection
    from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver

    given = {"connectionString": emulator.connection_string(HUB), "fullyQualifiedNamespace": None, "credential": None}
    reader = Connection.from_options({**given, "eventHubName": None})
    readers = [
        Receiver(PartitionAddress(reader, "$Default", str(each)), 0, owner_level=7, prefetch=1) for each in range(4)
    ]
    try:
        for each in readers:
            each.receive(1, 0.1)
        _, found = checked(ehbalance, *connection)
        assert found["reading"]["verdict"] == "ok"
        assert "with owner level 7" in found["reading"]["text"]
        assert all(each.is_usable() for each in readers), "nobody was disturbed"
    finally:
        for each in readers:
            each.close()


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
    assert "failed" in {each["verdict"] for each in found.values()}
    assert any("right to list, read, write and delete" in each["remedy"] for each in found.values())
