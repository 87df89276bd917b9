"""`latest` is the group's first start, in all partitions of the hub and independent of the driver's clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.watcher import HubWatcher
from spark_ehbalance.group.position import Position
from spark_ehbalance.query.assembly import start_planner
from spark_ehbalance.query.offsets import StreamOffset, group_name
from tests.query.queries import Group, Query
from tests.query.support import HUB, skew_clock
from tests.waiting import wait_until

#: More partitions than a query requests at startup.
PARTITIONS = 60


def begun(group: Group, finished: StreamOffset | None, *, shared: bool) -> Query:
    """A query that starts to read as soon as it knows some partitions."""
    options = group.options(shared=shared, startingPosition="latest")
    finished = finished or StreamOffset("a", group=group_name(options.lease_table))
    group.queries.append(Query(start_planner(options, "a", finished, full_share=False), "a", finished))
    return group.queries[-1]


@pytest.mark.usefixtures("without_network")
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
    with closing(Group(emulator, tmp_path, PARTITIONS)) as group:
        group.append(2, PARTITIONS)
        first = begun(group, None, shared=shared)
        emulator.append(HUB, 0, [b"first"])
        first.read(1)
        assert len(first.planner.readable()) == PARTITIONS
        group.append(1, PARTITIONS, first=1)
        first.stop()
        again = begun(group, first.finished, shared=shared)
        assert len(callers) == 1, "only a first start requests all partitions"
        wait_until(lambda: again.step() < 0 or len(first.seen + again.seen) >= PARTITIONS, "everything is read")
        assert Counter(first.seen + again.seen) == Counter((str(partition), 2) for partition in range(PARTITIONS))
