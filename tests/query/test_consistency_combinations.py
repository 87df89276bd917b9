"""Checkpoints, lease tables and sinks that are copied, rolled back, swapped or removed at random times, while processes
are killed at random points of a batch. No combination loses an event silently.

Uses the real engines with the storm's model of Spark in simulated time; the sinks model how four kinds detect rewrites.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.model import TableIdentity
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.query.offsets import StreamOffset
from storm.plan import STAGES, Plan, QueryPlan
from storm.query import Checkpoint
from storm.sinks import FindLost, Rows, Sink, Writing
from storm.world import World

#: (partition, sequence number)
Event = tuple[str, int]

PARTITIONS = 2

#: Seconds within which all events are read and recorded in the lease table.
PATIENCE = 200.0

KINDS = ("append", "Delta's own", "file", "once")

_IDS = itertools.count()


def _plan(owner: str) -> Plan:
    """A plan without faults for one query that reads all events."""
    query = QueryPlan(owner, "cooperative", "append", 1.0, 7, None, True, False, False, True, 30.0)
    return Plan(0, PARTITIONS, 0.0, 0.5, 0.01, 30.0, 5.0, 10.0, None, 20.0, (query,), ())


@dataclass
class ModelSink(Sink):
    """A model of four sinks: plain append; Delta's own sink, which skips batches up to the query's last one;
    Spark's file sink, which skips batches up to the last one in its folder; and `once`, which uses marks."""

    kind: str = "append"
    rows: Counter[Event] = field(default_factory=Counter)
    last: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    writer: str = ""  # the id of the checkpoint that writes to it
    skipped: list[tuple[int, set[Event]]] = field(default_factory=list)

    def write(
        self, number: int, ranges: Sequence[OffsetRange], rows: Rows, seconds: float, find_lost: FindLost
    ) -> Writing:
        yield seconds
        numbered_by = {"Delta's own": self.writer, "file": "folder"}.get(self.kind)
        if numbered_by is not None:
            if number <= self.last.get(numbered_by, -1):
                self.skipped.append((number, {(p, at) for p, row in rows.items() for at in range(row.start, row.end)}))
                return
            self.last[numbered_by] = number
        for partition, row in rows.items():
            start = max(row.start, self.marks.get(partition, 0)) if self.kind == "once" else row.start
            self.rows.update((partition, at) for at in range(start, row.end))
            self.marks[partition] = max(start, row.end)


class Errors:
    """Collects processes' errors in place of the storm's witness, which cannot check restored parts."""

    changed_at = longest_duration = inf

    def __init__(self) -> None:
        self.raised: list[str] = []

    def check_error(self, process: object, error: Exception) -> None:
        self.raised.append(str(error))

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


@dataclass
class Parts:
    """A query's stored parts, or a copy of them; `at` maps each part to the time of that state."""

    checkpoint: tuple[str, Sequence[StreamOffset], int]
    table: Snapshot
    sink: ModelSink
    at: dict[str, float] = field(default_factory=dict)


class Refused(Exception):
    """The query refused to start."""


#: A change: (action, part, how many copies ago, whether the query is stopped in an orderly way first).
Change = tuple[str, str, int, bool]

#: A round: (the stage of a batch at which the query is killed, None if it reads everything; the stage at which copies
#: are made; how often copies are made afterwards, where 2 means that the query then reads on; a change).
Round = tuple[str | None, str | None, int, Change]

_POINTS = STAGES[1:]

#: Weighted towards the riskiest change: restoring the checkpoint from a copy made during a batch that was written.
_changes = st.tuples(
    st.sampled_from(["put"] * 7 + ["remove", "swap"]),
    st.sampled_from(["checkpoint"] * 3 + ["table", "table", "sink"]),
    st.sampled_from([0, 0, 1, 2]),
    st.booleans(),
)
_rounds = st.lists(
    st.tuples(
        st.none() | st.sampled_from([*_POINTS, "written", "finished"]),
        st.none() | st.sampled_from(_POINTS),
        st.integers(0, 2),
        _changes,
    ),
    min_size=1,
    max_size=3,
)


