"""The starting position of a query that has not read anything yet: an invalid `startingPosition` is a user error, not
a loss of events."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone

import pytest

from spark_ehbalance.errors import OptionError
from spark_ehbalance.query.batch_read import batch_ranges
from spark_ehbalance.query.options import batch_options
from tests.query.queries import PARTITIONS, Group
from tests.query.support import HUB
from tests.raising import raises

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
