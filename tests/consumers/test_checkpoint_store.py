"""azure-eventhub's requirements on a checkpoint store, and a consumer's role in its group."""

from __future__ import annotations

import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from azure.eventhub.exceptions import OwnershipLostError

from spark_ehbalance.consumers import DeltaCheckpointStore, checkpoint_store
from spark_ehbalance.consumers.checkpoint_store import checkpoint_entry
from spark_ehbalance.errors import DataLossError, OptionError, StoreReplacedError, StoreUnavailableError
from spark_ehbalance.group.changes import Drain
from spark_ehbalance.group.commands import PinTo, Seek
from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.position import START_OFFSET, Position
from spark_ehbalance.group.snapshot import Snapshot
from tests.consumers.consumers import OPERATOR, Consumers
from tests.query.support import HUB, skew_clock
from tests.raising import raises
from tests.waiting import wait_until

PARTITIONS = 4


# --- azure-eventhub's requirements -------------------------------------------------------------------------------


def test_claim_is_granted_listed_and_renewed_in_the_same_epoch(consumers: Consumers) -> None:
    store, before = consumers.store(), time.time()
    assert not consumers.listed(store)
    assert not consumers.checkpoints(store)
    claimed = consumers.own(store, "a")
    assert list(claimed) == consumers.partitions
    for ownership in claimed.values():
        assert {name: ownership[name] for name in consumers.named} == consumers.named
        assert ownership["owner_id"] == "a"
        assert ownership["last_modified_time"] >= before
    renewals = {p: lease.renewal for p, lease in consumers.leases().items()}
    assert consumers.claim_listed(store, "a").keys() == claimed.keys()
    listed = consumers.listed(store)
    assert {p: (entry["owner_id"], entry["etag"]) for p, entry in listed.items()} == dict.fromkeys(claimed, ("a", "1"))
    assert all(lease.epoch == 1 and lease.renewal > renewals[p] for p, lease in consumers.leases().items())


def test_one_of_two_claimers_wins_and_a_stale_etag_fails(consumers: Consumers) -> None:
    stores = {owner: consumers.store() for owner in "ab"}
    with ThreadPoolExecutor() as threads:
        claimed = dict(zip(stores, threads.map(consumers.claim, stores.values(), stores), strict=True))
    assert not claimed["a"].keys() & claimed["b"].keys()
    owners = {p: lease.owner for p, lease in consumers.leases().items()}
    assert all(owners[p] == owner for owner, theirs in claimed.items() for p in theirs)
    before = consumers.leases()
    for owner, store in stores.items():
        assert consumers.claim(store, owner, etag="0").keys() == claimed[owner].keys()
    assert not [p for p, lease in consumers.leases().items() if lease.handover or lease.epoch != before[p].epoch]


def test_consumer_leaves_the_group_when_it_releases_its_last_partition(consumers: Consumers) -> None:
    store = consumers.store()
    claimed = consumers.own(store, "a")
    store.claim_ownership([claimed["1"] | {"owner_id": "", "etag": "17"}])
    assert consumers.owners() == {"a"}, "what was lost is not released"
    [given] = store.claim_ownership([claimed["1"] | {"owner_id": ""}])
    assert (given["partition_id"], given["owner_id"]) == ("1", "")
    assert (consumers.lease("1").owner, consumers.lease("1").epoch) == (None, 1)
    consumers.own(store, "a")
    assert consumers.lease("1").epoch == 2
    for entry in consumers.listed(store).values():
        store.claim_ownership([entry | {"owner_id": ""}])
    assert not consumers.snapshot().members
    assert {entry["owner_id"] for entry in consumers.listed(store).values()} == {""}
    consumers.own(store, "a")
    store.close()
    assert not consumers.snapshot().members
    assert consumers.owners() == {None}


