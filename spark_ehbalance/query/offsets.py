"""The Spark offset of the source: the owner that read a batch, and the range read in each partition.

Spark compares offsets as JSON text, so the keys are always in the same order. `partitions(start, end)` needs no other
state, even after a restart. Without a lease table, an offset is the query's entire progress, so it contains every
partition, with or without events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.position import partition_order
from spark_ehbalance.text import format_time


def group_name(lease_table: str | None) -> str:
    """A digest of the lease table's location, for distinguishing groups on one machine; empty without a lease table."""
    return "" if lease_table is None else hashlib.sha256(lease_table.encode()).hexdigest()[:12]


_T = TypeVar("_T")

#: Incremented with every change. Earlier formats were never released, so they are not supported.
_FORMAT = 4


@dataclass(frozen=True, slots=True)
class TableReference:
    """The lease table with which a batch was planned: the id assigned at its creation, and its location."""

    id: str
    location: str


@dataclass(frozen=True, slots=True)
class HubReference:
    """The event hub whose sequence numbers an offset contains: its name and its namespace (without the port), both in
    lower case.

    `created_ms` (milliseconds since 1970; None if the hub does not report it) distinguishes a recreated hub from its
    predecessor with the same name.
    """

    name: str
    namespace: str = ""
    created_ms: int | None = None

    @classmethod
    def from_group(cls, group: Group, created_ms: int | None) -> HubReference:
        """The hub of `group`."""
        return cls(group.hub, group.namespace.partition(":")[0], created_ms)

    def __str__(self) -> str:
        at = "" if self.created_ms is None else f", created {format_time(self.created_ms)}"
        return f"event hub {self.name}{self.namespace and f' of {self.namespace}'}{at}"

    def differs_from(self, found: HubReference) -> bool:
        """Whether `found` is a different hub. If a creation time is missing, the namespaces are compared."""
        if self.name == found.name and None not in (self.created_ms, found.created_ms):
            return self.created_ms != found.created_ms
        both_known = bool(self.namespace and found.namespace)
        return self.name != found.name or (both_known and self.namespace != found.namespace)


@dataclass(frozen=True, slots=True, order=True)
class EpochPosition:
    """The last known epoch of a partition, and the sequence number to read next in it.

    Epochs are compared first: a higher sequence number in a lower epoch comes from a batch that was cut short, or from
    before an operator's seek.
    """

    epoch: int
    next: int


