"""A query's checkpoint, its lease table and its hub, of which one was copied, rolled back, moved or replaced.

First the decision, from values to values; then real planners, the emulator and a Delta table, with Spark's part played
by `Query`.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.errors import DataLossError, FencedError, StoreFormatError
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.group.identity import Group as GroupName
from spark_ehbalance.group.mismatch import Mismatch
from spark_ehbalance.group.model import Lease, QueryRecord, TableIdentity
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.query.offsets import EpochPosition, HubReference, StreamOffset, TableReference, group_name
from spark_ehbalance.query.past import mismatch
from spark_ehbalance.spark import datasource
from tests.query.lives import Lives
from tests.query.queries import PARTITIONS, Group, Query
from tests.query.support import HUB
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("without_network")

# --- the decision ------------------------------------------------------------------------------------------------

PLACE = "/leases"
AT_HUB = HubReference("hub", "ns", 7)
KNOWN = StreamOffset(
    "me",
    {"0": Range("0", 3, 10, 20)},
    group_name(PLACE),
    TableReference("t1", PLACE),
    AT_HUB,
    {"1": EpochPosition(2, 5)},
    lineage="l",
    batch=6,
    run="r2",
    table_begun=5,
)
RECORD = QueryRecord("l", "r2", "me", 2, 5, 6, "r2", 0, "here")
AT = {"at": "1970-01-01 00:00:00+00:00", "owner": "me", "host": "here"}


def table(record: QueryRecord | None = RECORD, id: str = "t1", created: int | None = 7, **epochs: int) -> Snapshot:
    """A lease table in which partitions, named p0 and p1, have these epochs and a position."""
    epochs = epochs or {"p0": 3, "p1": 2}
    leases = {p[1:]: Lease(p[1:], epoch=each, checkpoint=Position(9)) for p, each in epochs.items()}
    queries = {} if record is None else {"l": record}
    identity = TableIdentity(id, hub_created_ms=created)
    return Snapshot(GroupName("ns", "hub", "g"), 4, leases, {}, identity, None, queries)


def stale(what: str, known: object, found: object) -> tuple[str, dict[str, object]]:
    return "EHB_LEASE_TABLE_STALE", {"what": what, "known": known, "found": found}


def without_position(found: Snapshot) -> Snapshot:
    return replace(found, leases={**found.leases, "1": replace(found.leases["1"], checkpoint=None)})


CONTINUES: dict[str, tuple[StreamOffset, Snapshot | None, str | None]] = {
    "first start": (StreamOffset("me"), None, PLACE),
    "new checkpoint": (StreamOffset("me", group=group_name(PLACE)), table(), PLACE),
    "the table knows the last batch": (KNOWN, table(), PLACE),
    "killed before the table learned of the batch": (KNOWN, table(replace(RECORD, begun=5)), PLACE),
    "restarted, and killed before a batch": (KNOWN, table(replace(RECORD, run="r3")), PLACE),
    "stopped, with a batch logged": (KNOWN, table(replace(RECORD, run="", begun=5)), PLACE),
    "others went on": (KNOWN, table(p0=8, p1=9, p2=1), PLACE),
    "hub's creation unknown": (KNOWN, table(created=None), PLACE),
    "alone": (replace(KNOWN, group="", table=None), None, None),
    "blob container": (replace(KNOWN, table=None), replace(table(None), table=None), PLACE),
}

STOPS: dict[str, tuple[StreamOffset, Snapshot | None, str | None, tuple[str, dict[str, object]]]] = {
    "another table's location": (
        KNOWN, table(), "/copy",
        ("EHB_LEASE_TABLE_CHANGED", {"known": "lease table /leases", "found": "lease table /copy"}),
    ),
    "leaseTable left out": (
        KNOWN, None, None,
        ("EHB_LEASE_TABLE_CHANGED", {"known": "lease table /leases", "found": "no lease table"}),
    ),
    "leaseTable added": (
        replace(KNOWN, group="", table=None), None, PLACE,
        ("EHB_LEASE_TABLE_CHANGED", {"known": "no lease table", "found": "lease table /leases"}),
    ),
    "no table": (KNOWN, None, PLACE, ("EHB_LEASE_TABLE_LOST", {"location": PLACE, "id": "t1"})),
    "no rows": (
        KNOWN, replace(table(), leases={}), PLACE, ("EHB_LEASE_TABLE_LOST", {"location": PLACE, "id": "t1"})
    ),
    "recreated table": (KNOWN, table(id="t2"), PLACE, ("EHB_LEASE_TABLE_REPLACED", {"known": "t1", "found": "t2"})),
    "no identity": (
        KNOWN, replace(table(), table=None), PLACE, ("EHB_LEASE_TABLE_REPLACED", {"known": "t1", "found": None})
    ),
    "a row is gone": (KNOWN, table(p0=3), PLACE, stale("position in partition 1", "known", "missing")),
    "a position is gone": (
        KNOWN, without_position(table()), PLACE, stale("position in partition 1", "known", "missing")
    ),
    "a lower epoch": (KNOWN, table(p0=2, p1=2), PLACE, stale("epoch of partition 0", 3, 2)),
    "no record": (KNOWN, table(None), PLACE, stale("last batch of this query", 5, "missing")),
    "fewer batches": (KNOWN, table(replace(RECORD, begun=4)), PLACE, stale("last batch of this query", 5, 4)),
    "later batch": (
        KNOWN, table(replace(RECORD, begun=7)), PLACE, ("EHB_CHECKPOINT_STALE", {"batch": 6, "begun": 7, **AT})
    ),
    "the same batch of another run": (
        KNOWN, table(replace(RECORD, planner="r3")), PLACE, ("EHB_CHECKPOINT_STALE", {"batch": 6, "begun": 6, **AT})
    ),
    "another run has started from an earlier batch": (
        KNOWN, table(replace(RECORD, run="r3", begun=5)), PLACE,
        ("EHB_CHECKPOINT_STALE", {"batch": 6, "begun": 5, **AT}),
    ),
    "the table has another hub": (
        StreamOffset("me"), table(created=1), PLACE,
        ("EHB_HUB_RECREATED", {"part": "lease table", "known": replace(AT_HUB, created_ms=1), "found": AT_HUB}),
    ),
    "the checkpoint has another hub": (
        replace(KNOWN, hub=replace(AT_HUB, name="old")), table(), PLACE,
        ("EHB_HUB_RECREATED", {"part": "checkpoint", "known": replace(AT_HUB, name="old"), "found": AT_HUB}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTINUES)
def test_what_belongs_together_continues(case: str) -> None:
    known, found, location = CONTINUES[case]
    assert mismatch(known, found, AT_HUB, location) is None


@pytest.mark.parametrize("case", STOPS)
def test_what_does_not_belong_together_is_an_error_with_both_facts(case: str) -> None:
    known, found, location, (name, facts) = STOPS[case]
    wrong = mismatch(known, found, AT_HUB, location)
    assert wrong == Mismatch(name, facts)
    message = str(wrong and wrong.error())
    assert message.startswith(f"[{name}] ")
    assert all(str(each) in message for each in facts.values())


# --- queries -------------------------------------------------------------------------------------------------------


def run(group: Group, query: Query, batches: int = 1) -> list[StreamOffset]:
    """Have the query finish so many batches of an event of each partition; their ends."""
    ends = []
    for _ in range(batches):
        group.append(1)
        read, ends_before = len(query.seen), query.finished
        query.read(read + PARTITIONS)
        assert query.finished != ends_before
        ends.append(query.finished)
        query.planner.finish(query.finished)
    return ends


def once_each(group: Group, *queries: Query) -> None:
    assert Counter(event for query in queries for event in query.seen) == group.everything()


def wait_known(group: Group, end: StreamOffset) -> None:
    wait_until(lambda: group.snapshot().queries[end.lineage].batch == end.batch, "the table knows")


def files(group: Group) -> list[Path]:
    return sorted(group.table.parent.rglob("*"))


def gone(group: Group) -> None:
    shutil.rmtree(group.table)


def recreated(group: Group) -> None:
    gone(group)
    group.query("other", startingPosition="latest").stop()


LOSSES: dict[str, tuple[Callable[[Group], None], dict[str, Any]]] = {
    "EHB_LEASE_TABLE_LOST": (gone, {}),
    "EHB_LEASE_TABLE_REPLACED": (recreated, {}),
    "EHB_LEASE_TABLE_CHANGED moved": (lambda group: None, {"leaseTable": "/elsewhere"}),
    "EHB_LEASE_TABLE_CHANGED alone": (lambda group: None, {"shared": False}),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("fail", [True, False])
def test_a_lost_table_is_an_error_before_anything_is_read_or_created(group: Group, loss: str, fail: bool) -> None:
    query = group.query("a")
    (end,) = run(group, query)
    query.stop()
    lose, options = LOSSES[loss]
    lose(group)
    before = files(group)
    with pytest.raises(DataLossError, match=rf"\[{loss.split()[0]}\]"):
        group.query("a", end, failOnDataLoss=fail, **options)
    assert files(group) == before
    if not options:
        run(group, group.query("a", startingPosition="latest"))  # a new checkpoint has no past


@pytest.mark.parametrize("loss", LOSSES)
def test_a_query_without_any_events_records_its_table(group: Group, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasource.signal, "signal", lambda *_: None)  # type: ignore[attr-defined]
    group.raw["startingPosition"] = "latest"
    reader = datasource.StreamReader(group.options())
    logged = reader.latestOffset(start := reader.initialOffset())
    reader.partitions(start, logged)
    assert reader.latestOffset(logged) == logged
    reader.stop()
    lose, options = LOSSES[loss]
    lose(group)
    before = files(group)
    with pytest.raises(DataLossError, match=rf"\[{loss.split()[0]}\]"):
        group.query("a", StreamOffset.from_json(logged), **options)
    assert files(group) == before


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("is_finished", [False, True])
def test_a_query_without_any_events_continues(group: Group, lives: Lives, killed: bool, is_finished: bool) -> None:
    group.raw["startingPosition"] = "latest"
    first = lives.start(lambda: group.query("a"))
    begin = first.planner.empty_end(first.finished)
    if is_finished:
        first.run(begin)
        first.planner.finish(begin)
    if killed:
        lives.kill(first)
    else:
        first.stop()
    group.append(1)
    again = lives.start(lambda: group.query("a", *((begin,) if is_finished else (None, begin))))
    if not is_finished:
        assert again.run(begin) == []
    again.read(PARTITIONS)
    once_each(group, again)


def test_the_table_of_another_group_is_a_wrong_option_and_not_data_loss(group: Group) -> None:
    query = group.query("a")
    (end,) = run(group, query)
    query.stop()
    group.emulator.add_consumer_group(HUB, "another")
    with pytest.raises(StoreFormatError, match="belongs to"):
        group.query("a", end, consumerGroup="another")


def test_a_stale_checkpoint_is_refused_and_a_new_one_continues(group: Group) -> None:
    """Sinks that know batch numbers would leave out the new events of the old numbers."""
    first = group.query("a")
    ends = run(group, first, 4)
    first.stop()
    group.append(1)
    before = group.snapshot()
    message = rf"\[EHB_CHECKPOINT_STALE\] .* ends with batch {ends[1].batch}, and .* began batch {ends[3].batch} at 20"
    with pytest.raises(DataLossError, match=message):
        group.query("a", ends[1])
    assert group.snapshot() == before, "nothing was written"
    anew = group.query("a")
    anew.read(PARTITIONS)
    once_each(group, first, anew)


def test_a_batch_that_runs_for_long_is_known_while_it_runs(group: Group, lives: Lives) -> None:
    query = lives.start(lambda: group.query("a"))
    (one,) = run(group, query)
    group.append(1)
    query.run(query.batch())
    wait_until(lambda: group.snapshot().queries[one.lineage].begun == 2, "a renewal reports it")
    lives.kill(query)
    with pytest.raises(DataLossError, match="EHB_CHECKPOINT_STALE"):
        lives.start(lambda: group.query("a", one))


def test_a_later_process_fences_the_earlier_one_and_runs_its_batch_again(group: Group) -> None:
    """A rolling restart, a zombie, or a copy of the checkpoint. The name stays the checkpoint's."""
    first = group.query("pod-1", leaseDuration="60s")
    (one,) = run(group, first)
    group.append(1)
    two = first.batch()
    later = group.query("pod-2", one, two, leaseDuration="60s")
    assert later.planner.owner == "pod-1"
    assert {each.owner for each in group.leases().values()} == {"pod-1"}, "its leases are taken back at once"
    with pytest.raises(FencedError, match=r"\[EHB_FENCED\] A later process on .* started as pod-1"):
        wait_until(lambda: first.planner.next_batch(one, None) is None, "the first one learns of it")
    later.run(two)
    ends = run(group, later)
    once_each(group, first, later)
    later.stop()
    with pytest.raises(DataLossError, match="EHB_CHECKPOINT_STALE"):
        group.query("pod-1", one, two)
    assert group.query("pod-3", ends[-1]).owned()


