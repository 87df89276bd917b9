"""What becomes of the receivers that workers keep open between two tasks of a query with a lease table.

| what | how it is measured |
|---|---|
| found again | share of the partitions of a batch, read in the batch before too, for which no connection was opened; |
| | the rest of that share had to be opened anew, because Spark gave the partition to another worker |
| CPU a batch | of JVM and Python, from the third batch on |
| opened anew | CPU and time until the first event has come, in a process of its own |

Each batch has enough events for a task of each partition; `parallelism` says how many there are. Partitions are added
while the query runs, one after the other.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.common import GROUP, HUB, Emulator, Log, Row, batches, emulator, start
from bench.latency import began, finished, offset_of
from bench.processes import cpu_by_part, end_workers
from bench.reader import PREFETCH, PROCESSES
from bench.relay import Relay
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.receiver import PartitionAddress, RowFormat
from spark_ehbalance.source.receivers import Key, Receivers

SUBJECT = "receivers"

#: Events of a batch: enough for a task of each of 16 partitions.
_PARTITIONS, _BATCH = 8, 80_000

#: Batches of the backlog that is kept.
_AHEAD = 4

#: Seconds of a round trip with which opening is measured.
_ROUND_TRIPS = (0.0, 0.01)

#: Batches that do not count: receivers are opened for the first time.
_FIRST = 2

_SAME, _ADDED = "same partitions", "a partition added"


class Case(NamedTuple):
    """How many tasks a batch has, in new workers; or in those that are `used`, of which there are two."""

    tasks: int
    used: bool = False

    @property
    def what(self) -> str:
        """For the report."""
        tasks = "1 task a batch" if self.tasks == 1 else f"{self.tasks} tasks a batch"
        return f"{tasks}, another worker idle" if self.used else tasks


CASES = (Case(2), Case(1, used=True), Case(8), Case(1))


def measure(
    spark: SparkSession, folder: Path, log: Log, *, cases: Sequence[Case] = CASES, steps: int, added: int, runs: int
) -> Iterator[Row]:
    """Each run of a case adds `added` partitions, with `steps` batches before each and after the last."""
    yield from _opening(log, 20 * steps)
    found: dict[Case, list[Mapping[str, float]]] = defaultdict(list)
    for run in range(runs + 1):
        for case in cases if run else cases[:1]:  # run 0 warms up
            log(f"receivers: {case.what}, run {run} of {runs}")
            if not case.used:
                end_workers()
            shares = _shares(spark, folder / f"receivers-{run}-{case.tasks}-{case.used}", case, steps, added)
            found[case] += [shares] if run else []
    for case, shares in found.items():
        same, other, cpu = (tuple(each[what] for each in shares) for what in (_SAME, _ADDED, "cpu"))
        yield Row(SUBJECT, f"{case.what}, {_SAME}: found again", "%", same, None, {_ADDED: other})
        yield Row(SUBJECT, f"{case.what}: CPU a batch", "ms CPU", cpu)


def _shares(spark: SparkSession, folder: Path, case: Case, steps: int, added: int) -> Mapping[str, float]:
    """The share of receivers found again, in %, in batches of the same partitions and in those with one more; and ms of
    CPU a batch."""
    partitions = _PARTITIONS
    with emulator(partitions) as server, server.relayed() as (relayed, relay):
        options = {"connectionString": relayed.address, "startingPosition": "earliest", "balanceInterval": "1"}
        options |= {"leaseTable": str(folder / "leases"), "parallelism": f"{case.tasks}"}
        backlog = _Backlog(server)
        backlog.fill(partitions)
        query = start(spark, options | {"maxEventsPerTrigger": f"{_BATCH}"}, folder)
        try:
            backlog.until(query, partitions, _FIRST)
            before, first = cpu_by_part(), len(batches(query))
            backlog.until(query, partitions, _FIRST + steps)
            for _ in range(added):
                server.control.add_partitions(HUB, 1)
                partitions += 1
                backlog.until(query, partitions, steps)
            after, last = cpu_by_part(), len(batches(query))
        finally:
            query.stop()
        spent = sum(after[part] - before[part] for part in ("JVM", "Python"))
        return _found(batches(query), relay) | {"cpu": 1000 * spent / (last - first)}


class _Backlog:
    """Keeps so many events in a hub that each batch is full."""

    def __init__(self, server: Emulator) -> None:
        self._server, self._sent = server, 0

    def fill(self, partitions: int) -> None:
        for partition in range(partitions):
            self._server.fill(partition, b"x" * 100, _AHEAD * _BATCH // partitions)
        self._sent += _AHEAD * _BATCH // partitions * partitions

    def until(self, query: StreamingQuery, partitions: int, steps: int) -> None:
        """Go on until `steps` batches have had events of all `partitions`."""
        deadline = time.monotonic() + 300
        while list(map(len, map(_read, done := batches(query)))).count(partitions) < steps:
            if not query.isActive or time.monotonic() > deadline:
                raise TimeoutError(f"the query does not go on: {query.exception()}")
            if self._sent - sum(each["numInputRows"] for each in done) < _AHEAD * _BATCH:
                self.fill(partitions)
            time.sleep(0.05)


def _read(batch: Mapping[str, Any]) -> set[str]:
    """The partitions of a batch that had events."""
    return {name for name, each in offset_of(batch)["partitions"].items() if each["to"] > each["from"]}


def _found(done: list[Mapping[str, Any]], relay: Relay) -> dict[str, float]:
    """The share in % of receivers that were found again, by whether there were new partitions."""
    kept, wanted = defaultdict[str, int](int), defaultdict[str, int](int)
    for one, other in itertools.pairwise(done[_FIRST - 1 :]):
        old, new = _read(one) & _read(other), _read(other) - _read(one)
        opened = sum(began(other) <= came < finished(other) for came in relay.came) - len(new)
        wanted[_ADDED if new else _SAME] += len(old)
        kept[_ADDED if new else _SAME] += len(old) - max(0, opened)
    return {which: 100 * kept[which] / wanted[which] for which in (_SAME, _ADDED)}


def _opening(log: Log, times: int) -> Iterator[Row]:
    """What a receiver costs that is opened anew, compared with one that is found again; in turns."""
    with emulator(1) as server:
        server.fill(0, b"x" * 100, 2 * times)
        for seconds in _ROUND_TRIPS:
            log(f"receivers: opening, a round trip of {1000 * seconds:.0f} ms")
            with server.relayed(seconds) as (relayed, _), ProcessPoolExecutor(1, PROCESSES) as process:
                anew, kept = process.submit(_open, relayed.connection, times).result()
            for index, unit in enumerate(("ms CPU", "ms")):
                what = f"receiver opened anew, round trips of {1000 * seconds:.0f} ms"
                yield Row(SUBJECT, what, unit, (anew[index],), None, {"found again": (kept[index],)})


def _open(connection: Connection, times: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """The median ms of CPU and of time for a receiver that is opened anew, and for one that is found again."""
    receivers, key = Receivers(), Key(PartitionAddress(connection, GROUP, "0"), 1, RowFormat())
    spent: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    position = 0
    for anew in (True, False) * times:
        cpu, clock = time.process_time(), time.monotonic()
        if anew:
            receivers.close()
        receiver = receivers.take(key, position, PREFETCH)
        receiver.receive(1, 10.0, 1)
        receivers.keep(key, receiver)
        position = receiver.next or 0
        spent[anew].append((1000 * (time.process_time() - cpu), 1000 * (time.monotonic() - clock)))
    receivers.close()
    anew_cpu, anew_time = map(statistics.median, zip(*spent[True][1:], strict=True))
    kept_cpu, kept_time = map(statistics.median, zip(*spent[False][1:], strict=True))
    return (anew_cpu, anew_time), (kept_cpu, kept_time)
