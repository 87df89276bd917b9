"""Arbitrary snapshots."""

from __future__ import annotations

from types import MappingProxyType

from hypothesis import strategies as st

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
from spark_ehbalance.values.position import Position, partition_order

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_longs = st.integers(-(2**63), 2**63 - 1)
_counters = st.integers(-(2**63), 2**62 - 1)  # higher ones are refused
_times = st.integers(0, 253_402_300_799_999)  # to the end of the year 9999
_positions = st.builds(Position, st.integers(-1, 2**63 - 1), st.none() | _texts)
_rates = st.floats(0, 1e9)
_member_loads = st.builds(MemberLoad, _rates, _rates, _rates, st.none() | st.floats(0, 1))
_pins = st.builds(Pin, _texts, _texts, _texts, st.booleans())
_durations = st.none() | st.integers(1, 86_399_999)
_tables = st.builds(
    TableIdentity, _texts, st.frozensets(_texts, max_size=2), st.none() | st.integers(1, 253_402_300_799_999)
)
_handovers = st.builds(Handover, _texts, _longs)


@st.composite
def snapshots(draw: st.DrawFn, group: Group) -> Snapshot:
    """Any state of `group` that the model can express. A partition that was ever claimed has a position."""
    partitions = draw(st.sets(st.integers(0, 2_000).map(str) | _texts, max_size=6))
    claimed = {partition: draw(st.booleans()) for partition in sorted(partitions)}
    leases = {
        partition: Lease(
            partition=partition,
            owner=draw(st.none() | _texts) if claimed[partition] else None,
            epoch=draw(st.integers(1, 2**62 - 1)) if claimed[partition] else 0,
            renewal=draw(_counters),
            renewed_at_ms=draw(_times),
            owned_since_ms=draw(_times),
            checkpoint=draw(_positions if claimed[partition] else st.none() | _positions),
            handover=draw(st.none() | _handovers),
            load=draw(st.none() | st.builds(Load, _rates, _rates)),
            pin=draw(st.none() | _pins),
            defences=draw(st.integers(0, 2**63 - 1)),
            sought=draw(st.integers(0, 3)),
        )
        for partition in sorted(partitions, key=partition_order)
    }
    members = {
        id: Member(
            id=id,
            incarnation=draw(_texts),
            joined=draw(_counters),
            renewal=draw(_counters),
            renewed_at_ms=draw(_times),
            started_at_ms=draw(_times),
            host=draw(_texts),
            state=draw(st.sampled_from(MemberState)),
            max_owned=draw(st.none() | st.integers(1, 2**40)),
            strategy=draw(_texts),
            load=draw(st.none() | _member_loads),
            lease_duration_ms=draw(_durations),
            commit_ms=draw(st.none() | st.floats(0.01, 1e6)),
        )
        for id in draw(st.sets(_texts, max_size=4))
    }
    queries = {
        lineage: QueryRecord(
            lineage=lineage,
            run=draw(_texts),
            owner=draw(_texts),
            start=draw(st.integers(1, 2**62 - 1)),
            batch=draw(st.integers(0, 2**62 - 1)),
            begun=draw(st.integers(0, 2**62 - 1)),
            planner=draw(_texts),
            at_ms=draw(_times),
            host=draw(_texts),
            process=draw(_texts),
        )
        for lineage in draw(st.sets(_texts, max_size=3))
    }
    table = draw(st.none() | _tables)
    duration = None if table is None else draw(_durations)
    rows = MappingProxyType(leases), MappingProxyType(members)
    return Snapshot(group, 0, *rows, table, duration, MappingProxyType(queries))
