"""What a query does differently in a group of processors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore
from azure.storage.blob import BlobServiceClient

from chaos.storage.azurite import ACCOUNT, KEY
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import DataLossError, FencedError
from spark_ehbalance.hub.receiver import PartitionAddress, Receiver
from spark_ehbalance.source.assembly import start_planner
from spark_ehbalance.source.offsets import StreamOffset, group_name
from spark_ehbalance.source.options import Options, stream_options
from spark_ehbalance.source.range_reader import read_range
from spark_ehbalance.source.ranges import Range
from spark_ehbalance.values.starting_positions import LATEST
from tests.processors.group import MixedGroup
from tests.source.queries import Query
from tests.source.support import CountedReceivers, receive
from tests.waiting import wait_until


@pytest.fixture
def options(group: MixedGroup) -> Options:
    return stream_options(group.options | {"balanceInterval": "0.3s", "strategy": "greedy"})


@pytest.fixture
def sdk(group: MixedGroup) -> Iterator[BlobCheckpointStore]:
    with BlobCheckpointStore(group.service, group.container, AzureNamedKeyCredential(ACCOUNT, KEY)) as store:
        yield store


def names(options: Options) -> tuple[str, str, str]:
    return options.group.namespace, options.group.hub, options.group.consumer_group


def started(options: Options, finished: StreamOffset | None = None) -> Query:
    finished = finished or StreamOffset("a", group=group_name(options.lease_table))
    return Query(start_planner(options, "a", finished), "a", finished)


def checkpoints(sdk: BlobCheckpointStore, options: Options) -> dict[str, tuple[int, str]]:
    found = sdk.list_checkpoints(*names(options))
    return {each["partition_id"]: (each["sequence_number"], each["offset"]) for each in found}


def claim(sdk: BlobCheckpointStore, options: Options, partition: str, owner: str) -> None:
    """Take the partition from whoever has it, as a processor does."""
    mine = next((o for o in sdk.list_ownership(*names(options)) if o["partition_id"] == partition), None)
    keys = ("fully_qualified_namespace", "eventhub_name", "consumer_group")
    ownership = mine or dict(zip(keys, names(options), strict=True)) | {"partition_id": partition}
    assert sdk.claim_ownership([ownership | {"owner_id": owner}])


def offsets(options: Options, partition: str, count: int) -> list[str]:
    receiver = Receiver(
        PartitionAddress(options.connection, options.consumer_group, partition), 0, owner_level=0, prefetch=10
    )
    rows = receive(receiver, count)
    receiver.close()
    return rows.column("offset").to_pylist()


def test_checkpoints_have_the_offsets_of_their_events(
    group: MixedGroup, options: Options, sdk: BlobCheckpointStore
) -> None:
    """Also where a batch ends at an event that was never the newest."""
    group.append(10)
    known = [offsets(options, str(p), 10) for p in range(12)]  # not beside the query, which disconnects such a reader
    query = started(options)
    try:
        wait_until(lambda: len(query.owned()) == 12, "the query owns everything")
        query.read(12 * 5, limit=12 * 5)
        query.planner.finish(query.finished)
        inside = {str(p): (4, known[p][4]) for p in range(12)}
        wait_until(lambda: checkpoints(sdk, options) == inside, "the checkpoints are written")
        query.read(12 * 10)
        query.planner.finish(query.finished)
    finally:
        query.stop()
    assert checkpoints(sdk, options) == {str(p): (9, known[p][9]) for p in range(12)}
    assert {each["owner_id"] for each in sdk.list_ownership(*names(options))} == {None}


def test_a_restarted_query_goes_on_where_it_was(group: MixedGroup, options: Options) -> None:
    group.append(10)
    query = started(options)
    wait_until(lambda: len(query.owned()) == 12, "the query owns everything")
    query.read(120)
    query.stop()
    group.append(5)
    again = started(options, query.finished)
    try:
        again.read(60)
        assert len(again.seen) == 60
        assert not set(again.seen) & set(query.seen)
    finally:
        again.stop()


def test_a_query_that_starts_again_before_it_has_checkpointed_reads_nothing_twice(
    group: MixedGroup, options: Options
) -> None:
    group.append(10)
    rare = replace(options, balance_interval=60.0, lease_duration=360.0)
    killed = started(rare)
    wait_until(lambda: len(killed.owned()) == 12, "the query owns everything")
    killed.read(12 * 5, limit=12 * 5)
    killed.planner.finish(killed.finished)
    again = started(rare, killed.finished)
    try:
        again.read(12 * 5)
        assert {number for _, number in again.seen} == set(range(5, 10))
    finally:
        again.stop()
        killed.stop()


def test_a_later_process_with_the_same_id_ends_the_earlier_one(group: MixedGroup, options: Options) -> None:
    group.append(5)
    earlier = started(options)
    wait_until(lambda: len(earlier.owned()) == 12, "the query owns everything")
    later = started(options)
    try:
        with pytest.raises(FencedError, match="a later process has started as a, with the same ownerId"):
            wait_until(lambda: earlier.owned() and False, "the earlier process has ended")
        earlier.stop()
        later.read(12 * 5)
        assert len(later.owned()) == 12
    finally:
        earlier.stop()
        later.stop()


def test_a_restarted_query_reads_what_another_owner_has_cut_off_from_its_last_batch(
    group: MixedGroup, options: Options, sdk: BlobCheckpointStore
) -> None:
    """Spark's checkpoint says that the batch has ended, and cannot say that its reader has ended early."""
    group.append(10)
    killed, again = started(options), None
    try:
        wait_until(lambda: len(killed.owned()) == 12, "the query owns everything")
        end = killed.batch()
        claim(sdk, options, "0", "theirs")
        killed.planner.finish(end)
        wait_until(lambda: "0" not in killed.owned(), "the query has lost the partition")
        claim(sdk, options, "0", "")
        wait_until(lambda: "0" in killed.owned(), "the query has it again, as nobody has checkpointed it")
        again = started(options, end)
        again.read(10)
        assert sorted(again.seen) == [("0", number) for number in range(10)]
    finally:
        for each in filter(None, (killed, again)):
            each.stop()


