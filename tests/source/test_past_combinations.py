"""Checkpoint, lease table, sink and hub, of which some were copied, set back, swapped or removed: at random times, and
around processes that are killed at random points of a batch. Whatever it is, no event gets lost in silence.

Real planners, the emulator and lease tables in Delta. Spark's part is played by `Checkpoint` and `World`; the sinks are
models of what four of them go by.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import DataLossError, OptionError
from spark_ehbalance.source.offsets import StreamOffset, group_name
from spark_ehbalance.source.ranges import Range
from tests.source.lives import Lives
from tests.source.queries import Event, Group, Query
from tests.source.support import HUB
from tests.source.test_seek import Once
from tests.waiting import wait_until

PARTITIONS = 2

#: The points of a batch at which its process can be killed: after this was done.
POINTS = ("planned", "logged", "read", "written", "committed", "told")

PATIENCE = 5.0

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

    def write(self, query: Query, checkpoint: Checkpoint, number: int, end: StreamOffset, ranges: list[Range]) -> None:
        if self.kind == "once":
            self.once.write(query, end)
            return
        numbered_by = {"Delta's own": checkpoint.id, "file": "folder"}.get(self.kind)
        if numbered_by is not None:
            if number <= self.last.get(numbered_by, -1):
                return
            self.last[numbered_by] = number
        self.rows.update((each.partition, at) for each in ranges for at in range(each.start, each.end))

    def holds(self) -> set[Event]:
        return set(self.once.holds() if self.kind == "once" else self.rows)


@dataclass(frozen=True)
class Step:
    """What is done next: a method of `World`. Before a part is changed the query is killed, or stopped in order."""

    what: str
    part: str = ""
    number: int = 0
    point: str = "told"
    copied: str = ""
    orderly: bool = False


_parts, _points = st.sampled_from(["checkpoint", "table", "sink"]), st.sampled_from(POINTS)

_steps = st.lists(
    st.one_of(
        st.builds(Step, st.just("run")),
        st.builds(Step, st.just("die"), point=_points, copied=st.just("") | _points),
        st.builds(Step, st.just("copy")),
        st.builds(Step, st.just("put"), _parts, st.integers(0, 3), orderly=st.booleans()),
        st.builds(Step, st.sampled_from(["remove", "swap"]), _parts, orderly=st.booleans()),
        st.builds(Step, st.just("replace_hub"), orderly=st.booleans()),
    ),
    min_size=2,
    max_size=6,
)


@dataclass
class Parts:
    """What a query's past lies in: all of it, or copies of it."""

    checkpoint: Checkpoint
    table: Path
    sink: Sink


