"""Planners that hand partitions over to each other, with the emulator and a Delta table: every event is read once."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.outage import Outage
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.changes import Drain
from spark_ehbalance.group.model import Author, Member, MemberState
from spark_ehbalance.group.orders import PinTo, Seek, Transfer
from spark_ehbalance.group.position import Position
from spark_ehbalance.lease_table.delta import DeltaStore
from spark_ehbalance.query.control_socket import PlannerAddress, socket_path
from tests.query.queries import PARTITIONS, Group, Query
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def group(emulator: Emulator, tmp_path: Path) -> Iterator[Group]:
    """A hub with 8 partitions, a lease table, and quick looks."""
    made = Group(emulator, tmp_path)
    made.raw |= {"leaseDuration": "10s", "handoverTimeout": "60s"}
    yield made
    made.close()


class Traffic:
    """Sends events all the time while queries run their batches, each in a thread of its own, until it is over."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._start(lambda: group.append(1), 0.02)

    def run(self, query: Query) -> Query:
        """Run batches of `query` from now on, each of which takes a moment."""

        def batch() -> None:
            if (end := query.plan(100)) is not None:
                time.sleep(0.05)
                query.run(end)

        self._start(batch, 0.01)
        return query

    def end(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()
        assert not self._errors

    def _start(self, work: object, pause: float) -> None:
        def loop() -> None:
            try:
                while not self.over.wait(pause):
                    work()  # type: ignore[operator]
            except BaseException as error:
                self._errors.append(error)

        self._threads.append(threading.Thread(target=loop))
        self._threads[-1].start()


@pytest.fixture
def traffic(group: Group) -> Iterator[Traffic]:
    made = Traffic(group)
    yield made
    made.over.set()


OPERATOR = Author("operator", "")


def drain(group: Group, member: str, *, undo: bool = False) -> None:
    group.order(Drain(by=OPERATOR, at_ms=0, member=member, undo=undo))


def pending_handovers(group: Group) -> set[str]:
    return {partition for partition, lease in group.leases().items() if lease.handover is not None}


# --- under load ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint_interval", ["0", "1 hour"])
def test_everything_is_read_once_while_members_join_drain_and_leave(
    group: Group, traffic: Traffic, checkpoint_interval: str
) -> None:
    group.raw["checkpointInterval"] = checkpoint_interval
    a = traffic.run(group.query("a"))
    wait_until(lambda: len(a.seen) > 40, "a reads")
    b = traffic.run(group.query("b"))
    group.wait_owned(4, 4)
    c = traffic.run(group.query("c"))
    wait_until(lambda: sorted(len(each.owned()) for each in (a, b, c)) == [2, 3, 3], "three share")
    drain(group, "b")
    wait_until(lambda: not b.owned() and len(a.owned()) == len(c.owned()) == 4, "b is drained")
    drain(group, "b", undo=True)
    wait_until(lambda: len(b.owned()) in (2, 3), "b is back")
    wait_until(lambda: c.tell(leave=True), "c has given everything back")
    wait_until(lambda: len(a.owned()) == len(b.owned()) == 4, "the others have it")
    traffic.end()

    group.read_rest(a, b, ended=[c])
    assert all(each.seen for each in (a, b, c))
    with DeltaStore(str(group.table)) as store:

        def events() -> Counter[str]:
            return Counter(change.event for change in store.history())

        # Members record what has changed after their commit.
        wait_until(lambda: events()["HandOver"] >= 4 + 2, "handovers are recorded")
        assert "Steal" not in events()


def test_nothing_moves_while_the_lease_table_is_away_for_three_lease_durations(group: Group, traffic: Traffic) -> None:
    duration, interval = 3.0, 2.0
    group.raw |= {"leaseDuration": f"{duration:g}s", "balanceInterval": f"{interval:g}s"}
    a, b = traffic.run(group.query("a")), traffic.run(group.query("b"))
    group.wait_owned(4, 4)
    since = len(a.seen), len(b.seen)
    wait_until(
        lambda: all(len({p for p, _ in q.seen[n:]}) == 4 for q, n in zip((a, b), since, strict=True)), "both read"
    )
    epochs = {partition: lease.epoch for partition, lease in group.leases().items()}
    outage = Outage(group.table)
    outage.begin()
    try:
        over = time.monotonic() + 3 * duration
        while time.monotonic() < over:
            for query in (a, b):
                more = functools.partial(lambda query, before: len(query.seen) > before, query, len(query.seen) + 8)
                wait_until(more, "both read on")
    finally:
        outage.end()
    missed = Counter(partition for partition, _ in a.seen + b.seen)
    wait_until(
        lambda: all(group.checkpoints()[partition] >= end for partition, end in missed.items()),
        "what was read meanwhile is checkpointed",
        interval,
    )
    traffic.end()
    assert {partition: lease.epoch for partition, lease in group.leases().items()} == epochs
    assert max(Counter(a.seen + b.seen).values()) == 1


# --- the control socket ----------------------------------------------------------------------------------------


def test_a_handover_completes_when_the_driver_reports_the_end_of_the_batch(group: Group) -> None:
    group.append(10)
    a = group.query("a")
    group.wait_owned(8)
    end = a.batch()
    a.run(end)
    b = group.query("b")
    wait_until(lambda: len(pending_handovers(group)) == 4, "four are to be handed over")
    renewed = group.snapshot().members["a"].renewal
    wait_until(lambda: group.snapshot().members["a"].renewal > renewed, "a has looked at the table again")
    assert not b.owned(), "a does not know that its batch has ended"

    told = time.monotonic()
    assert a.tell(end) is True
    wait_until(lambda: len(b.owned()) == 4, "they are handed over")
    print(f"handed over {time.monotonic() - told:.2f} s after the message")
    assert time.monotonic() - told < 5
    assert set(group.checkpoints().values()) == {10}
    assert b.plan() is None
    assert a.plan() is None, "Spark's own call, minutes later, changes nothing"
    assert set(group.checkpoints().values()) == {10}


def test_without_a_report_partitions_are_taken_in_the_end_and_read_again(group: Group) -> None:
    group.append(10)
    a = group.query("a")
    group.wait_owned(8)
    a.run(a.batch())
    b = group.query("b", handoverTimeout="2s")
    wait_until(lambda: len(b.owned()) == 4, "they are taken in the end")
    assert set(group.checkpoints().values()) == {0}, "a does not know that its batch has ended"
    moved = b.owned()
    b.read(40)
    assert Counter(b.seen) == Counter((p, n) for p in moved for n in range(10)), "from the last checkpoint on"
    a.planner.finish(a.finished)
    wait_until(lambda: {group.checkpoints()[p] for p in group.leases() if p not in moved} == {10}, "a goes on")


def test_a_leaving_query_answers_no_until_everything_is_given_back(group: Group) -> None:
    group.append(10)
    a = group.query("a")
    b = group.query("b")
    group.wait_owned(4, 4)
    end = a.batch()
    assert a.tell(leave=True) is False
    wait_until(lambda: not a.owned(), "it plans nothing more")
    assert a.tell(leave=True) is False, "its batch is in flight"
    a.run(end)
    wait_until(lambda: a.tell(end, leave=True), "it answers yes")
    snapshot = group.snapshot()
    assert not snapshot.owned_by("a")
    assert snapshot.members["a"].state is MemberState.LEAVING
    assert a.plan() is None
    wait_until(lambda: len(b.owned()) == 8, "b has all")
    group.read_rest(a, b)
    a.stop()
    assert a.tell(leave=True) is None
    assert group.snapshot().members.keys() == {"b"}


def test_a_planner_works_without_a_socket(group: Group) -> None:
    socket_path(PlannerAddress("a")).parent.write_text("a file in the way")
    group.append(1)
    a = group.query("a")
    a.read(PARTITIONS)
    assert a.tell(leave=True) is None


# --- a query that comes back -----------------------------------------------------------------------------------


def test_a_query_that_returns_within_its_lease_duration_keeps_its_partitions(group: Group) -> None:
    group.raw["leaseDuration"] = "30s"
    process, planned = group.process("a")
    b = group.query("b")
    group.wait_owned(4)
    group.append(10)
    before = {p: lease.owner for p, lease in group.leases().items()}
    process.kill()
    process.wait()
    a = group.query("a", planned)
    assert a.owned() == {p for p, owner in before.items() if owner == "a"}, "at once"
    group.read_rest(a, b)
    assert {p: lease.owner for p, lease in group.leases().items()} == before


# --- operators' orders ------------------------------------------------------------------------------------------


def seek(partition: str, to: int, *, force: bool = True) -> Seek:
    return Seek(by=OPERATOR, at_ms=0, partition=partition, position=Position.before(to), force=force)


def numbers(query: Query, partition: str) -> list[int]:
    return [number for of, number in query.seen if of == partition]


@pytest.mark.parametrize("strategy", ["cooperative", "greedy"])
def test_a_transfer_and_a_pin_move_partitions_under_load_without_a_duplicate(
    group: Group, traffic: Traffic, strategy: str
) -> None:
    group.raw["strategy"] = strategy
    a = traffic.run(group.query("a"))
    wait_until(lambda: len(a.owned()) == 8, "a has all")
    b = traffic.run(group.query("b"))
    wait_until(lambda: len(a.owned()) == len(b.owned()) == 4, "they share")
    to_b, to_a = min(a.owned()), min(b.owned())
    wait_until(lambda: numbers(a, to_b) and numbers(b, to_a), "both are read where they are")
    earlier = len(numbers(a, to_a))
    group.order(
        Transfer(by=OPERATOR, at_ms=0, partition=to_b, to="b", timeout_ms=60_000),
        PinTo(by=OPERATOR, at_ms=0, partition=to_a, to="a", timeout_ms=60_000),
    )
    wait_until(lambda: numbers(b, to_b) and len(numbers(a, to_a)) > earlier, "both are read by the other")
    wait_until(
        lambda: all(each.load and each.load.rate > 0 < each.load.batch_seconds for each in _members(group)),
        "the members tell their loads",
    )
    traffic.end()
    leases, everything = group.leases(), group.everything()
    assert (leases[to_b].owner, leases[to_a].owner) == ("b", "a"), "nobody has moved them back"
    wait_until(lambda: [each.step() for each in (a, b)] and {*a.seen, *b.seen} == everything.keys(), "the rest is read")
    end_b, end_a = (sum(of == partition for of, _ in everything) for partition in (to_b, to_a))
    assert numbers(a, to_b) + numbers(b, to_b) == list(range(end_b)), "nothing twice or left out, and in order"
    there, back = numbers(b, to_a), numbers(a, to_a)[earlier:]
    assert there + back == list(range(there[0], end_a))


def _members(group: Group) -> list[Member]:
    return list(group.snapshot().members.values())


def test_seeking_back_in_a_running_query_reads_again_from_there(group: Group) -> None:
    group.append(10)
    a = group.query("a")
    group.wait_owned(8)
    group.read_rest(a)
    wait_until(lambda: a.plan() is None and set(group.checkpoints().values()) == {10}, "all is checkpointed")
    group.order(seek("3", 4))
    wait_until(lambda: (a.step() and False) or len(numbers(a, "3")) == 16, "it reads again")
    assert numbers(a, "3") == [*range(10), *range(4, 10)]
    group.append(2)
    a.read(8 * 12 + 6)
    assert numbers(a, "3") == [*range(10), *range(4, 12)]
    assert all(numbers(a, str(partition)) == list(range(12)) for partition in range(8) if partition != 3)
    wait_until(lambda: a.plan() is None and set(group.checkpoints().values()) == {12}, "all is checkpointed")
    lease = group.leases()["3"]
    assert (lease.owner, lease.epoch) == ("a", 2)


@pytest.mark.parametrize("to", [0, 5, 12])
def test_a_batch_that_was_logged_before_a_seek_is_not_replayed(group: Group, to: int) -> None:
    group.append(10)
    first = group.query("a")
    group.wait_owned(8)
    logged = first.batch()
    first.stop()
    group.append(5)
    group.order(seek("3", to, force=False))
    again = group.query("a", None, logged)
    wait_until(lambda: len(again.owned()) == 8, "all is its own again")
    again.run(logged)
    again.read(7 * 15 + (15 - to))
    assert numbers(again, "3") == list(range(to, 15))
    wait_until(lambda: again.plan() is None and set(group.checkpoints().values()) == {15}, "all is checkpointed")


def test_a_late_checkpoint_of_the_last_owner_does_not_undo_a_seek(group: Group) -> None:
    """It was stopped before Spark told it that its last batch was finished, and reports it when it comes back."""
    group.append(10)
    first = group.query("a")
    group.wait_owned(8)
    end = first.batch()
    first.run(end)
    first.stop()
    group.order(seek("3", 2, force=False))
    again = group.query("a", end)
    again.read(8)
    assert again.seen == [("3", number) for number in range(2, 10)]
    assert {position for partition, position in group.checkpoints().items() if partition != "3"} == {10}
