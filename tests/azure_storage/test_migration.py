"""`ehbalance import-checkpoints` and `export-checkpoints`, with containers of the Azure SDK's own checkpoint store."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient

from chaos.storage.azurite import ACCOUNT, KEY, make_container, storage_options
from chaos.storage.faults import EXPIRED, Break, Fault, Kind, Rule
from chaos.storage.proxy import StorageProxy
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.hub.receiver import PartitionAddress, Receiver
from spark_ehbalance.hub.resolve import find_offset
from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.transitions import AddPartitions, Claim, Join, Leave, Release
from spark_ehbalance.source.options import stream_options
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.position import Position
from tests.azure_storage.consumers import Event, read_with_sdk
from tests.cli.command import Command, kept
from tests.stores.store_conformance import committed
from tests.waiting import wait_until

HUB = "Flights"
EVENTS = 40


class Migration:
    """A hub of four partitions with 40 events each, a lease table, and a container for the SDK's checkpoint store."""

    def __init__(self, emulator: Emulator, ehbalance: Command, storage: str, folder: Path) -> None:
        emulator.add_hub(HUB, 4)
        for partition in range(4):
            emulator.append(HUB, str(partition), [b"event"] * EVENTS)
        self.emulator, self.storage, self.ehbalance = emulator, storage, ehbalance
        self.table, self.container = folder / "leases", uuid.uuid4().hex
        make_container(storage, self.container)
        self.client = ContainerClient(f"{storage}/{ACCOUNT}", self.container, KEY)
        self.address = self.client.url
        self.secret = folder / "secret"
        self.secret.write_text(KEY)
        self.connection = kept(emulator.connection_string(HUB), folder)
        self.options = stream_options({"connectionString": emulator.connection_string(HUB), "eventHubName": HUB})
        namespace = self.options.connection.namespace
        self.group = {"fully_qualified_namespace": namespace, "eventhub_name": HUB, "consumer_group": "$Default"}

    @property
    def importing(self) -> Sequence[object]:
        where = ("--from-blobs", self.address, "--from-option", f"account_key=file:{self.secret}")
        return ("import-checkpoints", self.table, *self.connection, *self.named, *where)

    @property
    def exporting(self) -> Sequence[object]:
        where = ("--to-blobs", self.address, "--to-option", f"account_key=file:{self.secret}")
        return ("export-checkpoints", self.table, *self.connection, *self.named, *where)

    @property
    def named(self) -> Sequence[str]:
        """How the SDK calls the blobs: with the port of the connection string."""
        return ("--blob-namespace", self.group["fully_qualified_namespace"])

    def offset(self, partition: str, number: int) -> str:
        """The offset of an event."""
        address = PartitionAddress(self.options.connection, "$Default", partition)
        offset = find_offset(address, number, 0, 20.0)
        assert offset is not None
        return offset

    def read(self, most: Mapping[str, int], starting_position: str = "-1") -> list[Event]:
        """The events that a consumer of the SDK processes: `most` of each partition."""
        connection = self.emulator.connection_string(HUB)
        return read_with_sdk(connection, HUB, self.storage, self.container, most, starting_position=starting_position)

    def write_all(self, *partitions: str) -> dict[str, dict[str, str]]:
        """Checkpoints at event 9 of these partitions."""
        written = {p: {"sequencenumber": "9", "offset": self.offset(p, 9)} for p in partitions}
        for partition, metadata in written.items():
            self.write(partition, metadata)
        return written

    def exporting_by(self, proxy: StorageProxy) -> Sequence[object]:
        return [str(each).replace(self.storage, proxy.address) for each in self.exporting]

    def clear(self) -> None:
        """Remove all blobs."""
        for name in self.client.list_blob_names():
            self.client.delete_blob(name)

    def write(self, partition: str, metadata: Mapping[str, str], kind: str = "checkpoint") -> None:
        """A blob as some SDK writes it."""
        name = "/".join([*self.group.values(), kind, partition]).lower()
        self.client.upload_blob(name, b"", metadata=dict(metadata), overwrite=True)

    def blobs(self) -> dict[str, dict[str, str]]:
        """The metadata of the checkpoints."""
        found = self.client.list_blobs(include=["metadata"])
        return {each.name.rpartition("/")[2]: dict(each.metadata) for each in found if "/checkpoint/" in each.name}

    def positions(self) -> dict[str, tuple[int, int]]:
        """The epoch and where reading goes on, by the lease table."""
        with DeltaStore(str(self.table)) as store:
            return {p: (e.epoch, e.checkpoint.next) for p, e in store.read().leases.items() if e.checkpoint}


