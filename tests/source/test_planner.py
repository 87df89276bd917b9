"""The planner: several queries that share a hub through a Delta table, restarts, replays, and one query alone."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import (
    DataLossError,
    FencedError,
    HubUnavailableError,
    OptionError,
    StoreFormatError,
    StoreUnavailableError,
)
from spark_ehbalance.hub.watcher import HubWatcher
from spark_ehbalance.leases.model import Lease
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.source.control_socket import send
from spark_ehbalance.source.offsets import StreamOffset, group_name
from spark_ehbalance.source.options import Options, stream_options
from spark_ehbalance.source.planner import Planner, mint_owner_id
from spark_ehbalance.source.ranges import Range
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.strategies import STRATEGIES
from tests.source.support import HUB
from tests.waiting import wait_until

PARTITIONS = 8

Event = tuple[str, int]


class Query:
    """What Spark does with a planner: plans batches, logs them, has them read and says that they are finished.

    `logged` is the end of the last batch that was logged, `finished` of the last one that the sink has finished.
    """

    def __init__(
        self, options: Options, owner: str, finished: StreamOffset | None = None, replayed: StreamOffset | None = None
    ) -> None:
        self.owner = owner
        self.finished = finished or StreamOffset(owner, group=group_name(options.lease_table))
        self.logged = replayed or self.finished
        self.seen: list[Event] = []
        self.planner = Planner(options, owner, self.finished, replayed)
        self._ended = False

    def plan(self, limit: int | None = None) -> StreamOffset | None:
        """Ask for the next batch and log it; None if there is nothing new, in which case Spark sees the same offset."""
        if self.planner.still_idle(self.finished):
            return None
        self.planner.finish(self.finished)
        end = self.planner.next_batch(self.finished, limit)
        if end == self.finished:
            assert json.dumps(end.to_json()) == json.dumps(self.finished.to_json())
            return None
        self.logged = end
        return end

    def batch(self, limit: int | None = None) -> StreamOffset:
        """The end of the next batch, which is waited for."""
        wait_until(lambda: self.plan(limit) is not None, "there is a batch")
        return self.logged

    def run(self, end: StreamOffset) -> list[Range]:
        """Read the batch that ends at `end`; the sink finishes it."""
        ranges = self.planner.ranges(end)
        self.seen += [(each.partition, number) for each in ranges for number in range(each.start, each.end)]
        self.finished = self.logged = end
        return ranges

    def notice(self, finished: StreamOffset | None = None, *, leave: bool = False) -> bool | None:
        """What the driver says: by default that what is finished is finished. The planner's answer."""
        end = finished or self.finished
        return send(self.finished.reader, {"finished": end.to_json(), "leave": leave})

    def step(self, limit: int | None = None) -> int:
        """One batch, if there is one; returns how many events it had."""
        before, end = len(self.seen), self.plan(limit)
        if end is not None:
            self.run(end)
        return len(self.seen) - before

    def owned(self) -> set[str]:
        return set(self.planner._keeper.holdings())

    def stop(self) -> None:
        if not self._ended:
            self.planner.stop()
        self._ended = True


