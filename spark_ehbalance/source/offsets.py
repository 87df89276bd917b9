"""The Spark offset of the source: who read, and of each partition in the batch from where to where.

Spark compares offsets as JSON text, so the keys are always in the same order. It is all that `partitions(start, end)`
needs, also after a restart. Without leases it is the query's whole progress: every partition is in it, moved or not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.source.ranges import Range
from spark_ehbalance.values.position import partition_order


def group_name(lease_table: str | None) -> str:
    """Tells the group whose lease table is there from any other on this machine; empty without a lease table."""
    return "" if lease_table is None else hashlib.sha256(lease_table.encode()).hexdigest()[:12]


_T = TypeVar("_T")

#: Rises when older versions of this package must not read the offset any more.
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class LeaseTable:
    """The lease table that a batch was planned by: the id that it was made with, and where it was."""

    id: str
    location: str


@dataclass(frozen=True, slots=True, order=True)
class HeldPosition:
    """The last epoch that is known of a partition, and where reading goes on under it. The later epoch counts first:
    what was read under an earlier one beyond that was broken off, or an operator has gone back."""

    epoch: int
    next: int


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The end of a batch: the `owner` that read it, and the range of each partition in it. `group` tells one lease
    table's place from another; it is empty without one. `table` is None without one, and before anything was planned.
    `hub` is the event hub's name, and `held` has the places of the other partitions that the query had leases of; both
    are empty in offsets of earlier versions.
    """

    owner: str
    ranges: Mapping[str, Range] = field(default_factory=dict)
    group: str = ""
    table: LeaseTable | None = None
    hub: str = ""
    held: Mapping[str, HeldPosition] = field(default_factory=dict)

    @property
    def lineage(self) -> str:
        """What kept the positions that the ranges begin with: the lease table's id. Offsets of earlier versions know
        its place only, and without a lease table a query has kept them itself."""
        return self.table.id if self.table else self.group or self.owner

    @property
    def first(self) -> bool:
        """Whether a query begins with it: nothing was planned yet."""
        return self.table is None and not self.ranges

    @property
    def reader(self) -> str:
        """Names the query among all of one machine: owner ids are only unique within a group."""
        return f"{self.owner}@{self.group}"

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark keeps it."""
        offset: dict[str, Any] = {"eventHub": self.hub} if self.hub else {}
        offset |= {"format": _FORMAT, "group": self.group}
        if self.held:
            offset["held"] = {p: asdict(place) for p, place in _in_order(self.held)}
        offset["owner"] = self.owner
        offset["partitions"] = {
            p: {"epoch": each.epoch, "from": each.start, "to": each.end} for p, each in _in_order(self.ranges)
        }
        return offset | ({"table": asdict(self.table)} if self.table else {})

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> StreamOffset:
        """The offset that `to_json` made. Raises `EhBalanceError` if it is not one of this version's."""
        try:
            if _whole(json["format"]) > _FORMAT:
                raise EhBalanceError(
                    f"the query's checkpoint has offsets of format {json['format']}; this version of spark-ehbalance "
                    f"knows formats up to {_FORMAT}: upgrade it"
                )
            ranges = {partition: _range(partition, each) for partition, each in json["partitions"].items()}
            table = _table(json["table"]) if "table" in json else None
            held = {_text(p): _place(each) for p, each in json.get("held", {}).items()}
            hub = _text(json.get("eventHub", ""))
            return cls(_text(json["owner"]), ranges, _text(json.get("group", "")), table, hub, held)
        except (AttributeError, KeyError, TypeError):
            raise EhBalanceError(
                "the query's checkpoint holds offsets of another source: give this query a new checkpointLocation"
            ) from None


def _in_order(partitions: Mapping[str, _T]) -> list[tuple[str, _T]]:
    return sorted(partitions.items(), key=lambda item: partition_order(item[0]))


def _range(partition: Any, json: Mapping[str, Any]) -> Range:
    start, end = _whole(json["from"]), _whole(json["to"])
    if end < start:
        raise TypeError(f"a range ends before it starts: {start} to {end}")
    return Range(_text(partition), _whole(json["epoch"]), start, end)


def _table(json: Mapping[str, Any]) -> LeaseTable:
    return LeaseTable(_text(json["id"]), _text(json["location"]))


def _place(json: Mapping[str, Any]) -> HeldPosition:
    return HeldPosition(_whole(json["epoch"]), _whole(json["next"]))


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:  # True is an int as well
        raise TypeError("not a whole number of 64 bits")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