@pytest.fixture
def migration(emulator: Emulator, ehbalance: Command, storage: str, tmp_path: Path) -> Iterator[Migration]:
    made = Migration(emulator, ehbalance, storage, tmp_path)
    with made.client:
        yield made


def squeezed(text: str) -> str:
    """`text` without the lines of its table, its words one space apart."""
    return " ".join("".join(" " if each in "│┃" else each for each in text).split())


def test_what_the_sdk_has_processed_comes_into_a_table_and_goes_back(migration: Migration) -> None:
    migration.read({"0": 3, "1": EVENTS, "2": 1})
    before = migration.blobs()
    dry = migration.ehbalance(*migration.importing, "--dry-run")
    assert (dry.code, migration.table.exists()) == (0, False)
    for row in (f"0 2 {before['0']['offset']} - continues at 3", "3 - - - nothing"):
        assert row in squeezed(dry.out)
    assert "would be written" in dry.out
    assert "No position is known of partition 3" in dry.out
    assert "Nothing was written." in dry.out

    done = migration.ehbalance(*migration.importing, "--why", "we move")
    assert done.code == 0
    assert migration.positions() == {"0": (0, 3), "1": (0, 40), "2": (0, 1)}
    with DeltaStore(str(migration.table)) as store:
        assert store.read().version == 0, "all in one commit"
        reasons = {(each.event, each.why) for each in store.history()}
    assert reasons == {("Restore", f"imported from {migration.address}: we move")}
    assert squeezed(migration.ehbalance(*migration.importing).out).count("nothing: it is the same") == 3

    migration.clear()
    done = migration.ehbalance.succeeds(*migration.exporting)
    assert migration.blobs() == before
    assert "No position is known of partition 3" in done.out
    assert squeezed(migration.ehbalance(*migration.exporting).out).count("nothing: it is the same") == 3


def test_checkpoints_of_every_sdk_are_read(migration: Migration) -> None:
    migration.write("0", {"sequencenumber": "7"})  # Java
    migration.write(
        "1", {"Offset": migration.offset("1", 9), "Sequencenumber": "9", "clientidentifier": "x"}
    )  # .NET, Go
    migration.write("2", {"offset": migration.offset("2", 11), "sequencenumber": ""})  # .NET with an offset alone
    migration.write("3", {"offset": "", "sequencenumber": ""})
    done = migration.ehbalance.succeeds(*migration.importing)
    assert migration.positions() == {"0": (0, 8), "1": (0, 10), "2": (0, 12)}
    assert "No position is known of partition 3" in done.out


def test_an_offset_whose_event_has_aged_out_goes_on_at_the_first_event_after_it(migration: Migration) -> None:
    offset = migration.offset("0", 9)
    migration.write("0", {"offset": offset})
    migration.write("1", {"sequencenumber": "9"})
    for partition in (0, 1):
        migration.emulator.trim(HUB, partition, 20)
    done = migration.ehbalance(*migration.importing)
    assert migration.positions() == {"0": (0, 20), "1": (0, 10)}
    assert "Events that partition 1 would continue with have expired" in done.out
    migration.ehbalance(*migration.exporting, "--allow-back")
    assert migration.blobs()["1"] == {"offset": "-1", "sequencenumber": "9"}


def test_what_the_hub_cannot_have_is_refused(migration: Migration) -> None:
    migration.write("0", {"sequencenumber": "40"})
    assert "it has read up to 41 of partition 0, and the hub ends before 40" in migration.ehbalance.fails(
        2, *migration.importing
    )
    migration.write("0", {"sequencenumber": "39"})
    migration.write("7", {"offset": "12"})
    assert "has an offset of partition 7, and the hub has partitions 0, 1, 2, 3" in migration.ehbalance.fails(
        2, *migration.importing
    )
    assert not migration.table.exists()


