"""One streaming query: Spark's calls, restarts, and its checkpoint and sink, which outlive its processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from spark_ehbalance.query.offsets import LoggedBatch, StreamOffset
from storm.plan import QueryPlan
from storm.process import Process, Waiting
from storm.sinks import NumberedSink, Sink, SinkError

if TYPE_CHECKING:
    from storm.world import World


class TwoStreamsError(Exception):
    """Another process has already written the same file of the checkpoint."""


@dataclass(slots=True)
class Checkpoint:
    """Spark's offset log, and the number of batches in its commit log."""

    offsets: list[StreamOffset] = field(default_factory=list)
    commits: int = 0

    def copy(self) -> Checkpoint:
        return Checkpoint(list(self.offsets), self.commits)

    def restore(self, length: int) -> None:
        """Restore the earlier state in which the log contained `length` batches."""
        del self.offsets[length:]
        self.commits = min(self.commits, length)

    def log(self, number: int, end: StreamOffset) -> None:
        if number != len(self.offsets):
            raise TwoStreamsError(f"offsets/{number} exists")
        self.offsets.append(StreamOffset.from_json(end.to_json()))

    def commit(self, number: int) -> None:
        """Mark batch `number` as finished. Like Spark, this allows marking a batch twice."""
        self.commits = max(self.commits, number + 1)


class Query:
    def __init__(self, plan: QueryPlan, world: World, sink: Sink) -> None:
        self.plan, self.world, self.sink = plan, world, sink
        self.checkpoint = Checkpoint()
        self.fails_on_loss, self.had_twins, self.had_copies = plan.fails_on_loss, False, False
        self.processes: list[Process] = []
        #: The newest batch number given to the sink, and the last process that did so.
        self.newest = -1
        self.writer: Process | None = None
        #: Stage → fault that occurs when the next process enters it.
        self.next_faults: dict[str, Callable[[Process], None]] = {}
        #: Time of the earliest restart, and time at which the last batch (with AvailableNow: the last run) finished.
        self.down_until = 0.0
        self.done_at = float("-inf")

    @property
    def running(self) -> list[Process]:
        return [process for process in self.processes if process.running]

    @property
    def log(self) -> list[LoggedBatch]:
        """The batches in Spark's checkpoint."""
        return [
            LoggedBatch(end, number < self.checkpoint.commits) for number, end in enumerate(self.checkpoint.offsets)
        ]

    def start(self) -> Process:
        self.world.witness.check_positions()
        self.processes.append(process := Process(self, len(self.processes) + 1))
        process.at_stage = {stage: partial(fault, process) for stage, fault in self.next_faults.items()}
        self.next_faults = {}
        process.note("starts")
        return process

    def supervise(self) -> None:
        """Start the query again if it has ended, and its restart is due."""
        if not self.running and self.world.engine.now >= self.down_until:
            self.start()

    def replace_checkpoint(self, process: Process) -> None:
        """Replace a stale checkpoint, and also the content of a sink that remembers batch numbers."""
        if process.checkpoint is self.checkpoint and self.running == [process]:
            self.restart_from_scratch()

    def restart_from_scratch(self) -> None:
        self.checkpoint, self.newest, self.writer = Checkpoint(), -1, None
        if isinstance(self.sink, NumberedSink):
            self.sink = NumberedSink()

    # --- Spark ---------------------------------------------------------------------------------------------------

    def run(self, process: Process) -> Waiting[None]:
        """Make the calls that Spark's `MicroBatchExecution` makes."""
        try:
            yield from self._run(process)
        except (SinkError, TwoStreamsError) as error:
            process.fail(error)

    def _run(self, process: Process) -> Waiting[None]:
        log, rng = process.checkpoint, process.rng
        yield rng.uniform(0.5, 2.0)
        process.enter("starting")
        number, offsets = log.commits, list(log.offsets)
        process.offsets_at_start = offsets
        start = offsets[number - 1] if number else None
        unfinished = offsets[number] if len(offsets) > number else None
        yield from process.start(start, unfinished)
        start = start or StreamOffset(self.plan.owner, group=process.offset.group, lineage=process.offset.lineage)
        if unfinished is not None:
            yield from self._batch(process, number, start, unfinished)
            start, number = unfinished, number + 1
        batches = 0
        while not (self.plan.available_now and self.plan.one_batch and batches):
            process.enter("idle")
            end = yield from process.latest_offset(start)
            if end == start and number:
                if self.plan.available_now:
                    break
                self.done_at = process.now
                yield rng.uniform(0.5, 1.5) * max(0.5, self.plan.pause)
                continue
            process.enter("planned")
            yield rng.uniform(0.0, 0.05)
            log.log(number, end)
            yield from self._batch(process, number, start, end)
            start, number, batches = end, number + 1, batches + 1
            if not self.plan.available_now:
                yield rng.uniform(0.5, 1.5) * self.plan.pause
        self.done_at = process.now
        if not self.plan.one_batch:
            self.world.witness.check_available_now(process)
        process.note("has read all events")
        process.stop()

    def _batch(self, process: Process, number: int, start: StreamOffset, end: StreamOffset) -> Waiting[None]:
        rng, witness, half = process.rng, self.world.witness, self.world.plan.batch_seconds / 2
        process.enter("logged")
        ranges = [] if end == start else (yield from process.ranges(end))
        witness.check_batch(process, end, ranges)
        process.reading = {part.partition: part.epoch for part in ranges}
        process.enter("reading")
        rows = yield from process.read(ranges)
        process.enter("writing")
        if process.sink is self.sink and number >= self.newest:
            self.newest, self.writer = number, process
        try:
            yield from process.sink.write(number, ranges, rows, rng.uniform(0.0, half), process.find_lost)
        except SinkError:
            witness.check_write(process, end, rows)  # some rows can be stored nevertheless
            raise
        witness.check_write(process, end, rows)
        process.enter("written")
        yield rng.uniform(0.0, 0.05)
        process.checkpoint.commit(number)
        witness.check_finished(process, end)
        process.reading, self.done_at = {}, process.now
        process.enter("finished")
        yield rng.uniform(0.0, 0.05)
        if self.plan.reports:
            process.report(end)
