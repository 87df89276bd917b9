"""Reading a geo-replicated hub: positions are kept by offset, and a promotion that has lost events is noticed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import DataLossError
from spark_ehbalance.hub import resolve
from spark_ehbalance.source.offsets import HubReference, StreamOffset
from spark_ehbalance.source.options import Options
from spark_ehbalance.source.range_reader import Batches, read_range
from spark_ehbalance.source.ranges import Range
from spark_ehbalance.values.position import names_event
from tests.source.queries import Group, Query
from tests.source.support import HUB, CountedReceivers
from tests.waiting import wait_until

PARTITIONS = 2

#: Events of each partition before and after which a promotion begins.
SENT, LOST = 10, 3


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(geo_replicated=True) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes late from a hub in this process."""
    monkeypatch.setattr(resolve, "QUIET", 0.3)


class Reader:
    """Runs the batches of queries of one group and keeps the bodies of what was `sent` to each partition and read."""

    def __init__(self, group: Group, *, shared: bool = True, **more: object) -> None:
        self.group = group
        self.shared = shared
        self.options: Options = group.options(shared=shared, **more)
        self.worker = CountedReceivers()
        self.bodies: Counter[bytes] = Counter()
        self.sent: set[bytes] = set()
        self._more = more

    def send(self, label: str, count: int = SENT) -> None:
        self.sent |= send(self.group.emulator, label, count)

    def query(self, before: Query | None = None, owner: str = "a") -> Query:
        """A query, or the next process of one that has been there before."""
        if before is None:
            return self.group.query(owner, shared=self.shared, **self._more)
        unfinished = None if before.logged == before.finished else before.logged
        return self.group.query(owner, before.finished, unfinished, shared=self.shared, **self._more)

    def run(self, query: Query, then: Callable[[], object] | None = None, limit: int | None = None) -> list[Range]:
        """Plan and read one batch; `then` is done between that, or else when the first rows have come."""
        return self.read(query, query.batch(limit), then)

    def read(self, query: Query, end: object, then: Callable[[], object] | None = None) -> list[Range]:
        ranges = query.run(end)  # type: ignore[arg-type]
        for each in ranges:
            owner, level = (query.owner, each.epoch) if self.shared else (None, None)
            for rows in read_range(
                self.options, each, owner, level, receivers=self.worker, batches=Batches(frozenset({"body"}), 2)
            ):
                self.bodies.update(rows["body"].to_pylist())
                if then is not None:
                    then()
                    then = None
        return ranges

    def first(self) -> Query:
        """A query that has read the first events."""
        self.send("first")
        query = self.query()
        self.run(query)
        return query

    def drain(self, query: Query) -> None:
        """Run batches until all that was sent was read and there is nothing more."""

        def done() -> bool:
            end = query.plan()
            if end is not None:
                self.read(query, end)
            return end is None and self.sent <= self.bodies.keys()

        wait_until(done, "everything was read", 20)

    def assert_once(self) -> None:
        assert self.bodies == Counter(self.sent)

    def close(self) -> None:
        self.worker.close()


@pytest.fixture
def group(emulator: Emulator, tmp_path: Path) -> Iterator[Group]:
    made = Group(emulator, tmp_path, PARTITIONS)
    yield made
    made.close()