def test_checkpoints_are_durable_never_move_back_and_require_ownership(consumers: Consumers) -> None:
    store = consumers.store()
    with pytest.raises(OwnershipLostError, match="partition 0"):
        consumers.checkpoint(store, "0", 1)
    consumers.own(store, "a", "0", "1")
    for number, kept in ((20, 20), (21, 21), (7, 21)):
        consumers.checkpoint(store, "0", number)
        assert consumers.lease("0").checkpoint == Position(kept, f"at {kept}")
    with pytest.raises(OwnershipLostError, match="partition 2"):
        consumers.checkpoint(store, "2", 1)
    found = consumers.checkpoints(store)["0"]
    assert {name: found[name] for name in consumers.named} == consumers.named
    assert (found["sequence_number"], found["offset"]) == (21, "at 21")


@pytest.mark.parametrize(
    ("position", "start_after"),
    [(Position(7, "@1"), "@1"), (Position(7), 7), (Position(0), 0), (Position(-1), START_OFFSET)],
)
def test_client_starts_after_the_checkpoint(position: Position, start_after: str | int) -> None:
    offset = checkpoint_entry(Lease("0", checkpoint=position))["offset"]
    assert offset == start_after
    assert offset or not start_after, "the client takes what is false for no checkpoint"
    assert bool(offset)


# --- rejected calls ----------------------------------------------------------------------------------------------


def test_invalid_store_or_interval_is_rejected(consumers: Consumers) -> None:
    hub = {"connectionString": consumers.group.emulator.connection_string(HUB)}
    for table in ({}, {"leaseTable": "https://account.blob.core.windows.net/container"}):
        with raises(OptionError, "EHB_OPTION_INVALID", option="leaseTable"):
            DeltaCheckpointStore(hub | table)
    with raises(OptionError, "EHB_OPTION_INVALID", option="load_balancing_interval", value="'0'"):
        DeltaCheckpointStore(hub | {"leaseTable": "/leases"}, load_balancing_interval=0)


@pytest.mark.parametrize(
    ("position", "partition"), [('{"0": 500, "*": "latest"}', "0"), ('{"17": 5}', "'17'")], ids=["late", "unknown"]
)
def test_invalid_starting_position_is_rejected_at_the_first_claim(
    consumers: Consumers, position: str, partition: str
) -> None:
    with raises(OptionError, "EHB_POSITION_INVALID", partition=partition):
        consumers.claim(consumers.store(startingPosition=position), "a")
    assert not consumers.shares()


def test_another_group_a_second_client_and_a_closed_store_are_rejected(consumers: Consumers) -> None:
    store = consumers.owning("a")
    for name in consumers.named:
        with raises(OptionError, "EHB_OPTIONS_CONFLICT", options=re.compile("^A client of .*other")):
            store.claim_ownership([{**consumers.named, name: "other", "partition_id": "0", "owner_id": "a"}])
    assert store.list_ownership(*(name.upper() for name in consumers.named.values())), "names differ only by case"
    with raises(OptionError, "EHB_OPTION_INVALID", value="'the store of client a'"):
        consumers.claim_listed(store, "b", "0")
    store.close()
    store.close()
    with raises(OptionError, "EHB_OPTION_INVALID", value="'a closed store'"):
        consumers.claim(store, "b")
    with raises(OptionError, "EHB_OPTION_INVALID", value="'a closed store'"):
        consumers.checkpoint(store, "0", 1)


def test_replaced_table_and_recreated_hub_end_the_consumer(
    consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_store, "_HUB_INTERVAL", 0.1)
    store = consumers.owning("a")
    consumers.group.emulator.delete_hub(HUB)
    consumers.group.emulator.add_hub(HUB, PARTITIONS)
    before = consumers.leases()
    for member, owner in ((store, "a"), (consumers.store(), "b")):
        with raises(DataLossError, "EHB_HUB_RECREATED", part="lease table"):
            wait_until(lambda member=member, owner=owner: not consumers.claim(member, owner), "the consumer is refused")
    assert {p: x.checkpoint for p, x in consumers.leases().items()} == {p: x.checkpoint for p, x in before.items()}
    shutil.rmtree(consumers.group.table)
    consumers.owning("b")
    with raises(StoreReplacedError, "EHB_LEASE_TABLE_ROLLED_BACK"):
        wait_until(lambda: not consumers.listed(store), "the consumer detects the replaced table")


