"""Reading a geo-replicated hub: positions keep their events' offsets, and an offset that the hub lost is an error."""

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

#: Events of each partition before a promotion, and how many it loses.
SENT, LOST = 10, 3


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(geo_replicated=True) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes late from a hub in this process."""
    monkeypatch.setattr(resolve, "QUIET", 0.3)


@pytest.fixture
def group(emulator: Emulator, tmp_path: Path) -> Iterator[Group]:
    made = Group(emulator, tmp_path, PARTITIONS)
    yield made
    made.close()


def again(group: Group, query: Query, *, shared: bool) -> Query:
    """The next process of a query that was killed, after the table has what it finished."""
    if shared:
        query.notify()
    query.stop()
    unfinished = None if query.logged == query.finished else query.logged
    return group.query(query.owner, query.finished, unfinished, shared=shared)


def assert_lost(act: Callable[[], object]) -> None:
    with raises(DataLossError, "EHB_POSITION_UNKNOWN", events=re.compile("of partition 0.* of partition 1")):
        act()


@pytest.mark.parametrize("shared", [True, False])
def test_queries_continue_where_no_event_that_was_read_is_lost(emulator: Emulator, group: Group, shared: bool) -> None:
    """Also after a position within the hub's events, an event that has aged out, and one that was compacted away."""
    group.append(SENT, PARTITIONS)
    query = group.query(shared=shared)
    assert all(names_event(event.end_offset) for event in query.run(query.batch(limit=7)))
    emulator.promote(HUB)
    query = again(group, query, shared=shared)
    query.run(query.batch())
    emulator.promote(HUB)
    group.append(SENT, PARTITIONS)
    query.run(query.batch())
    seen = Counter(query.seen)
    emulator.compact(HUB, 0, SENT, 2 * SENT)
    emulator.trim(HUB, 1, 2 * SENT)
    query = again(group, query, shared=shared)
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
def test_a_lost_event_is_an_error_whatever_the_service_does_with_its_offset(
    emulator: Emulator, group: Group, shared: bool, running: bool, new: int, refuse_lost: bool
) -> None:
    """The hub's last number is below, at and beyond that of the last event read."""
    group.append(SENT, PARTITIONS)
    query = group.query(shared=shared, failOnDataLoss=False)
    query.run(query.batch())
    emulator.promote(HUB, LOST, refuse_lost=refuse_lost)
    group.append(new, PARTITIONS)
    if not running:
        query = again(group, query, shared=shared)
    assert_lost(lambda: wait_until(query.plan, "the loss is noticed"))


def test_batch_details_reveal_an_event_the_hub_never_had(group: Group) -> None:
    """As after a promotion with loss and a seek back: the target has it, and other events will take its place."""
    group.append(SENT, PARTITIONS)
    query = group.query()
    end = query.batch()
    query.run(end)
    assert names_event(query.planner.batch_details(end, event=("0", SENT - 2))["offset"])
    assert query.planner.batch_details(end, event=("0", SENT))["offset"] == ""
    group.append(1, PARTITIONS)
    assert query.planner.batch_details(end, event=("0", SENT))["offset"], "the hub is queried again"
