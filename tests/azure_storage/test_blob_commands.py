"""Commands on a group that the Azure SDK's consumers keep in a container."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient

from chaos.storage.azurite import ACCOUNT, KEY, make_container
from spark_ehbalance.emulator import Emulator
from tests.azure_storage.consumers import checkpoint_store
from tests.ops.command import Command, assert_error, connection_arguments

GROUP = {"fully_qualified_namespace": "ns.example", "eventhub_name": "Flights", "consumer_group": "$Default"}


@pytest.fixture
def container(storage: str) -> str:
    """The address of a container in which the SDK's own store keeps a group of two consumers."""
    name = uuid.uuid4().hex
    make_container(storage, name)
    store = checkpoint_store(storage, name)
    for partition, owner in (("0", "ann"), ("1", "bob"), ("2", "ann"), ("10", "")):
        store.claim_ownership([{**GROUP, "partition_id": partition, "owner_id": owner}])
    store.update_checkpoint({**GROUP, "partition_id": "0", "offset": "4711", "sequence_number": 42})
    return f"{storage}/{ACCOUNT}/{name}"


@pytest.fixture
def key(tmp_path: Path) -> Sequence[str]:
    file = tmp_path / "key"
    file.write_text(KEY)
    return ("--storage-option", f"account_key=file:{file}")


def cells(text: str) -> list[list[str]]:
    """The rows of the tables in `text`."""
    lines = text.replace("┃", "│").splitlines()
    return [[part.strip() for part in line.split("│")[1:-1]] for line in lines if line.startswith("│")]


def test_status_shows_owners_ages_and_checkpoints(ehbalance: Command, container: str, key: Sequence[str]) -> None:
    done = ehbalance.succeeds("status", container, *key)
    assert "ns.example/flights/$default, 2 owners" in done.out
    rows = {row[0]: row for row in cells(done.out)}
    assert rows["partition"] == ["partition", "owner", "next", "renewed"]
    assert rows["0"][:3] == ["0", "ann", "43"]
    assert rows["0"][3].endswith(" s ago")
    assert rows["1"][1:3] == ["bob", ""]
    assert rows["10"][1:] == ["nobody", "", ""]
    assert rows["member"] == ["member", "partitions", "last seen"]
    assert rows["ann"][:2] == ["ann", "2"]
    assert rows["bob"][1] == "1"

    state = json.loads(ehbalance("status", container, "--json", *key).out)
    assert [(row["partition"], row["owner"], row["epoch"], row["sequenceNumber"]) for row in state["partitions"]] == [
        ("0", "ann", None, 42),
        ("1", "bob", None, None),
        ("2", "ann", None, None),
        ("10", None, None, None),
    ]
    assert [(member["member"], member["partitions"], member["host"]) for member in state["members"]] == [
        ("ann", ["0", "2"], None),
        ("bob", ["1"], None),
    ]
    assert "No findings." in ehbalance.succeeds("status", container, "--partition", "0", *key).out


def test_group_option_selects_one_of_several_groups(
    ehbalance: Command, storage: str, container: str, key: Sequence[str]
) -> None:
    store = checkpoint_store(storage, container.rpartition("/")[2])
    store.update_checkpoint({**GROUP, "consumer_group": "b", "partition_id": "7", "offset": "1", "sequence_number": 5})
    error = ehbalance.fails(1, "status", container, *key)
    assert "ns.example/flights/$default, ns.example/flights/b" in error
    for hub in range(10):  # one container can have all hubs of a namespace
        store.update_checkpoint(
            {**GROUP, "eventhub_name": f"x{hub}", "partition_id": "0", "offset": "1", "sequence_number": 5}
        )
    error = ehbalance.fails(1, "status", container, *key)
    assert (error.count("ns.example/"), "ns.example/x2/$default and more." in error) == (5, True)
    done = ehbalance("status", container, *key, "--group", "ns.example/Flights/b")
    assert cells(done.out) == [["partition", "owner", "next"], ["7", "nobody", "6"]]
    assert "--group='b' is invalid. Allowed: NAMESPACE/HUB/GROUP" in ehbalance.fails(
        2, "status", container, *key, "--group", "b"
    )


