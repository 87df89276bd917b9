"""A query that is started again while its lease table is gone, emptied, exchanged or has lost rows."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_ehbalance.errors import DataLossError, OptionError, StoreFormatError, StoreReplacedError
from spark_ehbalance.leases.model import Lease, TableIdentity
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.position import Position
from tests.source.queries import Group, Query
from tests.source.support import HUB
from tests.stores.histories import NOT_RECORDED, make_unwritable
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("without_network")


def gone(group: Group) -> None:
    shutil.rmtree(group.table)


def moved(group: Group) -> None:
    group.table = group.table.with_name("elsewhere")


def made_anew(group: Group) -> None:
    gone(group)
    group.query("other", startingPosition="latest").stop()


def another(group: Group) -> None:
    moved(group)
    group.query("other", startingPosition="latest").stop()


LOSSES = [gone, moved, made_anew, another]


@pytest.fixture
def stopped(group: Group) -> Query:
    """A query that has read 5 events of each partition and was stopped in an orderly way; 10 more have come since."""
    group.raw["startingPosition"] = "latest"
    query = group.query("a")
    group.wait_owned(8)
    group.append(5)
    query.read(40)
    query.planner.finish(query.finished)
    query.stop()
    assert set(group.checkpoints().values()) == {5}
    group.append(10)
    return query


def files(group: Group) -> list[Path]:
    return sorted(group.table.parent.rglob("*"))


@pytest.mark.parametrize("lose", LOSSES)
def test_the_query_fails_before_it_reads_or_creates_anything(
    group: Group, stopped: Query, lose: Callable[[Group], None]
) -> None:
    place = str(group.table)
    lose(group)
    before = files(group)
    with pytest.raises(DataLossError, match=r"ehbalance init .* --positions p\.json`") as caught:
        group.query("a", stopped.finished)
    message = str(caught.value)
    assert place in message
    assert f"leaseTable={group.table}: " in message
    assert "\n" not in message
    assert files(group) == before


@pytest.mark.parametrize("lose", LOSSES)
def test_without_fail_on_data_loss_it_goes_on_from_its_own_checkpoint_or_reports_what_is_skipped(
    group: Group, stopped: Query, lose: Callable[[Group], None], caplog: pytest.LogCaptureFixture
) -> None:
    lose(group)
    with caplog.at_level(logging.WARNING, "spark_ehbalance"):
        query = group.query("a", stopped.finished, failOnDataLoss="false")
    assert "because failOnDataLoss=false" in caplog.text
    if lose in (made_anew, another):
        assert "partition 0: events 5 to 14 are skipped" in caplog.text
        return
    query.read(80)
    assert sorted(query.seen) == sorted((str(p), n) for p in range(8) for n in range(5, 15))
    assert min(lease.epoch for lease in group.leases().values()) >= 2, "no epoch is handed out twice"


def test_a_query_whose_history_cannot_be_written_goes_on_with_a_warning(
    group: Group, stopped: Query, caplog: pytest.LogCaptureFixture
) -> None:
    gone(group)
    make_unwritable(group.table)
    with caplog.at_level(logging.WARNING, "spark_ehbalance"):
        query = group.query("a", stopped.finished, failOnDataLoss="false")
    assert f"{NOT_RECORDED}{group.table}_history could not be written" in caplog.text
    query.read(80)
    assert sorted(query.seen) == sorted((str(p), n) for p in range(8) for n in range(5, 15))


def test_a_query_that_has_read_another_hub_is_refused(group: Group, stopped: Query) -> None:
    group.emulator.add_hub("other", 8)
    with pytest.raises(OptionError, match="eventHubName=other: this query's checkpoint has read event hub hub"):
        group.query("a", stopped.finished, connectionString=group.emulator.connection_string("other"))


def test_a_first_batch_that_was_logged_but_not_finished_records_its_table(group: Group, stopped: Query) -> None:
    new = group.query("b")
    end = new.batch(limit=16)
    new.stop()
    gone(group)
    with pytest.raises(DataLossError, match="there is no such table"):
        group.query("b", None, end)


def test_a_running_query_ends_when_its_table_is_replaced(group: Group, stopped: Query) -> None:
    running = group.query("a", stopped.finished)
    away = group.table.with_name("away")
    group.table.rename(away)
    other = DeltaStore(str(group.table))
    store_group = group.options().connection.group("$Default")
    made = Lease("0", epoch=9, checkpoint=Position.before(15))
    other.create(store_group, Snapshot(store_group, leases={"0": made}, table=TableIdentity("another")))

    with pytest.raises(StoreReplacedError):
        wait_until(lambda: running.plan() and False, "the query ends")


def test_a_query_without_any_events_records_its_table(group: Group) -> None:
    group.raw["startingPosition"] = "latest"
    first = group.query("a")
    begin = first.planner.empty_end(first.finished)
    assert begin != first.finished
    assert first.planner.empty_end(begin) is begin
    first.stop()
    group.append(3)
    gone(group)
    with pytest.raises(DataLossError, match="there is no such table"):
        group.query("a", begin)


def test_a_moved_table_is_the_same_table(group: Group, stopped: Query) -> None:
    to = group.table.with_name("elsewhere")
    group.table.rename(to)
    group.table = to
    group.query("a", stopped.finished).read(80)


def test_a_first_start_and_a_new_query_need_nothing(group: Group, stopped: Query) -> None:
    group.query("new").read(80)


def test_a_logged_batch_is_replayed_from_where_it_began(group: Group, stopped: Query) -> None:
    again = group.query("a", stopped.finished)
    end = again.batch(limit=16)
    again.stop()
    gone(group)
    query = group.query("a", stopped.finished, end, failOnDataLoss="false")
    query.run(end)
    query.read(80)
    assert sorted(query.seen) == sorted((str(p), n) for p in range(8) for n in range(5, 15))


@pytest.mark.parametrize("fail", [True, False])
def test_a_query_that_no_longer_has_a_lease_table(
    group: Group, stopped: Query, fail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if fail:
        with pytest.raises(DataLossError, match="leaseTable is not set"):
            group.query("a", stopped.finished, shared=False)
    else:
        group.query("a", stopped.finished, shared=False, failOnDataLoss="false").read(80)
        assert "leaseTable is not set" in caplog.text


def test_the_table_of_another_group_is_a_wrong_option_and_not_data_loss(group: Group, stopped: Query) -> None:
    group.emulator.add_consumer_group(HUB, "another")
    with pytest.raises(StoreFormatError, match="belongs to"):
        group.query("a", stopped.finished, consumerGroup="another")


def test_a_query_that_newly_has_a_lease_table(group: Group) -> None:
    group.append(5)
    alone = group.query("a", shared=False)
    alone.read(40)
    alone.stop()
    with pytest.raises(DataLossError, match=r"no lease table\. Nothing was read or created\. Make one from"):
        group.query("a", alone.finished)
    assert not DeltaStore(str(group.table)).exists()
