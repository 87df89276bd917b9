"""Replay of batches that earlier processes of a query logged."""

from __future__ import annotations

import pytest

from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.member.membership import OwnedLease
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.model import Lease, QueryRecord
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.query.offsets import EpochPosition, StreamOffset
from spark_ehbalance.query.replay import EarlierBatches, LoggedBatches, plan_replay, recover
from tests.query.test_batch_planning import owned_lease


def test_logged_batch_is_replayed_with_the_new_epochs() -> None:
    logged = {"0": OffsetRange("0", 1, 5, 10), "1": OffsetRange("1", 1, 0, 3, since_ms=7)}
    holdings = {"0": owned_lease(5, epoch=2), "1": owned_lease(0, epoch=4, since_ms=7), "2": owned_lease(0)}
    assert plan_replay(logged, {"0": owned_lease(5, epoch=3)}) == {}, "it is not known since when"
    assert plan_replay(logged, {"0": owned_lease(5, epoch=1)}) == {"0": logged["0"]}, "a store without epochs"
    assert plan_replay(logged, holdings) == {
        "0": OffsetRange("0", 2, 5, 10),
        "1": OffsetRange("1", 4, 0, 3, since_ms=7),
    }


@pytest.mark.parametrize(
    ("holdings", "why"),
    [
        ({}, "another member has it"),
        ({"0": owned_lease(10, epoch=2)}, "this query has finished it"),
        ({"0": owned_lease(10, epoch=3)}, "another member has finished it"),
        ({"0": owned_lease(7, epoch=3)}, "another member has finished a part"),
        ({"0": owned_lease(2, epoch=3)}, "an operator has set the position back"),
        ({"0": owned_lease(5, epoch=3)}, "another member may have had it, and the batch may have been cut short then"),
        ({"0": owned_lease(5, epoch=3, since_ms=8)}, "another member has had it"),
        ({"0": owned_lease(5, epoch=3, since_ms=6)}, "another member has had it, and this machine's clock is slow"),
    ],
)
def test_replay_skips_partitions_that_another_member_might_have_read(holdings: dict[str, OwnedLease], why: str) -> None:
    assert plan_replay({"0": OffsetRange("0", 1, 5, 10, since_ms=7)}, holdings) == {}, why


@pytest.mark.parametrize("next", [2, 5, 7, 10, 99])
def test_batch_is_replayed_wherever_a_seek_moved_the_position(next: int) -> None:
    holdings = {"0": owned_lease(next, epoch=4, since_ms=7, seek_epoch=3)}
    logged = {"0": OffsetRange("0", 2, 5, 10, since_ms=7)}
    assert plan_replay(logged, holdings) == {"0": OffsetRange("0", 4, 5, 10, since_ms=7)}
    assert EarlierBatches(finished_number=3).replay(StreamOffset("a", logged, batch=3), holdings) == {}, (
        "the table knows that"
    )
    assert plan_replay(logged, {"0": owned_lease(next, epoch=4, since_ms=8, seek_epoch=3)}) == {}, (
        "another member has had it"
    )
    later = {"0": OffsetRange("0", 3, 5, 10, since_ms=7)}
    assert bool(plan_replay(later, holdings)) is (next == 5), "it was logged after the seek"


def test_finished_batches_of_earlier_processes_are_not_replayed() -> None:
    holdings = {"0": owned_lease(9, epoch=4, since_ms=7, seek_epoch=3)}
    logged = StreamOffset("a", {"0": OffsetRange("0", 2, 5, 10, since_ms=7)}, batch=3)
    assert EarlierBatches(finished_number=2).replay(logged, holdings), "the table does not know of batch 3"
    for number in (3, 4):
        assert EarlierBatches(finished_number=number).replay(logged, holdings) == {}, (
            "the table knows that it is finished"
        )
    unmoved = {"0": owned_lease(5, epoch=3, since_ms=7)}
    assert EarlierBatches(finished_number=2).replay(logged, unmoved)
    assert EarlierBatches(finished_number=3).replay(logged, unmoved) == {}, "the next batch reads what it lacked"


def test_progress_missing_from_the_table_is_recovered_if_ownership_has_not_changed() -> None:
    """The table was unreachable when the query was killed."""
    ranges = {p: OffsetRange(p, 2, 5, 10) for p in "012345"}
    logged = LoggedBatches(StreamOffset("a", ranges, lineage="l", batch=3), StreamOffset("a"))
    rows = (("0", 2, 4), ("1", 3, 4), ("3", 1, 4), ("4", 2, 9), ("5", 2, 12))
    leases = {p: Lease(p, epoch=epoch, checkpoint=Position(last)) for p, epoch, last in rows}
    found = Snapshot(
        Group("namespace", "hub", "g"), leases=leases, queries={"l": QueryRecord("l", "r", "a", batch=2, begun=3)}
    )
    assert logged.last is logged.finished
    progress, earlier = recover(logged, found, "l")
    assert (progress, earlier.finished_number) == ({"0": Progress(2, Position(9))}, 2)


def test_progress_of_a_batch_that_was_read_again_is_recovered_from_the_batch_after_it() -> None:
    """Otherwise, a query that is killed twice while the table is unwritable reads the first batch's events again."""
    finished = StreamOffset("a", {p: OffsetRange(p, 1, 0, 9, end_offset="0-8-8") for p in "02"}, lineage="l", batch=3)
    others = {"0": EpochPosition(2, 9), "2": EpochPosition(1, 9)}
    unfinished = StreamOffset("a", {"1": OffsetRange("1", 1, 0, 4)}, other_positions=others, lineage="l", batch=4)
    leases = {p: Lease(p, epoch=epoch, checkpoint=Position(-1)) for p, epoch in (("0", 2), ("1", 1), ("2", 1))}
    found = Snapshot(
        Group("namespace", "hub", "g"), leases=leases, queries={"l": QueryRecord("l", "r", "a", batch=2, begun=3)}
    )
    progress, _ = recover(LoggedBatches(finished, unfinished), found, "l")
    assert progress == {"0": Progress(2, Position(8, "0-8-8")), "2": Progress(1, Position(8, "0-8-8"))}


def test_restart_after_a_reset_resumes_from_the_logged_reset() -> None:
    """A hub that lost events reuses the sequence numbers that were read before the reset."""
    finished = StreamOffset("a", {"0": OffsetRange("0", 1, 0, 9), "1": OffsetRange("1", 1, 0, 9)})
    logged = LoggedBatches(finished, StreamOffset("a", {"0": OffsetRange("0", 1, 0, 4)}, batch=2))
    assert logged.last is logged.unfinished
    assert logged.progress() == {"0": Progress(1, Position(-1)), "1": Progress(1, Position(8))}
