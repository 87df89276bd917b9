"""The source obeys the rules of Event Hubs in `docs/service-rules.md`; the emulator has them (`tests/emulator`)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp.codec import Timestamp
from spark_ehbalance.emulator.message import build_events
from spark_ehbalance.errors import HubUnavailableError, MissingError
from spark_ehbalance.eventhub import conditions
from spark_ehbalance.eventhub.conditions import Meaning, meaning
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.poll_schedule import PollIntervals, PollSchedule
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver
from spark_ehbalance.eventhub.server_busy import BUSY
from spark_ehbalance.eventhub.watcher import HubWatcher
from spark_ehbalance.group.position import START_OFFSET
from spark_ehbalance.group.starting_positions import StartingPositions
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.range_reader import read_range
from tests.query.queries import Group
from tests.query.support import HUB, CountedReceivers, hub_options, numbers
from tests.waiting import wait_until

GROUP = "readers"
KAFKA_KEY = "x-opt-kafka-key"


def read(options: Options, worker: CountedReceivers, end: int, start: int = 0, *, partition: str = "0") -> list[int]:
    """The sequence numbers that a task reads, with an owner level."""
    return numbers(read_range(options, Range(partition, 0, start, end), None, 3, receivers=worker))


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """After "server busy" 0.5 to 0.7 s are waited."""
    monkeypatch.setattr(conditions, "_BUSY_WAIT", 0.5)


# --- deliveries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [True, False], ids=["settled", "unsettled"])
def test_all_events_are_read_however_they_are_settled(settled: bool, worker: CountedReceivers) -> None:
    """In frames of 64 KiB, over receivers that are kept from one range to the next."""
    with Emulator({HUB: 1}, settled=settled) as emulator:
        emulator.append(HUB, 0, [b"x"] * 400 + [b"x" * 200_000] * 3 + [b"x"] * 400)
        options = hub_options(emulator, prefetch=100)
        for start, end in ((0, 300), (300, 803)):
            assert read(options, worker, end, start) == list(range(start, end))


def test_a_receiver_that_was_silent_for_too_long_is_opened_again(worker: CountedReceivers) -> None:
    """The client answers no flow; the hub ends link, session and connection, unless it waits and sends heartbeats."""
    with Emulator({HUB: 1}, idle_timeout=1.0) as emulator:
        emulator.append(HUB, 0, [b"x"] * 20)
        options = hub_options(emulator, prefetch=10)
        assert read(options, worker, 10) == list(range(10))
        wait_until(lambda: emulator.connections() == 0, "the hub has ended the connection")
        assert read(options, worker, 20, 10) == list(range(10, 20))
        threading.Timer(2.0, emulator.append, (HUB, 0, [b"x"] * 10)).start()
        assert read(options, worker, 30, 20) == list(range(20, 30))


def test_events_of_kafka_clients(emulator: Emulator) -> None:
    emulator.add_hub(HUB, 1)
    (event,) = build_events([b"\xff"], [{"header": b"\x01\xff"}])
    no_value = event._replace(tail=b"")
    emulator.append_encoded(HUB, 0, event.annotated(KAFKA_KEY, b"\x00k"), no_value.annotated(KAFKA_KEY, b"k"))
    first, tombstone = rows(hub_options(emulator), 2)
    assert (first["body"], tombstone["body"]) == (b"\xff", None)
    assert dict(first["properties"]) == {"header": "[1,-1]"}
    assert dict(first["systemProperties"]) == {"x-opt-kafka-key": "[0,107]"}
    assert dict(tombstone["systemProperties"]) == {"x-opt-kafka-key": "[107]"}


def test_events_of_an_iot_hub(emulator: Emulator) -> None:
    emulator.add_hub(HUB, 1)
    (event,) = build_events([b"21.5"], [{"unit": "C"}])
    event = event.annotated("iothub-connection-device-id", "thermometer")
    emulator.append_encoded(HUB, 0, event.annotated("iothub-enqueuedtime", Timestamp(1_769_860_800_000)))
    (row,) = rows(hub_options(emulator), 1)
    system = dict(row["systemProperties"])
    assert (row["body"], dict(row["properties"])) == (b"21.5", {"unit": "C"})
    assert system["iothub-connection-device-id"] == "thermometer"
    assert system["iothub-enqueuedtime"]


def rows(options: Options, end: int) -> list[dict[str, object]]:
    table = pa.Table.from_batches(read_range(options, Range("0", 0, 0, end), None, None))
    return table.to_pylist()  # type: ignore[no-any-return]


# --- what there is not ------------------------------------------------------------------------------------------------


def missing(emulator: Emulator, what: str) -> None:
    """Let it be missing, or disabled."""
    if what == "hub":
        emulator.delete_hub(HUB)
    elif what == "disabled":
        emulator.disable_hub(HUB)


NAMED = {
    "hub": "event hub 'hub' at localhost.* does not exist: check eventHubName",
    "group": "consumer group 'others' does not exist in event hub 'hub' at localhost.*: create it",
    "disabled": "event hub 'hub' at localhost.* is disabled: enable it",
    "partition": "partition 7 does not exist in event hub 'hub' at localhost",
}


@pytest.fixture
def hub(emulator: Emulator) -> Options:
    emulator.add_hub(HUB, 2)
    emulator.add_consumer_group(HUB, GROUP)
    emulator.append(HUB, 0, [b"x"] * 10)
    return hub_options(emulator, consumerGroup=GROUP)


@pytest.mark.parametrize("what", ["hub", "group", "disabled", "partition"])
def test_a_reader_names_what_is_missing(emulator: Emulator, hub: Options, worker: CountedReceivers, what: str) -> None:
    missing(emulator, what)
    options = hub_options(emulator, consumerGroup="others") if what == "group" else hub
    with pytest.raises(MissingError, match=NAMED[what]):
        read(options, worker, 10, partition="7" if what == "partition" else "0")


@pytest.mark.parametrize("what", ["hub", "disabled"])
def test_a_reader_that_has_begun_names_what_is_missing(
    emulator: Emulator, hub: Options, worker: CountedReceivers, what: str
) -> None:
    with contextlib.closing(read_range(hub, Range("0", 0, 0, 20), None, 3, receivers=worker)) as batches:
        assert next(batches).num_rows
        missing(emulator, what)
        with pytest.raises(MissingError, match=NAMED[what]):
            list(batches)


def test_a_hub_that_is_missing_for_a_moment_fails_no_reader(
    emulator: Emulator, hub: Options, worker: CountedReceivers
) -> None:
    emulator.disable_hub(HUB)
    enabling = threading.Timer(0.7, emulator.disable_hub, (HUB, False))
    enabling.start()
    assert read(hub, worker, 10) == list(range(10))
    enabling.join()


@pytest.mark.parametrize("what", ["hub", "group", "disabled"])
def test_a_query_does_not_start_with_what_is_missing(emulator: Emulator, tmp_path: Path, what: str) -> None:
    group = Group(emulator, tmp_path, 2)
    missing(emulator, what)
    with contextlib.closing(group), pytest.raises(MissingError, match=NAMED[what]):
        group.query(consumerGroup="others" if what == "group" else "$Default")
    assert not group.exists(), "no lease table was created"


@pytest.mark.parametrize("what", ["hub"])
def test_a_running_query_says_that_its_hub_is_missing(emulator: Emulator, tmp_path: Path, what: str) -> None:
    """Although it may wait for an hour for a hub that does not answer."""
    group = Group(emulator, tmp_path, 2)
    with contextlib.closing(group):
        query = group.query(receiverTimeout="1 h")
        query.batch() if query.plan() else None
        missing(emulator, what)

        def error() -> str:
            try:
                query.plan()
            except HubUnavailableError as raised:
                return str(raised)
            return ""

        message = wait_until(error, "the query fails")
        assert "does not exist" in message or "is disabled" in message


def test_a_watcher_is_not_stopped_by_one_wrong_answer(emulator: Emulator, hub: Options) -> None:
    often = PollSchedule(PollIntervals(retry=0.1))
    watcher = HubWatcher(hub.connection, GROUP, StartingPositions.parse("latest"), 20.0, schedule=often)
    watcher.start()
    try:
        emulator.disable_hub(HUB)
        wait_until(lambda: watcher._missing.since, "the hub has said so")
        assert watcher.states().keys() == {"0", "1"}
        emulator.disable_hub(HUB, False)
        watcher.refresh()
        assert watcher._missing.since is None
    finally:
        watcher.stop()


MEANINGS = {
    ("amqp:not-found", "The messaging entity 'sb://ns/hub' could not be found."): Meaning.MISSING,
    ("not-found", "The messaging entity 'ns:eventhub:hub~32766|g' could not be found."): Meaning.NO_GROUP,
    ("amqp:not-found", "The link 'G25:1' could not be located."): Meaning.OTHER,
    ("amqp:resource-deleted", ""): Meaning.MISSING,
    ("com.microsoft:entity-disabled", ""): Meaning.DISABLED,
    (None, "Management request error. Status code: 400, Description: 'x is currently disabled.'"): Meaning.DISABLED,
    (None, "Management connection failed. Status code: 404, Description: 'x could not be found'"): Meaning.MISSING,
    ("server-busy", ""): Meaning.BUSY,
    (None, "Management request error. Status code: 503, Description: 'x'"): Meaning.BUSY,
    (None, "Management request error. Status code: 429, Description: 'x'"): Meaning.BUSY,
    (None, "Management request error. Status code: 500, Description: 'com.microsoft:server-busy'"): Meaning.BUSY,
    ("amqp:internal-error", "the hub 'could not be found' is busy"): Meaning.OTHER,
    (None, ""): Meaning.OTHER,
}


@pytest.mark.parametrize(("refusal", "expected"), MEANINGS.items())
def test_what_refusals_mean(refusal: tuple[str | None, str], expected: Meaning) -> None:
    assert meaning(*refusal) is expected


# --- server busy ------------------------------------------------------------------------------------------------------


def test_a_reader_waits_for_a_busy_server_and_counts(
    emulator: Emulator, hub: Options, worker: CountedReceivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "_BUSY_WAIT", 2.0)
    name = hub.connection.hub_name
    before = BUSY.of(name)
    emulator.server_busy(seconds=3.0)
    assert read(hub, worker, 10) == list(range(10))
    refused = BUSY.of(name) - before
    assert 1 <= refused <= 2, "it does not come again at once"
    assert len(worker.opened) == refused + 1


@pytest.mark.usefixtures("short_waits")
def test_questions_wait_for_a_busy_server_and_count(emulator: Emulator, hub: Options) -> None:
    name = hub.connection.hub_name
    before = BUSY.of(name)
    with HubMetadata(hub.connection, GROUP) as metadata:
        emulator.server_busy(count=2)
        assert metadata.partition_ids() == ("0", "1")
        emulator.server_busy(count=1)
        assert metadata.partition_states(["0", "1"])["0"].end == 10
    assert BUSY.of(name) - before == 3


def test_a_server_that_stays_busy_is_an_error(
    emulator: Emulator, hub: Options, monkeypatch: pytest.MonkeyPatch, short_waits: None
) -> None:
    from spark_ehbalance.eventhub import metadata as module

    monkeypatch.setattr(module, "_BUSY_PATIENCE", 1.0)
    emulator.server_busy(seconds=60)
    with HubMetadata(hub.connection, GROUP) as metadata, pytest.raises(HubUnavailableError, match="is too busy"):
        metadata.partition_ids()


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_reader_waits_for_a_connection_that_the_namespace_can_spare(worker: CountedReceivers) -> None:
    with Emulator({HUB: 2}, max_connections=1) as emulator:
        emulator.append(HUB, 0, [b"x"] * 10)
        options = hub_options(emulator)
        other = Receiver(PartitionAddress(options.connection, "$Default", "1"), START_OFFSET, owner_level=1, prefetch=1)
        other.receive(1, 0.1)
        leaving = threading.Timer(1.0, other.close)
        leaving.start()
        assert read(options, worker, 10) == list(range(10))
        leaving.join()


def test_several_queries_that_start_at_once_are_all_answered(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, short_waits: None
) -> None:
    """Together they ask more than the hub answers: what was refused is asked again, until all is known."""
    emulator.add_hub(HUB, 60)
    connection = hub_options(emulator).connection
    known: list[int] = []

    def start() -> None:
        with HubMetadata(connection, "$Default") as metadata:
            known.append(len(metadata.partition_states(metadata.partition_ids())))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert known == [60] * 4


def test_two_queries_that_start_at_once_are_refused_nothing(emulator: Emulator, tmp_path: Path) -> None:
    """While events come, with a lease table that is there: each reads at once, before it can know of the other."""
    partitions = 16
    with contextlib.closing(Group(emulator, tmp_path, partitions)) as group:
        group.query("before").stop()
        ended = time.monotonic()
        wait_until(lambda: time.monotonic() - ended > 1.1, "what it has asked does not count any more")
        name, done, together = group.options().connection.hub_name, threading.Event(), threading.Barrier(2)
        before = BUSY.of(name)

        def run(owner: str) -> None:
            together.wait(60)
            query = group.query(owner)
            while not done.is_set():
                query.step()

        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(run, owner) for owner in ("a", "b")]
            for _ in range(4):
                group.append(1, partitions)
                wait_until(
                    lambda: (
                        {event for query in group.queries for event in query.seen} == {*group.everything()}
                        or any(each.done() for each in running)
                    ),
                    "all is read",
                )
            done.set()
            for each in running:
                each.result()
        assert BUSY.of(name) == before, "the hub has refused none"


def test_who_waits_for_a_batch_is_served_while_all_partitions_are_asked_about(emulator: Emulator) -> None:
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
            wait_until(lambda count=count: caught_up(watcher) == count, "the event is seen")  # type: ignore[misc]
        assert not refreshed.is_set()
        refreshing.join(60)
        assert refreshed.is_set()
    finally:
        watcher.stop()


def caught_up(watcher: HubWatcher) -> int:
    watcher.catch_up(5.0)
    return watcher.states()["0"].end


# --- readers of others ------------------------------------------------------------------------------------------------


def test_a_foreign_reader_that_goes_is_waited_for(
    hub: Options, worker: CountedReceivers, rival: Callable[..., Receiver]
) -> None:
    other = rival(500, group=GROUP)

    def go() -> None:
        wait_until(lambda: len(worker.opened) > 2, "the range was refused, and is tried again")
        other.close()

    going = threading.Thread(target=go)
    going.start()
    assert read(hub, worker, 10) == list(range(10))
    going.join()