def test_in_a_young_group_a_query_begins_at_its_starting_position(
    group: MixedGroup, options: Options, sdk: BlobCheckpointStore
) -> None:
    """The blobs know only the partitions that were claimed: the others were not added to the hub later."""
    group.append(10)
    claim(sdk, options, "0", "theirs")
    query = started(replace(options, starting_position=LATEST))
    try:
        wait_until(lambda: len(query.owned()) >= 6, "the query has its share")
        assert {number for number, _ in checkpoints(sdk, options).values()} == {9}
        assert checkpoints(sdk, options).keys() == query.owned()
        group.append(1)
        query.read(6)
        assert {number for _, number in query.seen} == {10}
    finally:
        query.stop()


def test_without_fail_on_data_loss_a_query_whose_blobs_have_gone_goes_on_from_its_own_checkpoint(
    group: MixedGroup, options: Options
) -> None:
    """Spark's checkpoint has no offsets, without which there is no checkpoint blob: the hub tells them."""
    group.append(10)
    query = started(options)
    wait_until(lambda: len(query.owned()) == 12, "the query owns everything")
    query.read(12 * 5, limit=12 * 5)
    query.stop()
    group.append(5)
    with BlobServiceClient(group.service, KEY) as client:
        container = client.get_container_client(group.container)
        for name in container.list_blob_names():
            container.delete_blob(name)
    with pytest.raises(DataLossError, match="it has been emptied"):
        started(options, query.finished)
    again = started(replace(options, fail_on_data_loss=False), query.finished)
    try:
        again.read(12 * 10)
    finally:
        again.stop()
    assert sorted(again.seen) == sorted((str(p), number) for p in range(12) for number in range(5, 15))


def test_a_query_that_has_read_with_a_table_in_delta_does_not_go_on_with_a_container_unasked(
    group: MixedGroup, options: Options, sdk: BlobCheckpointStore, tmp_path: Path
) -> None:
    group.append(10)
    delta = replace(options, lease_table=str(tmp_path / "leases"), blob_namespace=None, storage_options={})
    delta = replace(delta, strategy="cooperative")
    query = started(delta)
    wait_until(lambda: len(query.owned()) == 12, "the query owns everything")
    query.read(12 * 5, limit=12 * 5)
    query.stop()
    place = dict(zip(("fully_qualified_namespace", "eventhub_name", "consumer_group"), names(options), strict=True))
    for partition in range(12):
        number = {
            "partition_id": str(partition),
            "sequence_number": 9,
            "offset": offsets(options, str(partition), 10)[9],
        }
        sdk.update_checkpoint(place | number)
    with pytest.raises(DataLossError, match="may be another table; this query's checkpoint has read with the lease"):
        started(options, query.finished)


@pytest.mark.parametrize("lost", [True, False])
def test_a_disconnected_reader_ends_early_only_if_the_partition_is_lost(
    group: MixedGroup, options: Options, sdk: BlobCheckpointStore, lost: bool
) -> None:
    group.append(100)
    options = replace(options, prefetch=1)
    claim(sdk, options, "0", "a")
    receivers = CountedReceivers()
    reading = read_range(options, Range("0", 1, 0, 100), "a", 0, receivers=receivers, max_rows=1)
    seen = [next(reading).column("sequenceNumber")[0].as_py()]
    if lost:
        claim(sdk, options, "0", "theirs")
    address = PartitionAddress(options.connection, options.consumer_group, "0")
    other = Receiver(address, 0, owner_level=0, prefetch=10)
    receive(other, 1)
    seen += [number for batch in reading for number in batch.column("sequenceNumber").to_pylist()]
    other.close()
    receivers.close()
    assert seen == list(range(len(seen)))
    assert (len(seen) < 100) == lost


def test_a_partition_that_a_processor_has_never_checkpointed_can_be_taken(
    group: MixedGroup, options: Options, sdk: BlobCheckpointStore, emulator: Emulator
) -> None:
    for partition in range(12):
        claim(sdk, options, str(partition), "theirs")
    group.append(5)
    query = started(options)
    try:
        wait_until(lambda: len(query.owned()) >= 6, "the query has its share, or what nobody renews")
        query.read(6 * 5)
    finally:
        query.stop()


def test_a_former_owner_is_disconnected_although_there_is_nothing_to_read(
    group: MixedGroup, options: Options, sdk: BlobCheckpointStore
) -> None:
    """Some processors read on until then; see `docs/processors.md`."""
    former = {}
    for partition in map(str, range(12)):
        claim(sdk, options, partition, "theirs")
        address = PartitionAddress(options.connection, options.consumer_group, partition)
        former[partition] = Receiver(address, 0, owner_level=0, prefetch=10)
        receive(former[partition], 0)
    query = started(options)
    try:
        wait_until(lambda: len(query.owned()) == 6, "the query has taken its share")
        wait_until(
            lambda: {p for p, each in former.items() if not each.is_usable()} == query.owned(),
            "the former owner is disconnected from what was taken, and from nothing else",
        )
    finally:
        query.stop()
        for each in former.values():
            each.close()
