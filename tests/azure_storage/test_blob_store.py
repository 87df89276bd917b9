"""The `blob` store on Azurite: the conformance suite and its own behaviour."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore
from azure.storage.blob import ContainerClient

from chaos.storage.azurite import ACCOUNT, KEY, signature
from chaos.storage.faults import BUSY, Break, RequestKind, Rule
from chaos.storage.proxy import StorageProxy
from spark_ehbalance.errors import FencedError, StoreFormatError, StoreUnavailableError
from spark_ehbalance.group.changes import Checkpoint, Claim, Heartbeat, Join, Release, Renew, Steal
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.backends import open_store
from spark_ehbalance.lease_table.blob.store import BlobStore
from spark_ehbalance.lease_table.contract import commit
from tests.azure_storage.consumers import checkpoint_store
from tests.azure_storage.tables import Table
from tests.lease_table.contenders import Opening
from tests.lease_table.contenders import threads as contenders
from tests.lease_table.store_conformance import ANN, GROUP, StoreConformance, filled
from tests.raising import raises

__all__ = ["contenders"]

NAMES = (GROUP.namespace, GROUP.hub, GROUP.consumer_group)
PREFIX = "/".join(NAMES)
PLACE = dict(zip(("fully_qualified_namespace", "eventhub_name", "consumer_group"), NAMES, strict=True))


class TestBlobStore(StoreConformance):
    capabilities = BlobStore.capabilities

    @pytest.fixture(autouse=True)
    def in_a_new_container(self, new_table: Table) -> None:
        self.table = new_table

    @property
    def location(self) -> str:
        return f"{self.table.proxy}/{ACCOUNT}/{self.table.container}x"  # does not exist yet

    def opening(self, tmp_path: Path) -> Opening:
        return functools.partial(BlobStore, self.location, {"account_key": KEY}, group=GROUP)

    def test_one_of_racing_creators_for_several_groups_wins(self, new: Opening, contenders: Executor) -> None:
        """A container can contain several independent groups."""
        other = Group.from_names(GROUP.namespace, GROUP.hub, "other")
        with new() as mine, BlobStore(self.location, {"account_key": KEY}, group=other) as theirs:
            for store, group in ((mine, GROUP), (theirs, other)):
                store.create(group, Snapshot(group, leases={"0": Lease("0", group.consumer_group)}))
            assert [store.read().leases["0"].owner for store in (mine, theirs)] == ["$default", "other"]


@dataclass
class Blobs:
    """A container with the SDK's own store."""

    location: str
    sdk: BlobCheckpointStore
    client: ContainerClient

    def opened(self, group: Group | None = GROUP, **options: str) -> BlobStore:
        return BlobStore(self.location, options or {"account_key": KEY}, 2.0, group)

    def claim(self, partition: str, owner: str, etag: str | None = None) -> dict[str, Any] | None:
        """Claim with the SDK's store; returns None if another process was faster."""
        wanted = {**PLACE, "partition_id": partition, "owner_id": owner, "etag": etag}
        return next(iter(self.sdk.claim_ownership([wanted])), None)

    def checkpoint(self, partition: str, number: int, offset: str) -> None:
        self.sdk.update_checkpoint({**PLACE, "partition_id": partition, "sequence_number": number, "offset": offset})

    def ownerships(self) -> dict[str, dict[str, Any]]:
        return {entry["partition_id"]: entry for entry in self.sdk.list_ownership(*NAMES)}

    def checkpoints(self) -> dict[str, tuple[int, str]]:
        found = self.sdk.list_checkpoints(*NAMES)
        return {row["partition_id"]: (row["sequence_number"], row["offset"]) for row in found}


@pytest.fixture
def blobs(new_table: Table) -> Iterator[Blobs]:
    with checkpoint_store(new_table.storage, new_table.container) as sdk, new_table.blobs() as client:
        yield Blobs(f"{new_table.proxy}/{ACCOUNT}/{new_table.container}", sdk, client)


