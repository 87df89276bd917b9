"""Reading exact ranges in an executor's worker, whatever happens to the connection, the lease and the hub meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import (
    DataLossError,
    FencedError,
    ForeignReaderError,
    HubUnavailableError,
    StoreUnavailableError,
)
from spark_ehbalance.eventhub import conditions
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.eventhub.receiver import Receiver
from spark_ehbalance.eventhub.rows import sequence_numbers
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.orders import Seek
from spark_ehbalance.group.position import Position
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.delta import DeltaStore
from spark_ehbalance.query import range_reader
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.range_reader import Batches, RangeEnd, read_range
from tests.query.support import HUB, SOON, CountedReceivers, HeldLease, hub_options
from tests.waiting import wait_until

EVENTS = 5000

#: Rows of a record batch: so few that there is still something to read after the first one.
ROWS = 300


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a busy server."""
    monkeypatch.setattr(conditions, "_BUSY_WAIT", 0.2)


@pytest.fixture(autouse=True)
def hub(emulator: Emulator) -> None:
    """Partition 0 with events whose bodies are their numbers."""
    emulator.add_hub(HUB, 2)
    emulator.append(HUB, 0, [b"%d" % n for n in range(EVENTS)])


WORKER = CountedReceivers()


@pytest.fixture(autouse=True)
def opened() -> Iterator[list[int]]:
    """Where receivers were opened. Afterwards all are closed."""
    yield WORKER.opened
    WORKER.close()
    WORKER.opened.clear()


def ending(reading: Generator[pa.RecordBatch, None, RangeEnd], expected: RangeEnd) -> Iterator[pa.RecordBatch]:
    """What `reading` yields until it ends as `expected`."""
    assert (yield from reading) is expected


def read(
    options: Options,
    start: int,
    end: int,
    *,
    epoch: int = 0,
    owner: str | None = None,
    level: int | None = None,
    since_ms: int = 0,
    then: Callable[[], object] | None = None,
    ends: RangeEnd = RangeEnd.COMPLETE,
) -> list[int]:
    """The sequence numbers that are read until the range ends as `ends` says; `then` is done when the first ones have
    come."""
    got: list[int] = []
    wanted = Range("0", epoch, start, end, since_ms)
    reading = read_range(options, wanted, owner, level, receivers=WORKER, batches=Batches(max_rows=ROWS))
    for batch in ending(reading, ends):
        found = sequence_numbers(batch).to_pylist()
        assert 0 < len(found) <= ROWS
        assert batch["body"].to_pylist() == [b"%d" % number for number in found]
        got += found
        if then is not None:
            then()
            then = None
    return got


# --- all is well -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), [(0, EVENTS), (17, 18), (EVENTS - 1, EVENTS)])
@pytest.mark.parametrize("prefetch", [1, 10_000])
def test_exactly_the_range(emulator: Emulator, start: int, end: int, prefetch: int) -> None:
    assert read(hub_options(emulator, prefetch=prefetch), start, end) == list(range(start, end))


def test_an_empty_range_opens_no_connection(emulator: Emulator) -> None:
    assert read(hub_options(emulator), 5, 5) == []
    assert emulator.readers(HUB, 0) == []


def test_consecutive_ranges_are_read_by_the_same_receiver(emulator: Emulator, opened: list[int]) -> None:
    options = hub_options(emulator)
    for start in range(0, 3000, 300):
        assert read(options, start, start + 300, level=3) == list(range(start, start + 300))
    assert opened == [0]
    assert emulator.readers(HUB, 0) == [3]


def test_without_owner_level_no_receiver_stays_open(emulator: Emulator, opened: list[int]) -> None:
    options = hub_options(emulator)
    for start in range(0, 900, 300):
        assert read(options, start, start + 300) == list(range(start, start + 300))
        wait_until(lambda: emulator.connections() == 0, "its connection is closed", SOON)
    assert opened == [0, 300, 600]


