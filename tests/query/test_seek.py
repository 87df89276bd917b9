"""`ehbalance seek --force` while a batch is in flight: it reaches the sink, and then reading goes on at the new place.

Real planners, the emulator without its network, the commands, and a lease table in Delta. Spark's part is played by
`Query`, and the sink's by `Once`: the steps of `write_once` on a target that is a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ehbalance.exactly_once.marks import Extent, Extents
from spark_ehbalance.exactly_once.protocol import Begin, Commit, Confirm, Refusal, Write, write_exactly_once
from spark_ehbalance.group.changes import Steal
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.orders import Transfer
from spark_ehbalance.query.offsets import StreamOffset
from tests.exactly_once.model import Entry, Target
from tests.ops.command import Command, kept
from tests.ops.conftest import ehbalance
from tests.query.lives import Lives
from tests.query.queries import PARTITIONS, Event, Group, Query
from tests.query.support import HUB
from tests.waiting import wait_until

__all__ = ["ehbalance"]

pytestmark = pytest.mark.usefixtures("without_network")

#: The partition that is sought.
SOUGHT = "3"

Order = Callable[[int], str]


class Once:
    """The sink `once`, as far as it asks planners and what it then writes. `meanwhile` is called once, when the rows of
    a batch were read and are not confirmed yet."""

    def __init__(self) -> None:
        self.target = Target()
        self.meanwhile: Callable[[], object] = lambda: None

    def run(self, query: Query, end: StreamOffset) -> None:
        """Have the batch read and written; then it is finished, for Spark."""
        query.planner.ranges(end)
        self.write(query, end)
        query.finished = query.logged = end

    def write(self, query: Query, end: StreamOffset, cut: Mapping[str, int] | None = None) -> None:
        """Of the partitions that were `cut` short, so many events were read."""
        read = {p: Extent(*each) for p, each in asked(query, end)["ranges"].items()}
        ends = {p: each.start + (cut or {}).get(p, each.end) for p, each in read.items()}
        steps, answer, rows, began = write_exactly_once(read), None, list[Event](), 0
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            answer = None
            match step:
                case Begin(partitions):
                    began = len(self.target.log)
                    answer = {p: mark for p, mark in self.target.marks(began).items() if p in partitions}
                case Write(events):
                    rows = events_of({p: Extent(each.start, min(each.end, ends[p])) for p, each in events.items()})
                case Confirm(partitions):
                    self.meanwhile()
                    self.meanwhile = lambda: None
                    (lost,) = wait_until(lambda: _lost(query, end), "the planner has looked")
                    answer = frozenset(lost) & {*partitions}
                case Commit(marks):
                    conflict = self.target.commit(began, Entry(rows, marks))
                    answer = conflict and Refusal(conflict, "", Exception())

    def holds(self) -> Counter[Event]:
        return self.target.events()


def asked(query: Query, end: StreamOffset, **more: bool) -> dict[str, dict[str, list[int]]]:
    answer = query.planner.handle({"batch": end.to_json(), **more})
    assert isinstance(answer, dict)
    assert "error" not in answer
    return answer


def _lost(query: Query, end: StreamOffset) -> list[list[str]]:
    """What the query has lost of the batch; nothing if the planner has not looked in time."""
    lost = asked(query, end, look=True)["lost"]
    return [] if lost is None else [list(lost)]


def events_of(events: Extents) -> list[Event]:
    return [(p, number) for p, each in events.items() for number in range(each.start, each.end)]


def batch_of(end: StreamOffset) -> Extents:
    return {p: Extent(each.start, each.end) for p, each in end.ranges.items()}


def everything_but(group: Group, first: int, end: int) -> Counter[Event]:
    """All events, but for those of `SOUGHT` from `first` up to `end`."""
    return group.everything() - Counter((SOUGHT, number) for number in range(first, end))


def read_on(group: Group, sink: Once, *queries: Query) -> None:
    """Run batches until there is nothing to read and all is checkpointed."""
    ends = {str(p): group.emulator.partition_state(HUB, p).next_sequence_number for p in range(PARTITIONS)}

    def at_rest() -> bool:
        planned = [(query, end) for query in queries if (end := query.plan(5 * PARTITIONS)) is not None]
        for query, end in planned:
            sink.run(query, end)
        return not planned and group.checkpoints() == ends

    wait_until(at_rest, "all is read")


@pytest.fixture
def order(ehbalance: Command, group: Group, tmp_path: Path) -> Order:
    """Has reading of the partition go on elsewhere. Returns what the command says."""

    def give(to: int) -> str:
        given = kept(group.emulator.connection_string(HUB), tmp_path)
        outcome = ehbalance("seek", group.table, SOUGHT, "--to", to, "--force", *given)
        assert (outcome.code, outcome.err) == (0, "")
        return outcome.out

    return give


def take(group: Group, query: Query) -> None:
    """Have the query take `SOUGHT` from its owner, who is not asked."""
    snapshot = group.snapshot()
    by = Author(query.owner, snapshot.members[query.owner].incarnation)
    group.order(Steal(by=by, at_ms=1, partition=SOUGHT, epoch=snapshot.leases[SOUGHT].epoch))
    wait_until(lambda: SOUGHT in query.owned(), "it is taken")


# --- the query goes on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [4, 15, 40])
@pytest.mark.parametrize("when", ["before it is read", "after it was read"])
def test_a_batch_in_flight_reaches_the_sink_and_reading_goes_on_at_the_new_place(
    group: Group, order: Order, to: int, when: str
) -> None:
    sink, a = Once(), group.query("a")
    group.append(10)
    wait_until(lambda: (end := a.plan()) and (sink.run(a, end) or a.finished.ranges.get(SOUGHT)), "ten are written")
    group.append(30)
    in_flight = a.batch(10 * PARTITIONS)
    wait_until(lambda: group.checkpoints()[SOUGHT] == 10, "the table knows")
    if when == "before it is read":
        order(to)
    else:
        sink.meanwhile = lambda: order(to)
    sink.run(a, in_flight)
    assert (SOUGHT, 19) in sink.holds()
    end = in_flight.ranges[SOUGHT].end
    read_on(group, sink, a)
    assert sink.holds() == everything_but(group, end, to)


# --- the query is started again --------------------------------------------------------------------------------


def killed_while_sought(group: Group, lives: Lives, sought: Callable[[], object]) -> StreamOffset:
    """A batch of ten events of each partition that was planned, and whose query was killed after the partition was
    sought."""
    group.append(10)
    first = lives.start(lambda: group.query("a", leaseDuration="60s"))
    end = first.batch()
    assert {len(each) for each in end.ranges.values()} == {10}
    group.append(20)
    sought()
    lives.kill(first)
    return end


@pytest.mark.parametrize("to", [2, 25])
@pytest.mark.parametrize(("name", "written"), [("a", True), ("another", False)], ids=["written", "not written"])
def test_a_batch_in_which_the_query_was_killed_is_run_again(
    group: Group, lives: Lives, order: Order, to: int, name: str, written: bool
) -> None:
    """Twice: it is killed in the repetition, too. The sink may have written it the first time, and Spark not known."""
    sink = Once()
    end = killed_while_sought(group, lives, lambda: order(to))
    if written:
        sink.target.commit(0, Entry(events_of(batch_of(end)), {p: each.end for p, each in end.ranges.items()}))
    killed = lives.start(lambda: group.query(name, None, end, leaseDuration="60s"))
    killed.planner.ranges(end)
    assert asked(killed, end, look=True)["ranges"] == {p: [0, 10] for p in end.ranges}
    lives.kill(killed)
    again = lives.start(lambda: group.query(name, None, end, leaseDuration="60s"))
    sink.run(again, end)
    read_on(group, sink, again)
    assert sink.holds() == everything_but(group, 10, to)


def test_a_batch_that_was_finished_before_the_seek_is_not_run_again(group: Group, order: Order) -> None:
    """The copy of Spark's checkpoint does not know that."""
    group.append(10)
    first = group.query("a")
    wait_until(lambda: len(first.owned()) == PARTITIONS, "a has all")
    end = first.batch()
    first.run(end)
    first.planner.finish(end)
    wait_until(lambda: group.checkpoints()[SOUGHT] == 10, "the table knows")
    order(4)
    first.stop()
    copy = group.query("a", None, end)
    assert copy.run(end) == []
    copy.read(6)
    assert copy.seen == [(SOUGHT, number) for number in range(4, 10)]


