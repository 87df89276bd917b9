"""What a query's own checkpoint knows, held against the lease table. Pure."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from spark_ehbalance.leases.model import Author, Lease, TableIdentity
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import Restore, apply
from spark_ehbalance.source.continuity import (
    LoggedBatch,
    RecordedProgress,
    describe_loss,
    progress_beyond,
    restore_transitions,
    skipped_events,
)
from spark_ehbalance.source.offsets import EpochPosition, StreamOffset, TableReference
from spark_ehbalance.source.ranges import Range
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import Position

TABLE = TableReference("t1", "/leases")
IDENTITY = TableIdentity("t1")


def offset(table: TableReference | None = TABLE, group: str = "place", **ends: tuple[int, int, int]) -> StreamOffset:
    """The end of a batch, with epoch, start and end of each partition, named p0, p1, …"""
    return StreamOffset("me", {p[1:]: Range(p[1:], *each) for p, each in ends.items()}, group, table)


def finished(end: StreamOffset) -> LoggedBatch:
    return LoggedBatch(end, finished=True)


def unfinished(end: StreamOffset) -> LoggedBatch:
    return LoggedBatch(end, finished=False)


def state(table: TableIdentity | None = IDENTITY, **positions: int | None) -> Snapshot:
    """A table in which the partitions, named p0, p1, …, go on at these positions."""
    leases = {
        p[1:]: Lease(p[1:], epoch=3, checkpoint=None if next is None else Position.before(next))
        for p, next in positions.items()
    }
    return Snapshot(Group("ns", "hub", "$default"), 5, MappingProxyType(leases), table=table)


def test_the_last_entry_of_each_partition_counts() -> None:
    recorded = RecordedProgress.from_log(
        finished(offset(p0=(2, 0, 40), p3=(1, 0, 9))),
        finished(replace(offset(p1=(7, 0, 5)), other_positions={"0": EpochPosition(2, 40), "4": EpochPosition(1, 7)})),
        unfinished(offset(p2=(4, 90, 100), p0=(2, 40, 60))),
    )
    assert recorded.positions == {
        "0": EpochPosition(2, 40),
        "1": EpochPosition(7, 5),
        "2": EpochPosition(4, 90),  # of a batch that was only planned, what it begins with was finished
        "3": EpochPosition(1, 9),
        "4": EpochPosition(1, 7),
    }
    assert recorded.origins == {"t1"}
    assert RecordedProgress.from_log(finished(offset(p0=(1, 0, 90))), finished(offset(p0=(1, 10, 30)))).positions == {
        "0": EpochPosition(1, 30)
    }


def test_offsets_before_a_table_has_an_id_and_of_queries_alone_have_an_origin() -> None:
    assert offset(None).origin == "place"
    assert offset(None, "").origin == "me"


def loss(known: StreamOffset, found: Snapshot | None) -> str:
    return describe_loss(known, RecordedProgress.from_log(finished(known)), found)


def test_a_table_with_all_positions_has_lost_nothing() -> None:
    known = offset(p0=(1, 0, 10))
    assert loss(known, state(p0=10)) == ""
    assert loss(known, state(p0=50, p1=7)) == "", "others have gone on"
    assert loss(known, state(p0=4)) == "", "the last batch's checkpoint did not reach the table"
    assert loss(known, state(TableIdentity("t2", frozenset({"t0", "t1"})), p0=50)) == "", "it has taken its place"
    assert loss(known, state(None, p0=50)) == "", "a table of an earlier version, or one that was mended"
    assert loss(offset(), state(p0=None)) == "", "nothing was read yet"


@pytest.mark.parametrize(
    ("found", "described"),
    [
        (None, "there is no such table"),
        (
            state(TableIdentity("t2"), p0=99),
            "that is another table, which would skip events 10 to 98 of partition 0",
        ),
        (state(TableIdentity("t2"), p0=5), "that is another table"),
        (state(p1=9), "it has no positions of partition 0"),
        (state(p0=None), "it has no positions of partition 0"),
        (state(), "it has been emptied"),
    ],
)
def test_a_loss_is_described(found: Snapshot | None, described: str) -> None:
    assert loss(offset(p0=(1, 0, 10)), found) == described


def test_positions_beside_the_last_batch_are_compared_too() -> None:
    known = replace(offset(p0=(1, 0, 10)), other_positions={"1": EpochPosition(1, 7)})
    assert loss(known, state(p0=10)) == "it has no positions of partition 1"
    assert loss(known, state(p0=10, p1=None)) == "it has no positions of partition 1"
    assert loss(known, state(p0=10, p1=7)) == ""


def test_a_lower_epoch_means_that_the_table_was_set_back() -> None:
    assert loss(offset(p0=(4, 0, 10)), state(p0=99)) == (
        "it has partition 0 with epoch 3 only, where the checkpoint has 4: it was set back or made anew"
    )


def test_a_query_that_has_read_nothing_yet_notices_an_emptied_table() -> None:
    assert loss(offset(), state()) == "it has been emptied"


ME = Author("me", "1")


def test_restoring_lowers_no_epoch_and_changes_no_known_position() -> None:
    recorded = RecordedProgress.from_log(finished(offset(p0=(2, 0, 10), p1=(2, 0, 20), p2=(5, 0, 30), p3=(9, 0, 40))))
    found = state(p0=7, p1=None, p3=90)
    outcome = apply(found, restore_transitions(recorded, found, ME, 0, "why", older=True))
    assert not outcome.refused
    after = outcome.after
    assert {p: (each.epoch, each.checkpoint) for p, each in after.leases.items()} == {
        "0": (3, Position.before(7)),
        "1": (3, Position.before(20)),
        "2": (5, Position.before(30)),
        "3": (9, Position.before(40)),  # its epoch had fallen
    }
    late = Restore(by=ME, at_ms=0, partition="0", epoch=2, checkpoint=Position.before(10))
    assert apply(after, [late]).refused[0].reason == "the table has partition 0 already"
    assert not apply(after, [replace(late, epoch=3)]).refused, "under the same epoch it is the same owner's"
    assert skipped_events(RecordedProgress.from_log(finished(offset(p0=(1, 0, 4), p1=(1, 0, 20)))), after) == {
        "0": (4, 6)
    }


def test_a_seek_decides_also_under_an_epoch_that_the_checkpoint_knows() -> None:
    """The table was set back, so that the seek has given an epoch once more."""
    recorded = RecordedProgress.from_log(finished(offset(p0=(3, 20, 50), p1=(3, 20, 50))))
    found = state(p0=20, p1=20)
    assert progress_beyond(found, recorded).keys() == {"0", "1"}
    leases = {**found.leases, "0": replace(found.leases["0"], sought=3)}
    assert progress_beyond(replace(found, leases=leases), recorded).keys() == {"1"}
    owned = {"0": replace(leases["0"], owned_since_ms=7)}
    assert progress_beyond(replace(found, leases=owned), recorded).keys() == {"0"}, "its owner went on under it"


def test_epochs_of_another_table_are_not_compared() -> None:
    recorded = RecordedProgress.from_log(finished(offset(p0=(9, 0, 10), p1=(9, 0, 10))))
    restores = restore_transitions(recorded, state(TableIdentity("t2"), p0=90), ME, 0, "why", older=False)
    assert [each.partition for each in restores] == ["1"]
