"""The positions that offsets contain, with and without a lease table; pure functions."""

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
    """Ranges for partitions p0, p1, …"""
    return {p[1:]: OffsetRange(p[1:], epoch, *span) for p, span in spans.items()}


# --- with a lease table ----------------------------------------------------------------------------------------


def test_shared_offset_contains_read_ranges_and_other_positions() -> None:
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
        checkpoints={"0": 1},  # 5 begins at its checkpoint; 7 was reset behind its own
    )


def test_shared_batch_omits_partitions_lost_during_planning() -> None:
    named = ranges(p0=(0, 4), p1=(0, 4))
    end = SHARED.batch_end(QUERY, named, named, {"1"}, TableState(TABLE), {}, {})
    assert end.ranges == ranges(p1=(0, 4))
    assert end.other_positions == {"0": EpochPosition(1, 0)}
    assert not SHARED.batch_end(QUERY, named, named, (), TableState(TABLE), {}, {}).ranges
    assert not SHARED.named(QUERY, ranges(p0=(2, 2), p1=(0, 0))), "no batch without events"


def test_shared_query_records_the_lease_table_before_reading() -> None:
    assert SHARED.empty_end(QUERY, None) is QUERY
    end = SHARED.empty_end(QUERY, TABLE)
    assert end == replace(QUERY, table=TableReference("t1", "/leases"), batch=QUERY.batch + 1)
    assert SHARED.empty_end(end, TABLE) is end
    assert ALONE.empty_end(QUERY, TABLE) is QUERY


# --- without a lease table -------------------------------------------------------------------------------------


def test_without_lease_table_offsets_contain_every_partition() -> None:
    """Even partitions that the keeper has to claim again, such as after a suspension."""
    start = StreamOffset("me", ranges(p0=(0, 2), p3=(0, 2)))
    possible = ranges(p0=(2, 2), p3=(2, 6))
    named = ALONE.named(start, possible)
    assert ALONE.batch_end(start, named, possible, {"0", "3"}, None) == StreamOffset("me", possible, hub=HUB, batch=1)
    assert not ALONE.named(start, ranges(p0=(2, 2), p3=(2, 2)))
    assert ALONE.named(start, ranges(p3=(2, 6))) == named
    assert not ALONE.named(start, {})


def test_without_lease_table_a_partitions_first_range_makes_a_batch_even_if_empty() -> None:
    """The batch stores where reading starts, such as at `latest`."""
    assert ALONE.named(StreamOffset("me"), ranges(p0=(7, 7))) == ranges(p0=(7, 7))
    start = StreamOffset("me", ranges(p0=(0, 7)))
    assert ALONE.named(start, ranges(p0=(7, 7), p1=(0, 0))) == ranges(p0=(7, 7), p1=(0, 0)), "it was added to the hub"


def test_without_lease_table_leases_resume_from_the_logged_batches() -> None:
    finished = StreamOffset("me", {p: OffsetRange(p, 1, 0, 5, end_offset="4") for p in "01"})
    unfinished = StreamOffset("me", {"1": OffsetRange("1", 2, 5, 9, start_offset="4", end_offset="8")})
    leases = {p: Lease(p, "me", epoch, checkpoint=Position(4, "4")) for p, epoch in (("0", 1), ("1", 2))}
    policy = OffsetProgress(replace(ALONE.query, first_start=FirstStart(70, 3)))
    started = Snapshot(GROUP, leases={**leases, "2": Lease("2")}, table=TableIdentity("", latest_ms=70))
    assert policy.snapshot(GROUP, finished, unfinished) == started, "partition 2 was never read"
    assert ALONE.snapshot(GROUP, finished, unfinished).leases == leases, "an earlier version stored no first start"
    of_one = Snapshot(GROUP, leases={"1": leases["1"]}, table=TableIdentity("", latest_ms=0))
    assert ALONE.snapshot(GROUP, StreamOffset("me"), unfinished) == of_one
    assert policy.snapshot(GROUP, StreamOffset("me"), StreamOffset("me")) == Snapshot(GROUP)
