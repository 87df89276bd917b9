"""Planners put together as a query does, with the emulator, a Delta table and processes that are killed."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ehbalance.errors import (
    HubUnavailableError,
    OptionError,
    StoreFormatError,
    StoreUnavailableError,
)
from spark_ehbalance.query import keeper
from spark_ehbalance.query.assembly import joined, start_planner
from spark_ehbalance.query.offsets import StreamOffset
from tests.query.queries import PARTITIONS, Group, Query
from tests.query.support import HUB
from tests.waiting import wait_until

# --- several queries ------------------------------------------------------------------------------------------


def test_two_queries_share_and_one_continues_for_the_other_exactly(group: Group) -> None:
    a = group.query("a")
    group.wait_owned(8)
    b = group.query("b")
    group.wait_owned(4, 4)
    assert a.owned() | b.owned() == {str(p) for p in range(PARTITIONS)}
    group.append(10)
    a.read(40)
    b.read(40)
    assert Counter(a.seen + b.seen) == group.everything()

    a.planner.finish(a.finished)
    a.stop()
    wait_until(lambda: len(b.owned()) == 8, "b has all")
    assert b.plan() is None
    wait_until(lambda: group.checkpoints() == dict.fromkeys(b.owned(), 10), "all is checkpointed")
    group.append(5)
    b.read(80)
    assert Counter(a.seen + b.seen) == group.everything()


# --- restarts -------------------------------------------------------------------------------------------------


def test_a_starting_position_is_resolved_once(group: Group) -> None:
    """`latest` is where reading starts from the first claim on, even if the query dies before its first batch."""
    group.append(5)
    process, planned = group.process("a", startingPosition="latest", leaseDuration="1s")
    assert planned == StreamOffset("a")
    process.kill()
    process.wait()
    group.append(3)
    again = group.query("a", planned, startingPosition="latest", leaseDuration="1s")
    again.read(24)
    assert Counter(again.seen) == Counter({(p, n): 1 for p, n in group.everything() if n >= 5})


def test_a_restart_in_an_empty_first_batch_keeps_the_logged_lineage(group: Group) -> None:
    """Spark asks for a new initial offset, and writers find the planner by the logged one."""
    query = group.query("a", StreamOffset("a", lineage="new"), StreamOffset("a", lineage="logged"))
    assert query.planner.address is not None
    assert query.planner.address.lineage == "logged"


@pytest.mark.parametrize("orderly", [True, False])
def test_a_restarted_query_goes_on_after_the_last_finished_batch_without_its_checkpoint(
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
    again.read(40)
    assert Counter(first.seen + again.seen) == group.everything()
    again.planner.finish(again.finished)
    wait_until(lambda: set(group.checkpoints().values()) == {10}, "all is checkpointed")


# --- one query without a lease table --------------------------------------------------------------------------


def test_alone_all_progress_is_in_the_offset(group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    group.append(2)
    first = group.query("a", shared=False)
    everything = {str(p) for p in range(PARTITIONS)}
    first.read(16)
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
    again.read(8)
    assert Counter(first.seen + again.seen) == group.everything()
    assert list(tmp_path.iterdir()) == []


def test_alone_the_lag_is_recorded_while_a_batch_runs(group: Group) -> None:
    options = replace(group.options(shared=False), lease_duration=1.0, balance_interval=0.3)
    group.queries.append(Query(start_planner(options, "a"), "a"))
    group.append(10)
    (query,) = group.queries
    query.batch()
    group.append(1000)
    keeper, _, _ = query.planner.parts

    def behind() -> set[int]:
        leases = keeper.snapshot.leases.values() if keeper.snapshot else ()
        return {lag.events for lease in leases if (lag := lease.behind)}

    wait_until(lambda: behind() == {1010}, "all that is unread is recorded")


def test_alone_a_logged_batch_is_read_again_also_after_a_suspension(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else reads it, and the offset would say that it was read."""
    group.append(2)
    first = group.query("a", shared=False)
    end = first.batch()
    first.stop()
    again = group.query("a", unfinished=end, shared=False)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600, time_ns=time.time_ns)
    monkeypatch.setattr(keeper, "time", later)
    again.run(end)
    assert Counter(again.seen) == group.everything()


