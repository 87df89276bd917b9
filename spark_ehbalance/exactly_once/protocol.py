"""The transaction that writes a batch exactly once, without Delta and Spark: what is done next, and after a conflict.

Why no event is written twice: a transaction writes only what its version of the table lacks by its marks, and raises
the marks in the same commit. Delta refuses a commit if one of its partitions' marks was set after that version.

Why none is lost: a mark is raised to the end of a range only if the range was read to its end. A range ends early only
after its lease was lost, so `Confirm` asks for the leases after the rows were read: a partition whose lease was lost is
left out, rows and mark, and its next owner reads it again from a checkpoint that does not count this batch.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Mapping
from dataclasses import dataclass

from spark_ehbalance.errors import TargetError
from spark_ehbalance.exactly_once.marks import Marks, SequenceRanges, missing

#: Refused commits after which the batch fails. A conflict over marks shows that another writer has succeeded with the
#: same partitions, so that a few writers of one range do not come near; the rest is for changes of the table.
MAX_FAILED_COMMITS = 10


class Conflict(enum.Enum):
    """Why a commit was refused. Appends of others, OPTIMIZE, VACUUM and deletions are no conflict for an append."""

    #: The next transaction writes what the other writer has left.
    MARKS = "another writer has written events of the same partitions"
    #: The next transaction follows the new schema, properties and protocol.
    TABLE = "the table was changed"
    #: The marks tell the next transaction.
    UNKNOWN = "it is not known whether the commit has succeeded"


@dataclass(frozen=True, slots=True)
class FailedCommit:
    """A commit that was refused, or may have been: why, and its error, with that error's `cause` in a line."""

    conflict: Conflict
    cause: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Begin:
    """Start a transaction on the newest version. Answer: the marks of these `partitions` in that version."""

    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """Write files with the rows of exactly these events; they are not visible yet. No answer."""

    events: SequenceRanges


@dataclass(frozen=True, slots=True)
class Confirm:
    """Ask, now that the rows were read, which of these `partitions` may not have been read to the end of their range.
    Answer: those."""

    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit the files and these `marks`. Answer: None, or the failure."""

    marks: Marks


Step = Begin | Write | Confirm | Commit


@dataclass(frozen=True, slots=True)
class Result:
    """The events that this transaction has `written`, and the partitions that were `lost` before they were read."""

    written: SequenceRanges
    lost: frozenset[str] = frozenset()


def write_exactly_once(read: SequenceRanges) -> Generator[Step, object, Result]:
    """The steps that write what was `read` exactly once. Whoever runs it carries out each step and sends its answer.

    It may be abandoned at any step: only `Commit` changes the target. Raises `TargetError` after `MAX_FAILED_COMMITS`
    commits that were refused.
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
            # The files hold rows of theirs: they are left behind, and the rest is written anew.
            lost |= answer
            wanted = {partition: range_ for partition, range_ in wanted.items() if partition not in answer}
            continue
        failure = yield Commit({partition: range_.end for partition, range_ in events.items()})
        if failure is None:
            return Result(events, lost)
        assert isinstance(failure, FailedCommit)
        failures += 1
        if failures == MAX_FAILED_COMMITS:
            reason = f"{failure.conflict.value} ({failure.cause})"
            raise TargetError("EHB_TARGET_CONTENDED", count=failures, reason=reason) from failure.error
    return Result({}, lost)
