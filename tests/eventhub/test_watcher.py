"""The watcher requests the hub's state once at startup, then in the background."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError, OptionError
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.poll_schedule import MAX_NEW, PollIntervals, PollSchedule
from spark_ehbalance.eventhub.receiver import PartitionAddress
from spark_ehbalance.eventhub.watcher import HubWatcher
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.starting_positions import StartingPositions
from tests.eventhub.receiving import reading
from tests.query.support import HUB, hub_options, receive, skew_clock
from tests.raising import raises
from tests.waiting import wait_until

Start = Callable[..., HubWatcher]


@pytest.fixture
def start(emulator: Emulator) -> Iterator[Start]:
    """Starts a watcher for a hub with two partitions."""
    emulator.add_hub(HUB, 2)
    watchers = []

    def make(positions: str = "latest", timeout: float = 20.0, **settings: Any) -> HubWatcher:
        connection, parsed = hub_options(emulator).connection, StartingPositions.parse(positions)
        settings = {"schedule": PollSchedule(PollIntervals(listing=0.3, retry=0.1)), **settings}
        watchers.append(HubWatcher(connection, "$Default", parsed, timeout, **settings))
        watchers[-1].start()
        return watchers[-1]

    yield make
    for watcher in watchers:
        watcher.stop()
    wait_until(lambda: not running(), "the threads have ended")


def running() -> list[threading.Thread]:
    """The running threads of watchers."""
    return [thread for thread in threading.enumerate() if thread.name == "ehbalance-hub-watcher"]


@pytest.mark.parametrize(
    ("positions", "partition"),
    [('{"0": 0, "1": 0, "7": 5}', "7"), ('{"0": 5}', "1")],
)
def test_start_rejects_positions_of_other_partitions(start: Start, positions: str, partition: str) -> None:
    with raises(OptionError, "EHB_POSITION_INVALID", partition=re.compile(partition)):
        start(positions)


def test_new_partitions_are_listed(emulator: Emulator, start: Start) -> None:
    watcher = start()
    emulator.add_partitions(HUB, 2)
    emulator.append(HUB, 3, [b"x"] * 5)
    emulator.trim(HUB, 3, 2)
    wait_until(lambda: watcher.partition_ids() == ("0", "1", "2", "3"), "they are listed")
    assert (watcher.states()["3"].begin, watcher.states()["3"].end) == (2, 5)


def test_states_from_a_geo_replicated_hub_belong_to_one_connection() -> None:
    with Emulator(geo_replicated=True) as emulator, ExitStack() as stack:
        partitions = MAX_NEW + 8  # more than one request covers
        emulator.add_hub(HUB, partitions)
        for partition in range(partitions):
            emulator.append(HUB, partition, [b"x"] * 3)
        connection, earliest = hub_options(emulator).connection, StartingPositions.parse("earliest")
        watcher = HubWatcher(connection, "$Default", earliest, 20.0)
        stack.callback(watcher.stop)
        watcher.start()
        watcher.watch(map(str, range(partitions)))
        watcher.refresh()
        before = watcher.connected_at()
        emulator.promote(HUB, 1)
        wait_until(lambda: watcher.connected_at() != before, "it has connected again")
        assert {state.end for state in watcher.states().values()} == {2}
        wait_until(lambda: len(watcher.states()) == partitions, "all have been requested")


def test_error_is_raised_after_the_timeout_until_the_hub_answers(emulator: Emulator, start: Start) -> None:
    watcher = start(timeout=0.5)
    emulator.refuse_connections()
    emulator.drop_connections()
    assert watcher.states().keys() == {"0", "1"}

    def last_error() -> str:
        try:
            watcher.states()
        except HubUnavailableError as error:
            return str(error)
        return ""

    message = wait_until(last_error, "the error is raised")
    assert "Event hub 'hub'" in message
    assert "\n" not in message
    with pytest.raises(HubUnavailableError):
        watcher.refresh()
    emulator.append(HUB, 0, [b"x"])
    emulator.refuse_connections(False)
    wait_until(lambda: not last_error(), "it is over")
    watcher.refresh()
    assert watcher.states()["0"].end == 1


def test_time_without_requests_is_not_silence(emulator: Emulator, start: Start) -> None:
    """A suspended process, for example, resumes and then finds its connection closed."""
    watcher = start(timeout=2.0, schedule=PollSchedule(PollIntervals(60, 60, 60, 60, 0.1)))
    time.sleep(2.1)
    emulator.refuse_connections()
    emulator.drop_connections()
    watcher.watch(["0"])
    wait_until(lambda: not watcher.available, "the hub has not answered")
    watcher.states()
    emulator.refuse_connections(False)
    wait_until(lambda: watcher.available, "it is over")


def refreshed(watcher: HubWatcher) -> bool:
    """Whether the watcher refreshed in time."""
    try:
        watcher.refresh()
    except HubUnavailableError:
        return False
    return True


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # assertions cover it
def test_unexpected_errors_are_raised_and_recovered_from(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = start(timeout=0.3)

    def surprise(*_: object) -> None:
        raise BaseException("as a panic in a Rust library")

    with monkeypatch.context() as patched:
        patched.setattr(HubMetadata, "partition_ids", surprise)
        with raises(HubUnavailableError, "EHB_HUB_UNREACHABLE", reason=re.compile("^BaseException")):
            watcher.refresh()
    wait_until(lambda: refreshed(watcher), "the hub answers")
    assert watcher.states().keys() == {"0", "1"}


@pytest.mark.parametrize(("positions", "begin"), [("earliest", 2), ("latest", 5), ("4", 4), ('{"0": 3, "*": 4}', 3)])
def test_starting_positions_are_resolved(emulator: Emulator, start: Start, positions: str, begin: int) -> None:
    emulator.append(HUB, 0, [b"x"] * 5)
    emulator.trim(HUB, 0, 2)
    watcher = start(positions)
    assert watcher.starting_positions(["0"], watcher.latest_ms())["0"].next == begin


def test_slow_starting_position_delays_no_other(
    emulator: Emulator, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    for partition in (0, 1):
        emulator.append(HUB, partition, [b"x"])
    watcher = start("2020-01-01T00:00:00Z", patience=3.0)
    emulator.pause(HUB, 0)
    begun = time.monotonic()
    assert watcher.starting_positions(["0", "1"], 0) == {"1": Position.before(0)}
    assert "Partition 0: the first event at or after" in caplog.text
    what = re.compile("^Partition 0: the first event at or after")
    with raises(HubUnavailableError, "EHB_HUB_UNREACHABLE", what=what):
        watcher.starting_positions(["0"], 0)
    assert time.monotonic() - begun < 20, "it has not waited for the whole timeout of the hub"


# --- when it requests -----------------------------------------------------------------------------------------


def test_catch_up_is_requested_immediately(emulator: Emulator, start: Start) -> None:
    hours = PollIntervals(3600.0, 3600.0, 3600.0, listing=3600.0, retry=0.1)  # no periodic requests
    watcher = start(schedule=PollSchedule(hours))
    watcher.watch(["0"])
    for count in range(1, 20):
        emulator.append(HUB, 0, [b"x"])
        watcher.catch_up(20)
        assert watcher.states()["0"].end == count


def test_latest_is_the_same_moment_for_all_partitions(emulator: Emulator, start: Start) -> None:
    emulator.append(HUB, 0, [b"x"] * 3)
    emulator.append(HUB, 1, [b"x"] * 3)
    watcher = start()
    moment = watcher.latest_ms() - 1  # another member's first start
    assert abs(moment - 1000 * time.time()) < 60_000
    emulator.append(HUB, 1, [b"x"] * 2)
    watcher.refresh()
    last = watcher.states()["0"].last_offset
    assert watcher.starting_positions(["0", "1"], moment) == {"0": Position(2, last), "1": Position.before(3)}


@pytest.mark.parametrize("seconds", [3.0, -3.0], ids=["fast", "slow"])
def test_latest_at_the_groups_first_start_needs_no_clock(
    emulator: Emulator, start: Start, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    skew_clock(monkeypatch, seconds)
    emulator.append(HUB, 0, [b"before"] * 3)
    watcher = start()
    emulator.append(HUB, 0, [b"after"] * 3)
    emulator.append(HUB, 1, [b"after"] * 3)
    watcher.refresh()
    starts = watcher.starting_positions(["0", "1"], watcher.latest_ms())
    assert {partition: position.next for partition, position in starts.items()} == {"0": 3, "1": 0}


def test_latest_ends_are_complete_or_an_error(emulator: Emulator, start: Start) -> None:
    emulator.add_partitions(HUB, MAX_NEW)
    emulator.append(HUB, MAX_NEW + 1, [b"before"] * 3)
    watcher = start('{"0": 0, "*": "latest"}', timeout=3.0)
    emulator.refuse_connections()
    emulator.drop_connections()
    partitions = watcher.partition_ids()
    assert len(watcher.states()) < len(partitions)
    with pytest.raises(HubUnavailableError):
        watcher.latest_ends(partitions)
    emulator.refuse_connections(False)
    wait_until(lambda: refreshed(watcher), "the hub answers")
    ends = watcher.latest_ends(partitions)
    assert ends.keys() == {*partitions[1:]}
    assert ends[partitions[-1]].next == 3


@pytest.mark.parametrize("left", [3, 0], ids=["some are retained", "all have aged out"])
@pytest.mark.parametrize(("hours", "lost"), [(0.9, False), (1.1, True)])
def test_events_aged_out_since_latest_are_a_loss(
    emulator: Emulator, start: Start, hours: float, lost: bool, left: int
) -> None:
    """A hub retains events for at least an hour."""
    emulator.append(HUB, 0, [b"x"] * 5)
    emulator.trim(HUB, 0, 5 - left)
    watcher = start()
    moment = watcher.latest_ms() - round(3_600_000 * hours)
    begin = 5 - left
    assert watcher.starting_positions(["0", "1"], moment)["0"].next == (begin - 1 if lost else begin)
    assert watcher.starting_positions(["1"], moment) == {"1": Position(-1, watcher.states()["1"].last_offset)}


# --- offsets of events whose sequence numbers are known -------------------------------------------------------


#: The owner level of all readers in the group.
LEVEL = 0


@pytest.fixture
def remembering(emulator: Emulator, start: Start) -> HubWatcher:
    """A watcher that knows only the last of the ten events in each partition."""
    for partition in range(2):
        emulator.append(HUB, partition, [b"x"] * 10)
    return start(patience=2.0, remembered_offsets=100)


def sent(emulator: Emulator, partition: str) -> dict[int, str]:
    """Sequence number → offset, read from the events."""
    address = PartitionAddress(hub_options(emulator).connection, "$Default", partition)
    with reading(address, owner_level=LEVEL) as receiver:
        rows = receive(receiver, 10)
    return dict(zip(rows["sequenceNumber"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def test_remembered_offsets_need_no_receiver(emulator: Emulator, remembering: HubWatcher) -> None:
    known = remembering.offsets({"0": 9}, LEVEL)
    emulator.append(HUB, 0, [b"x"] * 5)
    remembering.watch(["0"])
    wait_until(lambda: remembering.states()["0"].end == 15, "the new events are seen")
    emulator.pause(HUB, 0)  # no receiver delivers events
    assert remembering.offsets({"0": 9}, LEVEL) == known
    assert remembering.offsets({"0": 14}, LEVEL)
    assert remembering.offsets({"0": 12}, LEVEL) == {}, "not in time"


def test_missing_event_delays_no_other(emulator: Emulator, remembering: HubWatcher) -> None:
    assert remembering.offsets({"0": 100, "1": 5}, LEVEL) == {"1": sent(emulator, "1")[5]}


def test_offsets_of_a_recreated_hub_are_dropped(emulator: Emulator, remembering: HubWatcher) -> None:
    emulator.delete_hub(HUB)
    emulator.add_hub(HUB, 2)
    emulator.append(HUB, 0, [b"x"] * 5)
    remembering.refresh()
    emulator.append(HUB, 0, [b"longer" * 100] * 10)
    assert remembering.offsets({"0": 9}, LEVEL) == {"0": sent(emulator, "0")[9]}
