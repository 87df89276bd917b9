"""The lease table's format: a snapshot as rows, and a description that contains the table's group.

The fields that people query have their own columns; `details` contains all other fields as JSON. A row of kind
`partition` is a lease, a row of kind `member` is a member, and a row of kind `query` is a query's record. The row of
kind `table` contains the table's id and totals of all leases, which reveal lost or edited rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ehbalance.errors import StoreFormatError
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.model import (
    Handover,
    Lease,
    Load,
    Member,
    MemberLoad,
    MemberState,
    Pin,
    QueryRecord,
    TableIdentity,
)
from spark_ehbalance.group.position import Position, partition_order
from spark_ehbalance.group.snapshot import Snapshot

#: Incremented with every change of the format after the first release.
FORMAT = 1

TIME = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("id", pa.string()),
        ("owner", pa.string()),
        ("epoch", pa.int64()),
        ("sequence_number", pa.int64()),
        ("renewed_at", TIME),
        ("host", pa.string()),
        ("details", pa.string()),
    ]
)

_Row = tuple[str, str | None, str | None, int | None, int | None, int | None, str | None, dict[str, Any]]

_LEASE_PARTS: Mapping[str, Any] = {"handover": Handover, "load": Load, "pin": Pin, "lag": Lag}
#: Names of counts in `details`, and the fields of `Lease`.
_LEASE_COUNTS = {"defences": "defences", "sought": "seek_epoch", "stalled": "stall_count"}

#: Fields without a column of their own.
_MEMBER_DETAILS = [f.name for f in fields(Member) if f.name not in ("id", "host", "renewed_at_ms", "load")]
_QUERY_DETAILS = [f.name for f in fields(QueryRecord) if f.name not in ("lineage", "owner", "at_ms", "host")]

_to_json = json.JSONEncoder(separators=(",", ":")).encode


def description(group: Group) -> str:
    """The description that identifies a Delta table as the lease table of `group`."""
    return json.dumps(
        {
            "ehbalance": FORMAT,
            "namespace": group.namespace,
            "eventHub": group.hub,
            "consumerGroup": group.consumer_group,
        }
    )


def group_of(description: str | None, location: str) -> Group | None:
    """The group in the `description` of the lease table at `location`; None if another program wrote the
    description. Raises `StoreFormatError`."""
    try:
        fields = json.loads(description or "")
        version = int(fields["ehbalance"])
        if version == FORMAT:
            return Group.from_names(fields["namespace"], fields["eventHub"], fields["consumerGroup"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):  # another program's text
        return None
    problem = f"it has format {version}, but this version of spark-ehbalance supports format {FORMAT}"
    raise StoreFormatError("EHB_LEASE_TABLE_FOREIGN", location=location, problem=problem)


def to_table(snapshot: Snapshot) -> pa.Table:
    """`snapshot` as rows: partitions in their order, then members and queries by id."""
    rows = [
        *map(_lease_row, snapshot.leases.values()),
        *(_member_row(snapshot.members[id]) for id in sorted(snapshot.members)),
        *(_query_row(snapshot.queries[lineage]) for lineage in sorted(snapshot.queries)),
        _table_row(snapshot),
    ]
    *columns, details = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=False)]
    return pa.Table.from_arrays([*arrays, pa.array(map(_to_json, details), pa.string())], schema=SCHEMA)


def encode(rows: pa.Table) -> bytes:
    """`rows` as a Parquet file."""
    buffer = pa.BufferOutputStream()
    # Parquet's features for large tables are turned off. For 64 partitions, this saves a third of the time and half the
    # bytes.
    pq.write_table(rows, buffer, compression="snappy", use_dictionary=False, write_statistics=False, store_schema=False)
    return buffer.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_table(table: pa.Table, group: Group, version: int) -> Snapshot:
    """The snapshot in `table`, whose rows may be in any order. Raises `ValueError` if they are incomplete or edited."""
    columns = [column.combine_chunks() for column in table.columns]
    columns[5] = columns[5].view(pa.int64())  # because times may be beyond the range of `datetime`
    *values, texts = (column.to_pylist() for column in columns)
    leases: dict[str, Lease] = {}
    members: dict[str, Member] = {}
    queries: dict[str, QueryRecord] = {}
    table_row: _Row | None = None
    try:
        details = json.loads(f"[{','.join(texts)}]")
        for row in zip(*values, details, strict=True):
            kind, id = row[0], row[1]
            if kind == "partition":
                leases[id] = _lease(row)
            elif kind == "member":
                members[id] = _member(row)
            elif kind == "query":
                queries[id] = _query(row)
            elif kind == "table":
                table_row = row
            else:
                raise ValueError(f"it has a row of the unknown kind {kind!r}")
        if table_row is None:
            raise ValueError("its rows were deleted")
        found = table_row[-1]
        rows = len(leases) + len(members) + len(queries) + 1
        if rows != table.num_rows or found["totals"] != _totals(leases.values()):
            raise ValueError("its rows were edited, or some of them were deleted or duplicated")
        identity = None
        if table_row[1] is not None:
            identity = TableIdentity(table_row[1], found["hub_created_ms"], found.get("latest_ms"))
        duration = found["lease_duration_ms"]
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"it has rows that another program wrote: {error!r}") from error
    return Snapshot(
        group,
        version,
        MappingProxyType({partition: leases[partition] for partition in sorted(leases, key=partition_order)}),
        MappingProxyType(members),
        identity,
        duration,
        MappingProxyType(queries),
    )


def _table_row(snapshot: Snapshot) -> _Row:
    table = snapshot.table
    details = {
        "totals": _totals(snapshot.leases.values()),
        "hub_created_ms": table.hub_created_ms if table else None,
        "latest_ms": table.latest_ms if table else None,
        "lease_duration_ms": snapshot.lease_duration_ms,
    }
    return "table", table.id if table else None, None, None, None, None, None, details


def _totals(leases: Iterable[Lease]) -> Sequence[int]:
    """The number of leases, and the sums of their epochs and sequence numbers."""
    count = epochs = numbers = 0
    for lease in leases:
        count += 1
        epochs += lease.epoch
        numbers += -2 if lease.checkpoint is None else lease.checkpoint.sequence_number
    return [count, epochs, numbers]


def _lease_row(lease: Lease) -> _Row:
    checkpoint = lease.checkpoint
    details: dict[str, Any] = {"renewal": lease.renewal, "owned_since_ms": lease.owned_since_ms}
    if checkpoint is not None and checkpoint.offset is not None:
        details["offset"] = checkpoint.offset
    for name in _LEASE_PARTS:
        if (part := getattr(lease, name)) is not None:
            details[name] = _values(part)
    for name, field in _LEASE_COUNTS.items():
        if count := getattr(lease, field):
            details[name] = count
    number = None if checkpoint is None else checkpoint.sequence_number
    return "partition", lease.partition, lease.owner, lease.epoch, number, 1000 * lease.renewed_at_ms, None, details


def _lease(row: Any) -> Lease:
    _, partition, owner, epoch, number, renewed_at, _, details = row
    offset = details.pop("offset", None)
    for name, part in _LEASE_PARTS.items():
        if name in details:
            details[name] = part(**details[name])
    counts = {field: details.pop(name, 0) for name, field in _LEASE_COUNTS.items()}
    return Lease(
        partition=partition,
        owner=owner,
        epoch=epoch,
        renewed_at_ms=renewed_at // 1000,
        checkpoint=None if number is None else Position(number, offset),
        **counts,
        **details,
    )


def _member_row(member: Member) -> _Row:
    details = {name: getattr(member, name) for name in _MEMBER_DETAILS}
    details["left_out"] = dict(member.left_out)
    details["load"] = _values(member.load) if member.load else None
    return "member", member.id, None, None, None, 1000 * member.renewed_at_ms, member.host, details


def _member(row: Any) -> Member:
    _, id, _, _, _, renewed_at, host, details = row
    load, state = details.pop("load"), MemberState(details.pop("state"))
    if load is not None:
        load.pop("cpu", None)  # written by earlier processes, which may belong to the same group
    measured = None if load is None else MemberLoad(**load)
    return Member(id=id, host=host, renewed_at_ms=renewed_at // 1000, state=state, load=measured, **details)


def _query_row(query: QueryRecord) -> _Row:
    details = {name: getattr(query, name) for name in _QUERY_DETAILS}
    return "query", query.lineage, query.owner, None, None, 1000 * query.at_ms, query.host, details


def _query(row: Any) -> QueryRecord:
    _, lineage, owner, _, _, at, host, details = row
    return QueryRecord(lineage=lineage, owner=owner, at_ms=at // 1000, host=host, **details)


def _values(part: Any) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__slots__}
