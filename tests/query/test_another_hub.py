"""A hub that was recreated under its names, or another one behind them, while the lease table of the old one was kept.

Real planners, the emulator without its network, and a Delta table; Spark's part is played by `Query`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from spark_ehbalance.errors import DataLossError
from tests.query.queries import PARTITIONS, Group, Query
from tests.query.support import HUB
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("without_network", "quick_lists")

_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00"


def recreate(group: Group, events: int) -> None:
    """Recreate the hub, with `events` events in each partition."""
    group.emulator.delete_hub(HUB)
    group.emulator.add_hub(HUB, PARTITIONS)
    group.append(events)


def five_read(group: Group, *, shared: bool = True) -> Query:
    """A query that has read 5 events of each partition."""
    group.append(5)
    query = group.query("a", shared=shared)
    query.read(5 * PARTITIONS)
    query.planner.finish(query.finished)
    return query


def test_a_query_with_a_new_checkpoint_is_refused_by_the_table_of_the_old_hub(group: Group) -> None:
    """It would silently resume at the old positions and skip the first events of each partition."""
    five_read(group).stop()
    recreate(group, 9)
    before = group.snapshot()
    message = rf"\[EHB_HUB_RECREATED\] The lease table contains positions of event hub hub of .*, created {_TIME}, but "
    with pytest.raises(DataLossError, match=message):
        group.query("b", failOnDataLoss=False)
    assert group.snapshot() == before, "nothing was written"
    group.table = group.table.with_name("new")  # as the error advises
    recreated = group.query("b")
    recreated.read(9 * PARTITIONS)
    assert Counter(recreated.seen) == group.everything()


@pytest.mark.parametrize(("shared", "events"), [(True, 3), (True, 9), (False, 5)])
def test_a_running_query_ends_when_its_hub_is_recreated(group: Group, shared: bool, events: int) -> None:
    """Whether the new hub has fewer events than were read, as many, or more."""
    query = five_read(group, shared=shared)
    recreate(group, events)
    message = rf"\[EHB_HUB_RECREATED\] The query .* event hub hub of .*, created {_TIME}, but "
    with pytest.raises(DataLossError, match=message):
        wait_until(lambda: query.step() and False, "the query ends")
    query.stop()
    with pytest.raises(DataLossError, match=r"\[EHB_HUB_RECREATED\] The checkpoint"):  # a restart fails in the same way
        group.query("a", query.finished, shared=shared)