def test_a_position_goes_back_only_if_that_is_allowed(migration: Migration) -> None:
    migration.write("0", {"sequencenumber": "9"})
    migration.write("1", {"sequencenumber": "9"})
    assert migration.ehbalance(*migration.importing).code == 0
    migration.write("0", {"sequencenumber": "19"})
    migration.write("1", {"sequencenumber": "5"})
    assert "would go back: partition 1 from 10 to 6. With --allow-back" in migration.ehbalance.fails(
        1, *migration.importing
    )
    assert migration.positions() == {"0": (0, 10), "1": (0, 10)}
    dry = migration.ehbalance(*migration.importing, "--dry-run")
    assert dry.code == 1
    assert "1 5 - 9 continues at 6 (back)" in squeezed(dry.out)
    assert migration.ehbalance(*migration.importing, "--allow-back").code == 0
    assert migration.positions() == {"0": (1, 20), "1": (1, 6)}

    migration.write("0", {"sequencenumber": "30", "offset": migration.offset("0", 30)})
    assert "would go back: partition 0 from 31 to 20" in migration.ehbalance.fails(1, *migration.exporting)
    assert migration.ehbalance(*migration.exporting, "--allow-back").code == 0
    assert migration.blobs() == {
        "0": {"sequencenumber": "19", "offset": migration.offset("0", 19)},
        "1": {"sequencenumber": "5", "offset": migration.offset("1", 5)},
    }


def test_the_namespace_of_the_blobs_is_the_hubs_without_its_port_unless_it_is_given(migration: Migration) -> None:
    """As in Java, .NET and JavaScript; Python's consumers have the port."""
    host = migration.group["fully_qualified_namespace"].partition(":")[0]
    importing, exporting = (
        [each for each in command if each not in migration.named]
        for command in (migration.importing, migration.exporting)
    )
    assert "it has no checkpoints of" in migration.ehbalance.fails(2, *migration.importing)
    migration.write("0", {"sequencenumber": "9"})
    failed = migration.ehbalance(*importing)
    group = f"{migration.group['fully_qualified_namespace']}/flights/$default"
    assert f"it has no checkpoints of {host}/flights/$default, but of {group}" in failed.err
    assert f"has blobs of {group} beside {host}/flights/$default" in failed.err
    assert failed.code == 2
    migration.group["fully_qualified_namespace"], port = host, group.partition("/")[0]
    migration.write("0", {"sequencenumber": "19"})
    done = migration.ehbalance(*importing)
    assert (done.code, migration.positions()) == (0, {"0": (0, 20)})
    assert f"set blobNamespace (of a command: --blob-namespace) to {port}" in done.err
    migration.clear()
    done = migration.ehbalance.succeeds(*exporting)
    assert list(migration.client.list_blob_names()) == [f"{host}/flights/$default/checkpoint/0"]
    error = migration.ehbalance.fails(2, *exporting, "--blob-namespace", "sb://localhost")
    assert "--blob-namespace='sb://localhost' is wrong: allowed is a host, or HOST:PORT" in error


def test_nothing_is_written_where_somebody_may_be_reading(migration: Migration) -> None:
    migration.write("0", {"sequencenumber": "9"})
    assert migration.ehbalance(*migration.importing).code == 0
    ann = Author("ann", "x")
    with DeltaStore(str(migration.table)) as store:
        now = time.time_ns() // 1_000_000
        committed(store, Join(by=ann, at_ms=now), Claim(by=ann, at_ms=now, partition="0", epoch=0))
    migration.write("0", {"sequencenumber": "19"})
    assert "ann may be reading with the lease table" in migration.ehbalance.fails(1, *migration.importing)
    assert migration.positions() == {"0": (1, 10)}
    with DeltaStore(str(migration.table)) as store:
        base, long_ago = store.read(), now - 3_600_000
        killed = replace(base.leases["0"], renewed_at_ms=long_ago)
        member = replace(base.members["ann"], renewed_at_ms=long_ago)
        store.write(base, replace(base, leases={**base.leases, "0": killed}, members={"ann": member}))
    error = migration.ehbalance.fails(1, *migration.importing)
    assert "partition 0 is owned by ann, which has not given it back" in error, "a batch of it may run again"
    assert migration.positions() == {"0": (1, 10)}
    assert migration.ehbalance(*migration.importing, "--force").code == 0
    assert migration.positions() == {"0": (2, 20)}
    with DeltaStore(str(migration.table)) as store:
        base = store.read()
        store.write(base, replace(base, members={"ann": replace(member, renewed_at_ms=now)}))

    migration.write("0", {"ownerid": "a-consumer"}, "ownership")
    assert "a-consumer may be reading with" in migration.ehbalance(*migration.importing).err
    error = migration.ehbalance.fails(1, *migration.exporting)
    assert "a-consumer may be reading with" in error
    done = migration.ehbalance(*migration.exporting, "--force")
    assert done.code == 0
    assert "ann may be reading" in done.err
    assert migration.blobs()["0"]["offset"] == migration.offset("0", 19)


