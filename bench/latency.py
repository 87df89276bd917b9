"""How long an event takes to the sink, at a steady 1,000 events per second.

| what | how it is measured |
|---|---|
| start | time from `start()` in a warm session to the end of the first batch with events |
| tiny batch | Spark's reported time for a batch with one event in an otherwise idle query |
| event to sink | time from an event's arrival at the hub to the end of its batch |
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.common import Bar, Log, Row, batches, emulator, start

SUBJECT = "latency"
PARTITIONS, RATE = 8, 1000.0

#: Seconds between two sends of the producer. An event has arrived when its send returns.
_TICK = 0.01

#: Seconds under load that do not count: the JVM compiles code meanwhile.
_WARM_UP = 5.0

_BODY = b"x" * 1000

_TINY, _MEDIAN = "batch with one event", "event to sink, median"


class Producer:
    """Appends events to all partitions in turn and records their arrival times."""

    def __init__(self, append: Callable[[int, list[bytes]], None], partitions: int) -> None:
        """`append` appends bodies to a partition, and returns when they have arrived."""
        self._append, self._partitions = append, partitions
        self.sent = 0
        #: By partition: the sequence number after each send's last event, and the time of the send.
        self.ends: dict[str, list[int]] = defaultdict(lambda: [0])
        self.times: dict[str, list[float]] = defaultdict(lambda: [0.0])

    def send(self, count: int) -> None:
        """Append `count` events."""
        first = self.sent
        self.sent += count
        for partition in range(self._partitions):
            mine = len(range((partition - first) % self._partitions, count, self._partitions))
            if mine:
                self._append(partition, [_BODY] * mine)
                self.ends[str(partition)].append(self.ends[str(partition)][-1] + mine)
                self.times[str(partition)].append(time.time())

    def run(self, rate: float, stopped: threading.Event) -> None:
        """Send at a steady rate until `stopped`."""
        began, before = time.monotonic(), self.sent
        while not stopped.wait(_TICK):
            self.send(before + int((time.monotonic() - began) * rate) - self.sent)

    def arrival(self, partition: str, sequence_number: int) -> float:
        """The wall-clock time at which an event had arrived."""
        return self.times[partition][bisect_right(self.ends[partition], sequence_number)]


def latencies(progress: list[Mapping[str, Any]], producer: Producer) -> list[float]:
    """The time from arrival to the end of its batch, of every event in these batches."""
    found = []
    for batch in progress:
        end = finished(batch)
        for partition, each in offset_of(batch)["partitions"].items():
            found += [end - producer.arrival(partition, n) for n in range(each["from"], each["to"])]
    return found


def measure(spark: SparkSession, folder: Path, log: Log, *, seconds: float, runs: int) -> Iterator[Row]:
    """Each run starts a new query and loads it for `seconds`; run 0 warms up, without load."""
    found: dict[str, list[float]] = defaultdict(list)
    for run in range(runs + 1):
        log(f"latency: run {run} of {runs}, {seconds if run else 0:g} s of {RATE:,.0f} events/s")
        with emulator(PARTITIONS) as server:
            producer = Producer(server.append, PARTITIONS)
            producer.send(PARTITIONS)
            run_folder = folder / f"latency-{run}"
            read = {"connectionString": server.address, "startingPosition": "earliest"}
            began = time.time()
            query = start(spark, {**read, "leaseTable": f"{run_folder / 'leases'}"}, run_folder)
            first = wait_for(query, producer.sent)
            if run:
                found["start to the first events in the sink, warm session"].append(finished(first[0]) - began)
                found[_TINY].append(_tiny(query, producer))
                under = under_load(query, producer, seconds)
                found[f"batch at {RATE:,.0f} events/s"].append(statistics.median(map(_took, under)))
                times = latencies(under, producer)
                cuts = statistics.quantiles(times, n=100)
                found[_MEDIAN].append(cuts[49])
                found["event to sink, 95 %"].append(cuts[94])
                found["event to sink, 99 %"].append(cuts[98])
                found["event to sink, longest"].append(max(times))
            query.stop()
    in_ms = {what: tuple(1000 * value for value in values) for what, values in found.items()}
    twice = Bar("most", 2 * statistics.median(in_ms[_TINY]))
    for what, values in in_ms.items():
        if what == _MEDIAN:
            yield Row(SUBJECT, what, "ms", values, twice, {_TINY: in_ms[_TINY]})
        else:
            yield Row(SUBJECT, what, "ms", values)


def _tiny(query: StreamingQuery, producer: Producer) -> float:
    """The median time of a batch with one event."""
    for _ in range(20):
        producer.send(1)
        wait_for(query, producer.sent)
    return statistics.median(map(_took, batches(query)[-10:]))


def under_load(query: StreamingQuery, producer: Producer, seconds: float) -> list[Mapping[str, Any]]:
    """The batches of `seconds` at a steady rate, after the warm-up."""
    stopped, before, warm_up = threading.Event(), len(batches(query)), min(_WARM_UP, seconds)
    producing = threading.Thread(target=producer.run, args=(RATE, stopped))
    producing.start()
    try:
        stopped.wait(warm_up + seconds)
    finally:
        stopped.set()
        producing.join()
    wait_for(query, producer.sent)
    under = batches(query)[before:]
    return [each for each in under if began(each) - began(under[0]) > warm_up]


def wait_for(query: StreamingQuery, rows: int, timeout: float = 120.0) -> list[Mapping[str, Any]]:
    """Wait until the batches have `rows` rows in all. Returns the batches."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and query.isActive:
        found = batches(query)
        if sum(batch["numInputRows"] for batch in found) >= rows:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"the query has not read {rows} events in {timeout:g} s: {query.exception()}")


def began(batch: Mapping[str, Any]) -> float:
    """When a batch has begun, in seconds since 1970."""
    return datetime.fromisoformat(batch["timestamp"].replace("Z", "+00:00")).timestamp()


def finished(batch: Mapping[str, Any]) -> float:
    """When a batch has ended, in seconds since 1970."""
    return began(batch) + _took(batch)


def _took(batch: Mapping[str, Any]) -> float:
    return float(batch["durationMs"]["triggerExecution"]) / 1000


def offset_of(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """The end of a batch."""
    end = batch["sources"][0]["endOffset"]
    decoded: Mapping[str, Any] = json.loads(end) if isinstance(end, str) else end
    return decoded
