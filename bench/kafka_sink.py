"""The sink beside Spark's own Kafka sink: the same rows, on the same two cores.

| what | how it is measured |
|---|---|
| rows/s | rows / the time of `save()`; in a stream / Spark's reported time of the batches |
| CPU a row | of all processes but broker and emulator, from the start until all planners have ended |
| CPU of the server | that of emulator or broker: both run on the same cores, so that it is in the rows/s |
| a write of few rows | its CPU and time: what each of the other numbers has in it, by its number of rows |

Runs of both alternate; each ratio is that of two runs in a row. Both are given the columns of Kafka's sink.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from bench.common import Log, Row, batches, emulator
from bench.kafka import SIZE, Jars, broker, create_topic, delete_topic, ratio
from bench.processes import await_planners, cpu_by_part
from bench.sink import KEYS, PARTITIONS, PROPERTIES, SUBJECT, arrived

#: Rows that take no time.
_FEW = 800

#: Runs before those that count: Java compiles for so long.
_WARM_UP = 2

_VALUE = f"cast(repeat('x', {SIZE}) AS binary) value"
_KEY = f"concat('key ', id % {KEYS}) key"
_HEADERS = [f"struct('{name}' AS key, cast('{value}' AS binary) AS value)" for name, value in PROPERTIES.items()]


class Flow(NamedTuple):
    """One run: rows per second, and µs of CPU per row, without that of the server and of the server alone."""

    rate: float
    cpu: float
    server: float


class Case(NamedTuple):
    """Which rows are written: how many, of which columns; and in how many micro-batches of a stream, if it is one."""

    what: str
    rows: int
    columns: Sequence[str]
    batches: int = 0


CASES = [
    Case("a write of few rows", _FEW, [_VALUE]),
    Case("1 KB", 500_000, [_VALUE]),
    Case("1 KB, 1,000 keys", 500_000, [_VALUE, _KEY]),
    Case("1 KB, 1,000 keys, 3 headers", 500_000, [_VALUE, _KEY, f"array({', '.join(_HEADERS)}) headers"]),
    Case("a stream of 250,000 rows a batch, 1 KB, 1,000 keys", 1_000_000, [_VALUE, _KEY], batches=4),
]


def measure(
    spark: SparkSession, jars: Jars, folder: Path, log: Log, *, cases: Sequence[Case], share: float, runs: int
) -> Iterator[Row]:
    """Measure each case, with the fraction `share` of its rows."""
    with broker(jars, folder / "kafka-sink") as servers:
        for number, case in enumerate(cases):
            rows = case.rows if case.rows <= _FEW else int(case.rows * share)
            topic, ids = f"sink-{number}", folder / f"ids-{number}"
            create_topic(spark, servers, topic, PARTITIONS)
            spark.range(0, rows, 1, 2 * max(case.batches, 1)).write.parquet(str(ids))  # two files a batch: two tasks
            kafka = {"kafka.bootstrap.servers": servers, "topic": topic}
            flows: list[tuple[Flow, Flow]] = []
            with emulator(PARTITIONS) as server:
                ours = {"connectionString": server.address, "kafkaColumns": "true"}
                for run in range(-_WARM_UP, runs):
                    log(f"sink, {case.what}: " + (f"run {run + 1} of {runs}" if run >= 0 else "warming up"))
                    before = arrived(server)
                    found = (
                        _flow(spark, case, rows, ids, "ehbalance", ours),
                        _flow(spark, case, rows, ids, "kafka", kafka),
                    )
                    if (sent := arrived(server) - before) < rows:
                        raise RuntimeError(f"{sent} of {rows} rows have arrived")
                    flows += [found] if run >= 0 else []
            delete_topic(spark, servers, topic)
            yield from _ratios(case, flows)


def _ratios(case: Case, flows: Sequence[tuple[Flow, Flow]]) -> Iterator[Row]:
    of_each: dict[str, Callable[[Flow], float]] = {
        "rows/s": lambda flow: flow.rate,
        "CPU a row, µs": lambda flow: flow.cpu,
        "CPU of the server a row, µs": lambda flow: flow.server,
    }
    if case.rows <= _FEW:
        of_each = {"s": lambda flow: case.rows / flow.rate, "CPU, s": lambda flow: flow.cpu * case.rows / 1e6}
    for what, value in of_each.items():
        yield ratio(f"{case.what}: {what}", [(value(one), value(other)) for one, other in flows], SUBJECT)


def _flow(spark: SparkSession, case: Case, rows: int, ids: Path, sink: str, options: Mapping[str, str]) -> Flow:
    before, began = cpu_by_part(), time.monotonic()
    if case.batches:
        source = spark.readStream.schema("id long").option("maxFilesPerTrigger", "2").parquet(str(ids))
        writer = source.selectExpr(*case.columns).writeStream.format(sink).options(**options)
        checkpoint = ids.with_name(f"checkpoint-{time.time_ns()}")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        took = sum(batch["durationMs"]["triggerExecution"] for batch in batches(query)) / 1000
    else:
        frame = spark.read.parquet(str(ids)).selectExpr(*case.columns)
        frame.write.format(sink).options(**options).mode("append").save()
        took = time.monotonic() - began
    await_planners()
    after = cpu_by_part()
    spent = {part: (after[part] - before.get(part, 0.0)) / rows * 1e6 for part in after}
    return Flow(rows / took, spent["JVM"] + spent["Python"], spent["emulator" if sink == "ehbalance" else "broker"])
