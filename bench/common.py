"""Shared parts of the benchmarks: their declaration, an emulator in its own process, and a Spark session."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from chaos.session import spark_session
from spark_ehbalance.emulator import Emulator as LocalEmulator
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.network import AMQP, Network
from spark_ehbalance.exactly_once.spark_settings import SESSION

HUB, GROUP = "hub", "$Default"

#: Shows the progress of a benchmark.
Log = Callable[[str], None]


@dataclass(frozen=True)
class Bar:
    """A limit for a median: the maximum (`most`) or the minimum (`least`)."""

    which: Literal["most", "least"]
    value: float

    def holds(self, measured: float) -> bool:
        return measured <= self.value if self.which == "most" else measured >= self.value

    def __str__(self) -> str:
        return f"{'≤' if self.which == 'most' else '≥'} {three_digits(self.value)}"


@dataclass(frozen=True)
class Row:
    """One line of the report: the value of each run, in `unit`. `compared` maps the name of each comparison to the
    values of its runs."""

    what: str
    unit: str
    runs: Sequence[float]
    compared: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.runs)


@dataclass(frozen=True)
class Bench:
    """A benchmark. `measure` is called with the settings of the `short` or the `full` form. `bars` maps the names of
    rows to their bars.

    `compared_with` appears in the report. With `needs_spark`, the first argument of `measure` is a session; its other
    arguments are a folder and a `Log`.
    """

    name: str
    measure: Callable[..., Iterator[Row]]
    compared_with: str
    short: Mapping[str, Any]
    full: Mapping[str, Any]
    bars: Mapping[str, Bar]
    needs_spark: bool = False
    needs_maven: bool = False


def three_digits(value: float) -> str:
    """Format `value` with three digits, because more digits are not reproducible."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=True)]


@dataclass(frozen=True)
class Emulator:
    """An emulator with `HUB` that runs in its own process, so that its CPU time is not counted."""

    process: ProcessPoolExecutor
    connection: Connection

    @property
    def address(self) -> str:
        return str(self.connection.connection_string)

    def call(self, operation: str, *arguments: Any) -> Any:
        """Call an operation of the emulator, and return its result."""
        return self.process.submit(_call, operation, arguments).result()

    def append(self, partition: int, bodies: list[bytes]) -> None:
        self.call("append", HUB, partition, bodies)

    def fill(self, partition: int, body: bytes, events: int, properties: Mapping[str, Any] | None = None) -> None:
        self.process.submit(_fill, partition, body, events, properties).result()

    def clear(self, partitions: int) -> int:
        """Delete all events, because the emulator keeps them in memory. Returns the number of deleted events."""
        states = [self.call("partition_state", HUB, partition) for partition in range(partitions)]
        for partition, state in enumerate(states):
            self.call("trim", HUB, partition, state.next_sequence_number)
        return sum(state.next_sequence_number - state.first_sequence_number for state in states)


#: The emulator. Only set in the emulator's process.
_running: LocalEmulator


def _start(partitions: int) -> tuple[str, int]:
    global _running
    _running = LocalEmulator(
        {HUB: partitions}, management_requests=None
    )  # no limit, because the cost of requests is measured
    _running.start()
    return _running.connection_string(HUB), _running.port


def _call(operation: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(_running, operation)(*arguments)


def _fill(partition: int, body: bytes, events: int, properties: Mapping[str, Any] | None) -> None:
    _running.append(HUB, partition, [body] * events, properties)


@contextlib.contextmanager
def emulator(partitions: int) -> Iterator[Emulator]:
    """Start an emulator and a connection to it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        string, port = process.submit(_start, partitions).result()
        network = Network(AMQP, endpoint=("localhost", port))
        yield Emulator(process, Connection("localhost", HUB, connection_string=string, network=network))


def in_turns(ways: Mapping[str, Callable[[], float]], runs: int) -> dict[str, list[float]]:
    """Run each of `ways` in its own process, in turns, `runs` times after a run to warm up. Returns the results by
    name."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.__main__"])  # forks from a process that has imported everything
    with ExitStack() as stack:
        processes = {name: stack.enter_context(ProcessPoolExecutor(1, context)) for name in ways}
        for run in range(runs + 1):
            for name, way in ways.items():
                result = processes[name].submit(way).result()
                found[name] += [result] if run else []
    return found


def session(folder: Path, jars: Sequence[Path] = ()) -> SparkSession:
    """A Spark session with two cores and these jars that keeps all progress reports."""
    more = {"spark.sql.streaming.numRecentProgressUpdates": "100000", "spark.jars": ",".join(map(str, jars))}
    return spark_session("local[2]", folder, {**SESSION, **more})


def start(
    spark: SparkSession,
    options: Mapping[str, str],
    folder: Path,
    *,
    source: str = "ehbalance",
    columns: str | None = None,
    available_now: bool = False,
) -> StreamingQuery:
    """Start a query that reads all columns, or `columns`, into a sink that discards the rows."""
    reader = spark.readStream.format(source).options(**options)
    writer = (reader if columns is None else reader.schema(columns)).load().writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return (writer.trigger(availableNow=True) if available_now else writer).start()


def batches(query: StreamingQuery) -> list[Mapping[str, Any]]:
    """The progress reports of the batches that contained rows."""
    reports = (json.loads(progress.json) for progress in query.recentProgress)
    return [report for report in reports if report["numInputRows"] > 0]
