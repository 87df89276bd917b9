"""What a query's own checkpoint knows, held against the lease table. Pure."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from spark_ehbalance.leases.model import Author, Group, Lease, Position, Snapshot, TableIdentity
from spark_ehbalance.leases.transitions import Restore, apply
from spark_ehbalance.source.continuity import Memory, Place, lost_memory, restored, skipped
from spark_ehbalance.source.offsets import LeaseTable, StreamOffset
from spark_ehbalance.source.ranges import Range

TABLE = LeaseTable("t1", "/leases")
IDENTITY = TableIdentity("t1")


def offset(table: LeaseTable | None = TABLE, group: str = "place", **ends: tuple[int, int, int]) -> StreamOffset:
    """The end of a batch, with epoch, start and end of each partition, named p0, p1, …"""
    return StreamOffset("me", {p[1:]: Range(p[1:], *each) for p, each in ends.items()}, group, table)


def state(**positions: int | None) -> Snapshot:
    """A table in which the partitions, named p0, p1, …, go on at these positions."""
    leases = {
        p[1:]: Lease(p[1:], epoch=3, checkpoint=None if next is None else Position.before(next))
        for p, next in positions.items()
    }
    return Snapshot(Group("ns", "hub", "$default"), 5, MappingProxyType(leases))


def test_the_furthest_that_was_finished_counts() -> None:
    memory = Memory.of([offset(p0=(2, 0, 40)), offset(p0=(2, 0, 10), p1=(7, 0, 5))], [offset(p2=(4, 90, 100))])
    assert memory.places == {
        "0": Place(2, 40),
        "1": Place(7, 5),
        "2": Place(4, 90),  # of a batch that was only planned, what it begins with was finished
    }
    assert memory.lineages == {"t1"}


def test_what_a_later_owner_began_with_counts_more_than_a_batch_that_was_broken_off() -> None:
    assert Memory.of([offset(p0=(1, 0, 100))], [offset(p0=(2, 60, 100))]).places == {"0": Place(2, 60)}
    assert Memory.of([offset(p0=(2, 5, 20)), offset(p0=(1, 0, 100))]).places == {"0": Place(2, 20)}, "after a seek"


def test_offsets_of_earlier_versions_and_of_queries_alone_have_a_lineage() -> None:
    assert offset(None).lineage == "place"
    assert offset(None, "").lineage == "me"


def lost(known: StreamOffset, found: Snapshot | None, identity: TableIdentity | None = IDENTITY) -> str:
    return lost_memory(known, Memory.of([known]), found, identity if found else None)


def test_a_table_that_knows_all_has_lost_nothing() -> None:
    known = offset(p0=(1, 0, 10))
    assert lost(known, state(p0=10)) == ""
    assert lost(known, state(p0=50, p1=7)) == "", "others have gone on"
    assert lost(known, state(p0=4)) == "", "the last batch's checkpoint did not reach the table"
    assert lost(known, state(p0=50), TableIdentity("t2", frozenset({"t0", "t1"}))) == "", "it has taken its place"
    assert lost(offset(), state(p0=None)) == "", "nothing was read yet"


@pytest.mark.parametrize(
    ("found", "identity", "said"),
    [
        (None, None, "there is no such table"),
        (state(p0=99), TableIdentity("t2"), "that is another table, which would skip events 10 to 98 of partition 0"),
        (state(p0=5), TableIdentity("t2"), "that is another table"),
        (state(p1=9), IDENTITY, "it has no positions of partition 0"),
        (state(p0=None), IDENTITY, "it has no positions of partition 0"),
        (state(), IDENTITY, "it has no positions of partition 0"),
    ],
)
def test_what_a_table_does_not_know_is_said(found: Snapshot | None, identity: TableIdentity | None, said: str) -> None:
    assert lost(offset(p0=(1, 0, 10)), found, identity) == said


def test_an_emptied_table_is_noticed_by_a_query_that_has_read_nothing_yet() -> None:
    assert lost(offset(), state()) == "it has been emptied"


def test_what_is_put_back_keeps_epochs_from_falling_and_what_is_known_as_it_is() -> None:
    memory = Memory.of([offset(p0=(9, 0, 10), p1=(2, 0, 20), p2=(5, 0, 30))])
    found = state(p0=7, p1=None)
    said = restored(memory, found, Author("me", "1"), 0, "why")
    after, rejected = apply(found, said)
    assert not rejected
    assert {p: (each.epoch, each.checkpoint) for p, each in after.leases.items()} == {
        "0": (3, Position.before(7)),
        "1": (3, Position.before(20)),
        "2": (5, Position.before(30)),
    }
    late = Restore(by=Author("me", "1"), at_ms=0, partition="0", epoch=9, checkpoint=Position.before(10))
    assert apply(after, [late])[1][0].reason == "partition 0 is known already"
    assert skipped(Memory.of([offset(p0=(1, 0, 4), p1=(1, 0, 20))]), after) == {"0": (4, 6)}
