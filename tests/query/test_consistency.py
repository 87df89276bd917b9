"""A query whose checkpoint, lease table or hub was copied, rolled back, moved or replaced.

The decision is tested as a pure function, then with real planners, the emulator without its network and a Delta table.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from spark_ehbalance.errors import DataLossError, StoreReplacedError
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.identity import Group as GroupName
from spark_ehbalance.group.model import Lease, QueryRecord, TableIdentity
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.query.consistency import hub_mismatch, mismatch
from spark_ehbalance.query.offsets import EpochPosition, HubReference, StreamOffset, TableReference, group_name
from tests.query.queries import PARTITIONS, Group, Query
from tests.query.support import HUB
from tests.raising import assert_reports, raises
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("without_network")

# --- the decision ------------------------------------------------------------------------------------------------

PLACE = "/leases"
AT_HUB = HubReference("hub", "ns", 7)
KNOWN = StreamOffset(
    "me",
    {"0": OffsetRange("0", 3, 10, 20)},
    group_name(PLACE),
    TableReference("t1", PLACE),
    AT_HUB,
    {"1": EpochPosition(2, 5)},
    lineage="l",
    batch=6,
    run="r2",
    table_begun=5,
)
IN_TENURE = replace(KNOWN, ranges={"0": OffsetRange("0", 3, 10, 20, since_ms=1000)})
RECORD = QueryRecord("l", "r2", "me", 2, 5, 6, "r2", 0, "here")
AT = {"at": "1970-01-01 00:00:00+00:00", "owner": "me", "host": "here"}


def table(record: QueryRecord | None = RECORD, id: str = "t1", created: int | None = 7, **epochs: int) -> Snapshot:
    """A lease table whose partitions p0 and p1 have these epochs and a position."""
    epochs = epochs or {"p0": 3, "p1": 2}
    leases = {p[1:]: Lease(p[1:], epoch=epoch, checkpoint=Position(9)) for p, epoch in epochs.items()}
    queries = {} if record is None else {"l": record}
    identity = TableIdentity(id, hub_created_ms=created)
    return Snapshot(GroupName("ns", "hub", "g"), 4, leases, {}, identity, None, queries)


@pytest.mark.parametrize(
    ("known", "found", "recreated"), [(7, 8, True), (7, 7, False), (7, None, False), (None, 8, False)]
)
def test_hub_counts_as_recreated_only_if_both_creation_times_are_known_and_differ(
    known: int | None, found: int | None, recreated: bool
) -> None:
    hub = HubReference("hub", "ns", found)
    error = hub_mismatch(table(created=known), hub)
    assert (error is not None) == recreated
    if error:
        assert_reports(error, "EHB_HUB_RECREATED", known=HubReference("hub", "ns", known), found=hub)


def stale(what: str, known: object, found: object) -> tuple[str, dict[str, object]]:
    return "EHB_LEASE_TABLE_STALE", {"what": what, "known": known, "found": found}


def owned_by(owner: str) -> Snapshot:
    found = table()
    return replace(found, leases={**found.leases, "0": replace(found.leases["0"], owner=owner)})


def owned_since(since_ms: int) -> Snapshot:
    found = table()
    return replace(found, leases={**found.leases, "0": replace(found.leases["0"], owned_since_ms=since_ms)})


def without_position(found: Snapshot) -> Snapshot:
    return replace(found, leases={**found.leases, "1": replace(found.leases["1"], checkpoint=None)})


CONTINUES: dict[str, tuple[StreamOffset, Snapshot | None, str | None]] = {
    "first start": (StreamOffset("me"), None, PLACE),
    "the same epoch of this owner": (KNOWN, owned_by("me"), PLACE),
    "the same tenure": (IN_TENURE, owned_since(1000), PLACE),
    "new checkpoint": (StreamOffset("me", group=group_name(PLACE)), table(), PLACE),
    "the table knows the last batch": (KNOWN, table(), PLACE),
    "killed before the table learned of the batch": (KNOWN, table(replace(RECORD, begun=5)), PLACE),
    "restarted, and killed before a batch": (KNOWN, table(replace(RECORD, run="r3")), PLACE),
    "taken over before the batch was logged": (KNOWN, table(replace(RECORD, run="r3", begun=5, planner="r1")), PLACE),
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
    "the same epoch of another owner": (
        KNOWN, owned_by("you"), PLACE, stale("owner of partition 0 in epoch 3", "me", "you")
    ),
    "the same epoch after a seek": (
        IN_TENURE, owned_since(0), PLACE,
        stale(
            "start of ownership of partition 0 in epoch 3", "1970-01-01 00:00:01+00:00", "1970-01-01 00:00:00+00:00"
        ),
    ),
    "no record": (KNOWN, table(None), PLACE, stale("last batch of this query", 5, "missing")),
    "fewer batches": (KNOWN, table(replace(RECORD, begun=4)), PLACE, stale("last batch of this query", 5, 4)),
    "later batch": (
        KNOWN, table(replace(RECORD, begun=7)), PLACE, ("EHB_CHECKPOINT_STALE", {"batch": 6, "begun": 7, **AT})
    ),
    "the same batch of another run": (
        KNOWN, table(replace(RECORD, planner="r3")), PLACE, ("EHB_CHECKPOINT_STALE", {"batch": 6, "begun": 6, **AT})
    ),
    "another run has continued from an earlier batch": (
        KNOWN, table(replace(RECORD, run="r3", begun=5, planner="r3")), PLACE,
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
def test_matching_checkpoint_and_table_continue(case: str) -> None:
    known, found, location = CONTINUES[case]
    assert mismatch(known, found, AT_HUB, location) is None


@pytest.mark.parametrize("case", STOPS)
def test_mismatch_is_an_error_that_states_both_facts(case: str) -> None:
    known, found, location, (name, facts) = STOPS[case]
    wrong = mismatch(known, found, AT_HUB, location)
    assert_reports(wrong, name, **facts)
    assert all(str(fact) in str(wrong) for fact in facts.values())


# --- queries -------------------------------------------------------------------------------------------------------


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
def test_lost_lease_table_is_an_error_before_anything_is_read_or_created(group: Group, loss: str) -> None:
    """Even if the query has not read an event yet."""
    query = group.query("a")
    end = query.planner.empty_end(query.finished)
    query.stop()
    lose, options = LOSSES[loss]
    lose(group)
    before = files(group)
    with pytest.raises(DataLossError, match=rf"\[{loss.split()[0]}\]"):
        group.query("a", end, failOnDataLoss=False, **options)
    assert files(group) == before


def restored(group: Group, version: int) -> bool:
    """Run RESTORE; returns whether it won the race against the members' commits."""
    try:
        DeltaTable(group.table).restore(version)
    except CommitFailedError:
        return False
    return True


def test_restored_table_ends_running_queries_and_rejects_stopped_ones(group: Group) -> None:
    """The restored rows contain the start of the stopped query's batch, but not the takeover that cut it short."""
    group.append(5)
    stopped = group.query("a")
    end = stopped.batch()
    stopped.stop()
    version = group.snapshot().version
    running = group.query("b")
    running.read(5 * PARTITIONS)
    wait_until(lambda: restored(group, version), "the table is restored")
    what = {"problem": re.compile(r"^version \d+ is a foreign commit \(RESTORE\)$")}
    with raises(StoreReplacedError, "EHB_LEASE_TABLE_ROLLED_BACK", **what):
        wait_until(lambda: running.step() and False, "the query ends")
    running.stop()
    before = files(group)
    for owner, finished, unfinished in (("a", None, end), ("b", running.finished, None)):
        with raises(StoreReplacedError, "EHB_LEASE_TABLE_ROLLED_BACK", **what):
            group.query(owner, finished, unfinished)
    assert files(group) == before


# --- a hub that was recreated under the same name ------------------------------------------------------------------

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


@pytest.mark.usefixtures("frequent_partition_listing")
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
