"""Whether a query's checkpoint and its lease table still tell of the same past: people copy, restore and move each
without the other. Pure: what each says is compared, not what it is called.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_ehbalance.leases.model import Member, QueryRecord
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.source.continuity import RecordedProgress, progress_beyond
from spark_ehbalance.source.offsets import HubReference, StreamOffset
from spark_ehbalance.text import time_of


def described_other_hub(who: str, read: HubReference, found: HubReference) -> str:
    """What `who` has read another event hub than `found` means, for a message."""
    why = "it was made anew, or is another one, with other events"
    return f"{who} has read {read}, and this is {found}: {why}"


def other_hub_help(*, shared: bool) -> str:
    """What to do about that, for a query that shares a lease table or not."""
    table = " and a new leaseTable" if shared else ""
    return (
        f"Give the query a new checkpointLocation{table}, with which it begins at startingPosition, or go on with "
        "failOnDataLoss=false where its positions happen to be"
    )


def described_older_checkpoint(known: StreamOffset, found: Snapshot) -> str:
    """How the table is ahead of the checkpoint whose last offset is `known`, as a clause for a message; "" if it is
    not. Spark logs a batch before it is begun."""
    record = found.queries.get(known.lineage)
    if record is None or _has_followed(known, record):
        return ""
    if record.begun <= known.batch:
        return (
            f"this query's checkpoint ends with batch {known.batch}, and another one of that number may have been "
            f"begun with a copy of it, or when it was set back, at {time_of(record.at_ms)} as {_named(record)}"
        )
    return (
        f"this query's checkpoint ends with batch {known.batch}, and the table knows that it has begun batch "
        f"{record.begun}, at {time_of(record.at_ms)} as {_named(record)}: the checkpoint was set back, or is a copy of "
        "one that went on"
    )


def _has_followed(known: StreamOffset, record: QueryRecord) -> bool:
    """Whether `known` is what the last run of the query began with, or has planned. A run begins with the end of the
    log, so that another one with later batches than the table knows has gone on from elsewhere."""
    if record.begun == known.batch:
        return record.planner == known.run
    return record.begun < known.batch and record.run in ("", known.run)


def last_used_number(known: StreamOffset, found: Snapshot) -> int:
    """The last batch number that a sink may have of the query whose last offset is `known`, in a checkpoint that may
    have been set back."""
    record = found.queries.get(known.lineage)
    if record is None:
        return 0
    # A run that was killed may have begun one more since its last commit.
    return max(record.begun, known.batch) + bool(record.run)


def described_older_table(known: StreamOffset, recorded: RecordedProgress, found: Snapshot) -> str:
    """How the checkpoint, which has `recorded` that, is ahead of the table, which was set back then; "" if it is not.

    That the table lacks a position says nothing alone: a query goes on while the table is away. Versions tell it until
    others have written as many again; that the table has forgotten a start or a batch of the query tells it for ever.
    """
    same = known.table is not None and found.table is not None and known.table.id == found.table.id
    record = found.queries.get(known.lineage)
    start, begun = (record.start, record.begun) if record else (0, 0)
    forgotten = start < known.table_start or begun < known.table_begun
    is_older = found.version < known.table_version or forgotten
    if not same or not is_older or not (beyond := progress_beyond(found, recorded)):
        return ""
    partition, position = next((p, each.position.next) for p, each in beyond.items())
    return (
        f"it has version {found.version}, with start {start} and batch {begun} of this query, and the checkpoint has "
        f"read with version {known.table_version}, with start {known.table_start} and batch {known.table_begun}: the "
        f"table was set back, and does not know of events up to {position - 1} of partition {partition}, among others"
    )


def earlier_run(known: StreamOffset, found: Snapshot) -> tuple[QueryRecord, Member] | None:
    """The process that reads with this checkpoint, or a copy of it, by the table: it has not said that it has ended."""
    record = found.queries.get(known.lineage)
    member = None if record is None else found.members.get(record.owner)
    if record is None or member is None or member.incarnation != record.run:
        return None
    return record, member


def free_name(owner: str, lineage: str, found: Snapshot, alive: Callable[[str], bool | None]) -> tuple[str, str]:
    """The name under which a query joins that is to be called `owner`: another one if that is taken. And the
    incarnation of a dead member from which it takes it over; "" if there is none. `alive` as for `check_checkpoint`."""
    member = found.members.get(owner)
    if member is None:
        return owner, ""
    record = next((each for each in found.queries.values() if each.run == member.incarnation), None)
    if record is not None and record.lineage == lineage:
        return owner, ""
    if record is not None and alive(record.process) is False:
        return owner, member.incarnation
    return f"{owner}-{lineage[:6]}", ""


def running(record: QueryRecord) -> str:
    """The message for a query whose checkpoint, or one that it is a copy of, is being read with."""
    return (
        f"this query runs already as {_named(record)}, with the same checkpoint or the one that this is a copy of. "
        "That one goes on, and nothing was read or written here. Stop it first; or, for a second query, set a new "
        "checkpointLocation, with which it shares the partitions"
    )


def read_too_early(record: QueryRecord) -> str:
    """The message for a query that has been waited for, and may have gone on after its checkpoint was read."""
    return (
        f"this query ran still as {_named(record)} when its checkpoint was read here, and has ended since, maybe after "
        "further batches. Nothing was read or written here: start it again"
    )


def _named(record: QueryRecord) -> str:
    return f"{record.owner} on {record.host or 'an unknown host'}"
