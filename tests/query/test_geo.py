"""Reading a geo-replicated hub: positions contain their events' offsets; an offset that the hub lost is an error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import DataLossError
from spark_ehbalance.eventhub import resolve
from spark_ehbalance.group.position import names_event
from tests.query.queries import Group, Query
from tests.query.support import HUB
from tests.raising import raises
from tests.waiting import wait_until

PARTITIONS = 2

#: The number of events in each partition before a promotion, and how many of them the promotion loses.
SENT, LOST = 10, 3


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(geo_replicated=True) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens waits: a hub in this process is never slow."""
    monkeypatch.setattr(resolve, "QUIET", 0.3)


@pytest.fixture
def group(emulator: Emulator, tmp_path: Path) -> Iterator[Group]:
    made = Group(emulator, tmp_path, PARTITIONS)
    yield made
    made.close()


def restart(group: Group, query: Query, *, shared: bool) -> Query:
    """Start the next process of a killed query once the table has recorded the finished batch."""
    if shared:
        query.notify()
    query.stop()
    unfinished = None if query.logged == query.finished else query.logged
    return group.query(query.owner, query.finished, unfinished, shared=shared)


def assert_lost(act: Callable[[], object]) -> None:
    with raises(DataLossError, "EHB_POSITION_UNKNOWN", events=re.compile("of partition 0.* of partition 1")):
        act()


@pytest.mark.parametrize("shared", [True, False])
def test_queries_continue_after_a_promotion_that_lost_no_read_event(
    emulator: Emulator, group: Group, shared: bool
) -> None:
    """Even if the last read event is not the newest one, has aged out, or was compacted away."""
    group.append(SENT, PARTITIONS)
    query = group.query(shared=shared)
    assert all(names_event(event.end_offset) for event in query.run(query.batch(limit=7)))
    emulator.promote(HUB)
    query = restart(group, query, shared=shared)
    query.run(query.batch())
    emulator.promote(HUB)
    group.append(SENT, PARTITIONS)
    query.run(query.batch())
    seen = Counter(query.seen)
    emulator.compact(HUB, 0, SENT, 2 * SENT)
    emulator.trim(HUB, 1, 2 * SENT)
    query = restart(group, query, shared=shared)
    group.append(1, PARTITIONS)
    query.read(PARTITIONS)
    assert (seen + Counter(query.seen)).keys() >= {(p, 2 * SENT) for p in ("0", "1")}
    assert max((seen + Counter(query.seen)).values()) == 1


@pytest.mark.parametrize(
    ("shared", "running", "new", "refuse_lost"),
    [
        (True, True, 0, False),
        (True, False, LOST + 5, True),
        (False, True, LOST + 5, False),
        (False, False, LOST, False),
    ],
)
def test_lost_event_is_an_error_however_the_service_handles_its_offset(
    emulator: Emulator, group: Group, shared: bool, running: bool, new: int, refuse_lost: bool
) -> None:
    """The hub's last sequence number is below, equal to or above the last one read."""
    group.append(SENT, PARTITIONS)
    query = group.query(shared=shared, failOnDataLoss=False)
    query.run(query.batch())
    emulator.promote(HUB, LOST, refuse_lost=refuse_lost)
    group.append(new, PARTITIONS)
    if not running:
        query = restart(group, query, shared=shared)
    assert_lost(lambda: wait_until(query.plan, "the loss is noticed"))


def test_batch_details_contain_no_offset_for_an_event_the_hub_lacks(group: Group) -> None:
    """After a lossy promotion and a seek back, the target contains such an event, and another will get its number."""
    group.append(SENT, PARTITIONS)
    query = group.query()
    end = query.batch()
    query.run(end)
    assert names_event(query.planner.batch_details(end, event=("0", SENT - 2))["offset"])
    assert query.planner.batch_details(end, event=("0", SENT))["offset"] == ""
    group.append(1, PARTITIONS)
    assert query.planner.batch_details(end, event=("0", SENT))["offset"], "the hub is queried again"
