"""Checkpoint, lease table and sink, of which some were copied, set back, swapped or removed: at random times, and
around processes that are killed at random points of a batch. Whatever it is, no event gets lost in silence.

The real engines, with the Spark and in the simulated time of a storm; the sinks are models of what four of them go by.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from spark_ehbalance.group.mismatch import Mismatch
from spark_ehbalance.group.model import TableIdentity
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.query.offsets import StreamOffset
from storm.query import Profile, Query, Step
from storm.world import Event, World

PARTITIONS = 2

#: Seconds in which everything is read, and the table knows.
PATIENCE = 200.0

KINDS = ("append", "Delta's own", "file", "once")

_IDS = itertools.count()


@dataclass
class Sink:
    """Plain append; or Delta's own sink, which leaves out batches up to the last one it has of the query's id; or
    Spark's file sink, which leaves out those up to the last one that its folder has; or `once`, which has marks."""

    kind: str
    rows: Counter[Event] = field(default_factory=Counter)
    last: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    writer: str = ""  # the lineage of the checkpoint that writes it

    def write(self, lineage: str, number: int, rows: Sequence[Event]) -> bool:
        """Whether the batch was not skipped because of its number."""
        numbered_by = {"Delta's own": lineage, "file": "folder"}.get(self.kind)
        if numbered_by is not None:
            if number <= self.last.get(numbered_by, -1):
                return False
            self.last[numbered_by] = number
        if self.kind == "once":
            rows = [(partition, at) for partition, at in rows if at >= self.marks.get(partition, 0)]
            self.marks |= {partition: at + 1 for partition, at in rows}
        self.rows.update(rows)
        return True


@dataclass
class Parts:
    """What a query's past lies in: all of it, or copies of it; `at` is the time at which each part was so."""

    checkpoint: tuple[str, Sequence[StreamOffset], int]
    table: Snapshot
    sink: Sink
    at: dict[str, float] = field(default_factory=dict)


class Refused(Exception):
    """The query must not start."""

    def __init__(self, wrong: Mismatch) -> None:
        super().__init__(str(wrong.error()))
        self.name = wrong.name


#: A change: what is done to which part, how many copies ago, and whether the query is stopped in order before.
Change = tuple[str, str, int, bool]

#: What happens to a query: it reads everything (None), or is killed after a step of a batch, after another step of
#: which copies are made; further copies, and whether it reads on after them; and a change.
Round = tuple[Step | None, Step | None, int, Change]

#: Often what loses most: the checkpoint is set back to the newest copy, which was made in a batch that was written.
_changes = st.tuples(
    st.sampled_from(["put"] * 7 + ["remove", "swap"]),
    st.sampled_from(["checkpoint"] * 3 + ["table", "table", "sink"]),
    st.sampled_from([0, 0, 1, 2]),
    st.booleans(),
)
_rounds = st.lists(
    st.tuples(
        st.none() | st.sampled_from([*Step, Step.WRITE, Step.COMMIT]),
        st.none() | st.sampled_from([*Step]),
        st.integers(0, 2),
        _changes,
    ),
    min_size=1,
    max_size=3,
)


