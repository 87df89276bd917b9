"""Reading exact ranges in an executor's worker despite faults of the connection, the lease and the hub."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
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
from spark_ehbalance.eventhub import service_errors
from spark_ehbalance.eventhub.network import NetworkError
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.eventhub.receiver import Receiver
from spark_ehbalance.eventhub.rows import sequence_numbers
from spark_ehbalance.group.commands import Seek
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.query import range_reader
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.range_reader import BatchFormat, RangeEnd, read_range
from tests.proxy import HttpProxy
from tests.query.support import HUB, SOON, CountedReceivers, HeldLease, hub_options
from tests.raising import raises
from tests.waiting import wait_until

EVENTS = 5000

#: Rows per record batch: few enough that events are left to read after the first batch.
ROWS = 300


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the waits after "server busy"."""
    monkeypatch.setattr(service_errors, "_BUSY_WAIT", 0.2)


@pytest.fixture(autouse=True)
def hub(emulator: Emulator) -> None:
    """Partition 0 has events whose bodies are their sequence numbers."""
    emulator.add_hub(HUB, 2)
    emulator.append(HUB, 0, [b"%d" % n for n in range(EVENTS)])


WORKER = CountedReceivers()


@pytest.fixture(autouse=True)
def opened() -> Iterator[list[int]]:
    """The positions at which receivers were opened; all receivers are closed after the test."""
    yield WORKER.opened
    WORKER.close()
    WORKER.opened.clear()


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
    """The sequence numbers read until the range ends with `ends`; `then` is called after the first batch."""
    got: list[int] = []
    wanted = OffsetRange("0", epoch, start, end, since_ms)

    def reading() -> Iterator[pa.RecordBatch]:
        end = yield from read_range(options, wanted, owner, level, receivers=WORKER, batches=BatchFormat(max_rows=ROWS))
        assert end is ends

    for batch in reading():
        found = sequence_numbers(batch).to_pylist()
        assert 0 < len(found) <= ROWS
        assert batch["body"].to_pylist() == [b"%d" % number for number in found]
        got += found
        if then is not None:
            then()
            then = None
    return got


# --- without faults --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), [(0, EVENTS), (17, 18), (EVENTS - 1, EVENTS), (5, 5)])
def test_exactly_the_range_is_read(emulator: Emulator, start: int, end: int, opened: list[int]) -> None:
    for prefetch in (1, 10_000):
        assert read(hub_options(emulator, prefetch=prefetch), start, end) == list(range(start, end))
    assert opened == [start] * 2 * (start < end)


def test_consecutive_ranges_share_a_receiver(emulator: Emulator, opened: list[int]) -> None:
    options = hub_options(emulator)
    for start in range(0, 3000, 300):
        assert read(options, start, start + 300, level=3) == list(range(start, start + 300))
    assert opened == [0]
    assert emulator.readers(HUB, 0) == [3]
    read(options, 4000, 4300, level=3)
    read(options, 4300, 4600, level=4)
    assert opened == [0, 4000, 4300], "elsewhere, and in a new epoch"
    wait_until(lambda: emulator.readers(HUB, 0) == [4], "the earlier ones are gone")


def test_no_receiver_stays_open_without_an_owner_level(emulator: Emulator, opened: list[int]) -> None:
    for start in range(0, 900, 300):
        assert read(hub_options(emulator), start, start + 300) == list(range(start, start + 300))
        wait_until(lambda: emulator.connections() == 0, "its connection is closed", SOON)
    assert opened == [0, 300, 600]


def test_range_closed_early_can_be_read_again(emulator: Emulator) -> None:
    options, wanted = hub_options(emulator), OffsetRange("0", 3, 0, EVENTS)
    begun = read_range(options, wanted, None, 3, receivers=WORKER, batches=BatchFormat(max_rows=ROWS))
    next(begun)
    begun.close()
    wait_until(lambda: emulator.readers(HUB, 0) == [], "its receiver is closed", SOON)
    assert read(options, 0, EVENTS, level=3) == list(range(EVENTS))


