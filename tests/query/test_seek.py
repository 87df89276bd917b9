"""A partition is sought while a batch is in flight: the batch reaches the sink, and reading goes on at the new place.

Real planners, the emulator without its network, and a lease table in Delta. Spark's part is played by `Query`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from spark_ehbalance.group.changes import Steal
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.orders import Seek, Transfer
from spark_ehbalance.group.position import Position
from spark_ehbalance.query.offsets import StreamOffset
from tests.query.queries import PARTITIONS, Event, Group, Query
from tests.waiting import wait_until

#: The partition that is sought.
SOUGHT = "3"

pytestmark = pytest.mark.usefixtures("without_network")

OPERATOR = Author("operator", "")


class Once:
    """The sink `once`, as far as it asks planners and what it then writes: `rows`, up to `marks`. `meanwhile` is called
    once, when the rows of a batch were read and are not confirmed yet."""

    def __init__(self) -> None:
        self.rows: Counter[Event] = Counter()
        self.marks: dict[str, int] = {}
        self.meanwhile: Callable[[], object] = lambda: None

    def run(self, query: Query, end: StreamOffset) -> None:
        """Have the batch read and written; then it is finished, for Spark."""
        query.planner.ranges(end)
        read = asked(query, end)["ranges"]
        self.meanwhile()
        self.meanwhile = lambda: None
        lost = asked(query, end, look=True)["lost"]
        self.write({p: (start, stop) for p, (start, stop) in read.items() if p not in lost})
        query.finished = query.logged = end

    def write(self, read: Mapping[str, tuple[int, int]]) -> None:
        for partition, (start, stop) in read.items():
            first = max(start, self.marks.get(partition, 0))
            self.rows.update((partition, number) for number in range(first, stop))
            self.marks[partition] = max(first, stop)


def asked(query: Query, end: StreamOffset, **more: bool) -> dict[str, Any]:
    """The planner's answer about the batch."""
    answer = query.planner.handle({"batch": end.to_json(), **more})
    assert isinstance(answer, dict)
    assert "error" not in answer
    return answer


def seek(group: Group, to: int) -> None:
    group.order(Seek(by=OPERATOR, at_ms=0, partition=SOUGHT, position=Position.before(to), force=True))


def assert_written(group: Group, sink: Once, first: int, end: int, *queries: Query) -> None:
    """Run batches until there is nothing to read: then all events are written once, but for those of `SOUGHT` from
    `first` up to `end`."""

    everything = group.everything()

    def at_rest() -> bool:
        planned = [(query, batch) for query in queries if (batch := query.plan(5 * PARTITIONS)) is not None]
        for query, batch in planned:
            sink.run(query, batch)
        return not planned and sum(group.checkpoints().values()) == everything.total()

    wait_until(at_rest, "all is read")
    left_out = Counter((SOUGHT, number) for number in range(first, end))
    assert sink.rows == everything - left_out


@pytest.mark.parametrize(("to", "read"), [(4, False), (15, True), (40, True)])
def test_a_batch_in_flight_reaches_the_sink_and_reading_goes_on_at_the_new_place(
    group: Group, to: int, read: bool
) -> None:
    """Whether the partition is sought before or after it was read."""
    sink, a = Once(), group.query("a")
    group.append(10)
    sink.run(a, a.batch())
    group.append(30)
    in_flight = a.batch(10 * PARTITIONS)
    wait_until(lambda: group.checkpoints()[SOUGHT] == 10, "the table knows")
    if read:
        sink.meanwhile = lambda: seek(group, to)
    else:
        seek(group, to)
    sink.run(a, in_flight)
    assert (SOUGHT, 19) in sink.rows
    assert_written(group, sink, in_flight.ranges[SOUGHT].end, to, a)


@pytest.mark.parametrize(("to", "written"), [(2, True), (25, False)])
def test_a_batch_in_which_the_query_was_killed_is_run_again(group: Group, to: int, written: bool) -> None:
    """Twice: it is killed in the repetition, too. The sink may have written it the first time, and Spark not known."""
    sink = Once()
    group.append(10)
    end = group.query("a").batch()
    group.append(20)
    seek(group, to)
    if written:
        sink.write(dict.fromkeys(end.ranges, (0, 10)))
    killed = group.query("a", None, end)
    killed.planner.ranges(end)
    assert asked(killed, end, look=True)["ranges"] == {p: [0, 10] for p in end.ranges}
    again = group.query("a", None, end)
    sink.run(again, end)
    assert_written(group, sink, 10, to, again)


@pytest.mark.parametrize("to", [2, 25])
def test_a_partition_that_is_sought_and_then_handed_over_is_written_by_both(group: Group, to: int) -> None:
    sink, a = Once(), group.query("a", handoverTimeout="60s")
    group.append(10)
    in_flight = a.batch()
    b = group.query("b", handoverTimeout="60s")
    group.append(20)
    seek(group, to)
    group.order(Transfer(by=OPERATOR, at_ms=0, partition=SOUGHT, to="b", timeout_ms=60_000))
    wait_until(lambda: SOUGHT not in a.owned(), "a is to hand it over")
    sink.run(a, in_flight)
    wait_until(lambda: (a.planner.finish(a.finished) and False) or SOUGHT in b.owned(), "b has it")
    assert_written(group, sink, 10, to, a, b)


@pytest.mark.parametrize(("to", "first"), [(0, "a"), (2, "b"), (25, "a")])
def test_a_partition_that_is_sought_and_then_taken_is_lost(
    group: Group, to: int, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The former owner may not have read its range to the end. So it writes nothing of it, and says so."""
    group.append(10)
    sink, a = Once(), group.query("a", handoverTimeout="60s")
    in_flight = a.batch()
    b = group.query("b", handoverTimeout="60s")
    group.append(20)
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
