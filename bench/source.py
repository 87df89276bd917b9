"""The source end to end, with `local[2]` and a sink that discards everything. `throughput` measures only the source;
`kafka` compares it with Spark's Kafka source.

| what | how it is measured |
|---|---|
| events/s | rows / the time that Spark reports for their batches, including planning and checkpoints |
| CPU a row | CPU time of the JVM and Python, from the query's start until its planner has ended; in batches of \
1,000,000, from the end of the first batch |
| CPU of a start | CPU time of the JVM and Python of a query that reads eight events |
| event to sink | time from an event's arrival to the end of its batch, at a steady rate of 1,000 events a second |
| writing: CPU a row | CPU time of the JVM and Python of a `df.write`, minus that of writing eight rows |

The runs of both sources alternate. Each ratio compares two consecutive runs.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.common import Bar, Bench, Log, Row, batches, emulator, ratios, start
from bench.kafka import Sender, fetch, topic
from bench.kafka import broker as kafka_broker
from bench.processes import await_planners, cpu_by_part
from bench.trivial import trivial_source

PARTITIONS, SIZE, RATE = 8, 1024, 1000.0

#: The columns that correspond to those of Kafka's source, except topic and timestamp type, which are constants.
_FIVE_COLUMNS = "body binary, partition string, sequenceNumber long, enqueuedTime timestamp, partitionKey string"

#: Number of events in a small batch.
_BATCH = 250_000

#: Number of runs that do not count, because Java still compiles code.
_WARM_UP = 2

#: Seconds between two sends of the steady load, and seconds at its beginning that do not count.
_TICK, _SETTLING_SECONDS = 0.01, 5.0


class Case(NamedTuple):
    """How a backlog is read: in batches of `batch` events, or all in one batch if this is None, and with which
    columns. If `steady`, CPU time is measured after the first batch."""

    batch: int | None
    columns: str | None
    steady: bool = False

    @property
    def what(self) -> str:
        size = "in one batch" if self.batch is None else f"in batches of {self.batch:,}"
        return f"{size}, {'all nine' if self.columns is None else 'five'} columns"

    def limit(self, option: str) -> dict[str, str]:
        """The `option` that limits a batch, if it is limited."""
        return {} if self.batch is None else {option: str(self.batch)}


CASES = [Case(None, _FIVE_COLUMNS), Case(None, None), Case(_BATCH, _FIVE_COLUMNS), Case(_BATCH, None)]

_VALUE, _KEY = f"cast(repeat('x', {SIZE}) as binary) value", "concat('key ', id % 1000) key"
_HEADERS = ", ".join(f"struct('{name}' key, cast('17' as binary) value)" for name in ("device", "unit", "version"))

#: Written rows → their columns, for both sinks.
WRITES = {
    "no key": [_VALUE],
    "1,000 keys": [_VALUE, _KEY],
    "1,000 keys, 3 properties": [_VALUE, _KEY, f"array({_HEADERS}) headers"],
}

STEADY_CASES = [Case(1_000_000, _FIVE_COLUMNS, steady=True), Case(1_000_000, None, steady=True)]


class Flow(NamedTuple):
    """One run: events per second, and µs of CPU per event."""

    rate: float
    cpu: float


def throughput(
    spark: SparkSession, folder: Path, log: Log, *, cases: Sequence[Case], events: int, runs: int
) -> Iterator[Row]:
    """Measure `runs` runs that read a backlog of `events`."""
    with emulator(PARTITIONS) as server:
        _fill_hub(server, events)
        for case in cases:
            flows = []
            for run in range(-_WARM_UP, runs):
                log(f"{case.what}: run {run} of {runs}")
                flows.append(_measure_ours(spark, folder / f"{case.what}-{run}", server.address, case, events))
            yield Row(f"{case.what}: events/s", "events/s", [flow.rate for flow in flows[_WARM_UP:]])
            yield Row(f"{case.what}: CPU a row", "µs CPU", [flow.cpu for flow in flows[_WARM_UP:]])


def compare_with_kafka(
    spark: SparkSession,
    folder: Path,
    log: Log,
    *,
    cases: Sequence[Case],
    events: int,
    steady_cases: Sequence[Case],
    steady_events: int,
    seconds: float,
    written: int,
    runs: int,
) -> Iterator[Row]:
    """Measure the throughput and, for `seconds`, the latency, both compared with Spark's Kafka source. Measure a start,
    compared with that of a trivial Python source."""
    with kafka_broker(fetch(folder.parent / "jars"), folder / "kafka") as servers:
        with _backlogs(spark, servers, events) as (address, read):
            for case in cases:
                flows = [
                    _measure_both(spark, folder / f"{case.what}-{run}", log, address, read, case, events)
                    for run in range(-_WARM_UP, runs)
                ][_WARM_UP:]
                ours, kafka = zip(*flows, strict=True)
                yield _kafka_row(f"{case.what}: events/s", [x.rate for x in ours], [x.rate for x in kafka])
                yield _kafka_row(f"{case.what}: CPU a row", [x.cpu for x in ours], [x.cpu for x in kafka])
        with _backlogs(spark, servers, PARTITIONS) as (address, read):
            yield _compare_starts(spark, folder, log, address, read, runs)
        with _backlogs(spark, servers, steady_events) as (address, read):
            for case in steady_cases:
                flows = [
                    _measure_both(spark, folder / f"{case.what}-{run}", log, address, read, case, steady_events)
                    for run in range(runs)
                ]
                ours, kafka = zip(*flows, strict=True)
                yield _kafka_row(f"{case.what}: CPU a row", [x.cpu for x in ours], [x.cpu for x in kafka])
        yield _kafka_row("event to sink, median", *_latencies(spark, servers, folder, log, seconds, runs))
        yield from _compare_sinks(spark, servers, log, written, runs)


@contextlib.contextmanager
def _backlogs(spark: SparkSession, servers: str, events: int) -> Iterator[tuple[str, dict[str, str]]]:
    """A hub and a topic that each contain `events`: the hub's connection string, and the options to read the topic."""
    with emulator(PARTITIONS) as server, topic(spark, servers, f"backlog-{events}", PARTITIONS) as name:
        _fill_hub(server, events)
        rows = spark.range(events).selectExpr(f"repeat('x', {SIZE}) value", f"cast(id % {PARTITIONS} as int) partition")
        rows.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", name).save()
        yield server.address, {"kafka.bootstrap.servers": servers, "subscribe": name, "startingOffsets": "earliest"}


