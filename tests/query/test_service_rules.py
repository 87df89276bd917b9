"""The source obeys the Event Hubs rules in `tests/emulator/service_rules.md`, which the emulator enforces."""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError, MissingError
from spark_ehbalance.eventhub import client_errors, metadata, service_errors
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.poll_schedule import PollSchedule
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver
from spark_ehbalance.eventhub.server_busy import BUSY
from spark_ehbalance.eventhub.watcher import HubWatcher
from spark_ehbalance.group.position import START_OFFSET
from spark_ehbalance.group.starting_positions import StartingPositions
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.range_reader import read_range
from tests.query.queries import Group
from tests.query.support import HUB, CountedReceivers, hub_options, numbers
from tests.raising import raises
from tests.waiting import wait_until

GROUP = "readers"


def read(options: Options, worker: CountedReceivers, end: int, start: int = 0, *, partition: str = "0") -> list[int]:
    """The sequence numbers read by a task with an owner level."""
    return numbers(read_range(options, OffsetRange(partition, 0, start, end), None, 3, receivers=worker))


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the wait after "server busy" to 0.5 to 0.7 s."""
    monkeypatch.setattr(service_errors, "_BUSY_WAIT", 0.5)


# --- deliveries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [True, False], ids=["settled", "unsettled"])
def test_all_events_are_read_whether_settled_or_not(settled: bool, worker: CountedReceivers) -> None:
    """Frames have 64 KiB, and receivers are kept from one range to the next."""
    with Emulator({HUB: 1}, settled=settled) as emulator:
        emulator.append(HUB, 0, [b"x"] * 400 + [b"x" * 200_000] * 3 + [b"x"] * 400)
        options = hub_options(emulator, prefetch=100)
        for start, end in ((0, 300), (300, 803)):
            assert read(options, worker, end, start) == list(range(start, end))


def test_receiver_that_was_idle_too_long_is_reopened(worker: CountedReceivers) -> None:
    """The client answers no flow; the hub ends link, session and connection, unless it waits and sends heartbeats."""
    with Emulator({HUB: 1}, idle_timeout=1.0) as emulator:
        emulator.append(HUB, 0, [b"x"] * 20)
        options = hub_options(emulator, prefetch=10)
        assert read(options, worker, 10) == list(range(10))
        wait_until(lambda: emulator.connections() == 0, "the hub has ended the connection")
        assert read(options, worker, 20, 10) == list(range(10, 20))
        threading.Timer(2.0, emulator.append, (HUB, 0, [b"x"] * 10)).start()
        assert read(options, worker, 30, 20) == list(range(20, 30))


# --- missing entities -------------------------------------------------------------------------------------------------


#: Missing or disabled entities, and the parameters of the error.
NAMED = {
    "hub": ("^Event hub 'hub' at localhost", "^does not exist$"),
    "group": ("^Consumer group 'others' of event hub 'hub' at localhost", "^does not exist$"),
    "disabled": ("^Event hub 'hub' at localhost", "^is disabled$"),
    "partition": ("^Partition 7 of event hub 'hub' at localhost", "^does not exist"),
}


@pytest.fixture
def short_missing_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entity counts as missing after half a second."""
    monkeypatch.setattr(client_errors, "_MISSING_FOR", 0.5)


@pytest.fixture
def hub(emulator: Emulator) -> Options:
    emulator.add_hub(HUB, 2)
    emulator.add_consumer_group(HUB, GROUP)
    emulator.append(HUB, 0, [b"x"] * 10)
    return hub_options(emulator, consumerGroup=GROUP)


@pytest.mark.usefixtures("short_missing_time")
@pytest.mark.parametrize("what", NAMED)
def test_readers_error_names_the_missing_entity(
    emulator: Emulator, hub: Options, worker: CountedReceivers, what: str
) -> None:
    if what == "hub":
        emulator.delete_hub(HUB)
    elif what == "disabled":
        emulator.disable_hub(HUB)
    options = hub_options(emulator, consumerGroup="others") if what == "group" else hub
    named, problem = map(re.compile, NAMED[what])
    with raises(MissingError, "EHB_HUB_NOT_FOUND", what=named, problem=problem):
        read(options, worker, 10, partition="7" if what == "partition" else "0")


