"""A hub that was recreated or replaced under the same name while the old hub's lease table was kept.

Uses real planners, the emulator without its network, and a Delta table; `Query` stands in for Spark.
"""

from __future__ import annotations

from collections import Counter

import pytest

from spark_ehbalance.errors import DataLossError
from tests.query.queries import PARTITIONS, Group, Query
from tests.query.support import HUB
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("without_network", "frequent_partition_listing")

_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00"


def recreate(group: Group, events: int) -> None:
    """Recreate the hub, with `events` events in each partition."""
    group.emulator.delete_hub(HUB)
    group.emulator.add_hub(HUB, PARTITIONS)
    group.append(events)


def query_after_five_events(group: Group, *, shared: bool = True) -> Query:
    """A query that has read 5 events from each partition."""
    group.append(5)
    query = group.query("a", shared=shared)
    query.read(5 * PARTITIONS)
    query.planner.finish(query.finished)
    return query


def test_new_checkpoint_is_rejected_with_the_old_hubs_lease_table(group: Group) -> None:
    """Otherwise, the query would resume at the old positions and silently skip the first events of each partition."""
    query_after_five_events(group).stop()
    recreate(group, 9)
    before = group.snapshot()
    message = rf"\[EHB_HUB_RECREATED\] The lease table contains positions of event hub hub of .*, created {_TIME}, but "
    with pytest.raises(DataLossError, match=message):
        group.query("b", failOnDataLoss=False)
    assert group.snapshot() == before, "nothing was written"
    group.table = group.table.with_name("new")  # the error's remedy
    recreated = group.query("b")
    recreated.read(9 * PARTITIONS)
    assert Counter(recreated.seen) == group.everything()


@pytest.mark.parametrize(("shared", "events"), [(True, 3), (True, 9), (False, 5)])
def test_running_query_fails_when_its_hub_is_recreated(group: Group, shared: bool, events: int) -> None:
    """The new hub has fewer events than were read, the same number, or more."""
    query = query_after_five_events(group, shared=shared)
    recreate(group, events)
    message = rf"\[EHB_HUB_RECREATED\] The query .* event hub hub of .*, created {_TIME}, but "
    with pytest.raises(DataLossError, match=message):
        wait_until(lambda: query.step() and False, "the query ends")
    query.stop()
    with pytest.raises(DataLossError, match=r"\[EHB_HUB_RECREATED\] The checkpoint"):  # after a restart too
        group.query("a", query.finished, shared=shared)
