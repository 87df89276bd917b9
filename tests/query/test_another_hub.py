"""A hub that was recreated under its names, or another one behind them, while the lease table of the old one was kept.

Real planners, the emulator and a Delta table; Spark's part is played by `Query`.
"""

from __future__ import annotations

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import DataLossError
from tests.query.queries import PARTITIONS, Group, Query
from tests.query.support import HUB
from tests.query.test_past import once_each
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quick_lists")

_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00"


def make_anew(group: Group, events: int) -> None:
    """Replace the hub by another one of its name, which has so many events in each partition."""
    group.emulator.delete_hub(HUB)
    group.emulator.add_hub(HUB, PARTITIONS)
    group.append(events)


def seen_of_the_old_hub(group: Group) -> Query:
    """A query that has read 5 events of each partition and has ended."""
    group.append(5)
    query = group.query("a")
    query.read(5 * PARTITIONS)
    query.planner.finish(query.finished)
    query.stop()
    assert set(group.checkpoints().values()) == {5}
    return query


def test_the_first_partitions_bring_the_hub_s_time(group: Group) -> None:
    group.append(1)
    query = group.query("a")
    group.wait_owned(PARTITIONS)
    table, hub = group.snapshot().table, query.batch().hub
    assert table is not None
    assert hub is not None
    assert table.hub_created_ms == hub.created_ms is not None


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("fail", [True, False])
def test_a_query_with_a_new_checkpoint_is_refused_by_the_table_of_the_old_hub(
    group: Group, name: str, fail: bool
) -> None:
    """In silence it would go on at the old positions, and leave the first events of each partition out."""
    seen_of_the_old_hub(group)
    make_anew(group, 9)
    before = group.snapshot()
    message = rf"\[EHB_HUB_RECREATED\] The lease table contains positions of event hub hub of .*, created {_TIME}, and "
    with pytest.raises(DataLossError, match=message):
        group.query(name, failOnDataLoss=fail)
    assert group.snapshot() == before, "nothing was written"

    group.table = group.table.with_name("new")  # as the error advises
    anew = group.query(name)
    anew.read(9 * PARTITIONS)
    once_each(group, anew)


def test_a_table_whose_hub_is_not_known_is_read_as_before(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_ehbalance.eventhub import watcher

    monkeypatch.setattr(watcher.HubWatcher, "created_ms", lambda self: None)
    first = seen_of_the_old_hub(group)
    monkeypatch.undo()
    group.append(1)
    again = group.query("b")
    again.read(PARTITIONS)
    once_each(group, first, again)
    table = group.snapshot().table
    assert table is not None
    assert table.hub_created_ms is None


# --- while queries run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("events", [3, 5, 9])
def test_a_running_query_ends_when_its_hub_is_made_anew(group: Group, shared: bool, events: int) -> None:
    """Whether the new hub has fewer events than were read, as many, or more."""
    group.append(5)
    query = group.query("a", shared=shared)
    query.read(5 * PARTITIONS)
    make_anew(group, events)
    with pytest.raises(
        DataLossError, match=rf"\[EHB_HUB_RECREATED\] The query .* event hub hub of .*, created {_TIME}, and "
    ):
        wait_until(lambda: query.step() and False, "the query ends")
    query.stop()
    with pytest.raises(DataLossError, match=r"\[EHB_HUB_RECREATED\] The checkpoint"):  # a restart says the same
        group.query("a", query.finished, shared=shared)


# --- a geo-replicated hub ----------------------------------------------------------------------------------------


@pytest.fixture
def emulator(request: pytest.FixtureRequest) -> object:
    """One whose hubs are geo-replicated where the test says so."""
    with Emulator(geo_replicated="geo" in request.node.name) as made:
        yield made


@pytest.mark.parametrize("events", [0, 5])
def test_a_promoted_geo_replicated_hub_is_the_same_hub(group: Group, events: int) -> None:
    """Although the emulator gives it another time of creation then."""
    group.append(events)
    first = group.query("a")
    first.read(events * PARTITIONS)
    first.planner.finish(first.finished)
    table = group.snapshot().table
    assert table is not None
    assert table.hub_created_ms is None
    group.emulator.promote(HUB)
    group.append(2)
    first.read((events + 2) * PARTITIONS)
    first.planner.finish(first.finished)
    first.stop()
    group.append(2)
    again = group.query("a", first.finished)
    other = group.query("b")
    group.read_rest(again, other, ended=[first])
