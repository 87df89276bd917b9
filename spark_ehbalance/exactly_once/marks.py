"""Marks, which record the events that a Delta table already contains. Pure.

A mark belongs to a partition of an event hub and is stored in the target's log, as the version of a transaction
identifier (`SetTransaction`). It is the sequence number after the last written event: the target contains all earlier
events, unless the writer dropped them. Marks and rows are written in the same commit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """The events of one partition with sequence numbers from `start` to `end` (exclusive)."""

    start: int
    end: int


#: Sequence ranges by partition.
SequenceRanges = Mapping[str, SequenceRange]
Marks = Mapping[str, int]


def missing(read: SequenceRanges, marks: Marks) -> dict[str, SequenceRange]:
    """The `read` events that the target lacks according to its `marks`."""
    return {
        partition: SequenceRange(max(range_.start, marks.get(partition, range_.start)), range_.end)
        for partition, range_ in read.items()
        if max(range_.start, marks.get(partition, range_.start)) < range_.end
    }


def skipped(read: SequenceRanges, marks: Marks) -> dict[str, SequenceRange]:
    """The events between the target's marks and the `read` events. They aged out, were skipped by a seek, or were
    written without marks."""
    return {
        partition: SequenceRange(marks[partition], range_.start)
        for partition, range_ in read.items()
        if marks.get(partition, range_.start) < range_.start
    }


def identity(offset: str) -> int:
    """A hash of the offset of the last event before a mark, stored in the target's log if offsets identify events."""
    return int.from_bytes(hashlib.sha256(offset.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """The transaction identifiers that a commit in the target's log sets, with their versions."""

    version: int
    identifiers: Mapping[str, int]

    @classmethod
    def parse(cls, version: int, text: str) -> LoggedCommit:
        """Parse a commit's log file, which contains one JSON object per line."""
        actions = (json.loads(line) for line in text.split("\n") if '"txn"' in line)
        return cls(version, {txn["appId"]: int(txn["version"]) for action in actions if (txn := action.get("txn"))})


@dataclass(frozen=True, slots=True)
class TransactionCache:
    """The known transaction identifiers, as of `version`, of the table with the id `table`. An identifier that is not
    set is None."""

    table: str
    version: int
    identifiers: Mapping[str, int | None] = field(default_factory=dict)

    def after(self, commits: Iterable[LoggedCommit]) -> TransactionCache:
        """The cache after applying `commits`, which must follow `version` without a gap."""
        version, known = self.version, dict(self.identifiers)
        for commit in commits:
            if commit.version != version + 1:
                raise ValueError(f"commit {commit.version} does not directly follow version {version}")
            version = commit.version
            known |= {name: mark for name, mark in commit.identifiers.items() if name in known}
        return replace(self, version=version, identifiers=known)

    def with_identifiers(self, identifiers: Mapping[str, int | None]) -> TransactionCache:
        """The cache with additional `identifiers`, as of the same version."""
        return replace(self, identifiers={**self.identifiers, **identifiers})
