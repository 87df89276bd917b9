"""A partition is sought while a batch is in flight: the batch reaches the sink, and reading goes on at the new place.

Real planners with a store in memory and a hub of values. Spark's part is played by `Query`, and the sink's by `Once`:
the steps of `write_once` on a target that is a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from spark_ehbalance.exactly_once.marks import Extent, Extents
from spark_ehbalance.exactly_once.protocol import Begin, Commit, Confirm, Refusal, Write, write_exactly_once
from spark_ehbalance.group.changes import Steal
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.orders import Seek, Transfer
from spark_ehbalance.group.position import Position
from spark_ehbalance.query.offsets import StreamOffset
from tests.exactly_once.model import Entry, Target
from tests.query.queries import Event, Query
from tests.query.values_group import ValueGroup
from tests.waiting import wait_until

#: The partition that is sought.
SOUGHT = "3"

PARTITIONS = 8

OPERATOR = Author("operator", "")


class Once:
    """The sink `once`, as far as it asks planners and what it then writes. `meanwhile` is called once, when the rows of
    a batch were read and are not confirmed yet."""

    def __init__(self) -> None:
        self.target = Target()
        self.meanwhile: Callable[[], object] = lambda: None

    def run(self, query: Query, end: StreamOffset) -> None:
        """Have the batch read and written; then it is finished, for Spark."""
        query.planner.ranges(end)
        read = {p: Extent(*each) for p, each in asked(query, end)["ranges"].items()}
        steps, answer, rows, began = write_exactly_once(read), None, list[Event](), 0
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                query.finished = query.logged = end
                return
            answer = None
            match step:
                case Begin(partitions):
                    began = len(self.target.log)
                    answer = {p: mark for p, mark in self.target.marks(began).items() if p in partitions}
                case Write(events):
                    rows = events_of(events)
                case Confirm(partitions):
                    self.meanwhile()
                    self.meanwhile = lambda: None
                    answer = frozenset(asked(query, end, look=True)["lost"]) & {*partitions}
                case Commit(marks):
                    conflict = self.target.commit(began, Entry(rows, marks))
                    answer = conflict and Refusal(conflict, "", Exception())


def asked(query: Query, end: StreamOffset, **more: bool) -> dict[str, dict[str, list[int]]]:
    """The planner's answer about the batch."""
    answer = query.planner.handle({"batch": end.to_json(), **more})
    assert isinstance(answer, dict)
    assert "error" not in answer
    return answer


def events_of(events: Extents) -> list[Event]:
    return [(p, number) for p, each in events.items() for number in range(each.start, each.end)]


@pytest.fixture
def group() -> Iterator[ValueGroup]:
    made = ValueGroup(PARTITIONS)
    yield made
    made.close()


def seek(group: ValueGroup, to: int) -> None:
    group.order(Seek(by=OPERATOR, at_ms=0, partition=SOUGHT, position=Position.before(to), force=True))


def assert_written(group: ValueGroup, sink: Once, first: int, end: int, *queries: Query) -> None:
    """Run batches until there is nothing to read: then all events are written once, but for those of `SOUGHT` from
    `first` up to `end`."""

    def at_rest() -> bool:
        planned = [(query, end) for query in queries if (end := query.plan(5 * PARTITIONS)) is not None]
        for query, batch in planned:
            sink.run(query, batch)
        return not planned and group.checkpoints() == {group.hub.states[SOUGHT].end}

    wait_until(at_rest, "all is read")
    left_out = Counter((SOUGHT, number) for number in range(first, end))
    assert sink.target.events() == group.hub.everything() - left_out


@pytest.mark.parametrize("to", [4, 15, 40])
@pytest.mark.parametrize("when", ["before it is read", "after it was read"])
def test_a_batch_in_flight_reaches_the_sink_and_reading_goes_on_at_the_new_place(
    group: ValueGroup, to: int, when: str
) -> None:
    sink, a = Once(), group.query("a")
    group.hub.append(10)
    sink.run(a, a.batch())
    group.hub.append(30)
    in_flight = a.batch(10 * PARTITIONS)
    wait_until(lambda: group.checkpoints() == {10}, "the table knows")
    if when == "before it is read":
        seek(group, to)
    else:
        sink.meanwhile = lambda: seek(group, to)
    sink.run(a, in_flight)
    assert (SOUGHT, 19) in sink.target.events()
    assert_written(group, sink, in_flight.ranges[SOUGHT].end, to, a)


@pytest.mark.parametrize("to", [2, 25])
@pytest.mark.parametrize("written", [True, False])
def test_a_batch_in_which_the_query_was_killed_is_run_again(group: ValueGroup, to: int, written: bool) -> None:
    """Twice: it is killed in the repetition, too. The sink may have written it the first time, and Spark not known."""
    sink = Once()
    group.hub.append(10)
    end = group.query("a").batch()
    group.hub.append(20)
    seek(group, to)
    if written:
        batch = {p: Extent(0, 10) for p in end.ranges}
        sink.target.commit(0, Entry(events_of(batch), dict.fromkeys(batch, 10)))
    killed = group.query("a", None, end)
    killed.planner.ranges(end)
    assert asked(killed, end, look=True)["ranges"] == {p: [0, 10] for p in end.ranges}
    again = group.query("a", None, end)
    sink.run(again, end)
    assert_written(group, sink, 10, to, again)


@pytest.mark.parametrize("to", [2, 25])
def test_a_partition_that_is_sought_and_then_handed_over_is_written_by_both(group: ValueGroup, to: int) -> None:
    sink, a = Once(), group.query("a", handover_timeout=60.0)
    group.hub.append(10)
    in_flight = a.batch()
    b = group.query("b", handover_timeout=60.0)
    group.hub.append(20)
    seek(group, to)
    group.order(Transfer(by=OPERATOR, at_ms=0, partition=SOUGHT, to="b", timeout_ms=60_000))
    wait_until(lambda: SOUGHT not in a.owned(), "a is to hand it over")
    sink.run(a, in_flight)
    wait_until(lambda: (a.planner.finish(a.finished) and False) or SOUGHT in b.owned(), "b has it")
    assert_written(group, sink, 10, to, a, b)


@pytest.mark.parametrize("to", [0, 2, 25])
@pytest.mark.parametrize("first", ["a", "b"], ids=["the former owner writes first", "the new owner writes first"])
def test_a_partition_that_is_sought_and_then_taken_is_lost(
    group: ValueGroup, to: int, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The former owner may not have read its range to the end. So it writes nothing of it, and says so."""
    group.hub.append(10)
    sink, a = Once(), group.query("a", handover_timeout=60.0)
    in_flight = a.batch()
    b = group.query("b", handover_timeout=60.0)
    group.hub.append(20)
    seek(group, to)
    taker, epoch = group.snapshot().members["b"], group.leases()[SOUGHT].epoch
    group.order(Steal(by=Author("b", taker.incarnation), at_ms=1, partition=SOUGHT, epoch=epoch))
    wait_until(lambda: SOUGHT in b.owned(), "it is taken")
    if first == "b":
        sink.run(b, b.batch())
    assert asked(a, in_flight, look=True)["lost"] == [SOUGHT]
    sink.run(a, in_flight)
    assert "partition 3: a seek has moved it on, and then another member has taken it" in caplog.text
    assert_written(group, sink, 0, to, a, b)
