"""A query whose progress waits for a commit that is made anyway (`checkpointInterval`): what is read twice after it has
ended, and by whom.

Real planners, the emulator without its network, and a lease table in Delta. Spark's part is played by `Query`, and the
sink's by `Once`: the steps of `write_once` on a target that is a value.
"""

from __future__ import annotations

from collections import Counter

import pytest

from spark_ehbalance.group.changes import Join, Leave, Release, Steal
from spark_ehbalance.group.model import Author
from tests.query.lives import Lives
from tests.query.queries import PARTITIONS, Group, Query
from tests.query.test_past import once_each, run
from tests.query.test_seek import Once
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("without_network")

BATCHES = 3

OPERATOR = Author("operator", "1")


@pytest.fixture
def query(group: Group, lives: Lives) -> Query:
    """Nothing makes a commit while it reads: its leases are long."""
    group.raw |= {"checkpointInterval": "1 hour", "leaseDuration": "90 seconds"}
    return lives.start(lambda: group.query("a"))


def free_the_leases(group: Group) -> None:
    """As after the lease duration, but at once."""
    leases = group.leases().values()
    join = Join(by=OPERATOR, at_ms=0, host="", max_owned=None, strategy="cooperative", lease_duration_ms=90_000)
    steals = [Steal(by=OPERATOR, at_ms=0, partition=each.partition, epoch=each.epoch) for each in leases]
    releases = [Release(by=OPERATOR, at_ms=0, partition=each.partition, epoch=each.epoch + 1) for each in leases]
    group.order(join, *steals, *releases, Leave(by=OPERATOR, at_ms=0))


@pytest.mark.parametrize("in_a_batch", [False, True])
def test_after_a_kill_the_query_itself_knows_from_its_checkpoint(
    group: Group, lives: Lives, query: Query, in_a_batch: bool
) -> None:
    (*_, finished) = run(group, query, BATCHES)
    if in_a_batch:
        group.append(1)
        query.batch()
    assert set(group.checkpoints().values()) == {0}
    lives.kill(query)
    again = lives.start(lambda: group.query("a", finished, query.logged if in_a_batch else None))
    assert set(group.checkpoints().values()) == {BATCHES}, "the table knows before anything is read"
    if in_a_batch:
        assert len(again.run(query.logged)) == PARTITIONS
    group.append(1)
    again.read(len(again.seen) + PARTITIONS)
    once_each(group, query, again)


def test_a_query_that_is_stopped_has_checkpointed_everything(group: Group, lives: Lives, query: Query) -> None:
    (*_, finished) = run(group, query, BATCHES)
    lives.stop(query)
    assert set(group.checkpoints().values()) == {BATCHES}
    assert group.snapshot().queries[finished.lineage].begun == finished.batch


@pytest.mark.parametrize("in_a_batch", [False, True])
def test_after_a_kill_others_read_from_the_last_checkpoint_and_once_writes_nothing_twice(
    group: Group, lives: Lives, query: Query, in_a_batch: bool
) -> None:
    """And neither does the query, when it comes back while the other one is in the batch that overlaps its own."""
    sink = Once()
    for _ in range(BATCHES):
        group.append(1)
        sink.run(query, query.batch())
    finished = query.finished
    if in_a_batch:
        group.append(1)
        query.planner.ranges(query.batch())
        sink.write(query, query.logged)  # and Spark does not hear of it
    assert set(group.checkpoints().values()) == {0}
    lives.kill(query)
    free_the_leases(group)
    group.append(1)
    other = lives.start(lambda: group.query("b"))
    end = other.batch()
    assert {each.start for each in end.ranges.values()} == {0}, "it goes on at the table's positions"
    again = lives.start(lambda: group.query("a", finished, query.logged if in_a_batch else None))
    if in_a_batch:
        assert again.planner.ranges(query.logged) == [], "who took them has the events"
        sink.run(again, query.logged)
    sink.run(other, end)

    def all_is_written() -> bool:
        for each in (again, other):
            if (planned := each.plan()) is not None:
                sink.run(each, planned)
        return sink.holds().keys() >= group.everything().keys() and len(again.owned()) == PARTITIONS / 2

    group.append(1)
    wait_until(all_is_written, "they share, and all is written")
    assert sink.holds() == group.everything()
    assert Counter(each.owner for each in group.leases().values()) == {"a": PARTITIONS / 2, "b": PARTITIONS / 2}