def test_table_outage_loses_nothing(consumers: Consumers, tmp_path: Path) -> None:
    store = consumers.owning("a")
    consumers.group.table.rename(tmp_path / "away")
    with pytest.raises(StoreUnavailableError):
        consumers.claim_listed(store, "a")
    with pytest.raises(StoreUnavailableError):
        consumers.checkpoint(store, "0", 5)
    (tmp_path / "away").rename(consumers.group.table)
    consumers.checkpoint(store, "0", 6)
    assert consumers.lease("0").checkpoint == Position(6, "at 6")
    assert len(consumers.claim_listed(store, "a")) == PARTITIONS
    assert {lease.epoch for lease in consumers.leases().values()} == {1}


def test_checkpoint_survives_a_failed_release(consumers: Consumers, monkeypatch: pytest.MonkeyPatch) -> None:
    store = consumers.owning("a")
    released = consumers.listed(store)["1"] | {"owner_id": ""}
    assert store._store is not None
    read, reading, fails = store._store.read, threading.Event(), threading.Event()

    def fail_once() -> Snapshot:
        if fails.is_set():
            return read()
        reading.set()
        assert fails.wait(60)
        raise StoreUnavailableError("EHB_LEASE_TABLE_MISSING", location="leases")

    monkeypatch.setattr(store._store, "read", fail_once)
    checkpoint = {**consumers.named, "partition_id": "0", "sequence_number": 9, "offset": "at 9"}
    store._add(checkpoint)
    with ThreadPoolExecutor() as threads:
        release = threads.submit(store.claim_ownership, [released])
        assert reading.wait(60)
        written = threads.submit(store._write, checkpoint)
        time.sleep(0.3)
        was_done = written.done()
        fails.set()
        with pytest.raises(StoreUnavailableError):
            release.result(60)
        written.result(60)
    assert not was_done
    assert consumers.lease("0").checkpoint == Position(9, "at 9")


# --- the group ---------------------------------------------------------------------------------------------------


def test_requested_partition_is_handed_over_at_a_checkpoint_or_the_deadline(consumers: Consumers) -> None:
    consumers.group.append(1, PARTITIONS)
    store = consumers.store(leaseDuration="30s")
    claimed = consumers.own(store, "a")
    consumers.checkpoints(store)
    query = consumers.group.query("q", handoverTimeout="10s", leaseDuration="30s")
    first, second = wait_until(lambda: consumers.requested_from("q"), "the query has requested it")
    assert consumers.claim_listed(store, "a").keys() == claimed.keys(), "it is read on"
    with pytest.raises(OwnershipLostError):
        consumers.checkpoint(store, first, 41)
    lease = consumers.lease(first)
    assert (lease.owner, lease.epoch, lease.checkpoint) == ("q", 2, Position(41, "at 41"))
    assert consumers.lease(second).owner == "a"
    wait_until(lambda: second not in consumers.claim_listed(store, "a"), "it is handed over before the deadline")
    wait_until(lambda: query.owned() == {first, second}, "the query has both")
    assert consumers.lease(second).epoch == 2
    for partition in (first, second):
        with pytest.raises(OwnershipLostError):
            consumers.checkpoint(store, partition, 42)
    assert consumers.claim_listed(store, "a").keys() == claimed.keys() - {first, second}


def test_silent_consumer_is_declared_dead_after_the_duration_in_its_row(consumers: Consumers) -> None:
    store = consumers.owning("a")
    assert consumers.snapshot().members["a"].lease_duration_ms == 3000
    query = consumers.group.query("q")
    wait_until(lambda: len(query.owned()) == PARTITIONS, "the query has everything")
    with pytest.raises(OwnershipLostError):
        consumers.checkpoint(store, "0", 99)
    assert consumers.lease("0").checkpoint == Position(-1)
    with DeltaCheckpointStore(consumers._options(), load_balancing_interval=30.0) as slow:
        consumers.claim_listed(slow, "b", "0")
        assert consumers.snapshot().members["b"].lease_duration_ms == 108_000, "for a client that calls this rarely"
        assert consumers.snapshot().leader == "q", "which never runs the group's maintenance"