def test_alone_a_restart_in_a_batch_after_a_reset_continues_in_it(group: Group) -> None:
    """A hub that lost events has others under the numbers that the batch before the reset has read."""
    group.append(9)
    first = group.query("a", shared=False, failOnDataLoss="false")
    first.read(9 * PARTITIONS)
    first.stop()
    ranges = {p: replace(each, start=0, end=4) for p, each in first.finished.ranges.items()}
    logged = replace(first.finished, ranges=ranges, batch=first.finished.batch + 1)
    again = group.query("a", first.finished, logged, shared=False, failOnDataLoss="false")
    again.run(logged)
    again.read(9 * PARTITIONS)
    assert Counter(again.seen) == group.everything()


def test_alone_the_first_offset_stores_where_reading_starts(group: Group) -> None:
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
    again.read(16)
    assert {number for _, number in again.seen} == {7, 8}


@pytest.mark.usefixtures("quick_lists")
def test_alone_new_partitions_start_at_their_first_event(group: Group) -> None:
    query = group.query("a", shared=False, startingPosition="latest")
    end = query.batch()
    query.run(end)
    group.emulator.add_partitions(HUB, 1)
    group.emulator.append(HUB, 8, [b"x"] * 3)
    query.read(3)
    assert query.seen == [("8", 0), ("8", 1), ("8", 2)]
    query.stop()
    group.emulator.add_partitions(HUB, 1)
    group.emulator.append(HUB, 9, [b"x"] * 2)
    again = group.query("a", query.finished, shared=False, startingPosition="latest")
    again.read(2)
    assert again.seen == [("9", 0), ("9", 1)]


@pytest.mark.parametrize("position", ['{"3": 5, "*": "latest"}', '{"3": 5, "*": "2100-01-01T00:00:00Z"}'])
def test_each_partition_has_its_own_starting_position(group: Group, position: str) -> None:
    group.append(10)
    query = group.query("a", shared=False, startingPosition=position)
    query.read(5)
    assert query.seen == [("3", number) for number in range(5, 10)]


# --- the hub changes ------------------------------------------------------------------------------------------


def trim(group: Group) -> None:
    group.append(10)
    group.emulator.trim(HUB, 3, 15)


@pytest.mark.usefixtures("quick_lists")
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


def test_an_unreachable_hub_is_an_error_after_the_timeout(group: Group) -> None:
    query = group.query("a", receiverTimeout="0.5s")
    group.wait_owned(8)
    group.emulator.refuse_connections()
    group.emulator.drop_connections()
    with pytest.raises(HubUnavailableError, match="event hub 'hub'"):
        wait_until(lambda: query.plan() and False, "it is an error", timeout=30)
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


# --- what does not fit, and the end ---------------------------------------------------------------------------


def test_nothing_is_created_when_the_hub_cannot_be_reached(group: Group) -> None:
    group.emulator.refuse_connections()
    with pytest.raises(HubUnavailableError, match="event hub 'hub'"):
        group.query("a")
    group.emulator.refuse_connections(False)
    with pytest.raises(OptionError, match="partition '77'"):
        group.query("a", startingPosition='{"77": 5, "*": 1}')
    assert not group.table.exists()


def test_a_file_at_the_table_s_location_is_refused(group: Group) -> None:
    group.table.write_text("a file")
    with pytest.raises((StoreFormatError, StoreUnavailableError)) as caught:
        group.query("a")
    assert "\n" not in str(caught.value)
    assert group.table.read_text() == "a file"


class _SlowKeeper:
    """One that gets some partitions at each wait, and is balanced with the last ones."""

    def __init__(self, *owned: int) -> None:
        self._owned = list(owned)
        self.waits = 0

    def wait_balanced(self, timeout: float, *, whole: bool) -> bool:
        assert whole
        self.waits += 1
        return len(self._owned) == self.waits

    def holdings(self) -> dict[int, None]:
        return dict.fromkeys(range(self._owned[self.waits - 1]))


@pytest.mark.parametrize(
    ("keeper", "has_joined", "waits"),
    [
        (_SlowKeeper(8), True, 1),
        (_SlowKeeper(300, 600, 1024), True, 3),
        (_SlowKeeper(0, 8), False, 1),
        (_SlowKeeper(300, 300, 1024), False, 2),
    ],
)
def test_a_query_joins_as_long_as_partitions_come(keeper: Any, has_joined: bool, waits: int) -> None:
    assert joined(keeper, 60) is has_joined
    assert keeper.waits == waits