class Group:
    """A hub with a lease table, and queries that share it."""

    def __init__(self, emulator: Emulator, path: Path) -> None:
        emulator.add_hub(HUB, PARTITIONS)
        self.emulator = emulator
        self.table = path / "leases"
        self.raw: dict[str, object] = {
            "connectionString": emulator.connection_string(HUB),
            "startingPosition": "earliest",
            "balanceInterval": "0.3s",
            "leaseDuration": "3s",
            "receiverTimeout": "20s",
        }
        self.queries: list[Query] = []
        self.processes: list[subprocess.Popen[str]] = []

    def options(self, *, shared: bool = True, **more: object) -> Options:
        table = {"leaseTable": self.table} if shared else {}
        return stream_options({name: str(value) for name, value in (self.raw | table | more).items()})

    def query(
        self,
        owner: str = "a",
        finished: StreamOffset | None = None,
        replayed: StreamOffset | None = None,
        *,
        shared: bool = True,
        **more: object,
    ) -> Query:
        self.queries.append(Query(self.options(shared=shared, **more), owner, finished, replayed))
        return self.queries[-1]

    def process(self, owner: str, **more: object) -> tuple[subprocess.Popen[str], StreamOffset]:
        """A planner in another process, and the first batch that it has planned."""
        raw = {name: str(value) for name, value in (self.raw | {"leaseTable": self.table} | more).items()}
        command = [sys.executable, "-m", "tests.source.member", owner, json.dumps(raw)]
        self.processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        out = self.processes[-1].stdout
        assert out is not None
        return self.processes[-1], StreamOffset.from_json(json.loads(out.readline()))

    def append(self, count: int, partitions: int = PARTITIONS, first: int = 0) -> None:
        for partition in range(first, partitions):
            self.emulator.append(HUB, partition, [b"x"] * count)

    def snapshot(self) -> Snapshot:
        with DeltaStore(str(self.table)) as store:
            return store.read()

    def leases(self) -> Mapping[str, Lease]:
        return self.snapshot().leases

    def checkpoints(self) -> dict[str, int]:
        """Where reading of each partition goes on, by the table."""
        return {p: lease.checkpoint.next if lease.checkpoint else -1 for p, lease in self.leases().items()}

    def wait_owned(self, *counts: int) -> None:
        """Wait until the queries have so many partitions each."""
        wait_until(lambda: tuple(len(query.owned()) for query in self.queries[-len(counts) :]) == counts, f"{counts}")

    def everything(self) -> Counter[Event]:
        """All events of the hub, once each."""
        ends = {str(p): self.emulator.partition_state(HUB, p).next_sequence_number for p in range(PARTITIONS)}
        return Counter((p, number) for p, end in ends.items() for number in range(end))

    def close(self) -> None:
        for query in self.queries:
            query.stop()
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def group(emulator: Emulator, tmp_path: Path) -> Iterator[Group]:
    made = Group(emulator, tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ehbalance.hub.watcher._LIST_INTERVAL", 0.3)


def drain(query: Query, count: int, limit: int | None = None) -> None:
    """Run batches until `count` events have been read in all."""
    wait_until(lambda: (query.step(limit) and False) or len(query.seen) >= count, f"{query.owner} has read {count}")


# --- several queries -------------------------------------------------------------------------------------------


def test_two_queries_share_and_a_stopped_one_is_continued_exactly(group: Group) -> None:
    a = group.query("a")
    group.wait_owned(8)
    b = group.query("b")
    group.wait_owned(4, 4)
    assert a.owned() | b.owned() == {str(p) for p in range(PARTITIONS)}
    group.append(10)
    drain(a, 40)
    drain(b, 40)
    assert Counter(a.seen + b.seen) == group.everything()

    a.planner.finish(a.finished)
    a.stop()
    wait_until(lambda: len(b.owned()) == 8, "b has all")
    assert b.plan() is None
    wait_until(lambda: group.checkpoints() == dict.fromkeys(b.owned(), 10), "all is checkpointed")
    group.append(5)
    drain(b, 80)
    assert Counter(a.seen + b.seen) == group.everything()


def test_what_a_stopped_query_had_logged_but_not_finished_is_read_by_the_other(group: Group) -> None:
    group.append(10)
    a = group.query("a")
    b = group.query("b")
    group.wait_owned(4, 4)
    drain(b, 40)
    assert a.plan() is not None
    a.stop()
    drain(b, 80)
    assert Counter(b.seen) == group.everything()


def test_batches_while_partitions_move_lose_nothing(group: Group) -> None:
    group.append(20)
    a = group.query("a")
    b: Query | None = None
    read = Counter[Event]()

    def everything_read() -> bool:
        nonlocal b
        a.step(7)
        if b is None and len(a.seen) > 40:
            b = group.query("b")
        if b is not None:
            b.step(7)
        read.clear()
        read.update(a.seen)
        read.update(b.seen if b is not None else [])
        return read.keys() == group.everything().keys()

    wait_until(everything_read, "all is read")
    assert b is not None
    assert b.seen
    assert max(read.values()) <= 2


def test_finished_batches_are_checkpointed(group: Group) -> None:
    group.append(10)
    a = group.query("a")
    group.wait_owned(8)
    end = a.batch()
    a.run(end)
    assert set(group.checkpoints().values()) == {0}
    a.planner.finish(end)
    wait_until(lambda: set(group.checkpoints().values()) == {10}, "the table shows it")
    before = group.snapshot().version
    for _ in range(50):
        a.planner.finish(end)
    wait_until(lambda: group.snapshot().version > before, "a renewal came")
    assert group.snapshot().version <= before + 2, "finishing again says nothing new"


def test_a_batch_has_no_more_events_than_allowed(group: Group) -> None:
    group.append(100, 4)
    group.append(1, 8, first=4)
    a = group.query("a")
    group.wait_owned(8)
    assert a.step(40) == 40
    assert {partition for partition, _ in a.seen} == {str(p) for p in range(PARTITIONS)}
    while a.step(40):
        assert len(a.seen) % 40 == 0 or len(a.seen) == 404
    assert Counter(a.seen) == group.everything()


def test_nothing_new_is_the_same_offset_also_when_ownership_changes(group: Group) -> None:
    group.append(3)
    a = group.query("a")
    group.wait_owned(8)
    drain(a, 24)
    end = a.finished
    a.planner.finish(end)
    wait_until(lambda: set(group.checkpoints().values()) == {3}, "all is checkpointed")
    assert a.planner.next_batch(end, None) is end
    b = group.query("b")
    group.wait_owned(4, 4)
    assert a.planner.next_batch(end, None) is end
    fresh = StreamOffset("b")
    assert b.planner.next_batch(fresh, None) is fresh
    b.stop()
    wait_until(lambda: len(a.owned()) == 8, "a has all again")
    assert a.planner.next_batch(end, None) is end


def test_an_offset_has_only_what_moved(group: Group) -> None:
    a = group.query("a")
    group.wait_owned(8)
    assert a.plan() is None
    group.emulator.append(HUB, 5, [b"x"] * 3)
    end = a.batch()
    assert end.ranges.keys() == {"5"}
    epoch = group.leases()["5"].epoch
    assert end.ranges["5"] == Range("5", epoch, 0, 3)
    assert end.owner == "a"


def test_the_newest_ends_are_told(group: Group) -> None:
    group.append(3)
    a = group.query("a")
    assert a.planner.latest() == {str(p): 3 for p in range(PARTITIONS)}


def test_a_lost_partition_s_checkpoint_is_refused(group: Group) -> None:
    group.append(10)
    a = group.query("a")
    group.wait_owned(8)
    end = a.batch()
    a.run(end)
    b = group.query("b", handoverTimeout="3 s")
    group.wait_owned(4, 4)
    kept, lost = a.owned(), b.owned()
    a.planner.finish(a.finished)
    wait_until(lambda: all(group.checkpoints()[p] == 10 for p in kept), "what is held is checkpointed")
    assert {group.checkpoints()[p] for p in lost} == {0}
    group.append(5)
    drain(a, 80 + 20)
    assert {p for p, number in a.seen if number >= 10} == kept
    drain(b, 60)
    assert Counter(b.seen) == Counter({event: 1 for event in group.everything() if event[0] in lost})


def test_a_partition_that_comes_back_is_continued_where_the_other_has_left_it(group: Group) -> None:
    group.append(10)
    a = group.query("a")
    group.wait_owned(8)
    drain(a, 80)
    a.planner.finish(a.finished)
    b = group.query("b")
    group.wait_owned(4, 4)
    group.append(5)
    drain(b, 20)
    b.planner.finish(b.finished)
    b.stop()
    group.wait_owned(8, 0)
    drain(a, 100)
    assert a.plan() is None
    assert Counter(a.seen + b.seen) == group.everything()


def test_a_checkpoint_newer_than_what_is_known_of_the_hub_is_no_loss(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ehbalance.hub.watcher._LIST_INTERVAL", 3600.0)
    a = group.query("a")
    b = group.query("b")
    group.wait_owned(4, 4)
    b.step()
    group.append(10)
    drain(a, 40)
    a.planner.finish(a.finished)
    a.stop()
    wait_until(lambda: len(b.owned()) == 8, "b has all")
    drain(b, 40)
    assert Counter(a.seen + b.seen) == group.everything()


def test_the_most_partitions_owned(group: Group) -> None:
    a = group.query("a", maxPartitionsOwned=3)
    group.wait_owned(3)
    group.append(2)
    drain(a, 6)
    assert len({partition for partition, _ in a.seen}) == 3


def test_owner_ids_are_unique_and_valid() -> None:
    ids = {mint_owner_id() for _ in range(100)}
    assert len(ids) == 100
    key = "SharedAccessKeyName=n;SharedAccessKey=k"
    for each in ids:
        raw = {"connectionString": f"Endpoint=sb://h/;{key};EntityPath=hub", "leaseTable": "/tmp/t", "ownerId": each}
        assert stream_options(raw).owner_id == each


# --- restarts --------------------------------------------------------------------------------------------------


def test_a_killed_query_s_partitions_are_taken_after_the_lease_duration(group: Group) -> None:
    group.append(5)
    process, planned = group.process("a", leaseDuration="1s")
    assert len(planned.ranges) == 8
    b = group.query("b", leaseDuration="1s")
    process.kill()
    process.wait()
    drain(b, 40)
    assert Counter(b.seen) == group.everything()
    wait_until(lambda: group.snapshot().members.keys() == {"b"}, "the dead member is forgotten")


def test_a_starting_position_is_resolved_once(group: Group) -> None:
    """`latest` is where reading starts from the first claim on, even if the query dies before its first batch."""
    group.append(5)
    process, planned = group.process("a", startingPosition="latest", leaseDuration="1s")
    assert planned == StreamOffset("a")
    process.kill()
    process.wait()
    group.append(3)
    again = group.query("a", planned, startingPosition="latest", leaseDuration="1s")
    drain(again, 24)
    assert Counter(again.seen) == Counter({(p, n): 1 for p, n in group.everything() if n >= 5})


def test_a_restart_takes_its_own_back_at_once(group: Group) -> None:
    group.append(5)
    process, planned = group.process("a", leaseDuration="60s")
    process.kill()
    process.wait()
    again = group.query("a", leaseDuration="60s")
    assert len(again.owned()) == 8, "without waiting for its own leases to expire"
    epochs = {p: lease.epoch for p, lease in group.leases().items()}
    assert all(epochs[p] > each.epoch for p, each in planned.ranges.items())
    drain(again, 40)
    assert Counter(again.seen) == group.everything()


@pytest.mark.parametrize("orderly", [True, False])
def test_a_restart_goes_on_where_the_sink_has_finished_though_no_checkpoint_says_so(
    group: Group, orderly: bool
) -> None:
    group.append(10)
    first = group.query("a")
    group.wait_owned(8)
    end = first.batch(40)
    first.run(end)
    if orderly:
        first.stop()
    assert set(group.checkpoints().values()) == {0}
    again = group.query("a", end)
    drain(again, 40)
    assert Counter(first.seen + again.seen) == group.everything()
    again.planner.finish(again.finished)
    wait_until(lambda: set(group.checkpoints().values()) == {10}, "all is checkpointed")


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_logged_batch_is_replayed(group: Group, orderly: bool, strategy: str) -> None:
    group.raw["strategy"] = strategy
    group.append(10)
    first = group.query("a")
    group.wait_owned(8)
    drain(first, 24, limit=24)
    one, two = first.finished, first.batch(32)
    if orderly:
        first.stop()
    group.append(5)
    again = group.query("a", one, two)
    ranges = again.run(two)
    assert {(r.partition, r.start, r.end) for r in ranges} == {
        (r.partition, r.start, r.end) for r in two.ranges.values()
    }
    for each in ranges:
        assert each.epoch > two.ranges[each.partition].epoch
        assert each.epoch == group.leases()[each.partition].epoch
    assert [r.partition for r in again.planner.ranges(two)] == [r.partition for r in ranges], "asked again"
    drain(again, 120 - 24)
    assert Counter(first.seen + again.seen) == group.everything()
    again.planner.finish(again.finished)
    wait_until(lambda: set(group.checkpoints().values()) == {15}, "all is checkpointed")


def test_of_a_replayed_batch_nothing_is_read_that_another_member_has(group: Group) -> None:
    group.append(10)
    first = group.query("a")
    group.wait_owned(8)
    end = first.batch()
    first.stop()
    b = group.query("b", leaseDuration="60s")
    wait_until(lambda: len(b.owned()) == 8, "b has all")
    again = group.query("a", None, end, maxPartitionsOwned=1)
    # Whether it has taken over the one partition that is due to it is a matter of time.
    assert len(again.run(end)) <= 1

    def read() -> bool:
        again.step()
        b.step()
        return len(again.seen + b.seen) >= 80

    wait_until(read, "all is read")
    wait_until(lambda: (len(again.owned()), len(b.owned())) == (1, 7), "the move is over")
    for _ in range(3):
        read()
    assert Counter(again.seen + b.seen) == group.everything(), "once"


def test_of_a_replayed_batch_nothing_is_read_that_another_member_has_finished(group: Group) -> None:
    group.append(10)
    first = group.query("a")
    group.wait_owned(8)
    end = first.batch()
    first.stop()
    b = group.query("b")
    drain(b, 80)
    b.planner.finish(b.finished)
    b.stop()
    again = group.query("a", None, end)
    wait_until(lambda: len(again.owned()) == 8, "it has all again")
    assert again.run(end) == []
    assert again.plan() is None
    group.append(1)
    drain(again, 8)
    assert {number for _, number in again.seen} == {10}


def test_of_a_replayed_batch_only_the_rest_is_read_after_what_another_member_has_finished(group: Group) -> None:
    group.append(10)
    first = group.query("a")
    group.wait_owned(8)
    end = first.batch()
    first.stop()
    b = group.query("b")
    group.wait_owned(8)
    drain(b, 40, limit=40)
    b.planner.finish(b.finished)
    b.stop()
    again = group.query("a", None, end)
    wait_until(lambda: len(again.owned()) == 8, "it has all again")
    assert again.run(end) == []
    drain(again, 40)
    assert Counter(b.seen + again.seen) == group.everything()


def test_a_later_process_with_the_same_owner_fences_the_earlier_one(group: Group) -> None:
    group.append(5)
    earlier = group.query("a")
    group.wait_owned(8)
    planned = earlier.batch()
    later = group.query("a")
    with pytest.raises(FencedError) as caught:
        wait_until(lambda: earlier.planner.next_batch(planned, None) and False, "it is fenced", timeout=10)
    assert "\n" not in str(caught.value)
    assert "has started as a" in str(caught.value)
    earlier.planner.finish(planned)
    earlier.stop()
    assert set(group.checkpoints().values()) == {0}, "its checkpoint is refused"
    drain(later, 40)
    assert group.snapshot().members.keys() == {"a"}
    assert len(later.owned()) == 8


# --- one query without a lease table ----------------------------------------------------------------------------


def test_alone_all_progress_is_in_the_offset(group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    group.append(2)
    first = group.query("a", shared=False)
    everything = {str(p) for p in range(PARTITIONS)}
    drain(first, 16)
    group.emulator.append(HUB, 3, [b"x"] * 4)
    end = first.batch()
    assert end.ranges.keys() == everything
    assert {p: (each.start, each.end) for p, each in end.ranges.items()} == dict.fromkeys(everything, (2, 2)) | {
        "3": (2, 6)
    }
    ranges = first.run(end)
    assert [(each.partition, each.start, each.end) for each in ranges] == [("3", 2, 6)], "no task without events"
    first.stop()

    group.append(1)
    again = group.query("a", StreamOffset.from_json(json.loads(json.dumps(end.to_json()))), shared=False)
    drain(again, 8)
    assert Counter(first.seen + again.seen) == group.everything()
    assert list(tmp_path.iterdir()) == []


def test_alone_the_first_offset_says_where_reading_starts(group: Group) -> None:
    group.append(7)
    first = group.query("a", shared=False, startingPosition="latest")
    end = first.plan()
    assert end is not None, "worth a batch though there is nothing to read"
    assert {(each.start, each.end) for each in end.ranges.values()} == {(7, 7)}
    assert first.run(end) == []
    assert first.plan() is None
    first.stop()
    group.append(2)
    again = group.query("a", end, shared=False, startingPosition="latest")
    drain(again, 16)
    assert {number for _, number in again.seen} == {7, 8}


def test_alone_a_logged_batch_is_replayed(group: Group) -> None:
    group.append(10)
    first = group.query("a", shared=False)
    drain(first, 24, limit=24)
    one, two = first.finished, first.batch(32)
    first.stop()
    group.append(5)
    again = group.query("a", one, two, shared=False)
    ranges = again.run(two)
    moved = {(r.partition, r.start, r.end) for r in two.ranges.values() if len(r)}
    assert {(r.partition, r.start, r.end) for r in ranges if len(r)} == moved
    drain(again, 120 - 24)
    assert Counter(first.seen + again.seen) == group.everything()


def test_alone_the_first_batch_of_all_is_replayed(group: Group) -> None:
    group.append(10)
    first = group.query("a", shared=False, startingPosition="4")
    end = first.batch()
    first.stop()
    again = group.query("a", StreamOffset("a"), end, shared=False, startingPosition="latest")
    assert {(r.start, r.end) for r in again.run(end)} == {(4, 10)}
    assert again.plan() is None


def test_alone_new_partitions_start_at_their_first_event(group: Group) -> None:
    query = group.query("a", shared=False, startingPosition="latest")
    end = query.batch()
    query.run(end)
    group.emulator.add_partitions(HUB, 1)
    group.emulator.append(HUB, 8, [b"x"] * 3)
    drain(query, 3)
    assert query.seen == [("8", 0), ("8", 1), ("8", 2)]
    query.stop()
    group.emulator.add_partitions(HUB, 1)
    group.emulator.append(HUB, 9, [b"x"] * 2)
    again = group.query("a", query.finished, shared=False, startingPosition="latest")
    drain(again, 2)
    assert again.seen == [("9", 0), ("9", 1)]


def test_alone_the_offset_names_also_what_is_not_held_at_the_moment(group: Group) -> None:
    """A query that has slept for longer than a lease lasts holds nothing, until its keeper has claimed again."""
    group.append(3)
    query = group.query("a", shared=False)
    drain(query, 24)
    group.append(2)
    held = query.planner._keeper.holdings()
    query.planner._keeper.holdings = lambda: {"5": held["5"]}  # type: ignore[method-assign]
    end = query.batch()
    assert {p: (each.start, each.end) for p, each in end.ranges.items()} == {
        str(p): (3, 5) if p == 5 else (3, 3) for p in range(PARTITIONS)
    }


@pytest.mark.parametrize("position", ['{"3": 5, "*": "latest"}', '{"3": 5, "*": "2100-01-01"}'])
def test_a_position_for_each_partition(group: Group, position: str) -> None:
    group.append(10)
    query = group.query("a", shared=False, startingPosition=position)
    drain(query, 5)
    assert query.seen == [("3", number) for number in range(5, 10)]


# --- events that are gone --------------------------------------------------------------------------------------


def read_some(group: Group, *, shared: bool) -> StreamOffset:
    """Have a query read and finish ten events of each partition, and stop; returns its offset."""
    group.append(10)
    first = group.query("a", shared=shared)
    drain(first, 80)
    first.planner.finish(first.finished)
    first.stop()
    return first.finished


def trim(group: Group) -> None:
    group.append(10)
    group.emulator.trim(HUB, 3, 15)


def make_anew(group: Group) -> None:
    group.emulator.delete_hub(HUB)
    group.emulator.add_hub(HUB, PARTITIONS)
    group.emulator.append(HUB, 3, [b"x"] * 5)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("lose", "why"), [(trim, "number 10, but the first retained event is 15"), (make_anew, "made anew")]
)
def test_lost_events_are_an_error(group: Group, lose: Callable[[Group], None], why: str, shared: bool) -> None:
    finished = read_some(group, shared=shared)
    lose(group)
    again = group.query("a", finished, shared=shared)
    with pytest.raises(DataLossError, match=why) as caught:
        again.batch()
    assert "\n" not in str(caught.value)
    assert "partition" in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)


@pytest.mark.parametrize("shared", [True, False])
def test_events_that_have_aged_out_may_be_left_out(
    group: Group, caplog: pytest.LogCaptureFixture, shared: bool
) -> None:
    finished = read_some(group, shared=shared)
    trim(group)
    again = group.query("a", finished, shared=shared, failOnDataLoss=False)
    drain(again, 75)
    assert Counter(again.seen) == Counter({(p, n): 1 for p, n in group.everything() if n >= (15 if p == "3" else 10)})
    assert "partition 3: reading was to go on at sequence number 10" in caplog.text


@pytest.mark.parametrize("shared", [True, False])
def test_a_hub_made_anew_may_be_read_from_its_start(group: Group, shared: bool) -> None:
    finished = read_some(group, shared=shared)
    make_anew(group)
    again = group.query("a", finished, shared=shared, failOnDataLoss=False)
    drain(again, 5)
    assert again.seen == [("3", number) for number in range(5)]


def test_a_hub_made_anew_loses_nothing_when_its_partitions_move(group: Group) -> None:
    finished = read_some(group, shared=True)
    make_anew(group)
    again = group.query("a", finished, failOnDataLoss=False)
    drain(again, 5)
    again.planner.finish(again.finished)
    again.stop()
    group.emulator.append(HUB, 3, [b"x"] * 15)
    other = group.query("b", failOnDataLoss=False)
    wait_until(lambda: (other.step() and False) or ("3", 19) in other.seen, "the last event is read")
    assert other.seen == [("3", number) for number in range(5, 20)]


@pytest.mark.parametrize("shared", [True, False])
def test_a_hub_made_anew_and_empty_is_not_asked_at_every_trigger(
    group: Group, caplog: pytest.LogCaptureFixture, shared: bool
) -> None:
    finished = read_some(group, shared=shared)
    group.emulator.delete_hub(HUB)
    group.emulator.add_hub(HUB, PARTITIONS)
    again = group.query("a", finished, shared=shared, failOnDataLoss=False)
    again.step()
    caplog.clear()
    refreshed = []
    again.planner._watcher.refresh = lambda: refreshed.append(1)  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            again.step()
    assert len(refreshed) <= 1
    assert len(caplog.records) <= PARTITIONS


# --- the hub changes -------------------------------------------------------------------------------------------


def test_added_partitions_are_shared_and_read_from_their_first_event(group: Group) -> None:
    a = group.query("a", startingPosition="latest")
    b = group.query("b", startingPosition="latest")
    group.wait_owned(4, 4)
    group.emulator.add_partitions(HUB, 2)
    for partition in (8, 9):
        group.emulator.append(HUB, partition, [b"x"] * 3)
    wait_until(lambda: len(a.owned()) == len(b.owned()) == 5, "they are shared")
    wait_until(lambda: (a.step(), b.step()) and len(a.seen + b.seen) >= 6, "they are read")
    assert Counter(a.seen + b.seen) == Counter({(str(p), n): 1 for p in (8, 9) for n in range(3)})


# --- Trigger.AvailableNow --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_available_now_ends_while_events_keep_coming(group: Group, shared: bool) -> None:
    group.append(50)
    over = threading.Event()

    def keep_sending() -> None:
        while not over.is_set():
            group.append(5)

    sender = threading.Thread(target=keep_sending)
    there = group.everything()
    query = group.query("a", shared=shared)
    sender.start()
    try:
        query.planner.fix_ends()
        wait_until(lambda: query.step(200) == 0, "it ends", timeout=30)
        assert query.plan() is None
        query.planner.fix_ends()
        assert query.plan() is None, "fixed once"
    finally:
        over.set()
        sender.join()
    assert not there - Counter(query.seen), "what was there in the beginning is read"
    assert max(Counter(query.seen).values()) == 1


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_available_now_waits_until_there_is_nothing_more_to_take(group: Group, strategy: str) -> None:
    group.append(5)
    query = group.query("a", strategy=strategy, balanceInterval="5s", leaseDuration="30s")
    query.planner.fix_ends()
    assert len(query.owned()) == 8
    drain(query, 40)
    assert query.plan() is None


def test_available_now_of_a_hub_without_events_ends_at_once(group: Group) -> None:
    query = group.query("a")
    query.planner.fix_ends()
    assert query.plan() is None
    group.append(1)
    query.planner._watcher.refresh()
    assert query.plan() is None


def test_available_now_ends_when_partitions_come_and_go(group: Group) -> None:
    group.append(5)
    a = group.query("a")
    b = group.query("b")
    group.wait_owned(4, 4)
    a.planner.fix_ends()
    mine = a.owned()
    b.stop()
    wait_until(lambda: len(a.owned()) == 8, "a gets more")
    drain(a, 20)
    assert a.plan() is None
    assert {partition for partition, _ in a.seen} == mine, "only what it had when it began"


# --- what does not fit -----------------------------------------------------------------------------------------


def test_a_table_of_another_group_is_refused(group: Group) -> None:
    group.query("a").stop()
    before = group.snapshot()
    group.emulator.add_hub("other", 2)
    others: list[dict[str, Any]] = [
        {"connectionString": group.emulator.connection_string("other")},
        {"consumerGroup": "another"},
    ]
    for more in others:
        with pytest.raises(StoreFormatError, match="belongs to") as caught:
            group.query("b", **more)
        assert "\n" not in str(caught.value)
    assert group.snapshot() == before


def test_nothing_is_created_when_the_hub_cannot_be_reached(group: Group) -> None:
    group.emulator.refuse_connections()
    with pytest.raises(HubUnavailableError, match="event hub 'hub'"):
        group.query("a")
    group.emulator.refuse_connections(False)
    with pytest.raises(OptionError, match="partition '77'"):
        group.query("a", startingPosition='{"77": 5, "*": 1}')
    assert not group.table.exists()


def test_something_else_at_the_table_s_place_is_refused(group: Group) -> None:
    group.table.write_text("a file")
    with pytest.raises((StoreFormatError, StoreUnavailableError)) as caught:
        group.query("a")
    assert "\n" not in str(caught.value)
    assert group.table.read_text() == "a file"


def test_no_thread_is_left_behind_by_a_start_that_fails(group: Group) -> None:
    group.query("a").stop()
    before = threading.active_count()
    with pytest.raises(StoreFormatError):
        group.query("b", consumerGroup="another")
    wait_until(lambda: threading.active_count() <= before, "the threads have ended")


def test_stopping_leaves_the_group_and_gives_everything_back(group: Group) -> None:
    query = group.query("a")
    group.wait_owned(8)
    query.stop()
    assert group.snapshot().members == {}
    assert {lease.owner for lease in group.leases().values()} == {None}


def test_a_hub_that_stays_away_is_an_error_after_the_timeout(group: Group) -> None:
    query = group.query("a", receiverTimeout="0.5s")
    group.wait_owned(8)
    group.emulator.refuse_connections()
    group.emulator.drop_connections()
    with pytest.raises(HubUnavailableError, match="event hub 'hub'"):
        wait_until(lambda: query.plan() and False, "it is an error", timeout=10)
    group.emulator.refuse_connections(False)
    group.append(1)

    def works_again() -> bool:
        try:
            query.step()
        except HubUnavailableError:
            return False
        return len(query.seen) == 8

    wait_until(works_again, "it goes on")
    assert len(query.owned()) == 8


def test_a_table_that_goes_away_for_a_while_stops_nothing(group: Group) -> None:
    query = group.query("a", leaseDuration="20s")
    group.wait_owned(8)
    away = group.table.with_name("away")
    group.table.rename(away)
    group.append(5)
    drain(query, 40)
    query.planner.finish(query.finished)
    away.rename(group.table)
    wait_until(lambda: set(group.checkpoints().values()) == {5}, "it is checkpointed afterwards")
    assert len(query.owned()) == 8


# --- when the hub is asked -------------------------------------------------------------------------------------


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub is not asked by itself; only where somebody wants to know."""
    for name in ("_INTERVAL", "_LONGEST_INTERVAL", "_REST_INTERVAL"):
        monkeypatch.setattr(f"spark_ehbalance.hub.poll_schedule.{name}", 3600.0)
    monkeypatch.setattr("spark_ehbalance.hub.watcher._LIST_INTERVAL", 3600.0)
    monkeypatch.setattr("spark_ehbalance.source.planner._PATIENCE", 20.0)


@pytest.mark.usefixtures("seldom")
@pytest.mark.parametrize("shared", [True, False])
def test_what_came_during_a_batch_is_in_the_next(group: Group, shared: bool) -> None:
    group.append(1)
    query = group.query(shared=shared)
    drain(query, PARTITIONS)
    for _ in range(3):
        group.append(1)
        assert query.step() == PARTITIONS


@pytest.mark.usefixtures("seldom")
def test_a_known_backlog_is_read_without_asking(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.append(10)
    query = group.query()
    group.wait_owned(PARTITIONS)
    query.batch(limit=5)
    monkeypatch.setattr(HubWatcher, "catch_up", lambda *_: pytest.fail("it was asked"))
    query.run(query.logged)
    assert query.step(limit=5) == 5


def test_an_idle_query_still_takes_what_it_is_given(group: Group) -> None:
    a = group.query("a")
    group.wait_owned(PARTITIONS)
    b = group.query("b")
    group.wait_owned(4, 4)
    assert b.plan() is None
    a.stop()
    group.append(1)
    drain(b, PARTITIONS)


def idle_query(group: Group) -> Query:
    """A query that has all partitions and nothing to read, with leases that need no renewal for long."""
    query = group.query(leaseDuration="600s")
    group.wait_owned(PARTITIONS)
    wait_until(lambda: query.plan() is None and query.planner.still_idle(query.finished), "there is nothing to read")
    return query


def test_two_of_three_answers_that_there_is_nothing_come_at_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    query, naps = idle_query(group), list[float]()
    monkeypatch.setattr(query.planner._changed, "wait", naps.append)
    assert all(query.planner.still_idle(query.finished) for _ in range(30))
    assert len(naps) == 10


def test_the_third_waits_for_the_next_event_and_tells_it_at_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    query, in_vain = idle_query(group), 0
    monkeypatch.setattr("spark_ehbalance.source.planner._NAP", 3600.0)

    def ask() -> None:
        nonlocal in_vain
        while query.plan() is None:
            in_vain += 1

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    group.append(1)
    asking.join(60)
    assert not asking.is_alive(), "the event has woken it"
    assert in_vain <= 10, "it was not asked over and over"
    query.run(query.logged)
    drain(query, PARTITIONS)