@pytest.fixture
def mine(blobs: Blobs) -> Iterator[BlobStore]:
    """A handle with ann as a member, and partitions 0 to 3."""
    with blobs.opened() as store:
        filled(store, ANN, partitions=("0", "1", "2", "3"), at=None)
        yield store


def first_claim(partition: str) -> Claim:
    return Claim(by=ANN, at_ms=1, partition=partition, epoch=0, starting_position=Position(-1))


def checkpoint(partition: str, number: int, epoch: int = 1, offset: str | None = "") -> Checkpoint:
    text = f"{number}0" if offset == "" else offset
    return Checkpoint(by=ANN, at_ms=1, partition=partition, epoch=epoch, position=Position(number, text))


def renew(partition: str, epoch: int = 1) -> Renew:
    return Renew(by=ANN, at_ms=1, partition=partition, epoch=epoch)


# --- compatibility with the SDK's store in both directions


def test_sdk_reads_written_blobs(blobs: Blobs, mine: BlobStore) -> None:
    claimed = commit(mine, mine.read(), [first_claim("0"), first_claim("1")]).after
    assert blobs.checkpoints() == {"0": (-1, "-1"), "1": (-1, "-1")}, "-1 is the start of a partition to every SDK"
    release = Release(by=ANN, at_ms=1, partition="1", epoch=1)
    assert not commit(mine, claimed, [checkpoint("0", 7), release]).rejected
    assert {p: ownership["owner_id"] for p, ownership in blobs.ownerships().items()} == {"0": "ann", "1": None}, (
        "None is what an SDK reads for an empty owner"
    )
    assert blobs.checkpoints() == {"0": (7, "70"), "1": (-1, "-1")}


def test_blobs_written_by_the_sdk_are_read(blobs: Blobs, mine: BlobStore) -> None:
    assert blobs.claim("0", "theirs")
    blobs.checkpoint("0", 5, "500")
    lease = mine.read().leases["0"]
    assert (lease.owner, lease.checkpoint, lease.epoch) == ("theirs", Position(5, "500"), 1)


def test_first_claim_loses_to_a_concurrent_claim(blobs: Blobs, mine: BlobStore) -> None:
    snapshot = mine.read()
    assert blobs.claim("1", "theirs")
    outcome = commit(mine, snapshot, [first_claim("0"), first_claim("1"), Heartbeat(by=ANN, at_ms=9)])
    assert [rejection.transition for rejection in outcome.rejected] == [first_claim("1")]
    assert {p: lease.owner for p, lease in outcome.after.leases.items() if lease.owner} == {"0": "ann", "1": "theirs"}
    assert "1" not in blobs.checkpoints(), "who has not won writes no checkpoint"


# --- heartbeats


def test_renewal_by_the_sdk_is_detected(blobs: Blobs, mine: BlobStore) -> None:
    theirs = blobs.claim("0", "theirs")
    assert theirs
    before = mine.read().leases["0"]
    assert mine.read().leases["0"].counter == before.counter
    assert blobs.claim("0", "theirs", theirs["etag"])
    after = mine.read().leases["0"]
    assert (after.epoch, after.renewal) == (before.epoch, before.renewal + 1)


# --- checkpoints


def test_new_owner_continues_from_the_former_owners_last_checkpoint(blobs: Blobs, mine: BlobStore) -> None:
    blobs.claim("0", "theirs")
    blobs.checkpoint("0", 5, "500")
    seen = mine.read()
    blobs.checkpoint("0", 9, "900")
    after = commit(mine, seen, [Steal(by=ANN, at_ms=2, partition="0", epoch=seen.leases["0"].epoch)]).after
    assert (after.leases["0"].owner, after.leases["0"].checkpoint) == ("ann", Position(9, "900"))


