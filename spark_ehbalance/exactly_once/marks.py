"""What of a batch a Delta table holds already: marks, and what follows from them. Pure.

A mark belongs to a partition of an event hub and is kept in the target's log, as the version of a transaction
identifier (`SetTransaction`). It is the sequence number after the last event that was written: every event before it is
in the target, or was left out by whoever wrote it. Marks and rows are in the same commit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """The events of one partition with sequence numbers from `start` up to but not including `end`."""

    start: int
    end: int


#: By partition.
SequenceRanges = Mapping[str, SequenceRange]
Marks = Mapping[str, int]


def missing(read: SequenceRanges, marks: Marks) -> dict[str, SequenceRange]:
    """What of the events that were `read` the target does not hold, by its `marks`."""
    return {
        partition: SequenceRange(max(range_.start, marks.get(partition, range_.start)), range_.end)
        for partition, range_ in read.items()
        if max(range_.start, marks.get(partition, range_.start)) < range_.end
    }


def skipped(read: SequenceRanges, marks: Marks) -> dict[str, SequenceRange]:
    """The events between the target's mark and the begin of what was read: nobody has written them. They have aged out
    or were skipped by an order, or an earlier version of the query wrote them without marks."""
    return {
        partition: SequenceRange(marks[partition], range_.start)
        for partition, range_ in read.items()
        if marks.get(partition, range_.start) < range_.start
    }


def identity(offset: str) -> int:
    """What the log keeps of the offset of the last event before a mark, where offsets identify events: a number."""
    return int.from_bytes(hashlib.sha256(offset.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit of the target's log says: the transaction identifiers it sets, and to what."""

    version: int
    identifiers: Mapping[str, int]

    @classmethod
    def parse(cls, version: int, text: str) -> Commit:
        """The commit whose log file has that `text`: a JSON object in each line."""
        actions = (json.loads(line) for line in text.split("\n") if '"txn"' in line)
        return cls(version, {txn["appId"]: int(txn["version"]) for action in actions if (txn := action.get("txn"))})


@dataclass(frozen=True, slots=True)
class TransactionCache:
    """What a writer knows of the target's transaction identifiers as of a `version` of the table with the id `table`.
    An identifier that was asked for and is not set has None."""

    table: str
    version: int
    identifiers: Mapping[str, int | None] = field(default_factory=dict)

    def after(self, commits: Iterable[Commit]) -> TransactionCache:
        """The memory after the `commits` that follow on `version` without a gap."""
        version, known = self.version, dict(self.identifiers)
        for commit in commits:
            if commit.version != version + 1:
                raise ValueError(f"commit {commit.version} does not follow on {version}")
            version = commit.version
            known |= {name: mark for name, mark in commit.identifiers.items() if name in known}
        return replace(self, version=version, identifiers=known)

    def with_identifiers(self, identifiers: Mapping[str, int | None]) -> TransactionCache:
        """The memory with `identifiers` as of the same version."""
        return replace(self, identifiers={**self.identifiers, **identifiers})
