"""What azure-eventhub expects of a checkpoint store, and what a consumer's part in its group must be besides."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import TransportType
from azure.eventhub.exceptions import OwnershipLostError

from spark_ehbalance.consumer import DeltaCheckpointStore
from spark_ehbalance.consumer import hub as consumer_hub
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import DataLossError, FencedError, OptionError, StoreFormatError
from spark_ehbalance.leases.orders import Seek
from spark_ehbalance.leases.transitions import Drain
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.position import Position
from tests.consumer.consumers import OPERATOR, Consumers, Ownership
from tests.proxy import HttpProxy
from tests.source.queries import Query
from tests.source.support import HUB
from tests.waiting import wait_until

PARTITIONS = 4


# --- what azure-eventhub expects ---------------------------------------------------------------------------------


def test_a_claim_of_new_partitions_is_granted_and_listed(consumers: Consumers) -> None:
    store, before = consumers.store(), time.time()
    assert not consumers.listed(store)
    assert not consumers.checkpoints(store)
    claimed = consumers.own(store, "a")
    assert list(claimed) == consumers.partitions
    for each in claimed.values():
        assert {name: each[name] for name in consumers.named} == consumers.named
        assert each["owner_id"] == "a"
        assert each["etag"]
        assert each["last_modified_time"] >= before
    listed = consumers.listed(store)
    assert {p: (each["owner_id"], each["etag"]) for p, each in listed.items()} == {
        p: (each["owner_id"], each["etag"]) for p, each in claimed.items()
    }
    assert all(lease.epoch == 1 for lease in consumers.leases().values())


def test_a_claim_is_renewed_with_the_listed_etag_in_the_same_epoch(consumers: Consumers) -> None:
    store = consumers.store()
    first = consumers.own(store, "a")
    assert consumers.claim_listed(store, "a").keys() == first.keys()
    assert {each["etag"] for each in consumers.listed(store).values()} == {each["etag"] for each in first.values()}


def test_a_claim_with_a_stale_etag_is_lost(consumers: Consumers) -> None:
    store = consumers.owning("a")
    assert consumers.claim(store, "a", "0", "1", etag="0 free") == {}
    assert consumers.claim(consumers.store(), "b", "2", etag="0 free") == {}
    assert consumers.lease("2").owner == "a"


def test_of_two_claimers_one_wins(consumers: Consumers) -> None:
    stores = {owner: consumers.store() for owner in "ab"}
    with ThreadPoolExecutor() as threads:
        claimed = dict(zip(stores, threads.map(consumers.claim, stores.values(), stores), strict=True))
    assert not claimed["a"].keys() & claimed["b"].keys()
    owners = {p: lease.owner for p, lease in consumers.leases().items()}
    assert all(owners[p] == owner for owner, theirs in claimed.items() for p in theirs)


def test_a_relinquished_partition_has_no_owner_and_can_be_claimed_again(consumers: Consumers) -> None:
    store = consumers.store()
    claimed = consumers.own(store, "a")
    [given] = store.claim_ownership([claimed["1"] | {"owner_id": ""}])
    assert (given["partition_id"], given["owner_id"]) == ("1", "")
    lease = consumers.lease("1")
    assert lease.owner is None
    assert lease.epoch == 1
    consumers.own(store, "a")
    assert consumers.lease("1").epoch == 2


def test_a_partition_that_was_lost_is_not_relinquished(consumers: Consumers) -> None:
    store = consumers.store()
    claimed = consumers.own(store, "a")
    assert store.claim_ownership([claimed["1"] | {"owner_id": "", "etag": "17 a"}]) == []
    assert consumers.lease("1").owner == "a"


def test_who_relinquishes_everything_has_left_the_group(consumers: Consumers) -> None:
    store = consumers.store()
    claimed = consumers.own(store, "a")
    for each in claimed.values():
        store.claim_ownership([each | {"owner_id": ""}])
    assert not consumers.snapshot().members
    assert consumers.owners() == {None}
    assert {each["owner_id"] for each in consumers.listed(store).values()} == {""}
    consumers.own(store, "a")


def test_checkpoints_are_durable_and_the_last_one_counts(consumers: Consumers) -> None:
    store = consumers.owning("a")
    for number in (20, 21, 7):
        consumers.checkpoint(store, "0", number)
        assert consumers.lease("0").checkpoint == Position(number, f"at {number}")
    found = consumers.checkpoints(store)["0"]
    assert {name: found[name] for name in consumers.named} == consumers.named
    assert (found["sequence_number"], found["offset"]) == (7, "at 7")


def test_a_checkpoint_of_a_partition_that_is_not_owned_is_refused(consumers: Consumers) -> None:
    store = consumers.store()
    with pytest.raises(OwnershipLostError, match="partition 0"):
        consumers.checkpoint(store, "0", 1)
    consumers.own(store, "a", "0", "1")
    with pytest.raises(OwnershipLostError, match="partition 2"):
        consumers.checkpoint(store, "2", 1)


# --- the group ---------------------------------------------------------------------------------------------------


def test_a_consumer_is_a_member_that_says_what_it_renews_by(consumers: Consumers) -> None:
    store = consumers.owning("a", "0")
    member = consumers.snapshot().members["a"]
    assert member.lease_duration_ms == 3000
    assert member.strategy == "cooperative"
    store.close()
    assert not consumers.snapshot().members
    assert consumers.owners() == {None}


def test_a_consumer_keeps_its_leases_between_the_calls_of_its_client(consumers: Consumers) -> None:
    consumers.owning("a", load_balancing_interval=30.0)
    renewals = {p: each.renewal for p, each in consumers.leases().items()}
    wait_until(lambda: all(each.renewal > renewals[p] + 2 for p, each in consumers.leases().items()), "all renewed")
    assert {each.epoch for each in consumers.leases().values()} == {1}


def test_another_groups_table_is_refused(consumers: Consumers) -> None:
    store = consumers.owning("a", "0")
    for name in consumers.named:
        other = consumers.named | {name: "other"}
        with pytest.raises(OptionError, match="is that of localhost"):
            consumers.store(hub=False).list_ownership(*other.values())
        with pytest.raises(OptionError, match="is that of localhost"):
            store.claim_ownership([{**other, "partition_id": "0", "owner_id": "a"}])
    assert store.list_ownership(*(name.upper() for name in consumers.named.values())), "names differ only by case"


def test_of_two_consumers_with_one_id_the_later_one_goes_on(consumers: Consumers) -> None:
    first, second = consumers.store(), consumers.store()
    consumers.own(first, "a")
    wait_until(lambda: consumers.claim_listed(second, "a", "0", "1", "2", "3"), "the later one has taken over")
    with pytest.raises((FencedError, OwnershipLostError)):
        consumers.checkpoint(first, "0", 99)
    with pytest.raises(FencedError):
        wait_until(lambda: not consumers.listed(first), "the earlier one is told")
    assert consumers.lease("0").checkpoint == Position(-1)
    consumers.checkpoint(second, "0", 7)


def test_a_table_that_was_made_anew_is_not_joined(consumers: Consumers) -> None:
    store = consumers.owning("a")
    shutil.rmtree(consumers.group.table)
    other = consumers.store()
    consumers.own(other, "b")
    with pytest.raises(DataLossError, match="another lease table"):
        wait_until(lambda: not consumers.claim_listed(store, "a", "0"), "the consumer is told")
    assert "a" not in consumers.snapshot().members


def _make_hub_anew(consumers: Consumers) -> None:
    consumers.group.emulator.delete_hub(HUB)
    consumers.group.emulator.add_hub(HUB, len(consumers.partitions))


def test_a_table_of_another_hub_is_not_joined(consumers: Consumers) -> None:
    """Its positions would have the client begin beyond the new hub's first events."""
    consumers.own(first := consumers.store(), "a")
    first.close()
    _make_hub_anew(consumers)
    before = consumers.snapshot()
    with pytest.raises(
        DataLossError, match=r"it has the positions of event hub hub of localhost.*: set a new leaseTable"
    ):
        wait_until(lambda: not consumers.claim(consumers.store(), "b"), "the consumer is told")
    assert consumers.snapshot() == before
    blind = consumers.store(hub=False)
    consumers.own(blind, "c")  # which cannot know it