def test_owner_overwrites_a_checkpoint_that_moves_back(blobs: Blobs, mine: BlobStore) -> None:
    claimed = commit(mine, mine.read(), [first_claim("0")]).after
    commit(mine, claimed, [checkpoint("0", 9)])
    blobs.checkpoint("0", 4, "40")  # a late checkpoint of the former owner
    seen = mine.read()
    assert seen.leases["0"].checkpoint == Position(9, "90")
    commit(mine, seen, [renew("0")])
    assert blobs.checkpoints() == {"0": (9, "90")}


def test_checkpoint_of_a_foreign_partition_can_move_back(blobs: Blobs, mine: BlobStore) -> None:
    for position in (Position(9, "90"), Position(4, "40")):
        blobs.checkpoint("0", position.sequence_number, str(position.offset))
        assert mine.read().leases["0"].checkpoint == position


def test_checkpoint_without_an_offset_is_not_written(blobs: Blobs, mine: BlobStore) -> None:
    """Python's and JavaScript's clients would start at their own default position."""
    claimed = commit(mine, mine.read(), [first_claim("0"), first_claim("1")]).after
    waits = checkpoint("0", 5, offset=None)
    outcome = commit(mine, claimed, [waits, checkpoint("1", 6)])
    assert (outcome.accepted, outcome.rejected) == ((checkpoint("1", 6),), ())
    assert blobs.checkpoints() == {"0": (-1, "-1"), "1": (6, "60")}


def test_checkpoint_requires_a_sequence_number_but_no_offset(blobs: Blobs, mine: BlobStore) -> None:
    """Java writes checkpoints without an offset."""
    name = f"{PREFIX}/checkpoint/0"
    blobs.client.upload_blob(name, b"", metadata={"sequencenumber": "7"})
    assert mine.read().leases["0"].checkpoint == Position(7)
    blobs.client.upload_blob(name, b"", metadata={"offset": "700"}, overwrite=True)
    with raises(StoreFormatError, "EHB_LEASE_TABLE_FOREIGN", problem=re.compile("checkpoint/0")):
        mine.read()


def test_ownership_and_checkpoint_are_independent(blobs: Blobs, mine: BlobStore) -> None:
    claimed = commit(mine, mine.read(), [first_claim("0")]).after
    commit(mine, claimed, [checkpoint("0", 9)])
    blobs.client.delete_blob(f"{PREFIX}/ownership/0")
    lease = mine.read().leases["0"]
    assert (lease.owner, lease.checkpoint) == (None, Position(9, "90"))
    again = commit(mine, mine.read(), [Claim(by=ANN, at_ms=1, partition="0", epoch=lease.epoch)]).after
    assert again.leases["0"].owner == "ann"
    blobs.client.delete_blob(f"{PREFIX}/checkpoint/0")
    commit(mine, mine.read(), [renew("0", lease.epoch + 1)])
    assert blobs.checkpoints() == {"0": (9, "90")}


def test_owned_partition_without_a_position_is_claimed_again(blobs: Blobs, mine: BlobStore) -> None:
    """An earlier process ended, or a claim's response was lost, before the first checkpoint."""
    assert blobs.claim("0", "ann")
    lease = mine.read().leases["0"]
    assert (lease.owner, lease.checkpoint) == (None, None)
    again = Claim(by=ANN, at_ms=1, partition="0", epoch=lease.epoch, starting_position=Position(-1))
    assert commit(mine, mine.read(), [again]).after.leases["0"].owner == "ann"
    assert blobs.checkpoints() == {"0": (-1, "-1")}


def test_claim_with_a_lost_response_belongs_to_this_process(blobs: Blobs, mine: BlobStore, proxy: StorageProxy) -> None:
    snapshot = commit(mine, mine.read(), [first_claim("1")]).after
    proxy.disturb(Rule(Break.LOST_ANSWER, RequestKind.CONDITIONAL_PUT, "ownership/0"))
    with pytest.raises(StoreUnavailableError):
        commit(mine, snapshot, [first_claim("0")])
    proxy.disturb()
    assert blobs.ownerships()["0"]["owner_id"] == "ann"
    again = replace(first_claim("0"), epoch=mine.read().leases["0"].epoch)
    assert commit(mine, mine.read(), [again]).after.leases["0"].owner == "ann"


