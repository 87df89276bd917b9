"""`latest` is the first start of a whole group, whatever the driver's clock shows, and in all partitions of a hub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.watcher import HubWatcher
from spark_ehbalance.group.position import Position
from spark_ehbalance.query.assembly import start_planner
from spark_ehbalance.query.offsets import StreamOffset, group_name
from tests.query.queries import Event, Group, Query
from tests.query.support import HUB, skew_clock
from tests.waiting import wait_until

#: More than a query asks about at its start, and seconds' worth of requests.
PARTITIONS = 160


def begun(group: Group, finished: StreamOffset | None, *, shared: bool) -> Query:
    """A query that begins to read as soon as it knows some partitions."""
    more = {"leaseDuration": "10s"} if shared else {}
    options = group.options(shared=shared, startingPosition="latest", **more)
    finished = finished or StreamOffset("a", group=group_name(options.lease_table))
    group.queries.append(Query(start_planner(options, "a", finished, whole=False), "a", finished))
    return group.queries[-1]


@pytest.fixture
def hub_of(emulator: Emulator, tmp_path: Path) -> Iterator[Callable[[int], Group]]:
    """Makes a group at a hub with so many partitions; its queries end with the test."""
    with ExitStack() as stack:

        def make(partitions: int) -> Group:
            group = Group(emulator, tmp_path, partitions)
            stack.callback(group.close)
            return group

        yield make


@pytest.mark.parametrize("shared", [True, False], ids=["with a lease table", "alone"])
def test_what_comes_after_the_first_start_is_read_and_nothing_else(
    hub_of: Callable[[int], Group], emulator: Emulator, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    skew_clock(monkeypatch, 60.0)
    asked, latest_ends = list[HubWatcher](), HubWatcher.latest_ends

    def noted(watcher: HubWatcher, partitions: Iterable[str]) -> Mapping[str, Position]:
        asked.append(watcher)
        return latest_ends(watcher, partitions)

    monkeypatch.setattr(HubWatcher, "latest_ends", noted)
    group = hub_of(PARTITIONS)
    group.append(2, PARTITIONS)
    query = begun(group, None, shared=shared)
    emulator.append(HUB, 0, [b"first"])
    query.read(1)
    assert len(query.planner.holdings()) == PARTITIONS
    group.append(1, PARTITIONS, first=1)
    query.stop()
    query = begun(group, query.finished, shared=shared)

    def seen() -> Counter[Event]:
        return Counter(event for each in group.queries for event in each.seen)

    assert len(asked) == 1, "only a first start asks about all partitions"
    wait_until(lambda: query.step() < 0 or seen().total() >= PARTITIONS, "everything is read")
    assert seen() == Counter((str(partition), 2) for partition in range(PARTITIONS))


def test_a_partition_that_the_hub_gains_is_read_from_its_first_event(
    hub_of: Callable[[int], Group], emulator: Emulator, without_network: None, quick_lists: None
) -> None:
    group = hub_of(3)
    query = begun(group, None, shared=False)
    emulator.append(HUB, 0, [b"x"])
    query.read(1)
    query.stop()
    emulator.add_partitions(HUB, 1)
    group.append(1, 4, first=1)
    again = begun(group, query.finished, shared=False)
    again.read(3)
    assert Counter(again.seen) == Counter((str(partition), 0) for partition in (1, 2, 3))
