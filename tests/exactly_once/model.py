"""A hub, a lease table and a Delta table as values, and writers that a test advances step by step.

The Delta table is a list of commits. Like in Delta, a commit is rejected if, since the version at which its transaction
began, one of its own marks was set or the table was changed; appends by others do not conflict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_ehbalance.exactly_once.marks import SequenceRange, SequenceRanges
from spark_ehbalance.exactly_once.protocol import (
    Begin,
    Commit,
    Confirm,
    Conflict,
    FailedCommit,
    Write,
    WriteResult,
    write_exactly_once,
)

Event = tuple[str, int]


@dataclass
class Entry:
    """One commit to the table."""

    rows: list[Event] = field(default_factory=list)
    marks: Mapping[str, int] = field(default_factory=dict)
    changes_table: bool = False


@dataclass
class Target:
    """The Delta table."""

    log: list[Entry] = field(default_factory=list)

    def marks(self, version: int) -> dict[str, int]:
        return {p: mark for entry in self.log[:version] for p, mark in entry.marks.items()}

    def commit(self, began: int, entry: Entry) -> Conflict | None:
        since = self.log[began:]
        if any(commit.changes_table for commit in since):
            return Conflict.TABLE
        if any(commit.marks.keys() & entry.marks.keys() for commit in since):
            return Conflict.MARKS
        self.log.append(entry)
        return None

    def events(self) -> Counter[Event]:
        return Counter(row for entry in self.log for row in entry.rows)


@dataclass
class Lease:
    """The lease of a partition: `checkpoint` is the next sequence number to read."""

    epoch: int = 0
    checkpoint: int = 0


class Group:
    """Partitions with their leases; the target."""

    def __init__(self, partitions: int) -> None:
        self.leases = {str(partition): Lease() for partition in range(partitions)}
        self.target = Target()

    def claim(self, partition: str) -> int:
        """Let a writer claim the partition; returns the epoch."""
        self.leases[partition].epoch += 1
        return self.leases[partition].epoch


class Writer:
    """Writes one batch: ranges of partitions claimed with these epochs.

    `reads` determines which events of a range are read once the lease is lost: all planned events, or fewer.
    """

    def __init__(
        self,
        group: Group,
        planned: SequenceRanges,
        epochs: Mapping[str, int],
        reads: Callable[[str, SequenceRange], set[int]] = lambda _, range_: set(range(range_.start, range_.end)),
    ) -> None:
        self._group = group
        self._planned = planned
        self._epochs = epochs
        self._reads = reads
        self._steps = write_exactly_once(planned)
        self._answer: object = None
        self._began = 0
        self._rows: list[Event] = []
        self.result: WriteResult | None = None

    @property
    def ended(self) -> bool:
        return self.result is not None

    def step(self, *, loses_answer: bool = False, fails: bool = False) -> None:
        """Carry out the next step. A commit `fails` without effect, or takes effect but `loses_answer`."""
        try:
            step = self._steps.send(self._answer)
        except StopIteration as end:
            self.result = end.value
            self._checkpoint()
            return
        target, self._answer = self._group.target, None
        if isinstance(step, Begin):
            self._began = len(target.log)
            self._answer = {p: mark for p, mark in target.marks(self._began).items() if p in step.partitions}
        elif isinstance(step, Write):
            self._rows = [
                (partition, number)
                for partition, range_ in step.events.items()
                for number in sorted(self._read(partition))
                if range_.start <= number < range_.end
            ]
        elif isinstance(step, Confirm):
            self._answer = frozenset(filter(self._is_lost, step.partitions))
        elif isinstance(step, Commit):
            entry = Entry(self._rows, step.marks)
            conflict = Conflict.UNKNOWN if fails else target.commit(self._began, entry)
            if loses_answer and conflict is None:
                conflict = Conflict.UNKNOWN
            self._answer = conflict and FailedCommit(conflict, "", Exception())

    def run(self) -> Writer:
        while not self.ended:
            self.step()
        return self

    def _is_lost(self, partition: str) -> bool:
        return self._group.leases[partition].epoch != self._epochs[partition]

    def _read(self, partition: str) -> set[int]:
        planned = self._planned[partition]
        return self._reads(partition, planned) if self._is_lost(partition) else set(range(planned.start, planned.end))

    def _checkpoint(self) -> None:
        for partition, range_ in self._planned.items():
            if not self._is_lost(partition):
                self._group.leases[partition].checkpoint = range_.end