def _measure_both(
    spark: SparkSession, folder: Path, log: Log, address: str, read: Mapping[str, str], case: Case, events: int
) -> tuple[Flow, Flow]:
    """Run this source and then Spark's Kafka source, with the options `read`."""
    log(folder.name)
    ours = _measure_ours(spark, folder / "ours", address, case, events)
    options = {**read, **case.limit("maxOffsetsPerTrigger")}
    return ours, _measure_flow(spark, folder / "kafka", "kafka", options, None, events, steady=case.steady)


def _compare_starts(
    spark: SparkSession, folder: Path, log: Log, address: str, read: Mapping[str, str], runs: int
) -> Row:
    """The CPU time of a query that reads eight events, compared with that of a trivial Python source."""
    spark.dataSource.register(trivial_source())
    sources: dict[str, Mapping[str, str]] = {
        "ehbalance": {"connectionString": address, "startingPosition": "earliest"},
        "trivial": {},
        "kafka": read,
    }
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    for run in range(-_WARM_UP, runs):
        log(f"start: run {run} of {runs}")
        for name, options in sources.items():
            before = _cpu()
            query = start(spark, options, folder / f"start-{name}-{run}", source=name, available_now=True)
            query.awaitTermination()
            await_planners()
            seconds[name] += [_cpu() - before] if run >= 0 else []
    return Row("CPU of a start", "× trivial source", ratios(seconds["ehbalance"], seconds["trivial"]), seconds)


def _compare_sinks(spark: SparkSession, servers: str, log: Log, rows: int, runs: int) -> Iterator[Row]:
    """The CPU time of writing `rows`, compared with Spark's Kafka sink."""
    for what, columns in WRITES.items():
        with emulator(PARTITIONS) as server, topic(spark, servers, f"written-{rows}", PARTITIONS) as name:
            sinks = {
                "ehbalance": {"connectionString": server.address, "kafkaColumns": "true"},
                "kafka": {"kafka.bootstrap.servers": servers, "topic": name},
            }
            spent: dict[str, list[float]] = {sink: [] for sink in sinks}
            for run in range(-_WARM_UP, runs):
                log(f"writing, {what}: run {run} of {runs}")
                for sink, options in sinks.items():
                    start, whole = (_write(spark, sink, options, columns, count) for count in (PARTITIONS, rows))
                    spent[sink] += [(whole - start) / rows * 1e6] if run >= 0 else []
                if (arrived := server.clear(PARTITIONS)) != PARTITIONS + rows:
                    raise RuntimeError(f"{arrived} of {PARTITIONS + rows} events have arrived")
        yield _kafka_row(f"writing, {what}: CPU a row", spent["ehbalance"], spent["kafka"])


