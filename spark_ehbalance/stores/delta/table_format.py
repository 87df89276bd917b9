"""The lease table's format: a snapshot as rows, and the description that says which group the table belongs to.

A row of kind `partition` is a lease, one of kind `member` a heartbeat. Columns that a kind does not use are null. The
row of kind `table` holds the table's id, and each row of kind `replaced` the id of a table that this one replaces. The
`table` row also has the lease duration in force and, as `started_at`, when the event hub was created. It repeats the
description, which somebody may replace by a comment of their own. A row of kind `query` is a query's record: `id` is
the lineage, `joined` the start, `renewal` the finished batch, `sequence_number` the begun one, and `offset` the run
that planned that one.
"""

from __future__ import annotations

import contextlib
import json
import math
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ehbalance.errors import StoreFormatError
from spark_ehbalance.leases.model import (
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
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.lag import Lag
from spark_ehbalance.values.position import Position, partition_order

#: Rises with every change. Nothing is released yet, so that no earlier one is read.
FORMAT = 4

_TIME = pa.timestamp("us", tz="UTC")

#: Microseconds since 1970: the end of the year 9999. A time beyond it, or before 1970, counts as missing.
_LAST_TIME = 253_402_300_800_000_000

#: Milliseconds of a lease duration that makes sense: below a day.
_LONGEST_DURATION = 86_400_000

#: Counters are refused from here on: soon they could not be raised any more.
_COUNTER_LIMIT = 2**62

SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("id", pa.string()),
        ("owner", pa.string()),
        ("epoch", pa.int64()),
        ("renewal", pa.int64()),
        ("renewed_at", _TIME),
        ("owned_since", _TIME),
        ("sequence_number", pa.int64()),
        ("offset", pa.string()),
        ("next_owner", pa.string()),
        ("handover_timeout_ms", pa.int64()),
        ("handover_requested_at", _TIME),
        ("rate", pa.float64()),
        ("backlog", pa.float64()),
        ("incarnation", pa.string()),
        ("joined", pa.int64()),
        ("started_at", _TIME),
        ("host", pa.string()),
        ("state", pa.string()),
        ("max_owned", pa.int64()),
        ("pinned_to", pa.string()),
        ("pinned_by", pa.string()),
        ("pinned_why", pa.string()),
        ("strategy", pa.string()),
        ("batch_seconds", pa.float64()),
        ("cpu", pa.float64()),
        ("contest", pa.int64()),
        ("pinned_for_transfer", pa.bool_()),
        ("lease_duration_ms", pa.int64()),
        ("commit_ms", pa.float64()),
        ("process", pa.string()),
        ("sought", pa.int64()),
        ("unread_from", pa.int64()),
        ("unread_end", pa.int64()),
        ("unread_since", _TIME),
        ("lag_measured", _TIME),
        ("asked", _TIME),
        ("left_out", pa.string()),
    ]
)

#: The columns that each data file has. The later ones are seldom used: a file without a value of one lacks it.
_REQUIRED = SCHEMA.names[: SCHEMA.names.index("pinned_to")]

HISTORY_SCHEMA = pa.schema(
    [
        ("at", _TIME),
        ("partition", pa.string()),
        ("event", pa.string()),
        ("owner_before", pa.string()),
        ("owner", pa.string()),
        ("epoch", pa.int64()),
        ("sequence_number", pa.int64()),
        ("by", pa.string()),
        ("why", pa.string()),
    ]
)


def description(group: Group) -> str:
    """The description that marks a Delta table as the lease table of `group`."""
    return json.dumps(
        {
            "ehbalance": FORMAT,
            "namespace": group.namespace,
            "eventHub": group.hub,
            "consumerGroup": group.consumer_group,
        }
    )


