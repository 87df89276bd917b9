"""Query A owned the partitions and hung, and B has taken them by force; then lease table and history are both lost, and
`ehbalance positions` and `init --positions` make a new table of what Spark's checkpoints of A and B have.

Real planners, the emulator without its network, Delta tables and the real command; Spark's part is played by `Job`.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import DataLossError, EhBalanceError
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.exactly_once.marks import Extent
from spark_ehbalance.query.offsets import StreamOffset
from tests.ops.command import Command, kept
from tests.ops.conftest import ehbalance
from tests.query.queries import Event, Group, Query
from tests.query.support import HUB
from tests.query.test_seek import Once, events_of
from tests.waiting import wait_until

__all__ = ["ehbalance"]

pytestmark = pytest.mark.usefixtures("without_network")

PARTITIONS = ("0", "1")

#: What a batch of A that was planned with `EVENTS` events of each partition had read when B's reader disconnected it.
EVENTS, CUT = 20, 6


@dataclass
class Sink:
    """Where the events go: a `plain` one appends what it is given; else it is `once`, which all queries write."""

    plain: bool
    rows: list[Event] = field(default_factory=list)
    once: Once = field(default_factory=Once)

    @property
    def events(self) -> list[Event]:
        """In the order in which they were written."""
        return self.rows if self.plain else [event for entry in self.once.target.log for event in entry.rows]

    def write(self, query: Query, end: StreamOffset, ranges: Sequence[Range], cut: Mapping[str, int]) -> None:
        """The batch that ends at `end` has these `ranges`. Of those that were `cut` short, so many events were read."""
        if self.plain:
            extents = {e.partition: Extent(e.start, min(e.end, e.start + cut.get(e.partition, len(e)))) for e in ranges}
            self.rows += events_of(extents)
        else:
            self.once.write(query, end, cut)


class Job:
    """A query with its Spark checkpoint: the logged batches, and which of them the commit log has."""

    def __init__(self, group: Group, name: str, sink: Sink, log: Sequence[tuple[StreamOffset, bool]] = ()) -> None:
        self.group, self.name, self.sink = group, name, sink
        self.log = list(log)
        self.query: Query

    def start(self) -> None:
        """A new process goes on with the checkpoint."""
        finished = next((end for end, done in reversed(self.log) if done), None)
        unfinished = self.log[-1][0] if self.log and not self.log[-1][1] else None
        self.query = self.group.query(self.name, finished, unfinished)

    def plan(self, limit: int | None = None) -> StreamOffset:
        self.log.append((self.query.batch(limit), False))
        return self.log[-1][0]

    def finish(self, **read: int) -> None:
        """The sink finishes the last batch, and Spark logs that; `read` as in `Sink.write`, by p0, p1, …"""
        end = self.log[-1][0]
        ranges = self.query.run(end)
        self.sink.write(self.query, end, ranges, {p[1:]: count for p, count in read.items()})
        self.log[-1] = end, True

    def run(self, limit: int | None = None) -> None:
        self.plan(limit)
        self.finish()

    def step(self) -> None:
        """Run a batch if there is one."""
        if (end := self.query.plan()) is not None:
            self.log.append((end, False))
            self.finish()

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Its process stands still: no lease is renewed. It may be killed so."""
        with self.query.planner._keeper._lock:
            yield
        if self.query.planner._keeper._turn is _killed:
            self.query.stop()

    def kill(self, *, hung: bool = False) -> None:
        """Like SIGKILL, but for its threads, which write nothing any more."""
        self.query.planner._keeper._turn = _killed  # type: ignore[method-assign]
        if not hung:
            self.query.stop()

    def checkpoint(self, folder: Path) -> Path:
        """The folder with its checkpoint."""
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for number, (end, done) in enumerate(self.log):
            (folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(end.to_json())}")
            if done:
                (folder / "commits" / str(number)).write_text("v1\n{}")
        return folder


def _killed(*_: object) -> None:
    raise EhBalanceError("this process was killed")


@pytest.fixture
def group(emulator: Emulator, tmp_path: Path) -> Iterator[Group]:
    made = Group(emulator, tmp_path, len(PARTITIONS))
    made.raw |= {"leaseDuration": "2s", "balanceInterval": "0.2s"}
    yield made
    made.close()