# --- others in the group ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [2, 25])
def test_a_partition_that_is_sought_and_then_handed_over_is_written_by_both(
    group: Group, order: Order, to: int
) -> None:
    group.raw["handoverTimeout"] = "60s"
    sink, a = Once(), group.query("a", leaseDuration="10s")
    group.append(10)
    in_flight = a.batch()
    b = group.query("b", leaseDuration="10s")
    group.append(20)
    order(to)
    group.order(Transfer(by=Author("operator", ""), at_ms=0, partition=SOUGHT, to="b", timeout_ms=60_000))
    wait_until(lambda: SOUGHT not in a.owned(), "a is to hand it over")
    sink.run(a, in_flight)
    wait_until(lambda: (a.planner.finish(a.finished) and False) or SOUGHT in b.owned(), "b has it")
    read_on(group, sink, a, b)
    assert sink.holds() == everything_but(group, 10, to)


@pytest.mark.parametrize("to", [0, 2, 25])
@pytest.mark.parametrize("first", ["a", "b"], ids=["the former owner writes first", "the new owner writes first"])
def test_a_partition_that_is_sought_and_then_taken_is_lost(
    group: Group, order: Order, to: int, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The former owner may not have read its range to the end. So it writes nothing of it, and says so."""
    group.raw["handoverTimeout"] = "60s"
    group.append(10)
    sink, a = Once(), group.query("a", leaseDuration="10s")
    in_flight = a.batch()
    b = group.query("b", leaseDuration="10s")
    group.append(20)
    order(to)
    take(group, b)
    if first == "b":
        sink.run(b, b.batch())
    assert asked(a, in_flight, look=True)["lost"] == [SOUGHT]
    sink.run(a, in_flight)
    assert "partition 3: a seek has moved it on, and then another member has taken it" in caplog.text
    read_on(group, sink, a, b)
    assert sink.holds() == everything_but(group, 0, to)


def test_the_zombie_of_a_query_that_was_sought_writes_nothing(group: Group, order: Order) -> None:
    group.append(10)
    zombie = group.query("a")
    end = zombie.batch()
    order(5)
    again = group.query("a", None, end)
    answer = zombie.planner.handle({"batch": replace(end).to_json(), "look": True})
    assert isinstance(answer, dict)
    assert "EHB_FENCED" in str(answer["error"])
    assert SOUGHT in {each.partition for each in again.planner.ranges(end)}


def test_a_seek_back_says_what_becomes_of_events_that_are_there(group: Group, order: Order) -> None:
    group.append(10)
    a = group.query("a")
    a.read(10 * PARTITIONS)
    a.planner.finish(a.finished)
    wait_until(lambda: group.checkpoints()[SOUGHT] == 10, "the table knows")
    assert "exactly once" not in order(10)
    said = order(4)
    assert "These partitions go back, and events are read again: 3." in said
    assert "count as written, and it gets none of them: use spark_ehbalance.merge, or another source." in said
