"""What offsets name, with a lease table and without, from values to values."""

from __future__ import annotations

from dataclasses import replace

from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.model import Lease, TableIdentity
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.query.offsets import EpochPosition, FirstStart, HubReference, StreamOffset, TableReference
from spark_ehbalance.query.progress_policy import LeaseTableProgress, OffsetProgress, TableState
from tests.lease_table.store_conformance import GROUP

HUB = HubReference("hub", "ns", 7)
QUERY = StreamOffset("me", group="g", hub=HUB, lineage="l", batch=4, run="r")
SHARED, ALONE = LeaseTableProgress(QUERY, "/leases"), OffsetProgress(StreamOffset("me", hub=HUB))
TABLE = TableIdentity("t1")


def ranges(epoch: int = 1, **spans: tuple[int, int]) -> dict[str, OffsetRange]:
    """Ranges of partitions named p0, p1, …"""
    return {p[1:]: OffsetRange(p[1:], epoch, *span) for p, span in spans.items()}


# --- with a lease table ----------------------------------------------------------------------------------------


def test_shared_offsets_name_the_ranges_that_are_read_and_the_other_positions() -> None:
    possible = ranges(3, p0=(2, 2), p5=(0, 3), p7=(2, 2))
    named = SHARED.named(QUERY, possible)
    assert named == ranges(3, p5=(0, 3))
    checkpoints = {"0": 1, "5": 0, "7": 8, "9": 0}
    end = SHARED.batch_end(QUERY, named, possible, {"5"}, TableState(TABLE, 3), checkpoints, {})
    assert end == StreamOffset(
        "me",
        ranges(3, p5=(0, 3)),
        "g",
        TableReference("t1", "/leases"),
        HUB,
        {"0": EpochPosition(3, 2), "7": EpochPosition(3, 2)},
        lineage="l",
        batch=5,
        run="r",
        table_begun=3,
        checkpoints={"0": 1},  # partition 5 begins at its own, and partition 7 was reset to before its own
    )


def test_shared_batches_leave_out_partitions_lost_at_the_last_moment() -> None:
    named = ranges(p0=(0, 4), p1=(0, 4))
    end = SHARED.batch_end(QUERY, named, named, {"1"}, TableState(TABLE), {}, {})
    assert end.ranges == ranges(p1=(0, 4))
    assert end.other_positions == {"0": EpochPosition(1, 0)}
    assert not SHARED.batch_end(QUERY, named, named, (), TableState(TABLE), {}, {}).ranges
    assert not SHARED.named(QUERY, ranges(p0=(2, 2), p1=(0, 0))), "no batch without events"


def test_shared_queries_record_the_lease_table_before_anything_is_read() -> None:
    assert SHARED.empty_end(QUERY, None) is QUERY
    end = SHARED.empty_end(QUERY, TABLE)
    assert end == replace(QUERY, table=TableReference("t1", "/leases"), batch=QUERY.batch + 1)
    assert SHARED.empty_end(end, TABLE) is end
    assert ALONE.empty_end(QUERY, TABLE) is QUERY


# --- without ---------------------------------------------------------------------------------------------------


def test_alone_offsets_name_every_partition() -> None:
    """Also those that are not held at the moment, as after a suspension, until the keeper has claimed them again."""
    start = StreamOffset("me", ranges(p0=(0, 2), p3=(0, 2)))
    possible = ranges(p0=(2, 2), p3=(2, 6))
    named = ALONE.named(start, possible)
    assert ALONE.batch_end(start, named, possible, {"0", "3"}, None) == StreamOffset("me", possible, hub=HUB, batch=1)
    assert not ALONE.named(start, ranges(p0=(2, 2), p3=(2, 2)))
    assert ALONE.named(start, ranges(p3=(2, 6))) == named
    assert not ALONE.named(start, {})


def test_alone_the_first_range_of_a_partition_is_worth_an_empty_batch() -> None:
    """It stores where reading starts, such as at `latest`."""
    assert ALONE.named(StreamOffset("me"), ranges(p0=(7, 7))) == ranges(p0=(7, 7))
    start = StreamOffset("me", ranges(p0=(0, 7)))
    assert ALONE.named(start, ranges(p0=(7, 7), p1=(0, 0))) == ranges(p0=(7, 7), p1=(0, 0)), "it was added to the hub"


def test_alone_leases_continue_after_the_finished_batch_and_where_an_unfinished_one_begins() -> None:
    finished = StreamOffset("me", {p: OffsetRange(p, 1, 0, 5, end_offset="4") for p in "01"})
    unfinished = StreamOffset("me", {"1": OffsetRange("1", 2, 5, 9, start_offset="4", end_offset="8")})
    leases = {p: Lease(p, "me", epoch, checkpoint=Position(4, "4")) for p, epoch in (("0", 1), ("1", 2))}
    policy = OffsetProgress(replace(ALONE.query, first_start=FirstStart(70, 3)))
    started = Snapshot(GROUP, leases={**leases, "2": Lease("2")}, table=TableIdentity("", latest_ms=70))
    assert policy.snapshot(GROUP, finished, unfinished) == started, "partition 2 was never read"
    assert ALONE.snapshot(GROUP, finished, unfinished).leases == leases, "an earlier version stored no first start"
    assert policy.snapshot(GROUP, StreamOffset("me"), StreamOffset("me")) == Snapshot(GROUP)