def _write(spark: SparkSession, sink: str, options: Mapping[str, str], columns: Sequence[str], rows: int) -> float:
    """Write `rows`. Returns the CPU time in seconds."""
    before = _cpu()
    spark.range(rows).selectExpr(*columns).write.format(sink).options(**options).mode("append").save()
    return _cpu() - before


def _kafka_row(what: str, ours: Sequence[float], kafka: Sequence[float]) -> Row:
    return Row(what, "× Kafka", ratios(ours, kafka), {"ehbalance": ours, "Kafka": kafka})


def _fill_hub(server: Any, events: int) -> None:
    for partition in range(PARTITIONS):
        server.fill(partition, b"x" * SIZE, events // PARTITIONS)


def _measure_ours(spark: SparkSession, folder: Path, address: str, case: Case, events: int) -> Flow:
    options = {"connectionString": address, "startingPosition": "earliest"}
    options |= case.limit("maxEventsPerTrigger")
    return _measure_flow(spark, folder, "ehbalance", options, case.columns, events, steady=case.steady)


def _measure_flow(
    spark: SparkSession,
    folder: Path,
    source: str,
    options: dict[str, str],
    columns: str | None,
    events: int,
    *,
    steady: bool,
) -> Flow:
    """Run a query that reads `events`. If `steady`, CPU time is measured after the first batch."""
    before, measured = _cpu(), events
    query = start(spark, options, folder, source=source, columns=columns, available_now=True)
    if steady:
        _wait_for(query, 1)
        before, measured = _cpu(), events - sum(report["numInputRows"] for report in batches(query))
    query.awaitTermination()
    await_planners()
    cpu, reports = _cpu() - before, batches(query)
    if (rows := sum(report["numInputRows"] for report in reports)) != events:
        raise RuntimeError(f"{source} has read {rows} of {events} events")
    return Flow(events / sum(map(_duration, reports)), cpu / max(1, measured) * 1e6)


def _cpu() -> float:
    """CPU time of the JVM and Python so far, in seconds."""
    parts = cpu_by_part()
    return parts["JVM"] + parts["Python"]


# --- latency -----------------------------------------------------------------------------------------------------


class Producer:
    """Appends events to all partitions in turn, and records when they arrived."""

    def __init__(self, append: Callable[[int, list[bytes]], None]) -> None:
        """`append` must return when the bodies have arrived."""
        self._append = append
        self.sent = 0
        #: Partition → for each send, the sequence number after its last event, and the time at which it had arrived.
        self._ends: dict[str, list[int]] = defaultdict(lambda: [0])
        self._times: dict[str, list[float]] = defaultdict(lambda: [0.0])

    def send(self, count: int) -> None:
        first, self.sent = self.sent, self.sent + count
        for partition in range(PARTITIONS):
            if mine := len(range((partition - first) % PARTITIONS, count, PARTITIONS)):
                self._append(partition, [b"x" * SIZE] * mine)
                self._ends[str(partition)].append(self._ends[str(partition)][-1] + mine)
                self._times[str(partition)].append(time.time())

    def run(self, stopped: threading.Event) -> None:
        """Send at `RATE` until `stopped` is set."""
        began, before = time.monotonic(), self.sent
        while not stopped.wait(_TICK):
            self.send(before + int((time.monotonic() - began) * RATE) - self.sent)

    def arrival(self, partition: str, number: int) -> float:
        """The time at which an event had arrived, in seconds since 1970."""
        return self._times[partition][bisect_right(self._ends[partition], number)]


def _latencies(
    spark: Any, servers: str, folder: Path, log: Log, seconds: float, runs: int
) -> tuple[list[float], list[float]]:
    """The median milliseconds from an event's arrival to the end of its batch, for each run of both sources."""
    ours, kafka = list[float](), list[float]()
    for run in range(runs + 1):
        log(f"event to sink: run {run} of {runs}, {seconds:g} s each")
        place = folder / f"latency-{run}"
        with emulator(PARTITIONS) as server:
            options = {"connectionString": server.address, "leaseTable": f"{place / 'leases'}"}
            query = start(spark, options | {"startingPosition": "earliest"}, place / "ours")
            ours.append(_median_latency(query, Producer(server.append), seconds, _our_ranges))
        with (
            topic(spark, servers, f"latency-{run}", PARTITIONS) as name,
            contextlib.closing(Sender(spark, servers, name)) as sender,
        ):
            options = {"kafka.bootstrap.servers": servers, "subscribe": name, "startingOffsets": "earliest"}
            query = start(spark, options, place / "kafka", source="kafka")
            kafka.append(_median_latency(query, Producer(sender.append), seconds, _kafka_ranges))
    return ours[1:], kafka[1:]


Ranges = Callable[[Mapping[str, Any]], Iterator[tuple[str, int, int]]]


def _median_latency(query: StreamingQuery, producer: Producer, seconds: float, ranges_of: Ranges) -> float:
    producer.send(PARTITIONS)
    _wait_for(query, producer.sent)
    stopped, before, settled = threading.Event(), len(batches(query)), min(_SETTLING_SECONDS, seconds)
    producing = threading.Thread(target=producer.run, args=(stopped,))
    producing.start()
    stopped.wait(settled + seconds)
    stopped.set()
    producing.join()
    _wait_for(query, producer.sent)
    under_load = batches(query)[before:]
    query.stop()
    times = [
        _start_time(batch) + _duration(batch) - producer.arrival(partition, number)
        for batch in under_load
        if _start_time(batch) - _start_time(under_load[0]) > settled
        for partition, first, end in ranges_of(batch)
        for number in range(first, end)
    ]
    return 1000 * statistics.median(times)


def _our_ranges(batch: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    end = batch["sources"][0]["endOffset"]
    for partition, range_ in (json.loads(end) if isinstance(end, str) else end)["partitions"].items():
        yield partition, range_["from"], range_["to"]


def _kafka_ranges(batch: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    first, end = (batch["sources"][0][name] for name in ("startOffset", "endOffset"))
    for name, ends in end.items():
        for partition, number in ends.items():
            yield partition, first[name][partition], number


def _wait_for(query: StreamingQuery, rows: int, timeout: float = 120.0) -> None:
    """Wait until the batches have a total of `rows` rows. Raises `TimeoutError`."""
    deadline = time.monotonic() + timeout
    while sum(batch["numInputRows"] for batch in batches(query)) < rows:
        if time.monotonic() > deadline or not query.isActive:
            raise TimeoutError(f"the query has not read {rows} events in {timeout:g} s: {query.exception()}")
        time.sleep(0.05)


def _start_time(batch: Mapping[str, Any]) -> float:
    """When a batch began, in seconds since 1970."""
    return datetime.fromisoformat(batch["timestamp"].replace("Z", "+00:00")).timestamp()


def _duration(batch: Mapping[str, Any]) -> float:
    return float(batch["durationMs"]["triggerExecution"]) / 1000


THROUGHPUT = Bench(
    "throughput",
    throughput,
    compared_with="",
    short={"cases": CASES[1:2], "events": 10_000, "runs": 1},
    full={"cases": CASES, "events": 2_000_000, "runs": 3},
    bars={},
    needs_spark=True,
)
KAFKA = Bench(
    "kafka",
    compare_with_kafka,
    compared_with="Spark's Kafka source in the same session",
    short={"cases": CASES[:1], "events": 20_000, "seconds": 2, "runs": 1}
    | {"steady_cases": [Case(20_000, _FIVE_COLUMNS, steady=True)], "steady_events": 60_000, "written": 2_000},
    # In 24 GiB, six million events fit both into the emulator and, for the broker, into the page cache.
    full={"cases": CASES, "events": 2_000_000, "seconds": 15, "runs": 5}
    | {"steady_cases": STEADY_CASES, "steady_events": 6_000_000, "written": 300_000},
    bars={
        f"writing, {[*WRITES][-1]}: CPU a row": Bar("most", 1.5),
        **{f"{case.what}: events/s": Bar("least", 1.2 if case.batch else 1.5) for case in CASES},
        **{f"{case.what}: CPU a row": Bar("most", 1.15 if case.columns else 1.3) for case in STEADY_CASES},
        "CPU of a start": Bar("most", 1.3),
        "event to sink, median": Bar("most", 0.3),
    },
    needs_spark=True,
    needs_maven=True,
)