def test_unusable_container_is_reported_in_one_line(
    ehbalance: Command, storage: str, container: str, key: Sequence[str], tmp_path: Path
) -> None:
    make_container(storage, empty := uuid.uuid4().hex)
    assert "[EHB_LEASE_TABLE_FOREIGN] " in ehbalance.fails(1, "status", f"{storage}/{ACCOUNT}/{empty}", *key)
    assert "could not be read: it does not exist" in ehbalance.fails(1, "status", f"{storage}/{ACCOUNT}/none", *key)
    assert "Token credential is only supported with HTTPS" in ehbalance.fails(2, "status", container)
    (tmp_path / "wrong").write_text("d3Jvbmc=")
    error = ehbalance.fails(1, "status", container, "--storage-option", f"account_key=file:{tmp_path / 'wrong'}")
    assert f"{container} could not be read: 403" in error
    assert "EHB_SECRET_EXPOSED" in ehbalance.fails(2, "status", f"{container}?sv=2020&sig={KEY}", *key)
    assert "not shown, as it could be a secret" in ehbalance.fails(2, "status", f"{container}?sv=2020&sig=abc", *key)


@pytest.mark.parametrize(
    "command", [("history",), ("drain", "ann"), ("pin", "0", "--to", "bob"), ("transfer", "0", "--to", "bob")]
)
def test_commands_that_need_members_are_rejected_for_containers(
    ehbalance: Command, storage: str, container: str, key: Sequence[str], command: Sequence[str]
) -> None:
    def state() -> dict[str, str]:
        with ContainerClient(f"{storage}/{ACCOUNT}", container.rpartition("/")[2], KEY) as client:
            return {blob.name: blob.etag for blob in client.list_blobs()}

    before = state()
    error = ehbalance.fails(2, command[0], container, *command[1:], *key)
    assert_error(error, "EHB_OPTION_INVALID", f"LEASE_TABLE='{container}'", "no members")
    assert state() == before


def test_init_checks_the_options_and_the_hub_and_seek_is_rejected(
    ehbalance: Command, emulator: Emulator, storage: str, key: Sequence[str], tmp_path: Path
) -> None:
    emulator.add_hub("hub", 2)
    connection = connection_arguments(emulator.connection_string("hub"), tmp_path)
    address = f"{storage}/{ACCOUNT}/{uuid.uuid4().hex}"
    for state in ("created", "exists"):
        done = ehbalance.succeeds("init", address, *connection, *key)
        assert f"hub/$default {state}; the hub has 2 partitions" in done.out
    (tmp_path / "p.json").write_text('{"*": "earliest"}')
    assert "Allowed: a lease table in Delta" in ehbalance.fails(
        2, "init", address, *connection, *key, "--positions", tmp_path / "p.json"
    )
    assert "no members" in ehbalance.fails(2, "seek", address, "0", "--to", "5", *connection, *key)


def test_commands_take_another_namespace(
    ehbalance: Command, emulator: Emulator, storage: str, key: Sequence[str], tmp_path: Path
) -> None:
    """Such as the namespace, with port, of a group that a Python consumer created."""
    emulator.add_hub("flights", 2)
    port = f"localhost:{emulator.port}"
    make_container(storage, name := uuid.uuid4().hex)
    group = {**GROUP, "fully_qualified_namespace": port}
    checkpoint_store(storage, name).claim_ownership([{**group, "partition_id": "0", "owner_id": "ann"}])
    arguments = (
        f"{storage}/{ACCOUNT}/{name}",
        *connection_arguments(emulator.connection_string("flights"), tmp_path),
        *key,
    )
    arguments += ("--blob-namespace", port)
    assert f"{port}/flights/$default exists" in ehbalance.succeeds("init", *arguments).out
