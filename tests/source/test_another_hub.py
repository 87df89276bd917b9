"""A hub that was made anew under its names, or another one behind them, while the lease table of the old one was kept.

Real planners, the emulator and a Delta table; Spark's part is played by `Query`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import DataLossError
from spark_ehbalance.source.offsets import StreamOffset
from tests.source.queries import PARTITIONS, Group, Query
from tests.source.support import HUB
from tests.source.test_past import once_each
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
    query = group.query("a")
    group.wait_owned(PARTITIONS)
    table = group.snapshot().table
    assert table is not None
    begin = query.planner.empty_end(StreamOffset("a"))
    assert begin.hub is not None
    assert table.hub_created_ms == begin.hub.created_ms is not None


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_query_with_a_new_checkpoint_is_refused_by_the_table_of_the_old_hub(group: Group, name: str) -> None:
    """In silence it would go on at the old positions, and leave the first events of each partition out."""
    seen_of_the_old_hub(group)
    make_anew(group, 9)
    before = group.snapshot()
    with pytest.raises(
        DataLossError, match=rf"it has the positions of event hub hub of .*, made {_TIME}, and "
    ) as caught:
        group.query(name)
    message = str(caught.value)
    assert f"leaseTable={group.table}: " in message
    assert "Nothing was read: set a new leaseTable" in message
    assert "`ehbalance seek LEASE_TABLE --all --to earliest`" in message
    assert "\n" not in message
    assert group.snapshot() == before, "nothing was written"

    group.table = group.table.with_name("new")  # as the error advises
    anew = group.query(name)
    anew.read(9 * PARTITIONS)
    once_each(group, anew)


def test_without_fail_on_data_loss_the_positions_are_kept_and_each_start_says_so(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    seen_of_the_old_hub(group)
    make_anew(group, 9)
    for _ in range(2):
        caplog.clear()
        lenient = group.query("b", failOnDataLoss=False)
        assert "Its positions are kept, because failOnDataLoss=false" in caplog.text
        assert "it has the positions of event hub hub" in caplog.text
        lenient.stop()
    again = group.query("b", failOnDataLoss=False)
    again.read(4 * PARTITIONS)
    assert {number for _, number in again.seen} == {5, 6, 7, 8}
    again.stop()
    with pytest.raises(DataLossError, match="it has the positions of event hub hub"):
        group.query("c")  # which has not been told


def test_a_table_whose_hub_is_not_known_is_read_as_before(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_ehbalance.hub import watcher

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
        DataLossError, match=rf"until just now this query has read event hub hub .*, made {_TIME}, and "
    ) as caught:
        wait_until(lambda: query.step() and False, "the query ends")
    message = str(caught.value)
    assert "Give the query a new checkpointLocation" in message
    assert ("and a new leaseTable" in message) is shared
    assert "\n" not in message
    query.stop()
    with pytest.raises(DataLossError, match="and this is event hub hub"):  # a restart says the same
        group.query("a", query.finished, shared=shared)


def test_without_fail_on_data_loss_a_running_query_says_so_once(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    group.append(5)
    query = group.query("a", failOnDataLoss=False)
    query.read(5 * PARTITIONS)
    make_anew(group, 9)
    query.read(9 * PARTITIONS)
    wait_until(lambda: query.step() or "this query has read event hub" in caplog.text, "it is told")
    group.append(3)
    query.read(12 * PARTITIONS)
    assert caplog.text.count("until just now this query has read event hub") == 1
    assert Counter(query.seen) == Counter((str(p), n) for p in range(PARTITIONS) for n in range(12))


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