def forced_take(group: Group, sink: Sink, a_state: str, b_state: str) -> tuple[Job, Job]:
    """A and B after B has taken both partitions, which A was reading; both have ended. The states are what A's
    checkpoint says of the batch that B has cut off, and what B's says."""
    a, b = Job(group, "a", sink), Job(group, "b", sink)
    group.append(EVENTS, len(PARTITIONS))
    a.start()
    group.wait_owned(2)
    a.run()
    a.query.planner.finish(a.query.finished)
    wait_until(lambda: set(group.checkpoints().values()) == {EVENTS}, "the table knows")
    group.append(EVENTS, len(PARTITIONS))
    a.plan()
    with a.hung():
        b.start()
        wait_until(lambda: {each.owner for each in group.leases().values()} == {"b"}, "B has taken them")
        if b_state != "nothing":
            b.plan(EVENTS)
        if b_state == "further":
            b.finish()
            b.run(2)
            b.run(2)
        if a_state != "cut":
            a.kill(hung=True)
    if a_state == "cut":
        a.finish(p0=CUT, p1=0)
        a.kill()
    b.kill()
    return a, b


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "once"])
@pytest.mark.parametrize("b_state", ["nothing", "logged", "further"])
@pytest.mark.parametrize("a_state", ["unfinished", "cut"])
def test_nothing_is_skipped_when_table_and_history_are_lost_after_a_forced_take(
    group: Group,
    ehbalance: Command,
    tmp_path: Path,
    a_state: str,
    b_state: str,
    plain: bool,
) -> None:
    """Whichever of the two checkpoints are given. Both queries begin anew: their old checkpoints are refused."""
    sink = Sink(plain)
    a, b = jobs = forced_take(group, sink, a_state, b_state)
    group.append(3, len(PARTITIONS))
    folders = {job.name: job.checkpoint(tmp_path / job.name) for job in jobs}
    given = [("a", "b"), ("b", "a"), ("a",), ("b",)] if b.log else [("a",)]
    lost_table, problems = group.table, []
    for names in given:
        for place in (lost_table, Path(f"{lost_table}_history")):
            shutil.rmtree(place, ignore_errors=True)
        remarks = restore(ehbalance, group, tmp_path, *(folders[name] for name in names))
        before = {each.partition: each.checkpoint and each.checkpoint.next for each in group.leases().values()}
        for job in jobs:
            if job.log:
                with pytest.raises(DataLossError, match="EHB_LEASE_TABLE_REPLACED"):
                    Job(group, job.name, sink, job.log).start()
        target = copy.deepcopy(sink)
        again = [Job(group, job.name, target) for job in jobs]
        for job in again:
            job.start()
        read_up_to({2 * EVENTS + 3}, group, again)
        for job in again:
            job.query.stop()
        count = Counter(target.events)
        missing = group.everything() - count
        later = Counter(target.events[len(sink.events) :])
        doubled = {event for event in later if event in sink.events}
        case = f"given {names}: {before} {remarks}"
        if missing:
            problems.append(f"{sorted(missing)} missing: {case}")
        if not plain and max(count.values()) > 1:
            problems.append(f"{[e for e in count if count[e] > 1]} doubled: {case}")
        if plain and len(names) == 2 and (silent := doubled - announced(remarks) - unfinished(a, b)):
            problems.append(f"{sorted(silent)} doubled without a word: {case}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("batches", [1, 3])
def test_nothing_is_skipped_when_a_partition_was_stolen_and_its_owner_did_not_know(
    group: Group, ehbalance: Command, tmp_path: Path, batches: int
) -> None:
    """Under a strategy that takes leases from live owners, A plans batches with a stolen partition until it looks at
    the table again. They read nothing of it, and Spark's checkpoint counts them as finished."""
    group.raw |= {"leaseDuration": "30s", "strategy": "greedy"}
    sink = Sink(plain=True)
    a, b = Job(group, "a", sink), Job(group, "b", sink)
    a.start()
    group.wait_owned(2)
    group.append(EVENTS, len(PARTITIONS))
    a.plan()
    with a.hung():
        b.start()
        wait_until(lambda: b.query.owned(), "B has stolen a partition")
        (stolen,) = b.query.owned()
        a.finish(**{f"p{stolen}": CUT})
        for _ in range(batches):
            group.append(1, len(PARTITIONS))
            a.plan()
            a.finish(**{f"p{stolen}": 0})
        a.kill(hung=True)
    b.kill()
    shutil.rmtree(group.table)
    remarks = restore(ehbalance, group, tmp_path, a.checkpoint(tmp_path / "a"))
    again = Job(group, "a", sink)
    again.start()
    read_up_to({EVENTS + batches}, group, [again])
    assert not group.everything() - Counter(sink.events), remarks


def test_an_offset_names_the_checkpoints_that_the_table_does_not_have_yet(group: Group, tmp_path: Path) -> None:
    """While the table is away nobody takes a partition: else a long outage would be read again."""
    a = Job(group, "a", Sink(plain=True))
    a.start()
    group.wait_owned(2)
    with a.hung():
        for at in (0, 3, 6):
            group.append(3, len(PARTITIONS))
            assert a.plan().checkpoints == (dict.fromkeys(PARTITIONS, 0) if at else {})
            a.finish()
    a.query.planner.finish(a.query.finished)
    wait_until(lambda: set(group.checkpoints().values()) == {9}, "the table knows")
    group.append(3, len(PARTITIONS))
    assert a.plan().checkpoints == {}
    group.table.rename(tmp_path / "away")
    a.finish()
    wait_until(lambda: a.query.planner._keeper.store_away, "the keeper knows")
    group.append(3, len(PARTITIONS))
    assert a.plan().checkpoints == {}


def restore(ehbalance: Command, group: Group, folder: Path, *checkpoints: Path) -> str:
    """Make the lease table of these checkpoints. Returns what is said about the positions."""
    found = ehbalance("positions", *checkpoints)
    assert found.code == 0, found.err
    (folder / "positions.json").write_text(found.out)
    connection = kept(group.emulator.connection_string(HUB), folder)
    ehbalance.succeeds("init", group.table, *connection, "--positions", folder / "positions.json")
    return found.err


def read_up_to(ends: set[int], group: Group, jobs: Sequence[Job]) -> None:
    wait_until(lambda: [job.step() for job in jobs] and set(group.checkpoints().values()) == ends, "all is read")


def announced(printed: str) -> set[Event]:
    """The events of which the command says that they may be read twice."""
    found = re.findall(r"(\d+) to (\d+) of partition (\d+)", printed)
    return {(p, number) for first, last, p in found for number in range(int(first), int(last) + 1)}


def unfinished(a: Job, b: Job) -> set[Event]:
    """The events of the batch that was cut short, and of those that were not finished: a query reads at least once."""
    cut = [end for end, _ in a.log[1:2]] + [end for end, done in b.log if not done]
    return {(e.partition, n) for end in cut for e in end.ranges.values() for n in range(e.start, e.end)}