@dataclass(frozen=True, slots=True)
class FirstStart:
    """The query's first start: the hub's clock (milliseconds since 1970) and its number of partitions at that time.

    For partitions first read later, too, `latest` refers to that moment. Partitions added to the hub since then are
    read from their first event.
    """

    at_ms: int
    partitions: int


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The end of a batch: the `owner` that read it, and the range of each partition in it.

    `lineage` is generated with the query's first offset, and kept in its checkpoint and in copies of it. `batch` counts
    the offsets of a lineage. `run` identifies the process that planned this offset. `table_begun` is the number of the
    last batch that the lease table recorded as begun at that time.

    `group` is the `group_name`; empty without a lease table. `hub`, `first_start` and `table` are None until the first
    batch is planned; `table` is always None without a lease table. `other_positions` contains the positions in owned
    partitions that are not in the batch. `checkpoints` contains, for each partition in which the query was ahead of the
    lease table, the next sequence number according to the table when it was last read.
    """

    owner: str
    ranges: Mapping[str, OffsetRange] = field(default_factory=dict)
    group: str = ""
    table: TableReference | None = None
    hub: HubReference | None = None
    other_positions: Mapping[str, EpochPosition] = field(default_factory=dict)
    lineage: str = ""
    batch: int = 0
    run: str = ""
    table_begun: int = 0
    checkpoints: Mapping[str, int] = field(default_factory=dict)
    first_start: FirstStart | None = None

    @property
    def is_initial(self) -> bool:
        """Whether no batch has been planned yet."""
        return self.table is None and not self.ranges

    def without_epochs(self) -> StreamOffset:
        """The offset with all epochs set to 0, for a store without epochs, in which any other epoch would look like a
        rollback."""
        ranges = {partition: replace(range_, epoch=0) for partition, range_ in self.ranges.items()}
        others = {partition: replace(position, epoch=0) for partition, position in self.other_positions.items()}
        return replace(self, ranges=ranges, other_positions=others)

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark stores it."""
        offset: dict[str, Any] = {"eventHub": asdict(self.hub)} if self.hub else {}
        offset |= {"batch": self.batch} if self.batch else {}
        offset |= {"checkpoints": dict(_in_order(self.checkpoints))} if self.checkpoints else {}
        offset |= {"firstStart": asdict(self.first_start)} if self.first_start else {}
        offset |= {"format": _FORMAT, "group": self.group}
        if self.other_positions:
            offset["held"] = {p: asdict(position) for p, position in _in_order(self.other_positions)}
        offset |= {"lineage": self.lineage, "owner": self.owner}
        offset["partitions"] = {p: _range_json(range_) for p, range_ in _in_order(self.ranges)}
        offset |= {"run": self.run} if self.run else {}
        offset |= {"table": asdict(self.table)} if self.table else {}
        return offset | ({"tableBegun": self.table_begun} if self.table_begun else {})

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> StreamOffset:
        """The offset that `to_json` wrote. Raises `EhBalanceError` for other JSON or another format."""
        try:
            if (found := _int64(json["format"])) != _FORMAT:
                problem = f"has offsets of format {found}, and this version of spark-ehbalance reads format {_FORMAT}"
                raise EhBalanceError("EHB_CHECKPOINT_FOREIGN", problem=problem)
            ranges = {partition: _range(partition, range_) for partition, range_ in json["partitions"].items()}
            table = _table(json["table"]) if "table" in json else None
            others = {_string(p): _epoch_position(position) for p, position in json.get("held", {}).items()}
            hub = _hub(json["eventHub"]) if "eventHub" in json else None
            group, lineage, run = (_string(json.get(name, "")) for name in ("group", "lineage", "run"))
            batch, begun = (_int64(json.get(name, 0)) for name in ("batch", "tableBegun"))
            seen = {_string(p): _int64(number) for p, number in json.get("checkpoints", {}).items()}
            owner = _string(json["owner"])
            first = _first_start(json["firstStart"]) if "firstStart" in json else None
            return cls(owner, ranges, group, table, hub, others, lineage, batch, run, begun, seen, first)
        except (AttributeError, KeyError, TypeError):
            raise EhBalanceError("EHB_CHECKPOINT_FOREIGN", problem="contains offsets of another source") from None


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """The end of a batch in Spark's offset log, and whether the sink has finished the batch (Spark's commit log)."""

    end: StreamOffset
    finished: bool


def _in_order(partitions: Mapping[str, _T]) -> list[tuple[str, _T]]:
    return sorted(partitions.items(), key=lambda item: partition_order(item[0]))


def _range(partition: Any, json: Mapping[str, Any]) -> OffsetRange:
    start, end = _int64(json["from"]), _int64(json["to"])
    if end < start:
        raise TypeError(f"a range ends before it starts: {start} to {end}")
    offsets = [None if json.get(name) is None else _string(json[name]) for name in ("fromOffset", "toOffset")]
    return OffsetRange(_string(partition), _int64(json["epoch"]), start, end, _int64(json.get("since", 0)), *offsets)


def _range_json(range_: OffsetRange) -> dict[str, Any]:
    json: dict[str, Any] = {"epoch": range_.epoch, "from": range_.start, "to": range_.end}
    json |= {"since": range_.since_ms} if range_.since_ms else {}
    offsets = {"fromOffset": range_.start_offset, "toOffset": range_.end_offset}
    return json | {name: offset for name, offset in offsets.items() if offset is not None}


def _table(json: Mapping[str, Any]) -> TableReference:
    return TableReference(_string(json["id"]), _string(json["location"]))


def _hub(json: Mapping[str, Any]) -> HubReference:
    created = None if json["created_ms"] is None else _int64(json["created_ms"])
    return HubReference(_string(json["name"]), _string(json["namespace"]), created)


def _first_start(json: Mapping[str, Any]) -> FirstStart:
    return FirstStart(_int64(json["at_ms"]), _int64(json["partitions"]))


def _epoch_position(json: Mapping[str, Any]) -> EpochPosition:
    return EpochPosition(_int64(json["epoch"]), _int64(json["next"]))


def _int64(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:  # `isinstance` would accept True
        raise TypeError("not a 64-bit whole number")
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value
