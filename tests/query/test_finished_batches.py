"""Progress inferred from the order of Spark 4.0's and 4.1's calls; a model of Spark crashes at random calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.query import assembly
from spark_ehbalance.query.finished_batches import NewestBatch
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.query.options import Options, stream_options
from spark_ehbalance.spark import datasource
from spark_ehbalance.spark.datasource import StreamReader, Task
from spark_ehbalance.spark.spark_api import ReadMaxRows
from tests.query.queries import Group
from tests.raising import raises

HUB = "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true;EntityPath=hub"
ROWS = 4
OPTIONS = stream_options({"connectionString": HUB, "maxEventsPerTrigger": str(ROWS)})


class Crash(Exception):
    """The driver, or its planner, is killed."""


class SomeLag:
    """Stands in for the planner's `LagReport`."""

    def behind(self) -> dict[str, Any]:
        return {"avgOffsetsBehindLatest": 0.5}

    def untimed(self, ranges: list[OffsetRange]) -> frozenset[str]:
        return frozenset()


@dataclass
class OnePartition:
    """Stands in for the planner: a hub with one partition, whose position is stored only in the offsets."""

    owner: str
    finished: StreamOffset
    started_with: tuple[StreamOffset, StreamOffset | None]
    newest: Callable[[], int]
    cores: int | None = None
    lag: SomeLag = field(default_factory=SomeLag)

    def latest_offset(self, start: StreamOffset, limit: int | None, *, available_now: bool) -> StreamOffset:
        self.finished = start
        begin = start.ranges["0"].end if start.ranges else 0
        end = min(self.newest(), begin + (limit or ROWS))
        return StreamOffset(self.owner, {"0": OffsetRange("0", 0, begin, end)}) if end > begin else start

    def ranges(self, end: StreamOffset) -> list[OffsetRange]:
        return list(end.ranges.values())

    def await_report(self) -> None:
        pass

    def stop(self) -> None:
        pass