@pytest.fixture
def reader(group: Group) -> Iterator[Callable[..., Reader]]:
    made: list[Reader] = []

    def make(**more: object) -> Reader:
        made.append(Reader(group, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


def send(emulator: Emulator, label: str, count: int, partitions: int = PARTITIONS) -> set[bytes]:
    """Events with bodies of their own in each partition."""
    sent = {str(p): [f"{label} {p} {number}".encode() for number in range(count)] for p in range(partitions)}
    for partition, bodies in sent.items():
        emulator.append(HUB, partition, bodies)
    return {body for bodies in sent.values() for body in bodies}


def kill(query: Query, reader: Reader) -> None:
    """End the query's process, after what was finished is in the table, and its workers."""
    if reader.shared:
        query.tell()
    query.stop()
    reader.worker.close()
    reader.worker.opened.clear()


WAYS = pytest.mark.parametrize("shared", [True, False], ids=["shared", "alone"])


# --- resuming by offset ----------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("limit", [None, 7], ids=["all", "some"])
def test_a_restarted_query_goes_on_at_the_offset_of_its_last_event(
    emulator: Emulator, reader: Callable[..., Reader], *, shared: bool, limit: int | None
) -> None:
    """Also where that was never the newest one of its partition."""
    reads = reader(shared=shared)
    reads.send("first")
    query = reads.query()
    ranges = reads.run(query, limit=limit)
    assert all(names_event(each.end_offset) for each in ranges)
    kill(query, reads)
    reads.send("second")
    reads.drain(reads.query(query))
    reads.assert_once()
    assert sorted(map(str, reads.worker.opened)) == sorted(str(each.end_offset) for each in ranges)


def test_the_next_owner_goes_on_at_the_offset(emulator: Emulator, group: Group, reader: Callable[..., Reader]) -> None:
    reads = reader()
    one = reads.first()
    two = reads.query(owner="b")
    wait_until(lambda: (one.step() and False) or {len(one.owned()), len(two.owned())} == {1}, "each has a partition")
    reads.worker.opened.clear()
    reads.send("second")
    reads.run(two)
    reads.drain(one)
    reads.assert_once()
    assert any(names_event(str(each)) for each in reads.worker.opened)
    assert all(names_event(lease.checkpoint.offset) for lease in group.leases().values() if lease.checkpoint)


@pytest.mark.parametrize("fails", [True, False])
def test_a_broken_connection_is_taken_up_at_the_last_offset(
    emulator: Emulator, reader: Callable[..., Reader], *, fails: bool
) -> None:
    reads = reader(failOnDataLoss=fails, prefetch=2)
    reads.send("first")
    reads.run(reads.query(), lambda: emulator.drop_connections(HUB))
    reads.assert_once()
    assert any(names_event(str(each)) for each in reads.worker.opened)


def test_a_position_set_by_number_is_read_from_there(
    emulator: Emulator, group: Group, reader: Callable[..., Reader]
) -> None:
    reads = reader(startingPosition="4")
    reads.first()
    assert reads.worker.opened == [4, 4]
    assert reads.bodies.keys() == {each for each in reads.sent if int(each[-1:]) >= 4}


@WAYS
def test_an_aged_out_event_needs_no_check(emulator: Emulator, reader: Callable[..., Reader], *, shared: bool) -> None:
    reads = reader(shared=shared)
    query = reads.first()
    kill(query, reads)
    reads.send("second")
    for partition in range(PARTITIONS):
        emulator.trim(HUB, partition, SENT)
    reads.drain(reads.query(query))
    reads.assert_once()


@WAYS
def test_in_a_compacted_hub_the_last_event_before_counts(
    emulator: Emulator, reader: Callable[..., Reader], *, shared: bool
) -> None:
    reads = reader(shared=shared, receiverTimeout="1s")
    reads.send("first")
    for partition in range(PARTITIONS):
        emulator.compact(HUB, partition, 4, 8)
    reads.sent = {each for each in reads.sent if not 4 <= int(each[-1:]) < 8}
    query = reads.query()
    assert {(each.start, each.end) for each in reads.run(query, limit=6 * PARTITIONS)} == {(0, 6)}
    kill(query, reads)
    reads.drain(reads.query(query))
    reads.assert_once()


# --- promotions ------------------------------------------------------------------------------------------------


@WAYS
def test_a_promotion_without_loss_is_no_error_and_repeats_nothing(
    emulator: Emulator, reader: Callable[..., Reader], *, shared: bool
) -> None:
    reads = reader(shared=shared)
    query = reads.first()
    emulator.promote(HUB)
    reads.send("second")
    reads.run(query, lambda: emulator.promote(HUB))
    kill(query, reads)
    emulator.promote(HUB)
    reads.send("third")
    reads.drain(reads.query(query))
    reads.assert_once()


#: New events after a promotion that lost LOST: the hub's last number is below, at and beyond that of the last event
#: read.
NEW = pytest.mark.parametrize("new", [0, 1, LOST, LOST + 5])


@WAYS
@NEW
@pytest.mark.parametrize("running", [True, False])
def test_events_read_and_lost_are_an_error_that_names_them(
    emulator: Emulator, reader: Callable[..., Reader], *, shared: bool, new: int, running: bool
) -> None:
    reads = reader(shared=shared)
    send(emulator, "first", SENT - 1)
    query = reads.query()
    reads.run(query)
    send(emulator, "last", 1)
    reads.run(query)
    if not running:
        kill(query, reads)
    emulator.promote(HUB, LOST)
    send(emulator, "second", new)
    query = query if running else reads.query(query)
    with pytest.raises(DataLossError) as loss:
        reads.run(query)
    text = str(loss.value)
    assert f"events {SENT - LOST} to {SENT - 1} were read and are gone" in text
    assert "partition 0" in text
    assert "failOnDataLoss=false" in text
    assert "partition 1" in text, "all at once"


@pytest.mark.parametrize(
    ("lost_offsets", "shared"), [("resume", True), ("resume", False), ("refuse", True), ("number", False)]
)
@NEW
def test_without_fail_on_data_loss_all_that_there_is_then_is_read(
    emulator: Emulator,
    reader: Callable[..., Reader],
    caplog: pytest.LogCaptureFixture,
    *,
    shared: bool,
    new: int,
    lost_offsets: str,
) -> None:
    """Whatever the service does with the offset of a lost event."""
    reads = reader(shared=shared, failOnDataLoss=False)
    query = reads.first()
    kill(query, reads)
    emulator.promote(HUB, LOST, lost_offsets=lost_offsets)
    reads.send("second", new)
    query = reads.query(query)
    if lost_offsets == "number" and 0 < new < LOST:
        assert query.plan() is None, "it cannot be told from a hub that has got no event since"
    else:
        reads.drain(query)
    reads.send("third", 1)  # the first one after the promotion, if there is no other
    before = reads.bodies.copy()
    reads.drain(query)
    assert (reads.bodies - before).keys() == {b"third 0 0", b"third 1 0"} or lost_offsets != "resume"
    warnings = [each.message for each in caplog.records if "because failOnDataLoss=false" in each.message]
    assert {each.split(":")[0] for each in warnings} == {"partition 0", "partition 1"}
    if lost_offsets == "resume":
        assert all(f"events {SENT - LOST} to {SENT - 1}" in each for each in warnings)
        assert all(reads.bodies[each] == 1 for each in reads.sent if each.startswith(b"first"))


@WAYS
@pytest.mark.parametrize("when", ["planned", "reading"])
@pytest.mark.parametrize("lost", [LOST, SENT + LOST], ids=["of the batch", "before it"])
def test_a_promotion_while_a_batch_runs(
    emulator: Emulator, reader: Callable[..., Reader], *, shared: bool, when: str, lost: int
) -> None:
    reads = reader(shared=shared, failOnDataLoss=False, prefetch=2, receiverTimeout="2s")
    reads.send("first", 2 * SENT)
    query = reads.query()
    reads.run(query)
    send(emulator, "lost or not", SENT)
    end = query.batch()

    def promote() -> None:
        emulator.promote(HUB, lost)
        reads.send("second")

    if when == "planned":
        promote()
        reads.read(query, end)
    else:
        reads.read(query, end, promote)
    reads.drain(query)


@pytest.mark.parametrize("fails", [True, False])
def test_a_worker_notices_that_the_event_before_its_range_is_gone(
    emulator: Emulator, group: Group, *, fails: bool
) -> None:
    send(emulator, "first", SENT)
    wanted = Range("0", 0, SENT, SENT + 5, start_offset=emulator.partition_state(HUB, 0).last_offset)
    emulator.promote(HUB, LOST)
    second = send(emulator, "second", LOST + 5, partitions=1)
    rows = read_range(group.options(shared=False, failOnDataLoss=fails), wanted, None, None)
    if fails:
        gone = f"partition 0: events {SENT - LOST} to {SENT - 1} were read and are gone.*up to {SENT + 4} were planned"
        with pytest.raises(DataLossError, match=gone):
            list(rows)
    else:
        assert {body for batch in rows for body in batch["body"].to_pylist()} == second


@WAYS
@pytest.mark.parametrize("fails", [True, False])
def test_a_logged_batch_is_run_again_after_a_promotion(
    emulator: Emulator, reader: Callable[..., Reader], *, shared: bool, fails: bool
) -> None:
    reads = reader(shared=shared, failOnDataLoss=fails, receiverTimeout="2s")
    query = reads.first()
    send(emulator, "second", SENT)
    query.batch()
    kill(query, reads)
    emulator.promote(HUB, SENT + LOST)
    reads.send("third", 2)
    again = reads.query(query)
    if fails:
        with pytest.raises(DataLossError, match=r"partition 0: .* partition 1: "):
            again.planner.ranges(query.logged)
        return
    assert reads.read(again, query.logged) == []
    reads.drain(again)


def test_the_next_owner_notices_a_promotion(
    emulator: Emulator, reader: Callable[..., Reader], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    reads = reader(failOnDataLoss=False)
    kill(reads.first(), reads)
    emulator.promote(HUB, LOST)
    reads.send("second", LOST + 5)
    reads.drain(reads.query(owner="b"))
    assert f"events {SENT - LOST} to {SENT - 1} were read and are gone" in caplog.text


def test_a_hub_that_is_not_replicated_any_more_goes_on_by_number(tmp_path: Path) -> None:
    with Emulator() as emulator:
        group = Group(emulator, tmp_path, PARTITIONS)
        sent = send(emulator, "first", SENT)
        ranges = {str(p): Range(str(p), 0, 0, 4, end_offset=f"1:4711:{p}") for p in range(PARTITIONS)}
        reads = Reader(group, shared=False)
        query = group.query(finished=StreamOffset("a", ranges, hub=HubReference(HUB)), shared=False)
        reads.run(query)
        assert reads.bodies == Counter(each for each in sent if int(each[-1:]) >= 4)
        reads.close()
        group.close()