def test_a_dry_run_of_an_export_disconnects_no_consumer(migration: Migration) -> None:
    migration.write("0", {"sequencenumber": "9"})
    assert migration.ehbalance(*migration.importing).code == 0
    migration.write("0", {"ownerid": "a-consumer"}, "ownership")
    address = PartitionAddress(migration.options.connection, "$Default", "0")
    receiver = Receiver(address, 0, owner_level=0, prefetch=1)
    with contextlib.closing(receiver):
        assert receiver.receive(1, wait=20.0).num_rows
        for force in ((), ("--force",)):
            done = migration.ehbalance(*migration.exporting, "--dry-run", *force)
            assert done.code == (0 if force else 1)
            migration.emulator.append(HUB, "0", [b"event"] * 400)  # more than was sent ahead
            rows, give_up = 0, time.monotonic() + 20
            while rows <= 300 and time.monotonic() < give_up:
                rows += receiver.receive(100, wait=20.0).num_rows
            assert rows > 300, "it is not disconnected"


def test_an_export_goes_by_the_event_before_where_a_compacted_hub_has_it_no_longer(migration: Migration) -> None:
    migration.write("0", {"sequencenumber": "9"})
    assert migration.ehbalance(*migration.importing).code == 0
    before = migration.offset("0", 4)
    migration.emulator.compact(HUB, "0", 5, 15)
    assert migration.ehbalance(*migration.exporting).code == 0
    assert migration.blobs()["0"] == {"sequencenumber": "9", "offset": before}
    assert migration.read({"0": 1}) == [("0", 15)]


def test_a_partition_of_which_nothing_was_read_is_read_from_its_first_event(migration: Migration) -> None:
    """Without a checkpoint a consumer begins at its own default, which is the newest event in most SDKs."""
    migration.ehbalance("init", migration.table, *migration.connection)
    ann = Author("ann", "x")
    with DeltaStore(str(migration.table)) as store:
        add = AddPartitions(by=ann, at_ms=1, partitions=("0", "1"))
        claim = Claim(by=ann, at_ms=1, partition="0", epoch=0, starting_position=Position(-1))
        release = Release(by=ann, at_ms=1, partition="0", epoch=1)
        committed(store, Join(by=ann, at_ms=1), add, claim, release, Leave(by=ann, at_ms=1))
    done = migration.ehbalance(*migration.exporting)
    before_all = {"sequencenumber": "-1", "offset": "-1"}  # as a Spark query in such a group writes it
    assert (done.code, migration.blobs()) == (0, {"0": before_all})
    assert "0 - -1 - a checkpoint before the first event" in squeezed(done.out)
    assert "No position is known of partition 1, 2, 3" in done.out
    assert "0 - -1 - nothing: it is the same" in squeezed(migration.ehbalance(*migration.exporting).out)
    migration.write("0", {"sequencenumber": "9"})
    assert "partition 0 from 10 to 0" in migration.ehbalance.fails(1, *migration.exporting)
    done = migration.ehbalance(*migration.exporting, "--allow-back")
    assert "a checkpoint before the first event (back)" in done.out
    assert migration.blobs() == {"0": before_all}
    assert migration.read({"0": 2}, "@latest") == [("0", 0), ("0", 1)]