@dataclass
class Spark:
    """Makes the calls that real Spark was observed to make (see `NewestBatch`) and keeps its offset and commit logs.
    `steps` yields the number of calls before the next crash."""

    passes_start: bool
    steps: Iterator[int]
    newest: int = 0
    offsets: list[dict[str, Any]] = field(default_factory=list)
    committed: int = 0
    rows: list[int] = field(default_factory=list)
    planners: list[OnePartition] = field(default_factory=list)
    left: int = 0

    def start_planner(
        self, options: Options, owner: str, finished: StreamOffset, unfinished: StreamOffset | None, *, full_share: bool
    ) -> OnePartition:
        self.planners.append(OnePartition(owner, finished, (finished, unfinished), lambda: self.newest))
        return self.planners[-1]

    def _step(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise Crash

    def run(self, triggers: list[int]) -> None:
        """Run a process for these triggers (numbers of events that arrive before them) or until it crashes."""
        reader = StreamReader(OPTIONS)
        self.left = next(self.steps)
        try:
            if self.offsets and not self.passes_start:
                assert reader.partitions(self.offsets[-1], self.offsets[-1]) == []
                self._step()
            if self.committed < len(self.offsets):
                self._batch(reader)
            for events in triggers:
                self.newest += events
                self._trigger(reader)
        except Crash:
            return

    def _trigger(self, reader: StreamReader) -> None:
        last = self.offsets[-1] if self.offsets else None
        if self.passes_start:
            begin = last or reader.initialOffset()
            end = reader.latestOffset(begin, ReadMaxRows(ROWS))
        else:
            end = reader.latestOffset()
        self._step()
        planner = self.planners[-1]
        initial = StreamOffset(planner.owner, lineage=planner.started_with[0].lineage)
        assert planner.finished in [initial, *map(StreamOffset.from_json, self.offsets[: self.committed][-1:])]
        if end == last:
            return  # Spark makes no empty batch
        self.offsets.append(end)
        self._step()
        self._batch(reader)

    def _batch(self, reader: StreamReader) -> None:
        end = self.offsets[self.committed]
        start = self.offsets[self.committed - 1] if self.committed else reader.initialOffset()
        tasks = reader.partitions(start, end)
        self._step()
        ranges = [range_ for task in tasks if isinstance(task, Task) for range_, _ in task.ranges]
        assert sum(map(len, ranges)) <= ROWS
        # The sink is idempotent by batch number: a rerun batch replaces the rows written by the first attempt.
        self.rows[:] = [row for row in self.rows if not any(range_.start <= row < range_.end for range_ in ranges)]
        self.rows.extend(number for range_ in ranges for number in range(range_.start, range_.end))
        self._step()
        self.committed += 1
        self._step()


def simulate(passes_start: bool, processes: list[tuple[int, list[int]]]) -> Spark:
    """Run one process after another, each until it crashes."""
    spark = Spark(passes_start, iter([steps for steps, _ in processes]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasource.signal, "signal", lambda *_: None)  # type: ignore[attr-defined]
        patch.setattr(datasource, "set_up_logging", lambda: None)
        patch.setattr(assembly, "start_planner", spark.start_planner)
        patch.setattr(datasource, "mint_owner_id", lambda: f"owner {len(spark.planners)}")
        for _, triggers in processes:
            spark.run(triggers)
    return spark


PROCESSES = st.lists(st.tuples(st.integers(1, 30), st.lists(st.integers(0, 9), min_size=1, max_size=4)), max_size=4)
#: A process that does not crash and reads all remaining events.
LAST = (10_000, [0] * 40)


@settings(deadline=None, max_examples=30)
@given(PROCESSES)
def test_rows_do_not_depend_on_whether_spark_passes_the_start(processes: list[tuple[int, list[int]]]) -> None:
    for passes_start in (True, False):
        spark = simulate(passes_start, [*processes, LAST])
        assert spark.rows == list(range(spark.newest)), "every event once, in order"
        assert spark.committed == len(spark.offsets)
        ends = [
            tuple((range_.start, range_.end) for range_ in StreamOffset.from_json(e).ranges.values())
            for e in spark.offsets
        ]
        assert len(set(ends)) == len(ends), "no empty batch but the first"
        assert_started_with_logged_offsets(spark)


def assert_started_with_logged_offsets(spark: Spark) -> None:
    """Planners start with the finished and the unfinished end, and the identity does not change."""
    logged = [StreamOffset.from_json(offset) for offset in spark.offsets]
    for planner in spark.planners:
        finished, unfinished = planner.started_with
        if unfinished is not None and not unfinished.is_initial:
            number = logged.index(unfinished)
            assert finished.is_initial if number == 0 else finished == logged[number - 1]
        else:
            assert finished.is_initial or finished in logged
    continued = [planner.owner for planner in spark.planners if not planner.started_with[0].is_initial]
    assert len({*continued}) <= 1, "a restarted query keeps its identity"


END, NEXT = {"o": 3}, {"o": 5}


def test_answer_is_repeated_until_its_batch_runs() -> None:
    answered = NewestBatch().after_answer(END, NEXT)
    assert (answered.pending, answered.finished, answered.in_doubt) == (NEXT, None, False)
    run = answered.after_partitions(END, NEXT)
    assert (run.pending, run.finished, run.in_doubt) == (None, NEXT, True)
    assert not run.after_answer(NEXT, NEXT).in_doubt


@pytest.mark.parametrize("logged", [(END, END), (END, NEXT)])
def test_available_now_wrapper_is_rejected(logged: tuple[dict[str, Any], dict[str, Any]]) -> None:
    planned = NewestBatch().after_answer({"o": 0}, {"o": 2})
    with raises(OptionError, "EHB_OPTION_NOT_APPLICABLE", option=re.compile("triggerAvailableNowWrapper")):
        planned.after_partitions(*logged)


def test_run_that_leaves_events_logs_its_backlog(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """Spark 4.0 and 4.1 do not pass on Trigger.AvailableNow: they end the query after its first batch."""
    group.append(10, partitions=2)
    reader = StreamReader(group.options(shared=False, startingPosition="earliest", maxEventsPerTrigger=6))
    end = reader.latestOffset()
    assert reader.partitions(reader.initialOffset(), end)
    reader.stop()
    assert "backlog=14 " in caplog.text