class Past(Query):
    """One query, its parts, copies of them, and what somebody does to them."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        self.world = World(rng, PARTITIONS)
        super().__init__(self.world, Profile("a", "cooperative", skips_known=False))
        self.world.members.append(self)
        self.kind = kind
        self.copies: list[Parts] = []
        self.at: dict[str, float] = {}  # of parts that were put back: at which time they were so
        self.written: set[Event] = set()
        self.excused: set[Event] = set()
        self.killed = False
        #: The number of the batch that a checkpoint restored after a kill lacks: given up with sinks that skip numbers.
        self.given_up: int | None = None
        for part in ("checkpoint", "table", "sink"):
            self._set(part, self._new())
        self.copy()

    def _new(self) -> Parts:
        table = replace(Snapshot(self.world.table.group), table=TableIdentity(f"table {next(_IDS)}", hub_created_ms=1))
        return Parts((f"lineage {next(_IDS)}", (), 0), table, Sink(self.kind))

    # --- what Spark does -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a process with whatever there is. Raises `Refused`."""
        if self.running:
            return
        self._heed_the_documentation()
        self._excuse()
        if wrong := self.mismatch():
            raise Refused(wrong)
        self.start()
        self.at = {}

    def _write(self) -> None:
        if not self.sink.write(self.lineage, self.commits, self._rows) and self.commits == self.given_up:
            self.excused |= {*self._rows}
        self.written |= self.sink.rows.keys()

    def send(self) -> None:
        for partition in self.world.ends:
            self.world.ends[partition] += 1

    def read_all(self) -> None:
        """Read what there is; the table hears of it, as a commit takes no longer than a batch."""
        give_up = self.world.now + PATIENCE
        while self.missing() or not self._is_known():
            assert self.world.now < give_up, "all is in the sink, and the table knows"
            if not self.step() or self._step is Step.PLAN:
                self.world.pass_time(1.0)

    def missing(self) -> set[Event]:
        return self.world.unwritten() - self.sink.rows.keys() - self.excused

    def _is_known(self) -> bool:
        record = self.world.table.queries.get(self.lineage)
        return not self.offsets or (record is not None and min(record.batch, record.begun) >= self.offsets[-1].batch)

    def die(self, point: Step, copied: Step | None) -> None:
        """Run a batch until that point; copies are made at the other one."""
        self.send()
        done = None
        while done is not point:
            was, moved = self._step, self.step()
            if moved and (was is Step.PLAN or done is not None):
                done = was
                if done is copied:
                    self.copy()
            if not moved or self._step is Step.PLAN:
                self.world.pass_time(1.0)
        self.end(orderly=False)

    def end(self, *, orderly: bool) -> None:
        if self.running:
            self.killed = not orderly
            (self.stop if orderly else self.kill)()

    # --- what people do ------------------------------------------------------------------------------------------

    def copy(self) -> None:
        at = dict.fromkeys(("checkpoint", "table", "sink"), float(len(self.copies))) | self.at
        checkpoint = self.lineage, tuple(self.offsets), self.commits
        self.copies.append(Parts(checkpoint, self.world.table, copy.deepcopy(self.sink), at))

    def change(self, what: str, part: str, number: int = 0) -> None:
        """Put a copy, nothing, or the part of a query of another table in the place of a part. What was there is kept
        as a copy."""
        chosen = self.copies[-1 - number % len(self.copies)]
        self.copy()
        if what == "swap":
            foreign = Past(self.kind, self.world.rng)
            foreign.world.ends |= self.world.ends
            foreign.begin()
            foreign.read_all()
            foreign.end(orderly=True)
            foreign.copy()
            chosen = foreign.copies[-1]
            if part == "table" and not self.offsets:
                # Nothing tells a query that has logged no batch from a new one of that table.
                self.excused |= self.world.unwritten()
        self._set(part, self._new() if what == "remove" else chosen)
        if what == "put":
            self.at[part] = chosen.at[part]

    def _set(self, part: str, parts: Parts) -> None:
        if part == "checkpoint":
            # One without a batch is one that was deleted: only what is left of its folder would tell that it was there.
            before, chosen = getattr(self, "offsets", []), parts if parts.checkpoint[1] else self._new()
            self.lineage, offsets, self.commits = chosen.checkpoint
            self.offsets = list(offsets)
            one_older = self.killed and before and self.offsets == before[:-1]
            self.given_up = len(before) - 1 if one_older else None
        elif part == "sink":
            self.sink = copy.deepcopy(parts.sink)
        else:
            self.world.table = parts.table
        self.at.pop(part, None)

    # --- what must be so -----------------------------------------------------------------------------------------

    def _heed_the_documentation(self) -> None:
        """Begin a new sink where the documentation says so: the folder of a file sink belongs to one checkpoint, and a
        sink that is newer than checkpoint and table has batch numbers that neither knows."""
        checkpoint_at, table_at, sink_at = (self.at.get(part, inf) for part in ("checkpoint", "table", "sink"))
        another = self.kind == "file" and self.sink.writer not in ("", self.lineage)
        if another or sink_at > max(checkpoint_at, table_at):
            self.sink = Sink(self.kind)
        self.sink.writer = self.lineage

    def _excuse(self) -> None:
        """What somebody took away from the sink, although table or checkpoint say that it is read, no source brings."""
        leases = self.world.table.leases.values()
        ends = {lease.partition: lease.checkpoint.next for lease in leases if lease.checkpoint}
        ranges = [span for end in self.offsets[: self.commits] for span in end.ranges.values()]
        read = {(span.partition, at) for span in ranges for at in range(span.start, span.end)}
        gone = self.written - self.sink.rows.keys()
        self.excused |= {(p, at) for p, at in gone if at < ends.get(p, 0) or (p, at) in read}

    def play(self, rounds: Sequence[Round]) -> None:
        self.begin()
        for point, copied, copies, (what, part, number, orderly) in rounds:
            self.run(point, copied)
            if copies:
                self.copy()
            if copies > 1 and self.running:
                self.run()
            self.end(orderly=orderly)
            self.change(what, part, number)
            try:
                self.begin()
            except Refused as refused:
                if refused.name == "EHB_CHECKPOINT_STALE":
                    self.change("remove", "checkpoint")
                else:
                    self._set(part, self.copies[-1])
                self.begin()
        self.run()
        assert self.kind != "once" or {*self.sink.rows.values()} == {1}

    def run(self, point: Step | None = None, copied: Step | None = None) -> None:
        self.send()
        if point is None:
            self.read_all()
        else:
            self.die(point, copied)


@settings(max_examples=300, deadline=None, phases=(Phase.generate, Phase.shrink))
@given(st.sampled_from([*KINDS, "Delta's own", "file"]), st.integers(0, 2**32), _rounds)
def test_no_event_is_lost_in_silence(kind: str, seed: int, rounds: list[Round]) -> None:
    Past(kind, random.Random(seed)).play(rounds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("orderly", [False, True])
def test_a_past_that_is_set_back_as_a_whole_loses_nothing(kind: str, orderly: bool) -> None:
    """And needs no new sink: all that comes after the copy is read again."""
    past = Past(kind, random.Random(0))
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