@pytest.mark.parametrize("fault", [Break.RESET, Break.LOST_ANSWER])
def test_an_export_that_fails_halfway_says_how_far_it_got_and_the_next_one_ends_it(
    migration: Migration, proxy: StorageProxy, fault: Break
) -> None:
    wanted = migration.write_all("0", "1", "2", "3")
    assert migration.ehbalance(*migration.importing).code == 0
    # At the listing, the first and the last write.
    for number, told in ((0, None), (1, "no partition, perhaps 0"), (4, "partition 0, 1, 2, perhaps 3")):
        migration.clear()
        proxy.disturb(Rule(fault, skip=number, times=1))
        error = migration.ehbalance.fails(1, *migration.exporting_by(proxy))
        proxy.disturb()
        assert told is None or f"Written is {told}: run it again" in error
        assert len(migration.blobs()) == max(0, number - (fault is Break.RESET))
        assert migration.ehbalance(*migration.exporting).code == 0
        assert migration.blobs() == wanted


def test_an_export_that_is_killed_is_ended_by_the_next_one(migration: Migration, proxy: StorageProxy) -> None:
    wanted = {p: {"sequencenumber": "9", "offset": migration.offset(p, 9)} for p in ("0", "1", "2", "3")}
    for partition, metadata in wanted.items():
        migration.write(partition, metadata)
    assert migration.ehbalance(*migration.importing).code == 0
    migration.clear()
    before = len(proxy.requests())
    proxy.disturb(Rule(Break.HANG, skip=3))
    command = [sys.executable, "-c", "from spark_ehbalance.cli import main; main()"]
    with subprocess.Popen([*command, *map(str, migration.exporting_by(proxy))], stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: len(proxy.requests(before)) > 3, "the export writes its third checkpoint")
        process.kill()
    proxy.disturb()
    assert migration.blobs().keys() == {"0", "1"}
    done = migration.ehbalance(*migration.exporting)
    assert squeezed(done.out).count("nothing: it is the same") == 2
    assert migration.blobs() == wanted


def test_an_export_overtaken_by_a_consumer_does_not_move_it_back(migration: Migration, proxy: StorageProxy) -> None:
    migration.write("0", {"sequencenumber": "3", "offset": migration.offset("0", 3)})
    migration.write("1", {"sequencenumber": "9"})  # so that the export asks the hub for its offset
    assert migration.ehbalance(*migration.importing).code == 0
    migration.write("0", {"sequencenumber": "2", "offset": migration.offset("0", 2)})
    overtaken = {"sequencenumber": "30", "offset": migration.offset("0", 30)}
    migration.emulator.pause(HUB, "1")
    before = proxy.counts()[Kind.LIST]

    def overtake() -> None:
        wait_until(lambda: proxy.counts()[Kind.LIST] > before, "the export has read the checkpoints")
        migration.write("0", overtaken)
        migration.emulator.resume(HUB, "1")

    with ThreadPoolExecutor(1) as pool:
        consumer = pool.submit(overtake)
        error = migration.ehbalance.fails(1, *migration.exporting_by(proxy))
        consumer.result()
    assert "a checkpoint of partition 0. Written is no partition: run it again" in error
    assert migration.blobs()["0"] == overtaken
    assert "would go back: partition 0 from 31 to 4" in migration.ehbalance.fails(1, *migration.exporting)


@pytest.mark.parametrize("fault", [EXPIRED, Break.LOST_ANSWER], ids=["refused", "lost answer"])
def test_an_import_that_fails_writes_all_or_nothing_and_the_next_one_ends_it(
    migration: Migration, proxy: StorageProxy, storage: str, fault: Fault
) -> None:
    migration.write_all("0", "1")
    options = [f"{name}={value}" for name, value in storage_options(proxy.address).items() if "key" not in name]
    options.append(f"account_key=file:{migration.secret}")
    given = [text for each in options for text in ("--storage-option", each)]
    for kind, number in ((Kind.PUT, 0), (Kind.PUT, 1), (Kind.CONDITIONAL_PUT, 0), (Kind.CONDITIONAL_PUT, 1)):
        location = f"az://{migration.container}/leases-{kind.name}-{number}"
        command = ("import-checkpoints", location, *migration.connection, *migration.importing[4:], *given)
        proxy.disturb(Rule(fault, kind, skip=number, times=1))
        done = migration.ehbalance(*command)
        proxy.disturb()
        if done.code:
            assert done.err.count("\n") == 1
            assert migration.ehbalance(*command).code == 0
        with DeltaStore(location, storage_options(storage)) as store:
            found = store.read()
        assert {p: each.checkpoint.next for p, each in found.leases.items() if each.checkpoint} == {"0": 10, "1": 10}
        assert found.version == 0, "written once"