# --- faults ----------------------------------------------------------------------------------------------------


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
    "refused connections": refused,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_neither_lose_nor_repeat_events(emulator: Emulator, fault: str) -> None:
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


def test_gap_is_detected_again_if_its_lookup_fails(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.compact(HUB, 0, 0, 5)
    receive, away = Receiver.receive, [refused]

    def receive_and_lose(self: Receiver, *args: Any) -> pa.RecordBatch:
        batch = receive(self, *args)
        if batch.num_rows and away:
            away.pop()(emulator)
        return batch

    monkeypatch.setattr(Receiver, "receive", receive_and_lose)
    assert read(hub_options(emulator, compacted=True), 0, 1000, level=3) == list(range(5, 1000))


def test_gap_is_an_error_unless_the_hub_is_compacted(emulator: Emulator, opened: list[int]) -> None:
    emulator.compact(HUB, 0, 100, 105)
    reason = re.compile("but event 0 is retained.*set compacted=true")
    with raises(DataLossError, "EHB_EVENTS_LOST", partition="0", position=100, reason=reason):
        read(hub_options(emulator), 0, 200)
    assert opened == [0, 100], "once more from the gap"
    assert read(hub_options(emulator, failOnDataLoss=False), 0, 200) == [*range(100), *range(105, 200)]


def silent(reason: str) -> AbstractContextManager[object]:
    return raises(HubUnavailableError, "EHB_PARTITION_SILENT", partition="0", reason=re.compile(reason))


def test_silence_for_the_receiver_timeout_fails_the_batch(emulator: Emulator) -> None:
    options = hub_options(emulator, receiverTimeout="1 s", prefetch=100)
    reason = re.compile(r"at sequence number \d+ in the range 100 to 2999$")
    with raises(HubUnavailableError, "EHB_PARTITION_SILENT", partition="0", timeout=1.0, reason=reason):
        read(options, 100, 3000, then=lambda: emulator.pause(HUB, 0))
    emulator.resume(HUB, 0)
    assert read(options, 100, 3000) == list(range(100, 3000))


def test_unreachable_hub_fails_the_batch_after_the_receiver_timeout(emulator: Emulator) -> None:
    emulator.refuse_connections()
    with silent("no connection"):
        read(hub_options(emulator, receiverTimeout="1 s"), 0, 10)


def test_invalid_option_fails_the_batch_immediately() -> None:
    with Emulator({HUB: 1}, tls=True, websocket_port=0) as secure, HttpProxy({}) as closed:
        options = hub_options(secure, httpProxy=f"http://localhost:{closed.port}", caFile=secure.ca_file)
        target, problem = re.compile("^partition 0 of "), re.compile(r"the proxy .* \(status 403\); check httpProxy")
        with raises(NetworkError, "EHB_NETWORK_INVALID", target=target, problem=problem):
            read(options, 0, 10)
        assert closed.refused == 1


def test_receiver_timeout_excludes_the_time_of_a_slow_sink(emulator: Emulator) -> None:
    begun = time.monotonic()
    read(hub_options(emulator), 0, 500, then=emulator.drop_connections)
    timeout = max(0.5, 3 * (time.monotonic() - begun))  # a busy machine needs more time

    def slow() -> None:
        emulator.drop_connections()
        time.sleep(1.2 * timeout)

    assert read(hub_options(emulator, receiverTimeout=f"{timeout:.3f} s"), 0, 500, then=slow) == list(range(500))


# --- leases and other readers ----------------------------------------------------------------------------------


class LeasedPartition(HeldLease):
    """A held lease and the tasks that read its partition."""

    def __init__(self, emulator: Emulator, path: Path, rival: Callable[..., Receiver]) -> None:
        super().__init__(emulator, path, epoch=5)
        self.emulator, self.rival = emulator, rival

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

    def silent_after(self, then: Callable[[], object] = lambda: None, since_ms: int = 0) -> list[int]:
        """The sequence numbers read until delivery stops after the first batch; `then` is called at that moment."""

        def fall_silent() -> None:
            self.emulator.pause(HUB, 0)
            then()

        return self.read(since_ms=since_ms, then=fall_silent, ends=RangeEnd.STALLED, receiverTimeout="1 s")

    def take(self, owner: str = "other") -> None:
        """Let another member, or the query's next process, claim the lease and read."""
        self.claim(owner)
        self.rival(6)

    def seek(self) -> None:
        seek = Seek(by=Author("operator", ""), at_ms=0, partition="0", position=Position(7), force=True)
        assert commit(self.table, self.table.read(), [seek]).accepted
        self.rival(6).close()  # as a seek to a time does

    def away(self) -> None:
        """Make the lease table unreachable."""
        self.table.close()
        self.path.rename(self.path.with_name("away"))


@pytest.fixture
def partition(emulator: Emulator, tmp_path: Path, rival: Callable[..., Receiver]) -> LeasedPartition:
    return LeasedPartition(emulator, tmp_path / "leases", rival)


def test_lost_lease_ends_the_range_early_without_an_error(partition: LeasedPartition) -> None:
    got = partition.read(then=partition.take, ends=RangeEnd.LEASE_LOST)
    assert 0 < len(got) < EVENTS
    assert got == list(range(len(got)))
    assert partition.read(ends=RangeEnd.LEASE_LOST) == [], "another attempt"


#: Incidents while a range is read that neither end it nor fail its batch.
HARMLESS: Mapping[str, Callable[[LeasedPartition], object]] = {
    "the lease is lost, and the new owner does not read yet": HeldLease.claim,
    "a seek": LeasedPartition.seek,
    "another attempt of the task, or another worker's kept receiver": lambda partition: partition.rival(5),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_range_is_read_completely_despite_harmless_incidents(partition: LeasedPartition, what: str) -> None:
    assert partition.read(since_ms=9, then=lambda: HARMLESS[what](partition)) == list(range(EVENTS))


@pytest.mark.parametrize("silent", [False, True])
def test_later_process_of_the_query_fails_the_batch_instead_of_ending_it_early(
    partition: LeasedPartition, silent: bool
) -> None:
    """The later process reruns the batch; a sink that accepted the truncated batch as complete would skip it."""
    read, take = (partition.silent_after, partition.claim) if silent else (partition.read, partition.take)
    with raises(FencedError, "EHB_FENCED", owner="me"):
        read(since_ms=9, then=lambda: take("me"))
    assert partition.lease.stall_count == 0


@pytest.mark.parametrize("while_reading", [True, False])
def test_reader_outside_the_group_fails_the_batch(
    partition: LeasedPartition, while_reading: bool, monkeypatch: pytest.MonkeyPatch, opened: list[int]
) -> None:
    monkeypatch.setattr(range_reader, "_DEAD_READER", 1.0)
    if not while_reading:
        partition.rival(77)
    with raises(ForeignReaderError, "EHB_FOREIGN_READER", partition="0", level=77, own_level=5):
        partition.read(then=(lambda: partition.rival(77)) if while_reading else None)
    assert len(opened) > 2, "it has waited for the other one to go"
    assert partition.lease.owner == "me"


def test_reader_without_level_waits_for_the_former_owners_kept_receiver(
    partition: LeasedPartition, opened: list[int]
) -> None:
    former = partition.rival(4)
    with raises(ForeignReaderError, "EHB_FOREIGN_READER", level=4, own_level=5):
        partition.read(100, level=None, minPartitions=2, receiverTimeout="2 s")
    opened.clear()
    leaving = threading.Thread(target=lambda: (wait_until(lambda: len(opened) > 1, "it tries again"), former.close()))
    leaving.start()
    assert partition.read(500, level=None, minPartitions=2) == list(range(500))
    leaving.join()


def test_disconnect_while_the_table_is_unreachable_fails_the_batch(partition: LeasedPartition) -> None:
    partition.away()
    partition.rival(77)
    with pytest.raises(StoreUnavailableError):
        partition.read(100, receiverTimeout="1 s")


def test_disconnected_reader_waits_for_an_unreachable_table(
    partition: LeasedPartition, caplog: pytest.LogCaptureFixture
) -> None:
    def take() -> None:
        partition.take()
        partition.away()

    def return_table() -> None:
        wait_until(lambda: "waiting for the lease table" in caplog.text, "the reader has tried")
        partition.path.with_name("away").rename(partition.path)

    returning = threading.Thread(target=return_table)
    returning.start()
    partition.read(then=take, ends=RangeEnd.LEASE_LOST)
    returning.join()


# --- silent partitions -------------------------------------------------------------------------------------------


def test_silent_partition_releases_its_lease_and_ends_the_range(
    partition: LeasedPartition, caplog: pytest.LogCaptureFixture
) -> None:
    got = partition.silent_after()
    assert got == list(range(len(got)))
    assert 0 < len(got) < EVENTS
    released = partition.lease
    assert (released.owner, released.epoch, released.stall_count) == (None, 6, 1)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    for text in ("partition 0: stalled", f"at sequence number {len(got)} in the range ", "docs/operations.md"):
        assert text in warning
    (recorded,) = partition.table.history()
    assert (recorded.event, recorded.owner_before, recorded.owner, recorded.by) == ("Stall", "me", None, "me")
    assert partition.read(ends=RangeEnd.LEASE_LOST, receiverTimeout="1 s") == [], "another attempt"
    assert partition.lease.stall_count == 1, "it counts once"


def test_already_released_lease_is_marked_as_stalled_too(partition: LeasedPartition) -> None:
    """Otherwise, the checkpoint of its batch would be accepted."""
    partition.silent_after(partition.release)
    assert (partition.lease.owner, partition.lease.epoch, partition.lease.stall_count) == (None, 6, 1)


def test_silent_partition_fails_the_batch_if_the_table_is_not_writable(partition: LeasedPartition) -> None:
    with silent("at sequence number"):
        partition.silent_after(partition.away)


def test_silent_partition_fails_the_batch_if_the_whole_hub_is_unreachable(partition: LeasedPartition) -> None:
    def away() -> None:
        partition.emulator.refuse_connections()
        partition.emulator.drop_connections()

    with silent("no connection"):
        partition.read(then=away, receiverTimeout="1 s")
    assert (partition.lease.owner, partition.lease.stall_count) == ("me", 0)


def test_stall_is_not_recorded_in_a_store_without_epochs(emulator: Emulator) -> None:
    options = hub_options(
        emulator,
        receiverTimeout="1 s",
        leaseTable="https://account.blob.core.windows.net/container",
        strategy="balanced",
        **{"storageSecrets.account_key": "a2V5"},
    )
    emulator.pause(HUB, 0)
    with silent("no event"):
        read(options, 0, 10, owner="me", level=0)


# --- lost events -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trimmed", [50, EVENTS])
def test_events_aged_out_after_planning_are_a_loss_or_omitted(
    emulator: Emulator, trimmed: int, caplog: pytest.LogCaptureFixture
) -> None:
    emulator.trim(HUB, 0, trimmed)
    reason = re.compile(f"aged out .*{trimmed}")
    with raises(DataLossError, "EHB_EVENTS_LOST", partition="0", position=0, reason=reason):
        read(hub_options(emulator, receiverTimeout="0.5 s"), 0, 200)
    left = list(range(trimmed, 200))
    assert read(hub_options(emulator, receiverTimeout="0.5 s", failOnDataLoss=False), 0, 200) == left
    assert reason.search(caplog.text)
    assert f"partition=0 from=0 to={min(trimmed, 200) - 1}" in caplog.text


def test_hub_recreated_after_planning_is_a_loss(emulator: Emulator) -> None:
    """The new hub has 50 events. While only its last events are late, this is not a loss."""
    emulator.delete_hub(HUB)
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [b"%d" % n for n in range(50)])
    with raises(DataLossError, "EHB_EVENTS_LOST", partition="0", reason=re.compile("recreated")):
        read(hub_options(emulator, receiverTimeout="1 s"), 10, 200)
    options = hub_options(emulator, receiverTimeout="1 s", failOnDataLoss=False)
    assert read(options, 10, 200) == list(range(10, 50))
    emulator.delay(60, HUB, 0)
    with silent("at sequence number 10 "):
        read(options, 10, 200)
