"""Checkpoint, lease table, sink and hub, of which some were copied, set back, swapped or removed: at random times, and
around processes that are killed at random points of a batch. Whatever it is, no event gets lost in silence.

Real planners, the emulator without its network, and lease tables in Delta. Spark's part is played by `Checkpoint` and
`World`; the sinks are models of what four of them go by.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import DataLossError, EhBalanceError, OptionError
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.lease_table.delta import DeltaStore
from spark_ehbalance.query.offsets import StreamOffset, group_name
from tests.query.lives import Lives
from tests.query.queries import Event, Group, Query
from tests.query.support import HUB
from tests.query.test_seek import Once
from tests.query.without_network import ask_without_network
from tests.waiting import wait_until

PARTITIONS = 2

#: The points of a batch at which its process can be killed: after this was done.
POINTS = ("planned", "logged", "read", "written", "committed", "told")

PATIENCE = 20.0

KINDS = ("append", "Delta's own", "file", "once")


@dataclass
class Checkpoint:
    """Spark's folder: its id of the query, the end of each batch that was logged, and how many are finished."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    offsets: list[StreamOffset] = field(default_factory=list)
    commits: int = 0

    def finished(self) -> StreamOffset | None:
        return self.offsets[self.commits - 1] if self.commits else None

    def unfinished(self) -> StreamOffset | None:
        return self.offsets[self.commits] if len(self.offsets) > self.commits else None


@dataclass
class Sink:
    """Plain append; or Delta's own sink, which leaves out batches up to the last one it has of the query's id; or
    Spark's file sink, which leaves out those up to the last one that its folder has; or `once`."""

    kind: str
    rows: Counter[Event] = field(default_factory=Counter)
    last: dict[str, int] = field(default_factory=dict)
    once: Once = field(default_factory=Once)
    writer: str = ""  # the id of the checkpoint that writes it

    def write(self, query: Query, checkpoint: Checkpoint, end: StreamOffset, ranges: list[Range]) -> bool:
        """Whether the batch was not skipped because of its number."""
        if self.kind == "once":
            self.once.write(query, end)
            return True
        numbered_by = {"Delta's own": checkpoint.id, "file": "folder"}.get(self.kind)
        if numbered_by is not None:
            if checkpoint.commits <= self.last.get(numbered_by, -1):  # which is the batch's number
                return False
            self.last[numbered_by] = checkpoint.commits
        self.rows.update(_events(ranges))
        return True

    def contents(self) -> Counter[Event]:
        return self.once.holds() if self.kind == "once" else self.rows


def _events(ranges: Iterable[Range]) -> Iterator[Event]:
    return ((each.partition, at) for each in ranges for at in range(each.start, each.end))


@dataclass(frozen=True)
class Step:
    """What is done next: a method of `World`. Before a part is changed the query is killed, or stopped in order."""

    what: str
    part: str = ""
    number: int = 0
    point: str = "told"
    copied: str = ""
    orderly: bool = False


_dies = st.builds(
    Step,
    st.just("die"),
    point=st.sampled_from([*POINTS, "written", "committed"]),
    copied=st.sampled_from(["", "", "planned", *POINTS]),
)

#: Often what loses most: the checkpoint is set back to the newest copy, which was made in a batch that was written.
_changes = st.builds(
    Step,
    st.sampled_from(["put"] * 7 + ["remove", "swap", "replace_hub"]),
    st.sampled_from(["checkpoint"] * 3 + ["table", "table", "sink"]),
    st.sampled_from([0, 0, 1, 2]),
    orderly=st.booleans(),
)

_rounds = st.tuples(
    st.just(Step("run")) | _dies,
    st.sampled_from([[], [Step("copy")], [Step("copy"), Step("run")]]),
    _changes,
).map(lambda each: [each[0], *each[1], each[2]])

_scenarios = st.lists(_rounds, min_size=1, max_size=3)


@dataclass
class Parts:
    """What a query's past lies in: all of it, or copies of it."""

    checkpoint: Checkpoint
    table: Path
    sink: Sink
    at: dict[str, float] = field(default_factory=dict)


def _copy(table: Path, to: Path) -> None:
    """A table's files are never changed, only replaced, so that the copy can share them. One that is being written (`#`
    in its name) may be gone before it is copied."""
    shutil.copytree(table, to, ignore=shutil.ignore_patterns("*#*"), copy_function=os.link)


