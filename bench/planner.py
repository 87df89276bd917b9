"""The cost of an idle query: the time of `latestOffset`, called every 10 ms, and the CPU time of the planner process
(on Linux), compared with that of a source whose offset is a constant."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from bench.common import Bar, Bench, Log, Row, emulator, ratios, start
from bench.processes import cpu, planners
from spark_ehbalance.query.options import stream_options
from spark_ehbalance.spark.datasource import StreamReader

PARTITIONS = 8

#: Spark's `spark.sql.streaming.pollingDelay`, in seconds.
_POLLING_DELAY = 0.01

#: Seconds after which a new query has settled: its rate of requests is lowest after ten seconds without events.
_SETTLING_SECONDS = 12.0


class TrivialSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "trivial"

    def schema(self) -> str:
        return "body binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _TrivialReader()


class _TrivialReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"end": 0}

    def latestOffset(self, *_: object) -> dict[str, int]:
        return {"end": 0}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        return iter(())


def measure(spark: SparkSession, folder: Path, log: Log, *, seconds: float, runs: int) -> Iterator[Row]:
    """In each of `runs` runs, start new queries, and measure each for `seconds`."""
    spark.dataSource.register(TrivialSource)
    calls, idle, trivial = list[float](), list[float](), list[float]()
    with emulator(PARTITIONS) as server:
        for run in range(runs):
            log(f"run {run + 1} of {runs}, {seconds:g} s of idling")
            place = folder / f"planner-{run}"
            # Separate lease tables: with the same table, the readers would share the partitions.
            read, leases = {"connectionString": server.address, "startingPosition": "earliest"}, "leaseTable"
            calls.append(1000 * _idle_call({**read, leases: f"{place / 'calls'}"}, seconds))
            idle.append(
                _cpu_percent(spark, {**read, leases: f"{place / 'leases'}"}, place / "ours", "ehbalance", seconds)
            )
            trivial.append(_cpu_percent(spark, {}, place / "trivial", "trivial", seconds))
    yield Row("latestOffset, idle", "ms", calls)
    yield Row("planner of an idle query", "% of a core", idle, {"a trivial source": trivial})
    yield Row("planner of an idle query, by a trivial source's", "×", ratios(idle, trivial))


def _idle_call(options: Mapping[str, str], seconds: float) -> float:
    """The median time of a call of `latestOffset` in this process, in seconds."""
    reader, times = StreamReader(stream_options(options)), []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        start = reader.initialOffset()
        for _ in range(int(seconds / _POLLING_DELAY)):
            began = time.perf_counter()
            reader.latestOffset(start)
            times.append(time.perf_counter() - began)
            time.sleep(_POLLING_DELAY)
    finally:
        reader.stop()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return statistics.median(times)


def _cpu_percent(spark: SparkSession, options: Mapping[str, str], folder: Path, source: str, seconds: float) -> float:
    """The CPU time of an idle query's planner, in percent of a core."""
    before = planners()
    query = start(spark, options, folder, source=source)
    try:
        query.processAllAvailable()
        (pid,) = planners() - before
        time.sleep(min(_SETTLING_SECONDS, seconds))
        began, spent = time.monotonic(), cpu(pid)
        time.sleep(seconds)
        return 100 * (cpu(pid) - spent) / (time.monotonic() - began)
    finally:
        query.stop()


BENCH = Bench(
    "planner",
    measure,
    compared_with="a Python source that does nothing",
    short={"seconds": 1, "runs": 1},
    full={"seconds": 8, "runs": 3},
    bars={"latestOffset, idle": Bar("most", 1.0), "planner of an idle query, by a trivial source's": Bar("most", 1.0)},
    needs_spark=True,
)