# --- a table that is older than the checkpoint -----------------------------------------------------------------


@pytest.fixture
def rolled_back(group: Group, tmp_path: Path, lives: Lives) -> Query:
    """A query that ended after two batches that its table, an earlier copy, does not know."""
    query = lives.start(lambda: group.query("a"))
    run(group, query, 2)
    wait_known(group, query.finished)
    shutil.copytree(group.table, tmp_path / "copy")
    for _ in range(2):
        run(group, query)
        wait_known(group, query.finished)
    lives.kill(query)
    shutil.rmtree(group.table)
    (tmp_path / "copy").rename(group.table)
    return query


def test_a_table_that_was_rolled_back_is_refused(group: Group, rolled_back: Query, lives: Lives) -> None:
    with pytest.raises(DataLossError, match=r"\[EHB_LEASE_TABLE_STALE\] .* last batch of this query is 2 and was 3"):
        lives.start(lambda: group.query("a", rolled_back.finished))


def test_positions_that_did_not_reach_the_table_are_not_read_twice(
    group: Group, rolled_back: Query, lives: Lives
) -> None:
    """The table was unreachable when the query was killed: it lost nothing that the query had seen in it."""
    group.append(1)
    again = lives.start(lambda: group.query("a", replace(rolled_back.finished, table_begun=2)))
    again.read(PARTITIONS)
    once_each(group, rolled_back, again)