def test_a_consumer_is_told_when_its_hub_is_made_anew(consumers: Consumers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_hub, "_LIST_INTERVAL", 0.5)
    store = consumers.owning("a")
    _make_hub_anew(consumers)
    with pytest.raises(DataLossError, match="it has the positions of event hub hub of localhost"):
        wait_until(lambda: not consumers.claim_listed(store, "a"), "the consumer is told")


def test_while_the_table_is_away_the_client_reads_on(consumers: Consumers, tmp_path: Path) -> None:
    store = consumers.store()
    claimed = consumers.own(store, "a")
    consumers.group.table.rename(tmp_path / "away")
    checkpoint = threading.Thread(target=consumers.checkpoint, args=(store, "0", 5))
    checkpoint.start()
    assert consumers.claim_listed(store, "a").keys() == claimed.keys()
    (tmp_path / "away").rename(consumers.group.table)
    checkpoint.join(60)
    assert consumers.lease("0").checkpoint == Position(5, "at 5"), "it is written when the call returns"
    assert consumers.claim_listed(store, "a").keys() == claimed.keys()
    assert {each.epoch for each in consumers.leases().values()} == {1}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"load_balancing_interval": 0.0}, "load_balancing_interval=0"),
        ({"load_balancing_interval": 9.0, "partition_ownership_expiration_interval": 10.5}, "expiration_interval=10.5"),
        ({"lease_duration": -1.0}, "lease_duration=-1"),
        ({"starting_position": "soon"}, "starting_position='soon' is wrong: allowed is earliest, latest"),
        ({"credential": "default"}, "credential are both set"),
        ({"load_balancing_interval": "10"}, "load_balancing_interval='10'"),
        ({"partition_ownership_expiration_interval": "1m"}, "partition_ownership_expiration_interval='1m'"),
        ({"storage_options": "azure_use_emulator"}, "storage_options is wrong: allowed is a mapping"),
        ({"storage_options": {"timeout": 5}}, "storage_options is wrong: allowed is a mapping"),
        ({"connection_string": object(), "hub": False}, "connection_string is wrong: allowed is a string, not object"),
        ({"credential": "password", "hub": False}, "credential='password' is wrong: allowed is one of default"),
        (
            {"credential": "azureCli", "client_id": "a", "hub": False},
            "client_id='a' is wrong: credential=azureCli takes",
        ),
        ({"connection_verify": "/no/such/file"}, "option connection_verify='/no/such/file' is wrong"),
        ({"custom_endpoint_address": "https://x"}, "option custom_endpoint_address='https://x' is wrong"),
        ({"http_proxy": {"proxy_hostname": "x"}}, "http_proxy is wrong: allowed is a mapping with proxy_hostname"),
        (
            {"transport_type": TransportType.Amqp, "http_proxy": {"proxy_hostname": "x", "proxy_port": 1}},
            "transport_type=Amqp and http_proxy are both set",
        ),
    ],
)
def test_wrong_options_are_refused_by_name(consumers: Consumers, options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        consumers.store(**options)


def test_the_store_reaches_the_hub_as_its_client_does(tmp_path: Path) -> None:
    namespace, login = "space.servicebus.invalid", {"username": "me", "password": "not for all"}
    with Emulator({HUB: 2}, tls=True, tls_names=(namespace,), websocket_port=0) as secure:
        secure.append(HUB, 0, [b"x"] * 5)
        string = secure.connection_string(HUB).replace(f"localhost:{secure.port}", namespace)
        with HttpProxy(
            {f"{namespace}:443": secure.websocket_port}, user=login["username"], password=login["password"]
        ) as proxy:
            store = DeltaCheckpointStore(
                str(tmp_path / "leases"),
                connection_string=string,
                http_proxy={"proxy_hostname": "localhost", "proxy_port": proxy.port, **login},
                connection_verify=str(secure.ca_file),
                starting_position="2020-01-01T00:00:00Z",  # which takes a receiver to resolve
                load_balancing_interval=0.5,
            )
            named = {"fully_qualified_namespace": namespace, "eventhub_name": HUB, "consumer_group": "$Default"}
            wanted = [{**named, "partition_id": each, "owner_id": "ann"} for each in ("0", "1")]
            with store:
                wait_until(lambda: len(store.claim_ownership(wanted)) == 2, "it owns both")
                found = {each["partition_id"]: each for each in store.list_checkpoints(**named)}
            assert found["0"]["sequence_number"] == -1
            assert proxy.connected >= 2
            assert not proxy.refused


def test_a_wrong_connection_string_is_refused_by_the_parameters_name(consumers: Consumers) -> None:
    hub = consumers.group.emulator.connection_string(HUB)
    other = hub.replace(f"EntityPath={HUB}", "EntityPath=another")
    for wrong, said in {
        "nonsense": "connection_string is wrong",
        other: "contradicts EntityPath='another' in conn",
    }.items():
        with pytest.raises(OptionError, match=said) as caught:
            consumers.listed(consumers.store(connection_string=wrong, hub=False))
        assert "connectionString" not in str(caught.value)


@pytest.mark.parametrize(
    ("position", "said"),
    [
        ('{"0": 500, "*": "latest"}', "starting_position is wrong: it is 500 for partition 0, "),
        ('{"17": 5}', "17"),
    ],
    ids=["beyond the last event", "of no partition"],
)
def test_a_wrong_starting_position_is_refused_at_the_first_claim(
    consumers: Consumers, position: str, said: str
) -> None:
    store = consumers.store(starting_position=position)
    with pytest.raises(OptionError, match=said):
        wait_until(lambda: consumers.claim(store, "a") and None, "the claim is refused")


@pytest.mark.parametrize(
    ("location", "wrong"),
    [
        ("", "location='' is wrong"),
        ("ftp://somewhere/leases", "location='ftp://somewhere/leases' is wrong"),
        ("https://account.blob.core.windows.net/container", "BlobCheckpointStore"),
    ],
)
def test_a_location_that_holds_no_lease_table_is_refused(location: str, wrong: str) -> None:
    with pytest.raises(OptionError, match=wrong):
        DeltaCheckpointStore(location)


def test_a_closed_store_says_so(consumers: Consumers) -> None:
    store = consumers.owning("a")
    store.close()
    store.close()
    calls = (
        consumers.listed,
        consumers.checkpoints,
        lambda each: consumers.claim(each, "a"),
        lambda each: consumers.checkpoint(each, "0", 1),
    )
    for call in calls:
        with pytest.raises(OptionError, match="is closed"):
            call(store)


def test_a_store_may_be_used_from_many_threads(consumers: Consumers) -> None:
    store = consumers.owning("a")

    def use(partition: str) -> None:
        for number in range(10):
            consumers.claim_listed(store, "a")
            consumers.checkpoint(store, partition, number)

    with ThreadPoolExecutor() as threads:
        assert len([*threads.map(use, consumers.partitions)]) == PARTITIONS
    assert consumers.group.checkpoints() == dict.fromkeys(consumers.partitions, 10)


def test_without_the_hub_a_consumer_waits_for_positions(consumers: Consumers) -> None:
    store = consumers.store(hub=False)
    with pytest.raises(StoreFormatError, match="where reading begins is not known"):
        consumers.listed(store)
    consumers.group.query("q")
    consumers.group.wait_owned(PARTITIONS)
    assert {each["owner_id"] for each in consumers.listed(store).values()} == {"q"}
    wait_until(lambda: consumers.claim_listed(store, "a", "0", "1", "2", "3"), "the consumer has joined")
    assert "a" in consumers.snapshot().members


# --- with a query ------------------------------------------------------------------------------------------------


def joined(consumers: Consumers, store: DeltaCheckpointStore, query: Query) -> dict[str, Ownership]:
    """What the consumer has claimed once it has its share, half of the partitions."""

    def cycle() -> dict[str, Ownership]:
        query.step()
        claimed = consumers.claim_listed(store, "a", *consumers.partitions)
        return claimed if len(claimed) == PARTITIONS // 2 else {}

    return wait_until(cycle, "the consumer has its share")


def test_a_claim_from_a_living_query_is_a_handover(consumers: Consumers) -> None:
    query = consumers.group.query("q")
    consumers.group.append(3, PARTITIONS)
    query.read(3 * PARTITIONS)
    epochs = {p: each.epoch for p, each in consumers.leases().items()}
    store = consumers.store()
    claimed = joined(consumers, store, query)
    snapshot = consumers.snapshot()
    for partition in consumers.partitions:
        lease, moved = snapshot.leases[partition], partition in claimed
        assert (lease.owner, lease.epoch) == ("a" if moved else "q", epochs[partition] + moved)
        assert lease.checkpoint is not None
        assert lease.checkpoint.sequence_number == 2, "the query has checkpointed before it handed over"
    assert all(consumers.checkpoints(store)[p]["offset"] == 2 for p in claimed)


def test_a_batch_in_flight_is_waited_for(consumers: Consumers) -> None:
    query = consumers.group.query("q", handoverTimeout="60s")
    consumers.group.append(3, PARTITIONS)
    query.batch()
    store = consumers.store(handover_timeout=60.0)
    consumers.claim_listed(store, "a", *consumers.partitions)
    pending = consumers.asked_for("a")
    assert len(pending) == PARTITIONS // 2
    assert consumers.claim(store, "a", *pending) == {}
    query.run(query.logged)
    assert joined(consumers, store, query).keys() == set(pending)


def test_a_partition_that_a_query_wants_goes_with_the_next_checkpoint(consumers: Consumers) -> None:
    consumers.group.append(1, PARTITIONS)
    store = consumers.store()
    claimed = consumers.own(store, "a")
    consumers.group.query("q")
    first, second = asked = wait_until(lambda: consumers.asked_for("q"), "the query has asked")
    assert len(asked) == PARTITIONS // 2
    assert consumers.claim_listed(store, "a").keys() == claimed.keys(), "it is read on until its checkpoint"
    with pytest.raises(OwnershipLostError):
        consumers.checkpoint(store, first, 41)
    lease = consumers.lease(first)
    assert (lease.owner, lease.epoch, lease.checkpoint) == ("q", 2, Position(41, "at 41"))
    listed = consumers.listed(store)
    assert listed[first]["owner_id"] == "q"
    assert listed[second]["owner_id"] in ("a", "q")
    with pytest.raises(OwnershipLostError):
        consumers.checkpoint(store, first, 42)
    assert consumers.lease(first).checkpoint == Position(41, "at 41")


def test_a_partition_without_checkpoints_is_let_go_before_the_deadline(consumers: Consumers) -> None:
    consumers.group.append(1, PARTITIONS)
    store = consumers.owning("a")
    query = consumers.group.query("q", handoverTimeout="2s")
    wait_until(lambda: consumers.claim_listed(store, "a") and len(query.owned()) == 2, "the query has its share")
    with DeltaStore(str(consumers.group.table)) as table:

        def moved() -> set[str]:
            return {each.partition for each in table.history() if each.owner == "q"}

        # Members record what has changed after their commit.
        wait_until(lambda: moved() >= query.owned(), "the moves are recorded")
        assert moved() == query.owned()
    assert consumers.owners() == {"a", "q"}


def test_what_is_idle_is_let_go_in_the_clients_cycle(consumers: Consumers) -> None:
    store = consumers.store()
    claimed = consumers.own(store, "a")
    query = consumers.group.query("q", handoverTimeout="600s")
    idle, read = wait_until(lambda: consumers.asked_for("q"), "the query has asked")
    consumers.group.append(1, int(read) + 1, int(read))
    assert consumers.claim_listed(store, "a").keys() == claimed.keys() - {idle}, "so that its receiver is closed"
    wait_until(lambda: query.owned() == {idle}, "it is handed over")
    assert consumers.lease(idle).checkpoint == Position(-1)
    assert read in consumers.claim_listed(store, "a"), "what was processed there is not known"
    consumers.group.append(1, int(idle) + 1, int(idle))
    query.read(1)
    assert query.seen == [(idle, 0)], "what comes later is the next owner's"


def test_a_dead_querys_partitions_are_claimed_when_they_have_expired(consumers: Consumers) -> None:
    process, _ = consumers.group.process("dead", leaseDuration="2s")
    store = consumers.store(hub=False, partition_ownership_expiration_interval=60.0)
    wait_until(lambda: len(consumers.claim_listed(store, "a", *consumers.partitions)) == 2, "the consumer has its half")
    process.kill()
    epochs = {p: each.epoch for p, each in consumers.leases().items() if each.owner == "dead"}

    def dead() -> bool:
        theirs = [each for each in consumers.listed(store).values() if each["owner_id"] == "dead"]
        assert all(each["last_modified_time"] + 60 > time.time() for each in theirs), "alive until it has expired"
        return not theirs

    wait_until(dead, "the client takes the owner for dead")
    wait_until(lambda: len(consumers.claim_listed(store, "a")) == PARTITIONS, "the consumer has everything")
    assert {p: consumers.lease(p).epoch for p in epochs} == {p: epoch + 1 for p, epoch in epochs.items()}


def test_a_drained_consumer_gives_back_what_is_idle_and_the_rest_with_its_checkpoints(consumers: Consumers) -> None:
    store = consumers.owning("a", handover_timeout=600.0)
    consumers.group.append(1, 1)
    consumers.order(Drain(by=OPERATOR, at_ms=0, member="a"))
    wait_until(lambda: consumers.claim_listed(store, "a").keys() == {"0"}, "what is idle is let go")
    wait_until(lambda: consumers.shares() == [1], "it is given back")
    with pytest.raises(OwnershipLostError):
        consumers.checkpoint(store, "0", 0)
    assert (consumers.lease("0").owner, consumers.lease("0").checkpoint) == (None, Position(0, "at 0"))


def test_a_drained_consumer_without_checkpoints_gives_back_in_time(consumers: Consumers) -> None:
    consumers.owning("a", handover_timeout=1.0)
    consumers.group.append(1, PARTITIONS)
    consumers.order(Drain(by=OPERATOR, at_ms=0, member="a"))
    wait_until(lambda: not consumers.shares(), "everything is given back")


def test_a_client_begins_anew_where_an_operator_has_sought(consumers: Consumers) -> None:
    store = consumers.owning("a")
    consumers.order(Seek(by=OPERATOR, at_ms=0, partition="0", position=Position(-1), force=True))
    wait_until(lambda: consumers.listed(store)["0"]["etag"].startswith("2 "), "the consumer has seen the order")
    assert "0" not in consumers.claim_listed(store, "a"), "so that the client closes its receiver"
    with pytest.raises(OwnershipLostError):
        consumers.checkpoint(store, "0", 99)
    assert "0" in consumers.claim_listed(store, "a")
    with pytest.raises(OwnershipLostError):
        consumers.checkpoint(store, "0", 99)  # by a handler that takes longer than two cycles
    assert consumers.checkpoints(store)["0"]["offset"] == "-1"
    consumers.checkpoint(store, "0", 0)  # by a receiver that has begun there
    assert consumers.lease("0").checkpoint == Position(0, "at 0")


def test_a_client_that_is_silent_leaves_and_does_not_checkpoint_what_it_read_before(consumers: Consumers) -> None:
    store = consumers.owning("a", "0", "1", partition_ownership_expiration_interval=1.0)
    wait_until(lambda: not consumers.snapshot().members, "the consumer has left")
    assert consumers.owners() == {None}
    consumers.own(store, "a", "0")  # its receiver is still open, for all it knows
    with pytest.raises(OwnershipLostError):
        consumers.checkpoint(store, "0", 99)


# --- processes ---------------------------------------------------------------------------------------------------

_PROGRAM = """
import asyncio, os, sys
from spark_ehbalance.consumer.aio import DeltaCheckpointStore

_, table, hub, *group = sys.argv
store = DeltaCheckpointStore(table, connection_string=hub, starting_position="earliest")
names = ("fully_qualified_namespace", "eventhub_name", "consumer_group")
claim = dict(zip(names, group)) | {"partition_id": "0", "owner_id": "a"}
assert asyncio.run(store.claim_ownership([claim]))
child = os.fork()
if not child:
    try:
        asyncio.run(store.list_ownership(*group))
    except Exception as error:
        asyncio.run(store.close())
        os._exit("another process" not in str(error))
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
assert {each["owner_id"] for each in asyncio.run(store.list_ownership(*group))} == {"a"}
"""


def test_a_fork_makes_its_own_store_and_a_process_that_ends_without_close_has_left(consumers: Consumers) -> None:
    hub = consumers.group.emulator.connection_string(HUB)
    command = [sys.executable, "-c", _PROGRAM, str(consumers.group.table), hub, *consumers.named.values()]
    subprocess.run(command, check=True, timeout=60)
    assert not consumers.snapshot().members
    assert not consumers.shares()


# --- the asynchronous store ---------------------------------------------------------------------------------------


def test_the_asynchronous_store_does_the_same(consumers: Consumers) -> None:
    async def use() -> None:
        async with consumers.async_store() as store:
            named = tuple(consumers.named.values())
            assert await store.list_ownership(*named) == []
            wanted = [{**consumers.named, "partition_id": p, "owner_id": "a"} for p in consumers.partitions]
            claimed = await store.claim_ownership(wanted)
            assert [each["partition_id"] for each in claimed] == consumers.partitions
            entry = consumers.named | {"sequence_number": 5, "offset": "five"}
            await asyncio.gather(*(store.update_checkpoint(entry | {"partition_id": p}) for p in "0123"))
            assert {each["offset"] for each in await store.list_checkpoints(*named)} == {"five"}
            with pytest.raises(OwnershipLostError):
                await store.update_checkpoint(entry | {"partition_id": "17"})
        with pytest.raises(OptionError, match="is closed"):
            await store.list_ownership(*named)
        with pytest.raises(OptionError, match="is closed"):
            await store.update_checkpoint(entry | {"partition_id": "0"})

    asyncio.run(use())
    assert not consumers.snapshot().members