class World:
    """One query, its parts, copies of them, and what somebody does to them."""

    def __init__(self, emulator: Emulator, lives: Lives, kind: str) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.group = Group(emulator, self.folder, PARTITIONS)
        self.lives, self.kind = lives, kind
        self.now = Parts(Checkpoint(), self.group.table, Sink(kind))
        self.copies: list[Parts] = []
        self.query: Query | None = None
        self.older: set[str] = set()  # the parts that are not the newest of them
        self.written: set[Event] = set()
        self.excused: set[Event] = set()
        self.touched: set[tuple[str, str]] = set()

    # --- what Spark does -----------------------------------------------------------------------------------------

    def start(self) -> Query:
        if self.query is None:
            self._heed_the_documentation()
            checkpoint = self.now.checkpoint
            initial = StreamOffset("a", group=group_name(str(self.now.table)), lineage=uuid.uuid4().hex)
            finished, unfinished = checkpoint.finished() or initial, checkpoint.unfinished()
            self._excuse()
            self.query = self.lives.start(lambda: self.group.query("a", finished, unfinished))
            if unfinished is not None:
                self._finish(unfinished)
        return self.query

    def batch(self, until: str = "told", copied: str = "") -> bool:
        """Run one batch, if there is something to read, until that point; copies are made at the other one."""
        query, checkpoint = self.start(), self.now.checkpoint
        start = query.finished
        end = query.planner.next_batch(start, None)
        end = query.planner.empty_end(start) if end is start else end
        if end is start:
            return False
        for point in POINTS:
            if point == "logged":
                checkpoint.offsets.append(end)
            elif point == "read":
                ranges = query.planner.ranges(end)
            elif point == "written":
                self._write(end, ranges)
            elif point == "committed":
                checkpoint.commits += 1
            elif point == "told":
                query.planner.finish(end)
                query.finished = end
            if point == copied:
                self.copy()
            if point == until:
                break
        return True

    def _finish(self, end: StreamOffset) -> None:
        """Run the batch that was logged again."""
        assert self.query is not None
        self._write(end, self.query.planner.ranges(end))
        self.now.checkpoint.commits += 1
        self.query.planner.finish(end)
        self.query.finished = end

    def _write(self, end: StreamOffset, ranges: list[Range]) -> None:
        assert self.query is not None
        checkpoint = self.now.checkpoint
        self.now.sink.write(self.query, checkpoint, checkpoint.commits, end, ranges)
        self.written |= self.now.sink.holds()

    # --- what people do --------------------------------------------------------------------------------------------

    def send(self) -> None:
        self.group.append(1, PARTITIONS)

    def run(self) -> None:
        """Read what there is; the table hears of it, as a commit takes no longer than a batch."""
        self.send()
        wait_until(self.caught_up, "all is in the sink", PATIENCE)
        query = self.start()
        wait_until(lambda: self._is_known(query.finished), "the table knows", PATIENCE)

    def _is_known(self, end: StreamOffset) -> bool:
        record = self.group.snapshot().queries[end.lineage]
        return min(record.batch, record.begun) >= end.batch

    def die(self, point: str, copied: str) -> None:
        self.send()
        wait_until(lambda: self.batch(point, copied), "there is a batch", PATIENCE)
        self.end(orderly=False)

    def end(self, *, orderly: bool) -> None:
        if self.query is not None:
            (self.lives.stop if orderly else self.lives.kill)(self.query)
        self.query = None

    def copy(self) -> None:
        table = self.folder / uuid.uuid4().hex
        if self.now.table.exists():
            shutil.copytree(self.now.table, table)
        self.copies.append(Parts(copy.deepcopy(self.now.checkpoint), table, copy.deepcopy(self.now.sink)))

    def put(self, part: str, number: int) -> None:
        """Put a copy in the place of a part; what was there is kept as a copy, too."""
        if not self.copies:
            return
        number %= len(self.copies)
        chosen = self.copies[number]
        self.copy()
        self._set(part, chosen)
        self.older |= {part}

    def remove(self, part: str) -> None:
        self.copy()
        self._set(part, Parts(Checkpoint(), self.folder / "none", Sink(self.kind)))

    def swap(self, part: str) -> None:
        """Put that of a query of another table, which has read what there is, in the place of a part."""
        foreign = World.__new__(World)
        foreign.__dict__ |= self.__dict__ | {"query": None, "copies": [], "excused": set(), "older": set()}
        foreign.group = copy.copy(self.group)
        foreign.group.table = self.folder / uuid.uuid4().hex
        foreign.now = Parts(Checkpoint(), foreign.group.table, Sink(self.kind))
        foreign.run()
        foreign.end(orderly=True)
        self.copy()
        self._set(part, foreign.now)

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
            self.now.checkpoint = copy.deepcopy(parts.checkpoint)
        elif part == "sink":
            self.now.sink = copy.deepcopy(parts.sink)
        else:
            shutil.rmtree(self.now.table, ignore_errors=True)
            if parts.table.exists():
                shutil.copytree(parts.table, self.now.table)
        self.older -= {part}

    # --- what must be so ---------------------------------------------------------------------------------------------

    def _heed_the_documentation(self) -> None:
        """Begin a new sink where the documentation says so: the folder of a file sink belongs to one checkpoint, and
        where checkpoint and table are set back together nothing tells which batch numbers a sink has."""
        sink, checkpoint = self.now.sink, self.now.checkpoint
        another = sink.kind == "file" and sink.writer not in ("", checkpoint.id)
        if another or {"checkpoint", "table"} <= self.older:
            self.now.sink = Sink(sink.kind)
        self.now.sink.writer = checkpoint.id

    def close(self) -> None:
        self.end(orderly=False)
        self.group.emulator.delete_hub(HUB)
        shutil.rmtree(self.folder)

    def _excuse(self) -> None:
        """What somebody took away from the sink, and the table says was read, comes from no source any more."""
        ends = self.group.checkpoints() if self.now.table.exists() else {}
        gone = self.written - self.now.sink.holds()
        self.excused |= {(p, number) for p, number in gone if number < ends.get(p, 0)}

    def caught_up(self) -> bool:
        """Read what there is. Whether all events are in the sink."""
        while self.batch():
            pass
        return set(self.group.everything()) - self.now.sink.holds() <= self.excused

    def play(self, steps: list[Step]) -> None:
        for step in [*steps, Step("run")]:
            try:
                self._do(step)
            except (DataLossError, OptionError) as refused:
                event("refused")
                assert self.query is None, "at the start"
                if "a new checkpointLocation, with which it goes on at the table's positions" not in str(refused):
                    return
                self.remove("checkpoint")
                self._do(step)

    def _do(self, step: Step) -> None:
        if step.what in ("put", "remove", "swap", "replace_hub"):
            self.end(orderly=step.orderly)
            event(f"{step.what} {step.part}")
            self.touched |= {(step.what, step.part)}
        match step.what:
            case "run":
                self.run()
            case "die":
                self.die(step.point, step.copied)
            case "copy":
                self.copy()
            case "put":
                self.put(step.part, step.number)
            case "remove":
                self.remove(step.part)
            case "swap":
                self.swap(step.part)
            case "replace_hub":
                self.replace_hub()


def test_no_event_is_lost_in_silence(pytestconfig: pytest.Config) -> None:
    with Emulator() as emulator, pytest.MonkeyPatch.context() as patched:
        lives = Lives(patched)

        @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.sampled_from(KINDS), _steps)
        def scenario(kind: str, steps: list[Step]) -> None:
            world = World(emulator, lives, kind)
            try:
                world.play(steps)
            finally:
                world.close()

        scenario()
