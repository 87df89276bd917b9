"""Simulated sinks: one that appends, one that skips known batch numbers, and one that writes exactly once, with the
real protocol."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.exactly_once.marks import SequenceRange, SequenceRanges
from spark_ehbalance.exactly_once.protocol import (
    Begin,
    Commit,
    Confirm,
    Conflict,
    FailedCommit,
    Write,
    write_exactly_once,
)

#: A generator that yields the seconds for which a sink waits.
Writing = Generator[float, None, None]
#: Reads the lease table and returns the partitions of the batch that the query has lost.
FindLost = Callable[[], Generator[float, None, frozenset[str]]]
#: Partition → the range that a batch has read.
Rows = Mapping[str, OffsetRange]


class SinkError(Exception):
    """The sink failed, and with it the batch."""


@dataclass(slots=True)
class Content:
    """The events in a sink. `extents` maps partition → sorted, disjoint ranges."""

    extents: dict[str, list[SequenceRange]] = field(default_factory=dict)

    def add(self, partition: str, added: SequenceRange | OffsetRange) -> int:
        """Add events. Returns the number of duplicates."""
        apart, duplicates, start, end = list[SequenceRange](), 0, added.start, added.end
        for known in self.extents.get(partition, ()):
            if known.end < added.start or known.start > added.end:
                apart.append(known)
            else:
                duplicates += max(0, min(known.end, added.end) - max(known.start, added.start))
                start, end = min(start, known.start), max(end, known.end)
        self.extents[partition] = sorted([*apart, SequenceRange(start, end)], key=lambda extent: extent.start)
        return duplicates

    def find_stored(self, partition: str, bounds: OffsetRange) -> list[SequenceRange]:
        """The stored events within `bounds`."""
        found = self.extents.get(partition, ())
        parts = (SequenceRange(max(known.start, bounds.start), min(known.end, bounds.end)) for known in found)
        return [part for part in parts if part.start < part.end]

    def first_missing(self, partition: str, start: int) -> int:
        """The first missing event from `start` on."""
        found = (known.end for known in self.extents.get(partition, ()) if known.start <= start < known.end)
        return next(found, start)


@dataclass(slots=True)
class Sink:
    """A sink that appends. `fails` determines how the next write fails: `before` it, `half-way`, or `after` it, with a
    lost acknowledgement."""

    content: Content = field(default_factory=Content)
    fails: str = ""

    def write(
        self, number: int, ranges: Sequence[OffsetRange], rows: Rows, seconds: float, find_lost: FindLost
    ) -> Writing:
        yield seconds
        fails, self.fails = self.fails, ""
        for index, (partition, extent) in enumerate(rows.items()):
            if fails == "before" or (fails == "half-way" and index >= len(rows) // 2):
                break
            self.content.add(partition, extent)
        if fails:
            raise SinkError(f"the sink fails {fails} the write")

    @property
    def stored(self) -> Content:
        """The events that readers of the sink can see."""
        return self.content


@dataclass(slots=True)
class NumberedSink(Sink):
    """Skips known batch numbers, and writes all other batches atomically. `duplicates` are pairs of overlapping ranges
    of a partition that the query owned without interruption."""

    numbers: set[int] = field(default_factory=set)
    last: dict[str, OffsetRange] = field(default_factory=dict)
    duplicates: list[tuple[OffsetRange, OffsetRange]] = field(default_factory=list)

    def write(
        self, number: int, ranges: Sequence[OffsetRange], rows: Rows, seconds: float, find_lost: FindLost
    ) -> Writing:
        yield seconds
        fails, self.fails = self.fails, ""
        if fails in ("", "after") and number not in self.numbers:
            self.numbers.add(number)
            for partition, extent in rows.items():
                self.content.add(partition, extent)
                last = self.last.get(partition)
                if last is not None and extent.start < last.end and last.since_ms == extent.since_ms:
                    self.duplicates.append((last, extent))
                self.last[partition] = extent
        if fails:
            raise SinkError(f"the sink fails {fails} the write")


@dataclass(slots=True)
class Target:
    """An exactly-once table that queries share: its content, and the marks of each commit. `duplicates` counts the
    events that were written more than once."""

    content: Content = field(default_factory=Content)
    commits: list[Mapping[str, int]] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0

    def commit(self, base: int, marks: Mapping[str, int], events: SequenceRanges) -> FailedCommit | None:
        if any(commit.keys() & marks.keys() for commit in self.commits[base:]):
            return FailedCommit(Conflict.MARKS, "a mark was set since", SinkError("conflict"))
        self.commits.append(marks)
        self.marks.update(marks)
        self.duplicates += sum(self.content.add(partition, extent) for partition, extent in events.items())
        return None


@dataclass(slots=True)
class OnceSink(Sink):
    """Writes to `target` with `write_exactly_once`."""

    target: Target = field(default_factory=Target)

    def write(
        self, number: int, ranges: Sequence[OffsetRange], rows: Rows, seconds: float, find_lost: FindLost
    ) -> Writing:
        read = {planned.partition: SequenceRange(planned.start, planned.end) for planned in ranges}
        steps, base, events = write_exactly_once(read), 0, dict[str, SequenceRange]()
        answer: object = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            yield seconds / 4
            answer = None
            match step:
                case Begin(partitions):
                    base = len(self.target.commits)
                    answer = {p: self.target.marks[p] for p in partitions if p in self.target.marks}
                case Write(written):
                    bounds = {
                        p: (max(wanted.start, rows[p].start), rows[p].end) for p, wanted in written.items() if p in rows
                    }
                    events = {p: SequenceRange(start, end) for p, (start, end) in bounds.items() if start < end}
                case Confirm(partitions):
                    answer = (yield from find_lost()) & {*partitions}
                case Commit(marks):
                    fails, self.fails = self.fails, ""
                    if fails in ("before", "half-way"):
                        raise SinkError(f"the sink fails {fails} the write")
                    refusal = self.target.commit(base, marks, events)
                    answer = FailedCommit(Conflict.UNKNOWN, "no answer", SinkError("unknown")) if fails else refusal

    @property
    def stored(self) -> Content:
        return self.target.content
