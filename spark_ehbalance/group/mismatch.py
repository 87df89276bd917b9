"""Errors of checkpoints, lease tables and event hubs that do not belong together. Remedies: docs/troubleshooting.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_ehbalance.errors import DataLossError

_NEW_CHECKPOINT = "set a new checkpointLocation"
_FROM_POSITIONS = (
    "move the table away and create it from the checkpoints with `ehbalance positions` and `ehbalance init`"
)

_SENTENCES = {
    "EHB_HUB_RECREATED": (
        "The {part} contains positions of {known}, and this is {found}: "
        + _NEW_CHECKPOINT
        + " and, if the query has one, a new leaseTable"
    ),
    "EHB_LEASE_TABLE_CHANGED": (
        "The checkpoint was written with {known}, and the query now has {found}: set leaseTable back, or "
        + _NEW_CHECKPOINT
    ),
    "EHB_LEASE_TABLE_LOST": (
        "There is no lease table with rows at {location}, and the checkpoint was written with it (id {id}): "
        "create it from the checkpoints with `ehbalance positions` and `ehbalance init`"
    ),
    "EHB_LEASE_TABLE_REPLACED": (
        "The lease table has id {found}, and the query has read with id {known}: " + _FROM_POSITIONS
    ),
    "EHB_LEASE_TABLE_STALE": (
        "The lease table was rolled back or edited, its {what} is {found} and was {known}: " + _FROM_POSITIONS
    ),
    "EHB_CHECKPOINT_STALE": (
        "The checkpoint ends with batch {batch}, and another process of this query began batch {begun} at {at} "
        "({owner} on {host}): " + _NEW_CHECKPOINT + ", with which the query continues at the lease table's positions"
    ),
    "EHB_POSITION_UNKNOWN": (
        "The event hub has no event at the offsets of {events}, which were read: a promotion to another region may "
        "have lost them. Set the positions with `ehbalance seek`, or " + _NEW_CHECKPOINT
    ),
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An error class and its parameters."""

    name: str
    facts: Mapping[str, object]

    def error(self) -> DataLossError:
        return DataLossError(f"[{self.name}] {_SENTENCES[self.name].format(**self.facts)}.")
