"""Planners that hand partitions over to each other, with the emulator and a Delta table: every event is read once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.changes import Drain
from spark_ehbalance.group.model import Author
from spark_ehbalance.lease_table.delta import DeltaStore
from tests.query.queries import Group, Query
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