def test_checkpoints_of_earlier_azure_functions_hold_where_there_is_no_other(migration: Migration) -> None:
    """As `BlobCheckpointStoreInternal` of azure-sdk-for-net takes them."""

    def lease(offset: str | None, number: int) -> bytes:
        values = {"PartitionId": "0", "Owner": "x", "Token": "y", "Epoch": 386}
        return json.dumps(values | {"Offset": offset, "SequenceNumber": number}).encode()

    namespace = migration.group["fully_qualified_namespace"]
    migration.write("0", {"sequencenumber": "7"})
    for name, content in (
        ("$Default/0", lease("1", 1)),
        ("$Default/1", lease(migration.offset("1", 9), 9)),
        ("$Default/2", lease(None, 0)),
        ("$Default/3", lease("-1", 0)),
        ("other/2", lease(migration.offset("2", 9), 9)),
    ):
        migration.client.upload_blob(f"{namespace}/{HUB}/{name}", content)
    migration.client.upload_blob(f"{namespace}/{HUB}/$Default/4", b"")
    migration.ehbalance.succeeds(*migration.importing)
    assert migration.positions() == {"0": (0, 8), "1": (0, 10), "3": (0, 0)}
    migration.client.upload_blob(f"{namespace}/{HUB.upper()}/$Default/1", lease("1", 1))
    assert "/$Default/1: it is not clear which one counts" in migration.ehbalance.fails(2, *migration.importing)


def test_checkpoints_that_do_not_say_of_which_hub_are_not_imported(migration: Migration) -> None:
    migration.client.upload_blob("$Default/0", b'{"Offset":"1","SequenceNumber":1}')
    error = migration.ehbalance.fails(2, *migration.importing)
    assert "but of none; $Default/0 and the like are an EventProcessorHost's, whose event hub is unknown" in error


def test_storage_options_of_the_lease_table_are_the_containers_as_far_as_it_has_them(migration: Migration) -> None:
    migration.write_all("0")
    command = [str(each) for each in migration.importing]
    at = command.index("--from-option")
    shared = [*command[:at], *command[at + 2 :], "--storage-option", f"account_key=file:{migration.secret}"]
    migration.ehbalance.succeeds(*shared, "--storage-option", "AWS_REGION=eu-central-1")


def test_an_impossible_source_or_target_is_refused(migration: Migration) -> None:
    both = ("import-checkpoints", migration.table, *migration.connection, "--from-blobs", "x", "--from-spark", "y")
    assert "--from-blobs and --from-spark: allowed is one of them" in migration.ehbalance.fails(2, *both)
    assert "--to-blobs and --starting-positions: allowed" in migration.ehbalance.fails(
        2, "export-checkpoints", migration.table
    )
    for text in ("checkpoints", "https://account.blob.core.windows.net/", "ftp://x/y"):
        error = migration.ehbalance.fails(
            2, "import-checkpoints", migration.table, *migration.connection, "--from-blobs", text
        )
        assert f"--from-blobs={text!r} is wrong: allowed is" in error
    for command, option in ((migration.importing, "--from-option"), (migration.exporting, "--to-option")):
        error = migration.ehbalance.fails(2, *command[:-1], "credential")
        assert f"{option} is wrong: allowed is NAME=VALUE" in error
    gone = f"{migration.storage}/{ACCOUNT}/none"
    error = migration.ehbalance.fails(1, *(gone if each == migration.address else each for each in migration.importing))
    assert "there is no such container" in error
    assert gone in error
    assert not migration.table.exists()