def test_operators_orders_apply_to_consumers(consumers: Consumers) -> None:
    store, by = consumers.owning("a"), {"by": OPERATOR, "at_ms": 0}
    consumers.checkpoints(store)
    consumers.order(Seek(partition="0", position=Position(-1), force=True, **by))
    assert "0" not in consumers.claim_listed(store, "a"), "so that the client closes its receiver"
    with pytest.raises(OwnershipLostError):
        consumers.checkpoint(store, "0", 99)
    assert "0" in consumers.claim_listed(store, "a")
    with pytest.raises(OwnershipLostError):
        consumers.checkpoint(store, "0", 99)  # a handler takes longer than two cycles
    assert consumers.checkpoints(store)["0"]["offset"] == "-1"
    consumers.checkpoint(store, "0", 0)  # a receiver has started there
    assert consumers.lease("0").checkpoint == Position(0, "at 0")

    other = consumers.store()
    assert consumers.claim(other, "b", "0") == {}, "b is a member"
    consumers.order(PinTo(partition="1", to="b", timeout_ms=1, **by))
    for _ in range(2):
        consumers.claim_listed(store, "a")
    assert consumers.claim_listed(other, "b", "2").keys() == {"1"}, "the client has not named it"
    consumers.order(Drain(member="a", **by))
    consumers.claim_listed(store, "a")
    with pytest.raises(OwnershipLostError):
        consumers.checkpoint(store, "3", 5)
    assert (consumers.lease("3").owner, consumers.lease("3").checkpoint) == (None, Position(5, "at 5"))
    consumers.claim_listed(store, "a")
    assert "a" not in consumers.owners()
    assert consumers.claim_listed(store, "a", *consumers.partitions) == {}


def test_unclaimed_partitions_are_claimed_without_the_client(consumers: Consumers) -> None:
    """For example if other members have limits, which the client does not know about."""
    store = consumers.owning("a", leaseDuration="600ms", balanceInterval="100ms")
    store.claim_ownership([entry | {"owner_id": ""} for p, entry in consumers.listed(store).items() if p != "0"])
    assert consumers.shares() == [1]
    everything = {*consumers.partitions}
    wait_until(lambda: consumers.claim_listed(store, "a", "0").keys() == everything, "it has everything", timeout=30)


def test_added_partitions_are_read_from_their_first_event(
    consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_store, "_HUB_INTERVAL", 0.1)
    store = consumers.owning("a", startingPosition="latest")
    consumers.group.emulator.add_partitions(HUB, 1)
    consumers.group.append(2, PARTITIONS + 1, PARTITIONS)
    new = str(PARTITIONS)
    wait_until(lambda: new in consumers.claim(store, "a", *consumers.partitions, new), "it is claimed")
    assert consumers.lease(new).checkpoint == Position(-1)


def test_latest_is_the_groups_first_start(consumers: Consumers, monkeypatch: pytest.MonkeyPatch) -> None:
    skew_clock(monkeypatch, 3.0)
    consumers.group.append(3, PARTITIONS)
    store = consumers.owning("a", "0", startingPosition="latest")
    consumers.group.append(2, PARTITIONS, first=0)
    consumers.own(store, "a")
    assert {p: lease.checkpoint and lease.checkpoint.next for p, lease in consumers.leases().items()} == dict.fromkeys(
        consumers.partitions, 3
    )
    assert consumers.snapshot().latest_ms is not None


def test_highest_of_concurrent_checkpoints_is_stored(consumers: Consumers) -> None:
    """The first thread in a pool commits while threads with higher and lower checkpoints wait."""
    store = consumers.owning("a", "0")
    numbers = [0, *range(19, 0, -1)]
    with ThreadPoolExecutor(len(numbers)) as pool:
        list(pool.map(lambda number: consumers.checkpoint(store, "0", number), numbers))
    assert consumers.lease("0").checkpoint == Position(19, "at 19")
