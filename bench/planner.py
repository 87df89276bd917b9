"""The cost of waiting: the planner of a query that has nothing to read.

| what | how it is measured |
|---|---|
| `latestOffset` | the call in this process, with a lease table, 10 ms after the last one |
| management request | CPU per partition of requests for all partitions every 0.1 s; also by the client's own calls |
| idle planner | CPU of a waiting query's planner process, with lease keeper and hub watcher (Linux) |
| trivial source | the same for a source whose offset is one number and that does nothing: Spark's own part |
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from bench.ceiling import ReadySource
from bench.common import GROUP, Bar, Log, Row, emulator, start
from bench.processes import cpu, planners
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.metadata import HubMetadata
from spark_ehbalance.source.datasource import StreamReader
from spark_ehbalance.source.options import stream_options

SUBJECT = "planner"
PARTITIONS = 8

#: Spark's `spark.sql.streaming.pollingDelay`, in seconds.
_POLLING_DELAY = 0.01

#: Seconds between two requests for all partitions.
_REQUEST_INTERVAL = 0.1

#: Seconds after which a started query has settled: the rate of requests is lowest after ten without events.
_SETTLED = 12.0


def measure(spark: SparkSession, folder: Path, log: Log, *, seconds: float, runs: int) -> Iterator[Row]:
    """Each run starts new queries and measures each for `seconds`."""
    spark.dataSource.register(ReadySource)
    calls, ours, public, idle, trivial = (list[float]() for _ in range(5))
    nothing = {"events": "0", "size": "1", "tasks": "1", "rows": "1"}
    with emulator(PARTITIONS) as server:
        read = {"connectionString": server.address, "startingPosition": "earliest"}
        for run in range(runs):
            log(f"planner: run {run + 1} of {runs}, {seconds:g} s of idling")
            ours.append(requests(server.connection, seconds))
            public.append(public_requests(server.connection, seconds))
            # Separate lease tables: with one the readers would share the partitions.
            run_folder = folder / f"planner-{run}"
            calls.append(1000 * idle_calls({**read, "leaseTable": f"{run_folder / 'calls'}"}, seconds))
            idle += _share(
                spark, {**read, "leaseTable": f"{run_folder / 'leases'}"}, run_folder / "ours", "ehbalance", seconds
            )
            trivial += _share(spark, nothing, run_folder / "trivial", "ready", seconds)
    yield Row(SUBJECT, "latestOffset, idle, median", "ms", tuple(calls), Bar("most", 1.0))
    yield Row(
        SUBJECT, "management request for a partition", "µs CPU", tuple(ours), None, {"by public calls": tuple(public)}
    )
    if idle:
        compared = {"a trivial source": tuple(trivial)}
        yield Row(SUBJECT, "planner of an idle query", "% of a core", tuple(idle), Bar("most", 3.0), compared)


def idle_calls(options: Mapping[str, str], seconds: float) -> float:
    """The median time of `latestOffset`, in seconds, of a reader in this process that has nothing to read."""
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


def requests(connection: Connection, seconds: float) -> float:
    """The CPU time of a request for one partition, in µs, over a connection that stays open."""
    with HubMetadata(connection, GROUP, most_requests=None) as metadata:
        partitions = metadata.partition_ids()
        metadata.partition_states(partitions)
        spent, rounds = time.process_time(), max(1, int(seconds / _REQUEST_INTERVAL))
        for _ in range(rounds):
            time.sleep(_REQUEST_INTERVAL)
            metadata.partition_states(partitions)
        return (time.process_time() - spent) / rounds / len(partitions) * 1e6


def public_requests(connection: Connection, seconds: float) -> float:
    with connection.consumer_client(GROUP) as client:
        partition = client.get_partition_ids()[0]
        spent, count, end = time.process_time(), 0, time.monotonic() + seconds
        while time.monotonic() < end or not count:
            client.get_partition_properties(partition)
            count += 1
        return (time.process_time() - spent) / count * 1e6


def _share(spark: SparkSession, options: Mapping[str, str], folder: Path, source: str, seconds: float) -> list[float]:
    """The CPU time of a waiting query's planner, in percent of a core; empty if it cannot be measured."""
    before = set(planners())
    query = start(spark, options, folder, source=source)
    try:
        query.processAllAvailable()
        new = set(planners()) - before
        if len(new) != 1:
            return []
        (pid,) = new
        time.sleep(min(_SETTLED, seconds))
        began, spent = time.monotonic(), cpu(pid)
        time.sleep(seconds)
        return [100 * (cpu(pid) - spent) / (time.monotonic() - began)]
    finally:
        query.stop()