def test_the_hub_sends_nothing_beyond_the_range(emulator: Emulator) -> None:
    options = hub_options(emulator, prefetch=1000, failOnDataLoss=False)
    assert read(options, 0, 10, level=3) == list(range(10))
    emulator.trim(HUB, 0, 500)
    assert read(options, 10, 600, level=3) == list(range(500, 600)), "the events that are gone now were not sent before"
    assert WORKER.opened == [0, 10], "again from the gap, to make sure"


def test_a_range_elsewhere_and_a_new_epoch_get_a_new_receiver(emulator: Emulator, opened: list[int]) -> None:
    options = hub_options(emulator)
    read(options, 0, 300, level=3)
    read(options, 1000, 1300, level=3)
    read(options, 1300, 1600, level=4)
    assert opened == [0, 1000, 1300]
    wait_until(lambda: emulator.readers(HUB, 0) == [4], "the earlier ones are gone")


def test_a_task_that_was_cut_short_is_run_again(emulator: Emulator) -> None:
    options = hub_options(emulator)
    task = read_range(options, Range("0", 0, 0, 3000), None, 3, receivers=WORKER, batches=Batches(max_rows=ROWS))
    next(task)
    task.close()
    wait_until(lambda: emulator.connections() == 0, "its connection is closed", SOON)
    assert read(options, 0, 3000) == list(range(3000))


# --- faults ----------------------------------------------------------------------------------------------------


def paused(emulator: Emulator) -> None:
    emulator.pause(HUB, 0)
    threading.Timer(0.5, emulator.resume, (HUB, 0)).start()


def refused(emulator: Emulator) -> None:
    emulator.refuse_connections()
    emulator.drop_connections()
    threading.Timer(0.5, emulator.refuse_connections, (False,)).start()