def group_of(description: str | None, where: str) -> Group:
    """The group whose lease table has this `description`. Raises `StoreFormatError` for the table at `where`."""
    try:
        fields = json.loads(description or "")
        version = int(fields["ehbalance"])
        if version == FORMAT:
            return Group.of(fields["namespace"], fields["eventHub"], fields["consumerGroup"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):  # somebody else's text
        raise StoreFormatError(f"the Delta table at {where} is not a lease table: choose another leaseTable") from None
    raise StoreFormatError(
        f"the lease table at {where} has format {version}; this version of spark-ehbalance knows format {FORMAT}: "
        + ("upgrade it" if version > FORMAT else "choose another leaseTable")
    )


def is_described(text: str | None) -> bool:
    """Whether this is a lease table's description."""
    with contextlib.suppress(ValueError, RecursionError):
        return isinstance(fields := json.loads(text or ""), dict) and "ehbalance" in fields
    return False


def description_in_rows(table: pa.Table) -> str | None:
    """The description that the rows of a lease table repeat; None if they do not."""
    return next((row["host"] for row in rows_of(table) if row["kind"] == "table"), None)


def to_table(snapshot: Snapshot) -> pa.Table:
    """`snapshot` as rows: partitions in their order, then members by id."""
    kinds = [_lease_columns(list(snapshot.leases.values()))]
    kinds.append(_member_columns([snapshot.members[id] for id in sorted(snapshot.members)]))
    if snapshot.queries:
        kinds.append(_query_columns([snapshot.queries[lineage] for lineage in sorted(snapshot.queries)]))
    if snapshot.table is not None:
        replaced, created_ms = sorted(snapshot.table.replaces), snapshot.table.hub_created_ms
        kinds.append(
            {
                "kind": ["table"],
                "id": [snapshot.table.id],
                "host": [description(snapshot.group)],
                "started_at": [_to_optional_time(created_ms)],
                "lease_duration_ms": [snapshot.lease_duration_ms],
            }
        )
        kinds.append({"kind": ["replaced"] * len(replaced), "id": replaced})

    counts = [len(kind["id"]) for kind in kinds]

    def column(field: pa.Field) -> pa.Array:
        if not any(field.name in kind for kind in kinds):
            return pa.nulls(sum(counts), field.type)
        values: list[Any] = []
        for kind, count in zip(kinds, counts, strict=True):
            values += kind.get(field.name) or [None] * count
        return pa.array(values, field.type)

    return pa.Table.from_arrays([column(field) for field in SCHEMA], schema=SCHEMA)


def encode(rows: pa.Table, columns: pa.Schema = SCHEMA) -> bytes:
    """The Parquet file that holds `rows` in these columns. Raises `ValueError` if a value does not fit one of them."""
    buffer = pa.BufferOutputStream()
    rows = _without_unused(rows if rows.schema.equals(columns) else rows.cast(columns))
    # None of what makes Parquet good at large tables: a third less time for 64 partitions, and half the bytes.
    pq.write_table(rows, buffer, compression="snappy", use_dictionary=False, write_statistics=False, store_schema=False)
    return buffer.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _without_unused(rows: pa.Table) -> pa.Table:
    later = range(len(_REQUIRED), rows.num_columns)
    return rows.select([*range(len(_REQUIRED)), *(at for at in later if rows.column(at).null_count < rows.num_rows)])


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with the columns of `schema`, in its types. A missing column is null, others are left out, and times
    without a zone are UTC. Raises `ValueError` if a column cannot be cast, or is missing that each file has."""
    if table.schema.equals(schema):
        return table
    found = dict(zip(table.column_names, table.columns, strict=True))
    if missing := [name for name in _REQUIRED if schema is SCHEMA and name not in found]:
        raise ValueError(f"there is no column {missing[0]}")

    def column(field: pa.Field) -> Any:
        values = found.get(field.name)
        if values is None:
            return pa.nulls(table.num_rows, field.type)
        try:
            return values if values.type == field.type else values.cast(field.type)
        except (pa.ArrowException, ValueError) as error:
            raise ValueError(f"column {field.name} holds {values.type}, not {field.type}") from error

    return pa.Table.from_arrays([column(field) for field in schema], schema=schema)


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of `table`, with times in microseconds since 1970: a table can hold times that no `datetime` can."""
    names, rows = table.column_names, []
    for batch in table.to_batches():
        columns = [each.view(pa.int64()) if pa.types.is_timestamp(each.type) else each for each in batch.columns]
        values = (column.to_pylist() for column in columns)
        rows += [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return rows


def from_table(table: pa.Table, group: Group, version: int) -> Snapshot:
    """The snapshot whose rows `table` holds, in any order. Raises `ValueError` if a lease is invalid. Members with
    invalid rows are left out, and join again by themselves."""
    leases: dict[str, Lease] = {}
    members: dict[str, Member] = {}
    queries: dict[str, QueryRecord] = {}
    tables: dict[str, set[str]] = {"table": set(), "replaced": set()}
    lease_duration_ms = hub_created_ms = None
    for row in rows_of(table):
        if row["kind"] == "partition":
            lease = lease_of(row)
            if leases.setdefault(lease.partition, lease) != lease:
                raise ValueError(f"partition {lease.partition} has two rows that differ")
        elif row["kind"] == "member":
            with contextlib.suppress(ValueError):
                member = member_of(row)
                members[member.id] = max(member, members.get(member.id, member), key=lambda each: each.renewal)
        elif row["kind"] == "query":
            with contextlib.suppress(ValueError):
                query = query_of(row)
                queries[query.lineage] = query
        elif row["kind"] in tables and row["id"] is not None:
            tables[row["kind"]].add(row["id"])
            lease_duration_ms = lease_duration_ms or _positive(row["lease_duration_ms"], _LONGEST_DURATION)
            hub_created_ms = hub_created_ms or to_ms(row["started_at"]) or None
        else:
            raise ValueError(f"there is a row of kind {row['kind']!r}")
    return Snapshot(
        group,
        version,
        MappingProxyType({partition: leases[partition] for partition in sorted(leases, key=partition_order)}),
        MappingProxyType(members),
        TableIdentity(min(tables["table"]), frozenset(tables["replaced"]), hub_created_ms) if tables["table"] else None,
        lease_duration_ms,
        MappingProxyType(queries),
    )


def _lease_columns(leases: list[Lease]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "kind": ["partition"] * len(leases),
        "id": [lease.partition for lease in leases],
        "owner": [lease.owner for lease in leases],
        "epoch": [lease.epoch for lease in leases],
        "renewal": [lease.renewal for lease in leases],
        "renewed_at": [to_time(lease.renewed_at_ms) for lease in leases],
        "owned_since": [to_time(lease.owned_since_ms) for lease in leases],
        "sequence_number": [lease.checkpoint and lease.checkpoint.sequence_number for lease in leases],
        "offset": [lease.checkpoint and lease.checkpoint.offset for lease in leases],
    }
    # What most groups seldom have: to leave a column out is cheaper than to write nulls.
    if any(handovers := [lease.handover for lease in leases]):
        columns |= {
            "next_owner": [handover and handover.to for handover in handovers],
            "handover_timeout_ms": [handover and handover.timeout_ms for handover in handovers],
            "handover_requested_at": [handover and to_time(handover.requested_at_ms) for handover in handovers],
        }
    if any(loads := [lease.load for lease in leases]):
        columns |= {
            "rate": [load and load.rate for load in loads],
            "backlog": [load and load.backlog for load in loads],
        }
    if any(pins := [lease.pin for lease in leases]):
        columns |= {
            "pinned_to": [pin and pin.to for pin in pins],
            "pinned_by": [pin and pin.by for pin in pins],
            "pinned_why": [pin and pin.why for pin in pins],
            "pinned_for_transfer": [pin and pin.transfer for pin in pins],
        }
    if any(defences := [lease.defences for lease in leases]):
        columns["contest"] = defences
    if any(sought := [lease.sought for lease in leases]):
        columns["sought"] = sought
    if any(lags := [lease.lag for lease in leases]):
        columns |= {
            "unread_from": [lag and lag.next for lag in lags],
            "unread_end": [lag and lag.end for lag in lags],
            "unread_since": [lag and _to_optional_time(lag.unread_since_ms) for lag in lags],
            "lag_measured": [lag and to_time(lag.at_ms) for lag in lags],
        }
    return columns


def lease_of(row: dict[str, Any]) -> Lease:
    """The lease in a row. Times are for people, and may be missing. Raises `ValueError`."""
    partition, epoch, sequence_number = row["id"], row["epoch"], row["sequence_number"]
    if partition is None:
        raise ValueError("there is a partition without an id")
    if epoch is None or not 0 <= epoch < _COUNTER_LIMIT:
        raise ValueError(f"partition {partition} has the epoch {epoch}")
    if (row["renewal"] or 0) >= _COUNTER_LIMIT:
        raise ValueError(f"partition {partition} has the renewal {row['renewal']}")
    # A claim sets a position with the first epoch: an epoch without one is somebody's UPDATE, not a first start.
    claimed = epoch > 0 or row["owner"] is not None
    if claimed if sequence_number is None else sequence_number < -1:
        raise ValueError(f"partition {partition} has the sequence number {sequence_number}")
    return Lease(
        partition=partition,
        owner=row["owner"],
        epoch=epoch,
        renewal=row["renewal"] or 0,
        renewed_at_ms=to_ms(row["renewed_at"]),
        owned_since_ms=to_ms(row["owned_since"]),
        checkpoint=None if sequence_number is None else Position(sequence_number, row["offset"]),
        handover=_handover(row),
        load=None if (rate := _amount(row["rate"])) is None else Load(rate, _amount(row["backlog"]) or 0.0),
        pin=_pin(row),
        defences=row["contest"] or 0,
        sought=row["sought"] or 0,
        lag=_lag(row),
    )


def _lag(row: dict[str, Any]) -> Lag | None:
    """What makes no sense, as after somebody's UPDATE, counts as missing: it is for people."""
    next, end, at_ms = row["unread_from"], row["unread_end"], to_ms(row["lag_measured"])
    if next is None or end is None or not at_ms or not 0 <= next <= end < _COUNTER_LIMIT:
        return None
    return Lag(next, end, to_ms(row["unread_since"]) or None, at_ms)


def _handover(row: dict[str, Any]) -> Handover | None:
    if row["next_owner"] is None:
        return None
    return Handover(row["next_owner"], row["handover_timeout_ms"] or 0, to_ms(row["handover_requested_at"]))


def _pin(row: dict[str, Any]) -> Pin | None:
    if row["pinned_to"] is None:
        return None
    transfer = bool(row["pinned_for_transfer"])
    return Pin(row["pinned_to"], row["pinned_by"] or "", row["pinned_why"] or "", transfer)


def _member_columns(members: list[Member]) -> dict[str, list[Any]]:
    return {
        "kind": ["member"] * len(members),
        "id": [member.id for member in members],
        "incarnation": [member.incarnation for member in members],
        "joined": [member.joined for member in members],
        "renewal": [member.renewal for member in members],
        "renewed_at": [to_time(member.renewed_at_ms) for member in members],
        "started_at": [to_time(member.started_at_ms) for member in members],
        "host": [member.host for member in members],
        "state": [member.state.value for member in members],
        "max_owned": [member.max_owned for member in members],
        "strategy": [member.strategy for member in members],
        "rate": [member.load and member.load.rate for member in members],
        "backlog": [member.load and member.load.backlog for member in members],
        "batch_seconds": [member.load and member.load.batch_seconds for member in members],
        "cpu": [member.load and member.load.cpu for member in members],
        "lease_duration_ms": [member.lease_duration_ms for member in members],
        "commit_ms": [member.commit_ms for member in members],
        "asked": [_to_optional_time(member.asked_ms) for member in members],
        "left_out": [json.dumps(member.left_out) if member.left_out else None for member in members],
    }


def member_of(row: dict[str, Any]) -> Member:
    """The member in a row. Raises `ValueError`."""
    if None in (row["id"], row["incarnation"], row["joined"]):
        raise ValueError("a member without an id, an incarnation or a place in the order of joining")
    if max(row["joined"], row["renewal"] or 0) >= _COUNTER_LIMIT:
        raise ValueError("a member whose counters cannot be raised")
    return Member(
        id=row["id"],
        incarnation=row["incarnation"],
        joined=row["joined"],
        renewal=row["renewal"] or 0,
        renewed_at_ms=to_ms(row["renewed_at"]),
        started_at_ms=to_ms(row["started_at"]),
        host=row["host"] or "",
        state=MemberState(row["state"]),
        max_owned=row["max_owned"],
        strategy=row["strategy"] or "",
        load=_member_load(row),
        lease_duration_ms=_positive(row["lease_duration_ms"], _LONGEST_DURATION),
        commit_ms=_positive(row["commit_ms"]),
        asked_ms=to_ms(row["asked"]) or None,
        left_out=_left_out(row["left_out"]),
    )


def _left_out(text: str | None) -> dict[str, str]:
    """For people: what makes no sense, as after somebody's UPDATE, counts as missing."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text or "{}")
        if isinstance(found, dict):
            return {str(partition): str(why) for partition, why in found.items()}
    return {}


def _query_columns(queries: list[QueryRecord]) -> dict[str, list[Any]]:
    return {
        "kind": ["query"] * len(queries),
        "id": [query.lineage for query in queries],
        "owner": [query.owner for query in queries],
        "renewal": [query.batch for query in queries],
        "renewed_at": [to_time(query.at_ms) for query in queries],
        "incarnation": [query.run for query in queries],
        "joined": [query.start for query in queries],
        "sequence_number": [query.begun for query in queries],
        "offset": [query.planner for query in queries],
        "host": [query.host for query in queries],
        "process": [query.process for query in queries],
    }


def query_of(row: dict[str, Any]) -> QueryRecord:
    """The record in a row. Raises `ValueError`."""
    if None in (row["id"], row["incarnation"], row["owner"], row["joined"], row["renewal"], row["sequence_number"]):
        raise ValueError("a query without a lineage, a run, an owner, a start or a batch")
    counters = row["renewal"], row["sequence_number"]
    if not (0 < row["joined"] < _COUNTER_LIMIT and all(0 <= each < _COUNTER_LIMIT for each in counters)):
        raise ValueError("a query whose counters cannot be raised")
    return QueryRecord(
        lineage=row["id"],
        run=row["incarnation"],
        owner=row["owner"],
        start=row["joined"],
        batch=row["renewal"],
        begun=row["sequence_number"],
        planner=row["offset"] or "",
        at_ms=to_ms(row["renewed_at"]),
        host=row["host"] or "",
        process=row["process"] or "",
    )


def _member_load(row: dict[str, Any]) -> MemberLoad | None:
    rate, backlog, batch_seconds, cpu = (_amount(row[name]) for name in ("rate", "backlog", "batch_seconds", "cpu"))
    return None if batch_seconds is None else MemberLoad(rate or 0.0, backlog or 0.0, batch_seconds, cpu)


def _amount(value: float | None) -> float | None:
    """`value`; None if it makes no sense, as after somebody's UPDATE."""
    return value if value is not None and 0 <= value < math.inf else None


def _positive(value: Any, most: float = _COUNTER_LIMIT) -> Any:
    """`value`; None if it makes no sense, as after somebody's UPDATE."""
    return value if value is not None and 0 < value < most else None


def to_time(ms: int) -> int:
    """Milliseconds since 1970 as microseconds, which Arrow takes as a time without making a `datetime`."""
    return 1000 * ms


def _to_optional_time(ms: int | None) -> int | None:
    return None if ms is None else to_time(ms)


def to_ms(time: int | None) -> int:
    """Microseconds since 1970 as milliseconds; 0 for a time that is missing or out of range."""
    return 0 if time is None or not 0 <= time < _LAST_TIME else time // 1000
