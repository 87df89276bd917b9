"""The data file of the lease table: what is written is read again, and only what differs is read anew."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.leases.model import Lease, Member, QueryRecord, TableIdentity
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import Heartbeat, Renew, apply
from spark_ehbalance.stores.delta.data_file import Stored, encode, snapshot_of
from spark_ehbalance.stores.delta.table_format import SCHEMA, conformed, from_table, to_table
from spark_ehbalance.values.position import Position
from tests.stores.snapshots import snapshots
from tests.stores.store_conformance import ANN, BOB, GROUP

STATE = Snapshot(
    GROUP,
    3,
    MappingProxyType({str(i): Lease(str(i), ANN.id, 1 + i, 5, checkpoint=Position(i, str(i))) for i in range(4)}),
    MappingProxyType({ann.id: Member(ann.id, ann.incarnation, joined) for joined, ann in enumerate([ANN, BOB])}),
    TableIdentity("t", frozenset({"s"})),
    queries=MappingProxyType({"l": QueryRecord("l", "run 1", ANN.id), "m": QueryRecord("m", "run 2", BOB.id)}),
)
STORED = Stored(STATE, to_table(STATE))


def changed(index: int, **values: Any) -> pa.Table:
    """The stored rows with other `values` in the row at `index`."""
    rows = STORED.rows.to_pylist()
    rows[index] |= values
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@settings(deadline=None)
@given(snapshots(GROUP))
def test_a_file_has_the_columns_and_rows_that_it_was_made_of(snapshot: Snapshot) -> None:
    rows = to_table(snapshot)
    read = pq.ParquetFile(pa.BufferReader(encode(rows))).read(use_threads=False)
    assert conformed(read, SCHEMA) == rows


@settings(deadline=None)
@given(snapshots(GROUP), snapshots(GROUP), st.integers(0, 6))
def test_what_was_read_before_makes_no_difference(before: Snapshot, other: Snapshot, count: int) -> None:
    values = zip(before.leases, list(other.leases.values())[:count], strict=False)
    leases = {partition: replace(lease, partition=partition) for partition, lease in values}
    records = zip(before.queries, list(other.queries.values())[:count], strict=False)
    queries = {lineage: replace(query, lineage=lineage) for lineage, query in records}
    after = replace(
        before,
        leases=MappingProxyType({**before.leases, **leases}),
        queries=MappingProxyType({**before.queries, **queries}),
    )
    for state in (after, other):
        read = snapshot_of(to_table(state), GROUP, 9, Stored(before, to_table(before)))
        assert read == replace(state, version=9)


def test_what_has_not_changed_stays_the_same_object() -> None:
    renewed = apply(STATE, [Renew(by=ANN, at_ms=7, partition="2", epoch=3), Heartbeat(by=ANN, at_ms=7)]).after
    after = snapshot_of(to_table(renewed), GROUP, 4, STORED)
    assert after == replace(renewed, version=4) != replace(STATE, version=4)
    assert [id for id, lease in STATE.leases.items() if after.leases[id] is not lease] == ["2"]
    assert [id for id, member in STATE.members.items() if after.members[id] is not member] == [ANN.id]
    assert [lineage for lineage, query in STATE.queries.items() if after.queries[lineage] is not query] == []
    assert after.ownership == STATE.ownership


def test_a_look_at_an_unchanged_table_makes_no_object_anew() -> None:
    leases = {str(i): Lease(str(i), ANN.id, 1, 5, checkpoint=Position(i, str(i))) for i in range(2_000)}
    large = replace(STATE, leases=MappingProxyType(leases))
    rows = conformed(pq.ParquetFile(pa.BufferReader(encode(to_table(large)))).read(), SCHEMA)
    first = Stored(snapshot_of(rows, GROUP, 4), rows)
    second = snapshot_of(to_table(large), GROUP, 5, first)
    assert second == replace(large, version=5)
    assert second.leases is first.snapshot.leases
    assert second.members is first.snapshot.members
    assert second.queries is first.snapshot.queries


def test_a_query_s_progress_leaves_all_other_objects_as_they_are() -> None:
    further = replace(STATE, queries=MappingProxyType({**STATE.queries, "m": replace(STATE.queries["m"], batch=7)}))
    after = snapshot_of(to_table(further), GROUP, 4, STORED)
    assert after == replace(further, version=4) != replace(STATE, version=4)
    assert all(after.leases[id] is lease for id, lease in STATE.leases.items())
    assert after.members is STATE.members
    assert after.queries["l"] is STATE.queries["l"]


#: What others may do to the rows.
FOREIGN = {
    "nothing": STORED.rows,
    "in another order": STORED.rows.take([5, 7, 0, 9, 3, 2, 8, 1, 4, 6]),
    "a row twice": pa.concat_tables([STORED.rows, STORED.rows.slice(1, 1)]),
    "a member twice, once with an older heartbeat": pa.concat_tables([STORED.rows, changed(4, renewal=-3).slice(4, 1)]),
    "without a member": pa.concat_tables([STORED.rows.slice(0, 5), STORED.rows.slice(6)]),
    "a member without an incarnation": changed(4, incarnation=None),
    "a member in an unknown state": changed(5, state="asleep"),
    "another table": changed(8, id="u"),
    "another table replaced": changed(9, id="u"),
    "a query twice": pa.concat_tables([STORED.rows, changed(6, renewal=3).slice(6, 1)]),
    "another query": changed(7, id="n"),
    "a query without a run": changed(6, incarnation=None),
    "a time that no datetime can hold": STORED.rows.set_column(
        5, SCHEMA.field(5), pa.array([-(2**62)] * STORED.rows.num_rows, SCHEMA.field(5).type)
    ),
    "in several row groups": pa.concat_tables([STORED.rows.slice(0, 3), STORED.rows.slice(3)]),
}


@pytest.mark.parametrize("rows", FOREIGN.values(), ids=FOREIGN)
def test_rows_of_others_are_read_as_without_anything_before(rows: pa.Table) -> None:
    read = snapshot_of(rows, GROUP, 4, STORED)
    assert read == from_table(rows, GROUP, 4)
    again = Stored(read, rows)
    assert snapshot_of(rows, GROUP, 5, again) == replace(read, version=5)
    assert snapshot_of(STORED.rows, GROUP, 5, again) == replace(STATE, version=5)


@pytest.mark.parametrize(
    "rows",
    [changed(1, epoch=None), changed(1, sequence_number=-9), pa.concat_tables([STORED.rows, changed(1, epoch=9)])],
    ids=["no epoch", "no such position", "two that differ"],
)
def test_an_ambiguous_lease_is_refused_whatever_was_read_before(rows: pa.Table) -> None:
    with pytest.raises(ValueError, match="partition 1"):
        snapshot_of(rows, GROUP, 4, STORED)