class Past:
    """A query, its parts, copies of the parts, and the changes that people make to them."""

    def __init__(self, kind: str, owner: str = "a") -> None:
        self.world, self.kind = World(_plan(owner)), kind
        self.query, self.errors = self.world.queries[0], Errors()
        self.world.witness = self.errors  # type: ignore[assignment]
        self.copies: list[Parts] = []
        self.at: dict[str, float] = {}  # restored part → the time of its state
        self.written: set[Event] = set()
        self.excused: set[Event] = set()
        self.killed = False
        #: The batch missing from a checkpoint restored after a kill; sinks that skip batch numbers lose it.
        self.given_up: int | None = None
        for part in ("checkpoint", "table", "sink"):
            self._set(part, self._new())
        self.copy()

    def _new(self) -> Parts:
        group = self.world.store.snapshot.group
        table = replace(Snapshot(group), table=TableIdentity(f"table {next(_IDS)}", hub_created_ms=1))
        return Parts((f"checkpoint {next(_IDS)}", (), 0), table, ModelSink(kind=self.kind))

    @property
    def sink(self) -> ModelSink:
        assert isinstance(self.query.sink, ModelSink)
        return self.query.sink

    @property
    def offsets(self) -> list[StreamOffset]:
        return self.query.checkpoint.offsets

    # --- what Spark does -----------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        give_up = self.world.engine.now + PATIENCE
        while not condition():
            assert self.world.engine.now < give_up, f"{what}: {self.errors.raised}"
            self.world.engine.run(self.world.engine.now + 1.0)
            self.written |= self.sink.rows.keys()

    def begin(self) -> None:
        """Start a process with the current parts. Raises `Refused` if it does not start."""
        self._heed_the_documentation()
        self._excuse()
        self.errors.raised.clear()
        process = self.query.start()
        self.wait(lambda: process.engine is not None or not process.running, "it starts")
        if self.errors.raised:
            raise Refused(self.errors.raised[0])
        self.at = {}

    def run(self, point: str | None = None, copied: str | None = None) -> None:
        """Read all events until the table has recorded them, or run a batch up to the stage `point`. Copies are made at
        the stage `copied`."""
        (process,) = self.query.running
        if point is not None:
            process.at_stage[point] = process.end
        if copied is not None:
            process.at_stage[copied] = self.copy if copied != point else lambda: (self.copy(), process.end())
        for partition in self.world.hub.partitions.values():
            partition.appended += 1
        if point is None:
            self.wait(lambda: not self.missing() and self._is_known(), "all is in the sink, and the table knows")
            process.at_stage.clear()
        else:
            self.wait(lambda: not process.running, "it is killed")
            self.killed = True

    def missing(self) -> set[Event]:
        given_up = [rows for number, rows in self.sink.skipped if number == self.given_up]
        self.excused = self.excused.union(*given_up)
        events = {(p, at) for p, partition in self.world.hub.partitions.items() for at in range(partition.end)}
        return events - self.sink.rows.keys() - self.excused

    def _is_known(self) -> bool:
        if not self.offsets:
            return True
        record = self.world.store.snapshot.queries.get(self.offsets[-1].lineage)
        return record is not None and min(record.batch, record.begun) >= self.offsets[-1].batch

    def end(self, *, orderly: bool) -> None:
        for process in self.query.running:
            self.killed = not orderly
            (process.stop if orderly else process.end)()
            self.wait(lambda: not process.running, "it ends")  # noqa: B023

    # --- what people do ------------------------------------------------------------------------------------------

    def copy(self) -> None:
        at = dict.fromkeys(("checkpoint", "table", "sink"), float(len(self.copies))) | self.at
        checkpoint = self.id, tuple(self.offsets), self.query.checkpoint.commits
        self.copies.append(Parts(checkpoint, self.world.store.snapshot, copy.deepcopy(self.sink), at))

    def change(self, what: str, part: str, number: int = 0) -> None:
        """Replace a part with a copy, with a new empty one, or with the part of a query that uses another table. The
        replaced state is kept as a copy."""
        chosen = self.copies[-1 - number % len(self.copies)]
        self.copy()
        if what == "swap":
            foreign = Past(self.kind, "b")
            for p, partition in self.world.hub.partitions.items():
                foreign.world.hub.partitions[p].appended = partition.appended
            foreign.begin()
            foreign.run()
            foreign.end(orderly=True)
            foreign.copy()
            chosen = foreign.copies[-1]
            if part == "table" and not self.offsets:
                # A query that has not logged a batch looks like a new query of the swapped-in table, whose own query
                # has read one event more.
                partitions = foreign.world.hub.partitions.items()
                self.excused |= {(p, at) for p, partition in partitions for at in range(partition.end)}
        self._set(part, self._new() if what == "remove" else chosen)
        if what == "put":
            self.at[part] = chosen.at[part]

    def _set(self, part: str, parts: Parts) -> None:
        if part == "checkpoint":
            # A checkpoint without a batch counts as deleted: nothing proves that it existed.
            before, chosen = self.offsets, parts if parts.checkpoint[1] else self._new()
            self.id, offsets, commits = chosen.checkpoint
            self.query.checkpoint = Checkpoint([*offsets], commits)
            one_older = self.killed and before and self.offsets == before[:-1]
            self.given_up = len(before) - 1 if one_older else None
        elif part == "sink":
            self.query.sink = copy.deepcopy(parts.sink)
        else:
            self.world.store.snapshot = parts.table
        self.at.pop(part, None)

    # --- invariants ----------------------------------------------------------------------------------------------

    def _heed_the_documentation(self) -> None:
        """Start a new sink where the documentation requires one: a file sink's folder belongs to one checkpoint, and a
        sink that is newer than both checkpoint and table contains batch numbers that neither of them knows."""
        checkpoint_at, table_at, sink_at = (self.at.get(part, inf) for part in ("checkpoint", "table", "sink"))
        another = self.kind == "file" and self.sink.writer not in ("", self.id)
        if another or sink_at > max(checkpoint_at, table_at):
            self.query.sink = ModelSink(kind=self.kind)
        self.sink.writer = self.id

    def _excuse(self) -> None:
        """Excuse rows that were removed from the sink and that the table or the checkpoint counts as read."""
        leases = self.world.store.snapshot.leases.values()
        ends = {lease.partition: lease.checkpoint.next for lease in leases if lease.checkpoint}
        ranges = [span for end in self.offsets[: self.query.checkpoint.commits] for span in end.ranges.values()]
        read = {(span.partition, at) for span in ranges for at in range(span.start, span.end)}
        gone = self.written - self.sink.rows.keys()
        self.excused |= {(p, at) for p, at in gone if at < ends.get(p, 0) or (p, at) in read}

    def play(self, rounds: Sequence[Round]) -> None:
        self.begin()
        for point, copied, copies, (what, part, number, orderly) in rounds:
            self.run(point, copied)
            if copies:
                self.copy()
            if copies > 1 and self.query.running:
                self.run()
            self.end(orderly=orderly)
            self.change(what, part, number)
            try:
                self.begin()
            except Refused as refused:
                if "[EHB_CHECKPOINT_STALE]" in str(refused):
                    self.change("remove", "checkpoint")
                else:
                    self._set(part, self.copies[-1])
                self.begin()
        self.run()
        assert self.kind != "once" or {*self.sink.rows.values()} == {1}


@settings(max_examples=400, deadline=None, phases=(Phase.generate, Phase.shrink))
@given(st.sampled_from([*KINDS, "Delta's own", "file"]), _rounds)
def test_no_event_is_lost_silently(kind: str, rounds: list[Round]) -> None:
    Past(kind).play(rounds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("orderly", [False, True])
def test_restoring_all_parts_together_loses_no_events(kind: str, orderly: bool) -> None:
    """No new sink is needed, because all events after the copy are read again."""
    past = Past(kind)
    past.begin()
    past.run()
    past.copy()
    past.run()
    past.run()
    past.end(orderly=orderly)
    for number, part in enumerate(("checkpoint", "table", "sink")):
        past.change("put", part, number)
    past.begin()
    past.run()
    assert not past.excused
    assert max(past.sink.rows.values()) == 1