def test_claim_counts_only_once_its_position_is_written(blobs: Blobs, mine: BlobStore, proxy: StorageProxy) -> None:
    """Otherwise, a query that was killed while it read the partition could not start again without that position."""
    proxy.disturb(Rule(BUSY, RequestKind.PUT, "checkpoint/0"))
    after = commit(mine, mine.read(), [first_claim("0"), first_claim("1")]).after
    assert {p: after.leases[p].owner for p in "01"} == {"0": None, "1": "ann"}
    proxy.disturb()
    again = replace(first_claim("0"), epoch=after.leases["0"].epoch)
    assert commit(mine, mine.read(), [again]).after.leases["0"].owner == "ann"
    assert blobs.checkpoints()["0"] == (-1, "-1")


def test_claim_by_another_process_with_the_same_id_fences(blobs: Blobs, mine: BlobStore) -> None:
    commit(mine, mine.read(), [first_claim("0")])
    with blobs.opened(GROUP) as other:
        commit(other, other.read(), [Join(by=ANN, at_ms=1)])
        commit(other, other.read(), [Claim(by=ANN, at_ms=1, partition="0", epoch=1)])
        assert other.read().leases["0"].epoch == 2
    with raises(FencedError, "EHB_FENCED", owner="ann"):
        mine.read()


# --- requests


def test_unchanged_state_takes_one_request(mine: BlobStore, proxy: StorageProxy) -> None:
    """A checkpoint does not renew the lease."""
    claimed = commit(mine, mine.read(), [first_claim("0"), first_claim("1")]).after
    for transitions, requests, renewals in (
        ([Heartbeat(by=ANN, at_ms=2)], {RequestKind.LIST: 1}, 0),
        ([checkpoint("0", 3), checkpoint("1", 3)], {RequestKind.LIST: 1, RequestKind.PUT: 2}, 0),
        ([renew("0")], {RequestKind.LIST: 1, RequestKind.CONDITIONAL_PUT: 1}, 1),
    ):
        with proxy.count_requests() as counted:
            after = commit(mine, mine.read(), transitions).after
        assert counted == requests
        assert after.leases["0"].renewal == claimed.leases["0"].renewal + renewals


def test_partial_success_is_reported(blobs: Blobs, mine: BlobStore, proxy: StorageProxy) -> None:
    claimed = commit(mine, mine.read(), [first_claim(p) for p in "012"]).after
    proxy.disturb(Rule(BUSY, RequestKind.PUT, "checkpoint/1"))
    outcome = commit(mine, claimed, [checkpoint(p, 5) for p in "012"])
    assert outcome.accepted == (checkpoint("0", 5), checkpoint("2", 5))
    assert not outcome.rejected, "it may be tried again"
    assert blobs.checkpoints() == {"0": (5, "50"), "1": (-1, "-1"), "2": (5, "50")}
    proxy.disturb()
    assert commit(mine, mine.read(), [checkpoint("1", 5)]).accepted


# --- opening


def test_without_a_group_the_container_must_contain_one(blobs: Blobs) -> None:
    assert blobs.claim("0", "theirs")
    with blobs.opened(None) as store:
        assert store.read().leases["0"].owner == "theirs"
    blobs.client.upload_blob("ns/hub/other/checkpoint/0", b"")
    with (
        blobs.opened(None) as store,
        raises(StoreFormatError, "EHB_LEASE_TABLE_FOREIGN", problem=re.compile("ns/hub/other")),
    ):
        store.read()


def test_container_opens_with_a_signature_or_a_key(blobs: Blobs) -> None:
    container = blobs.location.rpartition("/")[2]
    for options in (
        {"sas_token": signature(container, 60)},
        {"azure_storage_sas_key": "?" + signature(container, 60)},
        {"account_name": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY},
    ):
        with open_store(blobs.location, options, 2.0, GROUP) as store:
            assert store.exists()
            assert store.read().leases == {}
