"""Hypothesis strategies for snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hypothesis import strategies as st

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

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_longs = st.integers(-(2**63), 2**63 - 1)
_counters = st.integers(-(2**63), 2**62 - 1)  # higher values are rejected
_rising = st.integers(0, 2**62 - 1)
_times = st.integers(0, 253_402_300_799_999)  # to the end of the year 9999
_positions = st.builds(Position, st.integers(-1, 2**63 - 1), st.none() | _texts)
_rates = st.floats(0, 1e9)
_durations = st.none() | st.integers(1, 86_399_999)
_tables = st.builds(TableIdentity, _texts, st.none() | _times.filter(bool))

_lags = st.builds(
    lambda next, events, since, at: Lag(next, next + events, since, at),
    st.integers(0, 2**61),
    st.integers(0, 2**61 - 1),
    st.none() | _times.filter(bool),
    _times.filter(bool),
)

_of_any_lease: Mapping[str, st.SearchStrategy[Any]] = {
    "partition": st.integers(0, 2_000).map(str) | _texts,
    "renewal": _counters,
    "renewed_at_ms": _times,
    "owned_since_ms": _times,
    "handover": st.none() | st.builds(Handover, _texts, _longs),
    "load": st.none() | st.builds(Load, _rates, _rates),
    "pin": st.none() | st.builds(Pin, _texts, _texts, _texts, st.booleans()),
    "defences": st.integers(0, 2**63 - 1),
    "seek_epoch": st.integers(0, 3),
    "lag": st.none() | _lags,
    "stall_count": st.integers(0, 2**63 - 1),
}
_unclaimed = st.builds(Lease, checkpoint=st.none() | _positions, **_of_any_lease)
#: A partition that was ever claimed has a position.
_claimed = st.builds(
    Lease, owner=st.none() | _texts, epoch=_rising.filter(bool), checkpoint=_positions, **_of_any_lease
)
_members = st.builds(
    Member,
    id=_texts,
    incarnation=_texts,
    joined=_counters,
    renewal=_counters,
    renewed_at_ms=_times,
    started_at_ms=_times,
    host=_texts,
    state=st.sampled_from(MemberState),
    max_owned=st.none() | st.integers(1, 2**40),
    strategy=_texts,
    load=st.none() | st.builds(MemberLoad, _rates, _rates, _rates),
    lease_duration_ms=_durations,
    commit_ms=st.none() | st.floats(0.01, 1e6),
    asked_ms=st.none() | _times.filter(bool),
    left_out=st.dictionaries(_texts, _texts, max_size=2),
)
_queries = st.builds(
    QueryRecord, _texts, _texts, _texts, _rising.filter(bool), _rising, _rising, _texts, _times, _texts
)


@st.composite
def snapshots(draw: st.DrawFn, group: Group) -> Snapshot:
    """All states of `group` that the model can express."""
    found = {lease.partition: lease for lease in draw(st.lists(_unclaimed | _claimed, max_size=6))}
    leases = {partition: found[partition] for partition in sorted(found, key=partition_order)}
    members = {member.id: member for member in draw(st.lists(_members, max_size=4))}
    queries = {query.lineage: query for query in draw(st.lists(_queries, max_size=3))}
    table = draw(st.none() | _tables)
    duration = None if table is None else draw(_durations)
    rows = MappingProxyType(leases), MappingProxyType(members)
    return Snapshot(group, 0, *rows, table, duration, MappingProxyType(queries))
