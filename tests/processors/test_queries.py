"""Queries in a group with processors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore
from azure.storage.blob import BlobServiceClient

from chaos.storage.azurite import ACCOUNT, KEY
from spark_ehbalance.errors import DataLossError
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver
from spark_ehbalance.group.position import START_OFFSET
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.starting_positions import LATEST
from spark_ehbalance.lease_table.blob.store import BlobStore
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.range_reader import BatchFormat, read_range
from tests.processors.conftest import Start
from tests.processors.group import MixedGroup
from tests.query.queries import Query
from tests.query.support import CountedReceivers, receive
from tests.waiting import wait_until


@pytest.fixture
def sdk(group: MixedGroup) -> Iterator[BlobCheckpointStore]:
    with BlobCheckpointStore(group.service, group.container, AzureNamedKeyCredential(ACCOUNT, KEY)) as store:
        yield store


def names(options: Options) -> tuple[str, str, str]:
    return options.group.namespace, options.group.hub, options.group.consumer_group


def named(options: Options) -> dict[str, str]:
    return dict(zip(("fully_qualified_namespace", "eventhub_name", "consumer_group"), names(options), strict=True))


def checkpoints(sdk: BlobCheckpointStore, options: Options) -> dict[str, tuple[int, str]]:
    found = sdk.list_checkpoints(*names(options))
    return {checkpoint["partition_id"]: (checkpoint["sequence_number"], checkpoint["offset"]) for checkpoint in found}


def claim(sdk: BlobCheckpointStore, options: Options, partition: str, owner: str) -> None:
    """Steal the partition from its owner, as a processor does."""
    mine = next((o for o in sdk.list_ownership(*names(options)) if o["partition_id"] == partition), None)
    ownership = mine or named(options) | {"partition_id": partition}
    assert sdk.claim_ownership([ownership | {"owner_id": owner}])


def reader(options: Options, partition: str) -> Receiver:
    address = PartitionAddress(options.connection, options.consumer_group, partition)
    return Receiver(address, START_OFFSET, owner_level=0, prefetch=10)


def offsets(options: Options, partition: str, count: int) -> list[str]:
    receiver = reader(options, partition)
    rows = receive(receiver, count)
    receiver.close()
    return rows.column("offset").to_pylist()


def read_half(query: Query) -> None:
    query.read(12 * 5, limit=12 * 5)


def test_checkpoints_contain_their_events_offsets(
    group: MixedGroup, options: Options, start: Start, sdk: BlobCheckpointStore
) -> None:
    """Even if a batch ends at an event that was never the newest."""
    group.append(10)
    known = [
        offsets(options, str(p), 10) for p in range(12)
    ]  # not while the query runs, because it disconnects such a reader
    query = start(owned=12)
    read_half(query)
    query.planner.finish(query.finished)
    inside = {str(p): (4, known[p][4]) for p in range(12)}
    wait_until(lambda: checkpoints(sdk, options) == inside, "the checkpoints are written")
    query.read(12 * 10)
    query.planner.finish(query.finished)
    query.stop()
    assert checkpoints(sdk, options) == {str(p): (9, known[p][9]) for p in range(12)}
    assert {entry["owner_id"] for entry in sdk.list_ownership(*names(options))} == {None}


def test_query_restarted_before_its_checkpoint_reads_nothing_twice(group: MixedGroup, start: Start) -> None:
    group.append(10)
    rare = {"balance_interval": 60.0, "lease_duration": 360.0}
    killed = start(owned=12, **rare)
    read_half(killed)
    killed.planner.finish(killed.finished)
    again = start(killed.finished, **rare)
    again.read(12 * 5)
    assert {number for _, number in again.seen} == set(range(5, 10))
    again.stop()


@pytest.mark.parametrize("during_a_read", [False, True])
def test_restarted_query_reads_the_rest_of_an_interrupted_batch(
    group: MixedGroup,
    options: Options,
    start: Start,
    sdk: BlobCheckpointStore,
    monkeypatch: pytest.MonkeyPatch,
    during_a_read: bool,
) -> None:
    """Spark's checkpoint contains the end of the batch, but not that its reader ended early. The query may read the
    table before the partition is taken, and learn only then that the batch has finished."""
    group.append(10)
    first = start(owned=12)
    end, ended = first.batch(), threading.Event()
    read = BlobStore.read

    def end_early() -> None:
        if not ended.is_set():
            claim(sdk, options, "0", "theirs")
            first.planner.finish(end)
            ended.set()

    def read_late(store: BlobStore) -> Snapshot:
        snapshot = read(store)
        end_early()
        return snapshot

    if during_a_read:
        monkeypatch.setattr(BlobStore, "read", read_late)
        assert ended.wait(60)
    else:
        end_early()
    wait_until(lambda: "0" not in first.owned(), "the query has lost the partition")
    claim(sdk, options, "0", "")
    wait_until(lambda: "0" in first.owned(), "the query has it again, as nobody has checkpointed it")
    first.stop()
    assert checkpoints(sdk, options)["0"] == (-1, "-1")
    again = start(end)
    again.read(10)
    assert sorted(again.seen) == [("0", number) for number in range(10)]


def test_query_in_a_young_group_starts_at_its_starting_position(
    group: MixedGroup, options: Options, start: Start, sdk: BlobCheckpointStore
) -> None:
    """Only claimed partitions have blobs; the others do not count as added to the hub later."""
    group.append(10)
    claim(sdk, options, "0", "theirs")
    query = start(owned=6, starting_position=LATEST)
    assert {number for number, _ in checkpoints(sdk, options).values()} == {9}
    assert checkpoints(sdk, options).keys() == query.owned()
    group.append(1)
    query.read(6)
    assert {number for _, number in query.seen} == {10}


def test_query_with_missing_blobs_is_rejected(group: MixedGroup, start: Start) -> None:
    group.append(10)
    query = start(owned=12)
    read_half(query)
    query.stop()
    with BlobServiceClient(group.service, KEY) as client:
        container = client.get_container_client(group.container)
        for name in container.list_blob_names():
            container.delete_blob(name)
    for fail in (True, False):
        with pytest.raises(DataLossError, match="EHB_LEASE_TABLE_LOST"):
            start(query.finished, fail_on_data_loss=fail)


@pytest.mark.parametrize("lost", [True, False])
def test_disconnected_reader_ends_early_only_if_the_partition_is_lost(
    group: MixedGroup, options: Options, sdk: BlobCheckpointStore, lost: bool
) -> None:
    group.append(100)
    claim(sdk, options, "0", "a")
    receivers = CountedReceivers()
    wanted = OffsetRange("0", 1, 0, 100)
    reading = read_range(
        replace(options, prefetch=1), wanted, "a", 0, receivers=receivers, batches=BatchFormat(max_rows=1)
    )
    seen = [next(reading).column("sequenceNumber")[0].as_py()]
    if lost:
        claim(sdk, options, "0", "theirs")
    other = reader(options, "0")
    receive(other, 1)
    seen += [number for batch in reading for number in batch.column("sequenceNumber").to_pylist()]
    other.close()
    receivers.close()
    assert seen == list(range(len(seen)))
    assert (len(seen) < 100) == lost


def test_partition_without_a_checkpoint_can_be_stolen_from_a_processor(
    group: MixedGroup, options: Options, start: Start, sdk: BlobCheckpointStore
) -> None:
    for partition in range(12):
        claim(sdk, options, str(partition), "theirs")
    group.append(5)
    start(owned=6).read(6 * 5)


def test_former_owner_of_an_idle_partition_is_disconnected(
    options: Options, start: Start, sdk: BlobCheckpointStore
) -> None:
    """Some processors keep reading until then."""
    former = {}
    for partition in map(str, range(12)):
        claim(sdk, options, partition, "theirs")
        former[partition] = reader(options, partition)
        receive(former[partition], 0)
    query = start(owned=6)
    try:
        wait_until(
            lambda: {p for p, receiver in former.items() if not receiver.is_usable()} == query.owned(),
            "the former owner is disconnected from the taken partitions alone",
        )
        assert len(query.owned()) == 6
    finally:
        for receiver in former.values():
            receiver.close()
