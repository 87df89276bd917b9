"""The starting position of a query that has not read anything yet: an invalid `startingPosition` is a user error, not
a loss of events."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.watcher import HubWatcher
from spark_ehbalance.group.position import Position
from spark_ehbalance.query.assembly import start_planner
from spark_ehbalance.query.batch_read import batch_ranges
from spark_ehbalance.query.offsets import StreamOffset, group_name
from spark_ehbalance.query.options import batch_options
from tests.query.queries import PARTITIONS, Group, Query
from tests.query.support import HUB, skew_clock
from tests.raising import raises
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("without_network")

BEYOND = {"partition": "3", "problem": "it is 11, but the last event is 9", "allowed": "at most 10, the next event"}
NEVER = {
    "partition": "0",
    "problem": "it is 1, but the partition has no event yet",
    "allowed": "at most 0, the next event",
}


@pytest.mark.parametrize("fail", [True, False])
def test_start_beyond_the_last_event_is_rejected_before_anything_is_created(group: Group, fail: bool) -> None:
    with raises(OptionError, "EHB_POSITION_INVALID", **NEVER):
        group.query(startingPosition=1, failOnDataLoss=fail)
    group.append(10)
    for shared in (True, False):
        with raises(OptionError, "EHB_POSITION_INVALID", **BEYOND):
            group.query(shared=shared, startingPosition='{"3": 11, "*": "earliest"}', failOnDataLoss=fail)
    raw = {"connectionString": group.emulator.connection_string(HUB), "startingPosition": '{"3": 11, "*": "latest"}'}
    with raises(OptionError, "EHB_POSITION_INVALID", **BEYOND):
        batch_ranges(batch_options(raw | {"failOnDataLoss": str(fail)}))
    assert not group.table.exists()
    assert group.query(startingPosition=10).step() == 0, "the next event to come is a start"


def test_batch_omits_events_that_have_aged_out(group: Group) -> None:
    query = group.query(failOnDataLoss=False)
    group.append(10)
    group.emulator.trim(HUB, 0, 8)
    raw = {"startingPosition": "2", "endingPosition": "5", "failOnDataLoss": "false"}
    ranges = batch_ranges(batch_options({"connectionString": group.emulator.connection_string(HUB), **raw}))
    assert [(range_.partition, range_.start, range_.end) for range_ in ranges] == [
        (str(p), 2, 5) for p in range(1, PARTITIONS)
    ]
    query.read(10 * PARTITIONS - 8)
    assert [number for partition, number in query.seen if partition == "0"] == [8, 9]


def test_unused_start_is_not_rejected(group: Group) -> None:
    """The group has already started, so a position that is not valid (any more) does not matter."""
    group.append(10)
    first = group.query("a")
    first.read(10 * PARTITIONS)
    first.planner.finish(first.finished)
    first.stop()
    group.append(1)
    second = group.query("b", startingPosition=4711)
    second.read(PARTITIONS)


def test_future_starting_time_is_warned_about_once(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    group.append(10)
    moment = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat(timespec="seconds")
    query = group.query(startingPosition=moment)
    assert query.step() == 0
    group.append(1)
    query.read(PARTITIONS)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"startingPosition={moment} is in the future" in warning


# --- `latest` is the group's first start, in all partitions and independent of the driver's clock -------------------

#: More partitions than a query requests at startup.
MANY = 60


def begun(group: Group, finished: StreamOffset | None, *, shared: bool) -> Query:
    """A query that starts to read as soon as it knows some partitions."""
    options = group.options(shared=shared, startingPosition="latest")
    finished = finished or StreamOffset("a", group=group_name(options.lease_table))
    group.queries.append(Query(start_planner(options, "a", finished, full_share=False), "a", finished))
    return group.queries[-1]


@pytest.mark.parametrize("shared", [True, False], ids=["with a lease table", "alone"])
def test_only_events_after_the_first_start_are_read(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    skew_clock(monkeypatch, 60.0)
    callers, latest_ends = list[HubWatcher](), HubWatcher.latest_ends

    def noted(watcher: HubWatcher, partitions: Iterable[str]) -> Mapping[str, Position]:
        callers.append(watcher)
        return latest_ends(watcher, partitions)

    monkeypatch.setattr(HubWatcher, "latest_ends", noted)
    with closing(Group(emulator, tmp_path, MANY)) as group:
        group.append(2, MANY)
        first = begun(group, None, shared=shared)
        emulator.append(HUB, 0, [b"first"])
        first.read(1)
        assert len(first.planner.readable()) == MANY
        group.append(1, MANY, first=1)
        first.stop()
        again = begun(group, first.finished, shared=shared)
        assert len(callers) == 1, "only a first start requests all partitions"
        wait_until(lambda: again.step() < 0 or len(first.seen + again.seen) >= MANY, "everything is read")
        assert Counter(first.seen + again.seen) == Counter((str(partition), 2) for partition in range(MANY))