class World:
    """One query, its parts, copies of them, and what somebody does to them."""

    def __init__(self, emulator: Emulator, lives: Lives, kind: str) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.group = Group(emulator, self.folder, PARTITIONS)
        self.lives, self.kind = lives, kind
        self.now = Parts(Checkpoint(), self.group.table, Sink(kind))
        self.copies: list[Parts] = []
        self.query: Query | None = None
        self.at: dict[str, float] = {}  # of parts that were put back: at which time they were so
        self.written: set[Event] = set()
        self.excused: set[Event] = set()
        self.killed = False
        #: The number of the batch that a checkpoint restored after a kill lacks: given up with sinks that skip numbers.
        self.given_up: int | None = None

    # --- what Spark does -----------------------------------------------------------------------------------------

    def start(self) -> Query:
        if self.query is None:
            self._heed_the_documentation()
            checkpoint = self.now.checkpoint
            initial = StreamOffset("a", group=group_name(str(self.now.table)), lineage=uuid.uuid4().hex)
            finished, unfinished = checkpoint.finished() or initial, checkpoint.unfinished()
            self._excuse()
            before = self._files()
            try:
                self.query = self.lives.start(lambda: self.group.query("a", finished, unfinished))
            except EhBalanceError:
                assert self._files() == before, "who is refused writes nothing"
                raise
            self.at = {}
            if unfinished is not None:
                self._run(unfinished, POINTS[2:])
        return self.query

    def batch(self, until: str = "told", copied: str = "") -> bool:
        """Run one batch, if there is something to read, until that point; copies are made at the other one."""
        query = self.start()
        start = query.finished
        end = query.planner.next_batch(start, None)
        end = query.planner.empty_end(start) if end is start else end
        if end is not start:
            self._run(end, POINTS[: POINTS.index(until) + 1], copied)
        return end is not start

    def _run(self, end: StreamOffset, points: Sequence[str], copied: str = "") -> None:
        query, checkpoint, ranges = self.query, self.now.checkpoint, list[Range]()
        assert query is not None
        for point in points:
            if point == "logged":
                checkpoint.offsets.append(end)
            elif point == "read":
                ranges = query.planner.ranges(end)
            elif point == "written":
                self._write(query, end, ranges)
            elif point == "committed":
                checkpoint.commits += 1
            elif point == "told":
                query.planner.finish(end)
                query.finished = end
            if point == copied:
                self.copy()

    def _write(self, query: Query, end: StreamOffset, ranges: list[Range]) -> None:
        written = self.now.sink.write(query, self.now.checkpoint, end, ranges)
        if not written and self.now.checkpoint.commits == self.given_up:
            self.excused |= {*_events(ranges)}
        self.written |= self.now.sink.contents().keys()

    def _files(self) -> list[Path]:
        return sorted(self.now.table.rglob("*"))

    # --- what people do --------------------------------------------------------------------------------------------

    def send(self) -> None:
        self.group.append(1, PARTITIONS)

    def run(self) -> None:
        """Read what there is; the table hears of it, as a commit takes no longer than a batch."""
        self.send()
        wait_until(self.caught_up, "all is in the sink", PATIENCE)
        query = self.start()
        end = query.finished
        with DeltaStore(str(self.now.table)) as store:

            def is_known() -> bool:
                record = store.read().queries[end.lineage]
                return min(record.batch, record.begun) >= end.batch

            wait_until(is_known, "the table knows", PATIENCE)

    def die(self, point: str, copied: str) -> None:
        self.send()
        wait_until(lambda: self.batch(point, copied), "there is a batch", PATIENCE)
        self.end(orderly=False)

    def end(self, *, orderly: bool) -> None:
        if self.query is not None:
            self.killed = not orderly
            (self.lives.stop if orderly else self.lives.kill)(self.query)
        self.query = None

    def copy(self) -> None:
        table = self.folder / uuid.uuid4().hex
        if self.now.table.exists():
            _copy(self.now.table, table)
        at = dict.fromkeys(("checkpoint", "table", "sink"), float(len(self.copies))) | self.at
        self.copies.append(Parts(copy.deepcopy(self.now.checkpoint), table, copy.deepcopy(self.now.sink), at))

    def put(self, part: str, number: int) -> None:
        """Put the copy that was made so many copies ago in the place of a part; what was there is kept as one, too."""
        if not self.copies:
            return
        chosen = self.copies[-1 - number % len(self.copies)]
        self.copy()
        self._set(part, chosen)
        self.at[part] = chosen.at[part]

    def remove(self, part: str) -> None:
        self.copy()
        self._set(part, Parts(Checkpoint(), self.folder / "none", Sink(self.kind)))

    def swap(self, part: str) -> None:
        """Put that of a query of another table, which has read what there is, in the place of a part."""
        foreign = copy.copy(self)  # of the same hub
        foreign.group = copy.copy(self.group)
        foreign.group.table = self.folder / uuid.uuid4().hex
        foreign.now = Parts(Checkpoint(), foreign.group.table, Sink(self.kind))
        foreign.excused = set()
        foreign.run()
        foreign.end(orderly=True)
        self.copy()
        self._set(part, foreign.now)
        if part == "table" and not self.now.checkpoint.offsets:
            # Nothing tells a query that has logged no batch from a new one of that table.
            self.excused |= {*self.group.everything()}

    def replace_hub(self) -> None:
        """Make it anew under its name, with other events."""
        self.group.emulator.delete_hub(HUB)
        self.group.emulator.add_hub(HUB, PARTITIONS)
        self.written, self.excused = set(), set()
        for sink in (self.now.sink, *(each.sink for each in self.copies)):
            sink.rows, sink.once = Counter(), Once()  # which does not take the events of two hubs for the same
        self.send()

    def _set(self, part: str, parts: Parts) -> None:
        if part == "checkpoint":
            # One without a batch is one that was deleted: only what is left of its folder would tell that it was there.
            before = self.now.checkpoint.offsets
            self.now.checkpoint = copy.deepcopy(parts.checkpoint) if parts.checkpoint.offsets else Checkpoint()
            one_older = self.killed and before and self.now.checkpoint.offsets == before[:-1]
            self.given_up = len(before) - 1 if one_older else None
        elif part == "sink":
            self.now.sink = copy.deepcopy(parts.sink)
        else:
            shutil.rmtree(self.now.table, ignore_errors=True)
            if parts.table.exists():
                _copy(parts.table, self.now.table)
        self.at.pop(part, None)

    # --- what must be so ---------------------------------------------------------------------------------------------

    def _heed_the_documentation(self) -> None:
        """Begin a new sink where the documentation says so: the folder of a file sink belongs to one checkpoint, and a
        sink that is newer than checkpoint and table has batch numbers that neither knows."""
        sink, checkpoint = self.now.sink, self.now.checkpoint
        checkpoint_at, table_at, sink_at = (self.at.get(each, inf) for each in ("checkpoint", "table", "sink"))
        another = sink.kind == "file" and sink.writer not in ("", checkpoint.id)
        if another or sink_at > max(checkpoint_at, table_at):
            self.now.sink = Sink(sink.kind)
        self.now.sink.writer = checkpoint.id

    def close(self) -> None:
        self.end(orderly=False)
        self.group.emulator.delete_hub(HUB)
        shutil.rmtree(self.folder)

    def _excuse(self) -> None:
        """What somebody took away from the sink, although table or checkpoint say that it is read, no source brings."""
        gone = self.written - self.now.sink.contents().keys()
        if not gone:
            return
        ends, checkpoint = self.group.checkpoints() if self.now.table.exists() else {}, self.now.checkpoint
        ranges = (each for end in checkpoint.offsets[: checkpoint.commits] for each in end.ranges.values())
        read = {*_events(ranges)}
        self.excused |= {(p, at) for p, at in gone if at < ends.get(p, 0) or (p, at) in read}

    def caught_up(self) -> bool:
        """Read what there is. Whether all events are in the sink."""
        while self.batch():
            pass
        return set(self.group.everything()) - self.now.sink.contents().keys() <= self.excused

    def play(self, steps: list[Step]) -> None:
        changed = Step("copy")
        for step in [*steps, Step("run")]:
            try:
                self._do(step)
            except (DataLossError, OptionError) as refused:
                assert self.query is None, "at the start"
                if changed.what == "replace_hub":
                    return
                if "[EHB_CHECKPOINT_STALE]" in str(refused):
                    self.remove("checkpoint")
                else:
                    self._set(changed.part, self.copies[-1])
                self._do(step)
            changed = step
        assert self.kind != "once" or {*self.now.sink.contents().values()} == {1}

    def _do(self, step: Step) -> None:
        if step.what == "run":
            self.run()
        elif step.what == "die":
            self.die(step.point, step.copied)
        elif step.what == "copy":
            self.copy()
        else:
            self.end(orderly=step.orderly)
            if step.what == "replace_hub":
                self.replace_hub()
            elif step.what == "put":
                self.put(step.part, step.number)
            else:
                (self.remove if step.what == "remove" else self.swap)(step.part)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Emulator, Lives]]:
    with Emulator() as emulator, pytest.MonkeyPatch.context() as patched:
        ask_without_network(emulator, patched)
        yield emulator, Lives(patched)


def test_no_event_is_lost_in_silence(running: tuple[Emulator, Lives]) -> None:
    # A smaller scenario would be looked for with 20 s for each that loses events.
    @settings(max_examples=30, deadline=None, phases=(Phase.generate,))
    @given(st.sampled_from([*KINDS, "Delta's own", "file"]), _scenarios)
    def scenario(kind: str, rounds: list[list[Step]]) -> None:
        with closing(World(*running, kind)) as world:
            world.play([step for each in rounds for step in each])

    scenario()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("orderly", [False, True])
def test_a_past_that_is_set_back_as_a_whole_loses_nothing(
    running: tuple[Emulator, Lives], kind: str, orderly: bool
) -> None:
    """And needs no new sink: all that comes after the copy is read again."""
    with closing(World(*running, kind)) as world:
        put = [
            Step("put", part, number, orderly=orderly) for number, part in enumerate(("checkpoint", "table", "sink"))
        ]
        world.play([Step("run"), Step("copy"), Step("run"), Step("run"), *put])
        assert not world.excused
        assert max(world.now.sink.contents().values()) == 1
