"""`ehbalance positions` with containers of the Azure SDK's own checkpoint store, and lease tables created from them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient

from chaos.storage.azurite import ACCOUNT, KEY, make_container, storage_options
from chaos.storage.faults import EXPIRED, Break, Fault, RequestKind, Rule
from chaos.storage.proxy import StorageProxy
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.receiver import PartitionAddress
from spark_ehbalance.eventhub.resolve import find_offset
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.query.options import stream_options
from tests.azure_storage.consumers import read_with_sdk
from tests.ops.command import Command, Outcome, assert_error, connection_arguments

HUB = "Flights"
EVENTS = 40


class Migration:
    """A hub of four partitions with 40 events each, a lease table, and a container for the SDK's checkpoint store."""

    def __init__(self, emulator: Emulator, ehbalance: Command, storage: str, folder: Path) -> None:
        emulator.add_hub(HUB, 4)
        for partition in range(4):
            emulator.append(HUB, str(partition), [b"event"] * EVENTS)
        self.emulator, self.storage, self.ehbalance = emulator, storage, ehbalance
        self.table, self.file, self.container = folder / "leases", folder / "p.json", uuid.uuid4().hex
        make_container(storage, self.container)
        self.client = ContainerClient(f"{storage}/{ACCOUNT}", self.container, KEY)
        (folder / "secret").write_text(KEY)
        self.access = ("--storage-option", f"account_key=file:{folder / 'secret'}")
        self.connection = connection_arguments(emulator.connection_string(HUB), folder)
        self.options = stream_options({"connectionString": emulator.connection_string(HUB), "eventHubName": HUB})
        self.group = f"{self.options.connection.namespace}/{HUB}/$Default".lower()

    def positions(self, *arguments: object) -> Outcome:
        return self.ehbalance("positions", self.client.url, *self.access, *arguments)

    def init(self, printed: str) -> dict[str, int]:
        """Create a lease table from these positions; returns where its queries continue."""
        self.file.write_text(printed)
        self.ehbalance.succeeds("init", self.table, *self.connection, "--positions", self.file)
        with DeltaStore(str(self.table)) as store:
            return {p: lease.checkpoint.next for p, lease in store.read().leases.items() if lease.checkpoint}

    def offset(self, partition: str, number: int) -> str:
        """The offset of this event."""
        offset = find_offset(PartitionAddress(self.options.connection, "$Default", partition), number, 0, 20.0)
        assert offset is not None
        return offset

    def write(self, name: str, metadata: Mapping[str, str]) -> None:
        """Write a blob like some SDK does."""
        self.client.upload_blob(f"{self.group}/{name}", b"", metadata=dict(metadata), overwrite=True)


@pytest.fixture
def migration(emulator: Emulator, ehbalance: Command, storage: str, tmp_path: Path) -> Iterator[Migration]:
    made = Migration(emulator, ehbalance, storage, tmp_path)
    with made.client:
        yield made


def test_sdks_progress_is_migrated_to_a_table(migration: Migration) -> None:
    most = {"0": 3, "1": EVENTS, "2": 1}
    connection = migration.emulator.connection_string(HUB)
    read_with_sdk(connection, HUB, migration.storage, migration.container, most)
    found = migration.positions()
    assert json.loads(found.out)["0"] == {"next": 3, "offset": migration.offset("0", 2)}
    assert migration.init(found.out) == {"0": 3, "1": 40, "2": 1, "3": 0}


def test_checkpoints_of_all_sdks_are_read(migration: Migration) -> None:
    offsets = {p: migration.offset(p, n) for p, n in (("1", 9), ("2", 11), ("3", 5))}
    migration.write("checkpoint/0", {"sequencenumber": "7"})  # Java
    migration.write(
        "checkpoint/1", {"Offset": offsets["1"], "Sequencenumber": "9", "clientidentifier": "x"}
    )  # .NET, Go
    migration.write("checkpoint/2", {"offset": offsets["2"], "sequencenumber": ""})  # .NET with only an offset
    migration.write("checkpoint/3", {"offset": "", "sequencenumber": ""})
    migration.write("ownership/0", {"ownerid": "a-consumer"})
    migration.write("ownership/1", {"ownerid": ""})
    migration.write("elsewhere/7", {"sequencenumber": "7"})
    found = migration.positions()
    assert "Warning: a-consumer may still be reading. Stop them first" in found.err
    assert json.loads(found.out) == {
        "hub": {"name": "flights", "namespace": "localhost"},
        "0": {"next": 8},
        "1": {"next": 10, "offset": offsets["1"]},
        "2": {"offset": offsets["2"]},
    }
    migration.emulator.trim(HUB, 2, 20)  # the event with that offset and some later ones have aged out
    migration.file.write_text(found.out)
    init = ("init", migration.table, *migration.connection, "--positions", migration.file)
    assert_error(migration.ehbalance.fails(2, *init), "EHB_POSITION_INVALID", "partition 2", "number 19", "20 to")
    given = json.loads(found.out) | {"2": "earliest"}
    assert migration.init(json.dumps(given)) == {"0": 8, "1": 10, "2": 20, "3": 0}


@pytest.mark.parametrize("fault", [EXPIRED, Break.LOST_ANSWER], ids=["refused", "lost answer"])
def test_table_is_created_atomically(migration: Migration, proxy: StorageProxy, storage: str, fault: Fault) -> None:
    migration.file.write_text('{"0": 10, "1": 20}')
    given = [f"{name}={value}" for name, value in storage_options(proxy.address).items() if "key" not in name]
    access = [text for option in given for text in ("--storage-option", option)] + [*migration.access]
    for kind, number in (
        (RequestKind.PUT, 0),
        (RequestKind.PUT, 1),
        (RequestKind.CONDITIONAL_PUT, 0),
        (RequestKind.CONDITIONAL_PUT, 1),
    ):
        location = f"az://{migration.container}/leases-{kind.name}-{number}"
        command = ("init", location, *migration.connection, *access, "--positions", migration.file)
        proxy.disturb(Rule(fault, kind, skip=number, times=1))
        done = migration.ehbalance(*command)
        proxy.disturb()
        if done.code:
            assert done.err.count("\n") == 1
            migration.ehbalance(*command)  # rejected if the table exists
        with DeltaStore(location, storage_options(storage)) as store:
            found = store.read()
        assert [lease.checkpoint and lease.checkpoint.next for lease in found.leases.values()] == [10, 20, 0, 0]
        assert found.version == 0, "written once"