FAULTS: Mapping[str, Callable[[Emulator], object]] = {
    "drop": lambda emulator: emulator.drop_connections(),
    "detach-forced": lambda emulator: emulator.detach(HUB, 0),
    "entity-updated": lambda emulator: emulator.detach(HUB, 0, "com.microsoft:entity-updated", "Entity was updated."),
    "server-busy": lambda emulator: emulator.server_busy(count=3),
    "delay": lambda emulator: emulator.delay(0.05, HUB, 0),
    "pause and resume": paused,
    "refused connections": refused,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_neither_loses_nor_repeats_events(emulator: Emulator, fault: str) -> None:
    options = hub_options(emulator, prefetch=200)
    assert read(options, 10, 3000, level=3, then=lambda: FAULTS[fault](emulator)) == list(range(10, 3000))


def test_gaps_are_normal_in_a_compacted_hub(
    emulator: Emulator, opened: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    options = hub_options(emulator, prefetch=200, compacted=True)
    gone = {100, *range(500, 800), *range(1500, 2500, 7), 2999}
    for number in sorted(gone):
        emulator.compact(HUB, 0, number, number + 1)
    for start in (0, 2000):
        left = [number for number in range(start, start + 2000) if number not in gone]
        assert read(options, start, start + 2000, level=3) == left
    assert opened in ([0], [0, 2000])
    assert "do not exist" not in caplog.text


def test_a_gap_is_found_again_if_the_hub_is_away_when_it_is_asked(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator.compact(HUB, 0, 0, 5)
    receive, away = Receiver.receive, [refused]

    def receive_and_lose(self: Receiver, *args: Any) -> pa.RecordBatch:
        batch = receive(self, *args)
        if batch.num_rows and away:
            away.pop()(emulator)
        return batch

    monkeypatch.setattr(Receiver, "receive", receive_and_lose)
    assert read(hub_options(emulator, compacted=True), 0, 1000, level=3) == list(range(5, 1000))
    assert not away


def test_a_gap_is_an_error_in_any_other_hub(emulator: Emulator, opened: list[int]) -> None:
    emulator.compact(HUB, 0, 100, 105)
    with pytest.raises(DataLossError, match=r"100 to 104 .*although 0 is retained.*set compacted=true.*failOnDataLoss"):
        read(hub_options(emulator), 0, 200)
    assert opened == [0, 100], "once more from the gap"
    assert read(hub_options(emulator, failOnDataLoss=False), 0, 200) == [*range(100), *range(105, 200)]


def test_no_event_for_the_receiver_timeout_fails_the_batch(emulator: Emulator) -> None:
    options = hub_options(emulator, receiverTimeout="1 s", prefetch=100)
    with pytest.raises(HubUnavailableError) as caught:
        read(options, 100, 3000, then=lambda: emulator.pause(HUB, 0))
    message = str(caught.value)
    assert "\n" not in message
    for part in ("partition 0", "receiverTimeout=1 s", "100 to 2999", "no event came"):
        assert part in message
    at = int(message.split("now at ")[1].split(".")[0])
    assert 100 < at < 3000
    emulator.resume(HUB, 0)
    assert read(options, 100, 3000) == list(range(100, 3000))


def test_an_unreachable_hub_fails_the_batch_after_the_receiver_timeout(emulator: Emulator) -> None:
    emulator.refuse_connections()
    with pytest.raises(HubUnavailableError, match=r"partition 0: .*receiverTimeout=1 s.*no connection"):
        read(hub_options(emulator, receiverTimeout="1 s"), 0, 10)


def test_the_time_of_a_slow_sink_does_not_count(emulator: Emulator) -> None:
    begun = time.monotonic()
    read(hub_options(emulator), 0, 500, then=emulator.drop_connections)
    timeout = max(0.5, 3 * (time.monotonic() - begun))  # a busy machine needs longer for the same

    def slow() -> None:
        emulator.drop_connections()
        time.sleep(1.2 * timeout)

    assert read(hub_options(emulator, receiverTimeout=f"{timeout:.3f} s"), 0, 500, then=slow) == list(range(500))


# --- leases and other readers ----------------------------------------------------------------------------------


class Held(HeldLease):
    """And how its tasks read."""

    def __init__(self, emulator: Emulator, path: Path) -> None:
        super().__init__(emulator, path, epoch=5)
        self.emulator = emulator

    def read(
        self,
        end: int = EVENTS,
        *,
        level: int | None = 5,
        since_ms: int = 0,
        then: Callable[[], object] | None = None,
        ends: RangeEnd = RangeEnd.COMPLETE,
        **raw: object,
    ) -> list[int]:
        options = hub_options(self.emulator, leaseTable=self.path, prefetch=100, **raw)
        return read(options, 0, end, epoch=5, owner="me", level=level, since_ms=since_ms, then=then, ends=ends)


@pytest.fixture
def held(emulator: Emulator, tmp_path: Path) -> Held:
    return Held(emulator, tmp_path / "leases")


Rival = Callable[..., Receiver]


def test_a_lease_lost_while_reading_ends_the_range_early_without_an_error(held: Held, rival: Rival) -> None:
    def taken_over() -> None:
        held.claim()
        rival(6)

    got = held.read(then=taken_over, ends=RangeEnd.LEASE_LOST)
    assert 0 < len(got) < EVENTS
    assert got == list(range(len(got)))


def test_a_lease_lost_before_reading_is_an_empty_range(held: Held, rival: Rival) -> None:
    held.claim()
    rival(6)
    assert held.read(ends=RangeEnd.LEASE_LOST) == []


def test_a_later_process_of_the_query_fails_the_batch_instead_of_ending_it_early(held: Held, rival: Rival) -> None:
    """That process runs the batch again, and a sink that had this one, cut short, for the whole batch would skip it."""

    def claimed_again() -> None:
        held.claim("me")
        rival(6)

    with pytest.raises(FencedError, match="partition 0: a later process of this query, me, reads it now"):
        held.read(since_ms=9, then=claimed_again)


def test_a_lost_lease_does_not_end_the_range_before_the_new_owner_reads(held: Held) -> None:
    assert held.read(500, then=held.claim) == list(range(500))


def test_a_seek_neither_ends_the_range_nor_fails_the_batch(held: Held, rival: Rival) -> None:
    def sought() -> None:
        seek = Seek(by=Author("operator", ""), at_ms=0, partition="0", position=Position(7), force=True)
        assert commit(held.table, held.table.read(), [seek]).accepted
        rival(6).close()  # such as another seek's, to a time

    assert held.read(since_ms=9, then=sought) == list(range(EVENTS))


@pytest.mark.parametrize("while_reading", [True, False])
def test_a_reader_outside_the_group_fails_the_batch(
    held: Held, rival: Rival, while_reading: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_DEAD_READER", 1.0)
    if not while_reading:
        rival(77)
    with pytest.raises(ForeignReaderError) as caught:
        held.read(then=(lambda: rival(77)) if while_reading else None)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("partition 0", "owner level 77", "holds it with 5", "another consumer group"):
        assert part in message
    assert held.lease.owner == "me"


def test_a_reader_with_a_level_shuts_out_one_without(
    emulator: Emulator, rival: Rival, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_DEAD_READER", 1.0)
    rival(0)
    with pytest.raises(ForeignReaderError, match=r"partition 0: .*owner level 0"):
        read(hub_options(emulator), 0, 100)


def test_without_level_a_kept_receiver_of_the_former_owner_is_waited_for(
    held: Held, rival: Rival, opened: list[int]
) -> None:
    former = rival(4)
    done = threading.Event()

    def leave() -> None:
        wait_until(lambda: len(opened) > 1 or done.is_set(), "the range was refused, and is tried again")
        former.close()

    leaving = threading.Thread(target=leave)
    leaving.start()
    try:
        got = held.read(500, level=None, minPartitions=2)
    finally:
        done.set()
        leaving.join()
    assert got == list(range(500))


def test_without_level_a_lower_level_that_stays_is_an_error(held: Held, rival: Rival, opened: list[int]) -> None:
    rival(4)
    with pytest.raises(ForeignReaderError, match=r"owner level 4, while this query holds it with 5"):
        held.read(100, level=None, minPartitions=2, receiverTimeout="2 s")
    assert len(opened) > 1


def test_a_disconnect_while_the_table_is_away_fails_the_batch(held: Held, rival: Rival) -> None:
    held.table.close()
    held.path.rename(held.path.with_name("away"))
    rival(77)
    with pytest.raises(StoreUnavailableError):
        held.read(100)


def test_the_kept_receiver_of_another_worker_is_taken_over(held: Held, rival: Rival) -> None:
    rival(5)
    assert held.read(500) == list(range(500))


def test_the_same_task_run_twice_at_once_completes_in_one_of_them(held: Held, rival: Rival) -> None:
    assert held.read(then=lambda: rival(5)) == list(range(EVENTS))


# --- a partition that is silent ----------------------------------------------------------------------------------


def silent_after(held: Held, then: Callable[[], object] = lambda: None, **more: Any) -> list[int]:
    """What is read of a partition that stops to deliver after its first events; `then` is done at that moment."""

    def fall_silent() -> None:
        held.emulator.pause(HUB, 0)
        then()

    return held.read(then=fall_silent, ends=RangeEnd.STALLED, receiverTimeout="1 s", **more)


def test_a_silent_partition_releases_its_lease_and_ends_the_range(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    got = silent_after(held)
    assert got == list(range(len(got)))
    assert 0 < len(got) < EVENTS
    released = held.lease
    assert (released.owner, released.epoch, released.stalled) == (None, 6, 1)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    for text in ("partition 0: no event came for receiverTimeout=1 s", f"now at {len(got)}", "docs/operations.md"):
        assert text in warning
    with DeltaStore(str(held.path)) as table:
        (recorded,) = table.history()
    assert (recorded.event, recorded.owner_before, recorded.owner, recorded.by) == ("Stall", "me", None, "me")


def test_another_attempt_at_a_stalled_range_ends_as_for_a_lost_lease(held: Held) -> None:
    silent_after(held)
    assert held.read(ends=RangeEnd.LEASE_LOST, receiverTimeout="1 s") == []
    assert held.lease.stalled == 1, "it counts once"


def test_a_lease_that_was_released_meanwhile_stalls_too(held: Held) -> None:
    """Its batch's checkpoint would be accepted."""
    silent_after(held, held.release)
    assert (held.lease.owner, held.lease.epoch, held.lease.stalled) == (None, 6, 1)


def test_a_later_process_of_the_query_fails_a_silent_batch(held: Held) -> None:
    with pytest.raises(FencedError, match="a later process of this query, me, reads it now"):
        silent_after(held, lambda: held.claim("me"), since_ms=9)
    assert held.lease.stalled == 0


def test_a_silent_partition_fails_the_batch_if_the_table_cannot_be_written(held: Held) -> None:
    held.table.close()
    with pytest.raises(HubUnavailableError, match="now at"):
        silent_after(held, lambda: held.path.rename(held.path.with_name("away")))


def test_a_silent_partition_fails_the_batch_if_the_whole_hub_is_away(held: Held) -> None:
    def away() -> None:
        held.emulator.refuse_connections()
        held.emulator.drop_connections()

    with pytest.raises(HubUnavailableError, match=r"partition 0: no event came.*no connection"):
        held.read(then=away, receiverTimeout="1 s")
    assert (held.lease.owner, held.lease.stalled) == ("me", 0)


def test_a_store_without_epochs_records_no_stall(emulator: Emulator) -> None:
    options = hub_options(
        emulator,
        receiverTimeout="1 s",
        leaseTable="https://account.blob.core.windows.net/container",
        strategy="balanced",
        **{"storageSecrets.account_key": "a2V5"},
    )
    emulator.pause(HUB, 0)
    with pytest.raises(HubUnavailableError, match="no event came"):
        read(options, 0, 10, owner="me", level=0)


# --- events that are gone --------------------------------------------------------------------------------------


@pytest.mark.parametrize("trimmed", [50, 200, EVENTS])
def test_events_aged_out_after_planning_are_loss(emulator: Emulator, trimmed: int) -> None:
    emulator.trim(HUB, 0, trimmed)
    with pytest.raises(DataLossError) as caught:
        read(hub_options(emulator, receiverTimeout="0.5 s"), 0, 200)
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        "partition 0",
        "events 0 to",
        "aged out",
        f"first retained event is {trimmed}",
        "failOnDataLoss=false",
    ):
        assert part in message


@pytest.mark.parametrize("trimmed", [50, 300])
def test_without_fail_on_data_loss_events_that_aged_out_are_left_out(
    emulator: Emulator, caplog: pytest.LogCaptureFixture, trimmed: int
) -> None:
    emulator.trim(HUB, 0, trimmed)
    assert read(hub_options(emulator, failOnDataLoss=False), 0, 200) == list(range(trimmed, 200))
    assert f"events 0 to {min(trimmed, 200) - 1} were planned and now have aged out" in caplog.text


def _make_hub_anew(emulator: Emulator) -> None:
    """Replace the hub by one that has 50 events."""
    emulator.delete_hub(HUB)
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [b"%d" % n for n in range(50)])


def test_a_hub_recreated_after_planning_is_loss(emulator: Emulator) -> None:
    _make_hub_anew(emulator)
    with pytest.raises(DataLossError, match=r"partition 0: .*recreated"):
        read(hub_options(emulator, receiverTimeout="1 s"), 10, 200)
    options = hub_options(emulator, receiverTimeout="1 s", failOnDataLoss=False)
    assert read(options, 10, 200) == list(range(10, 50))


def test_late_events_of_a_recreated_hub_are_not_lost(emulator: Emulator) -> None:
    _make_hub_anew(emulator)
    emulator.delay(60, HUB, 0)
    with pytest.raises(HubUnavailableError, match="now at 10"):
        read(hub_options(emulator, receiverTimeout="1 s", failOnDataLoss=False), 10, 200)
