"""The transaction that writes a batch exactly once, as steps that do not depend on Delta or Spark.

No event is written twice. A transaction reads the marks of one table version, writes only the events that this version
lacks, and raises the marks in the same commit. Delta rejects the commit if one of these marks was set after that
version.

No event is lost. A mark is raised to the end of a range only if the range was read to its end. Reading stops early only
if the lease was lost, so `Confirm` checks the leases after the rows were read. If a partition's lease was lost, neither
its rows nor its mark are committed, and the next owner reads the partition from a checkpoint before this batch.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Mapping
from dataclasses import dataclass

from spark_ehbalance.errors import TargetError
from spark_ehbalance.exactly_once.marks import Marks, SequenceRanges, missing

#: Number of rejected commits after which the batch fails. Each conflict over marks means that another writer made
#: progress, so a few writers of the same range stay far below this number. The margin is for changes to the table.
MAX_FAILED_COMMITS = 10


class Conflict(enum.Enum):
    """The reason why a commit was rejected. Other appends, OPTIMIZE, VACUUM and deletions do not conflict with an
    append."""

    #: The next transaction writes the remaining events.
    MARKS = "another writer wrote events of the same partitions"
    #: The next transaction uses the new schema, properties and protocol.
    TABLE = "the table was changed"
    #: The next transaction reads the outcome from the marks.
    UNKNOWN = "the outcome of the commit is unknown"


@dataclass(frozen=True, slots=True)
class FailedCommit:
    """A commit that was, or may have been, rejected. `cause` is the error on one line."""

    conflict: Conflict
    cause: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Begin:
    """Start a transaction on the table's newest version. The answer contains the marks of `partitions` in that
    version."""

    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """Write the rows of exactly these events to files that are not visible yet. There is no answer."""

    events: SequenceRanges


@dataclass(frozen=True, slots=True)
class Confirm:
    """Check the leases after the rows were read. The answer contains the `partitions` whose rows may be incomplete."""

    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit the files and these `marks`. The answer is the failure; None if the commit succeeded."""

    marks: Marks


Step = Begin | Write | Confirm | Commit


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The events that this transaction wrote, and the partitions lost while they were read."""

    written: SequenceRanges
    lost: frozenset[str] = frozenset()


def write_exactly_once(read: SequenceRanges) -> Generator[Step, object, WriteResult]:
    """The steps that write the `read` events exactly once. The caller carries out each step and sends its answer.

    The caller may stop after any step, because only `Commit` changes the target. Raises `TargetError` after
    `MAX_FAILED_COMMITS` rejected commits.
    """
    wanted, lost, failures = dict(read), frozenset[str](), 0
    while wanted:
        marks = yield Begin(tuple(wanted))
        assert isinstance(marks, Mapping)
        events = missing(wanted, marks)
        if not events:
            break
        yield Write(events)
        answer = yield Confirm(tuple(events))
        assert isinstance(answer, frozenset)
        if answer:
            # The files contain rows of these partitions, so the files are abandoned, and the other rows are written
            # again.
            lost |= answer
            wanted = {partition: range_ for partition, range_ in wanted.items() if partition not in answer}
            continue
        failure = yield Commit({partition: range_.end for partition, range_ in events.items()})
        if failure is None:
            return WriteResult(events, lost)
        assert isinstance(failure, FailedCommit)
        failures += 1
        if failures == MAX_FAILED_COMMITS:
            reason = f"{failure.conflict.value} ({failure.cause})"
            raise TargetError("EHB_TARGET_CONTENDED", count=failures, reason=reason) from failure.error
    return WriteResult({}, lost)