def test_reader_survives_a_hub_that_is_missing_for_a_moment(
    emulator: Emulator, hub: Options, worker: CountedReceivers
) -> None:
    emulator.disable_hub(HUB)
    enabling = threading.Timer(0.7, emulator.disable_hub, (HUB, False))
    enabling.start()
    assert read(hub, worker, 10) == list(range(10))
    enabling.join()


def test_query_does_not_start_without_its_consumer_group(emulator: Emulator, tmp_path: Path) -> None:
    with contextlib.closing(Group(emulator, tmp_path, 2)) as group:
        named, problem = map(re.compile, NAMED["group"])
        with raises(MissingError, "EHB_HUB_NOT_FOUND", what=named, problem=problem):
            group.query(consumerGroup="others")
        assert not group.table.exists(), "no lease table was created"


def test_running_query_fails_if_its_hub_is_deleted(emulator: Emulator, tmp_path: Path) -> None:
    """The query fails although it would wait an hour for a hub that does not answer."""
    with contextlib.closing(Group(emulator, tmp_path, 2)) as group:
        query = group.query(receiverTimeout="1 h")
        emulator.delete_hub(HUB)
        with raises(HubUnavailableError, "EHB_HUB_NOT_FOUND", problem="does not exist"):
            wait_until(lambda: query.plan() and False, "the query fails")


# --- server busy ------------------------------------------------------------------------------------------------------


def test_reader_waits_for_a_busy_server_and_counts_the_refusals(
    emulator: Emulator, hub: Options, worker: CountedReceivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_errors, "_BUSY_WAIT", 1.0)
    name = hub.connection.hub_name
    before = BUSY.count(name)
    emulator.server_busy(seconds=1.5)
    assert read(hub, worker, 10) == list(range(10))
    refused = BUSY.count(name) - before
    assert 1 <= refused <= 2, "it does not come again at once"
    assert len(worker.opened) == refused + 1


@pytest.mark.usefixtures("short_waits")
def test_metadata_requests_wait_for_a_busy_server_until_the_timeout(
    emulator: Emulator, hub: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = hub.connection.hub_name
    before = BUSY.count(name)
    with HubMetadata(hub.connection, GROUP) as metadata_client:
        emulator.server_busy(count=2)
        assert metadata_client.partition_ids() == ("0", "1")
        emulator.server_busy(count=1)
        assert metadata_client.partition_states(["0", "1"])["0"].end == 10
        assert BUSY.count(name) - before == 3
        monkeypatch.setattr(metadata, "_BUSY_PATIENCE", 1.0)
        emulator.server_busy(seconds=60)
        with raises(HubUnavailableError, "EHB_HUB_UNREACHABLE", what=re.compile("is too busy")):
            metadata_client.partition_ids()


# --- limits -----------------------------------------------------------------------------------------------------------


def test_reader_waits_while_the_namespace_has_no_free_connection(worker: CountedReceivers) -> None:
    with Emulator({HUB: 2}, max_connections=1) as emulator:
        emulator.append(HUB, 0, [b"x"] * 10)
        options = hub_options(emulator)
        other = Receiver(PartitionAddress(options.connection, "$Default", "1"), START_OFFSET, owner_level=1, prefetch=1)
        other.receive(1, 0.1)
        leaving = threading.Timer(1.0, other.close)
        leaving.start()
        assert read(options, worker, 10) == list(range(10))
        leaving.join()


def test_pending_batch_is_served_while_all_partitions_are_refreshed(emulator: Emulator) -> None:
    emulator.add_hub(HUB, 40)
    connection = hub_options(emulator).connection
    schedule = PollSchedule(most_requests=10)
    watcher = HubWatcher(connection, "$Default", StartingPositions.parse("latest"), 60.0, schedule=schedule)
    refreshed = threading.Event()
    watcher.start()
    try:
        watcher.watch(["0"])
        refreshing = threading.Thread(target=lambda: (watcher.refresh(), refreshed.set()))
        refreshing.start()
        wait_until(lambda: watcher._schedule.stale, "it has begun")
        for count in (1, 2, 3):
            emulator.append(HUB, 0, [b"x"])
            wait_until(lambda count=count: wait_for_news(watcher) == count, "the event is seen")  # type: ignore[misc]
        assert not refreshed.is_set()
        refreshing.join(60)
        assert refreshed.is_set()
    finally:
        watcher.stop()


def wait_for_news(watcher: HubWatcher) -> int:
    watcher.catch_up(5.0)
    return watcher.states()["0"].end
