"""How soon an event is in the sink, and what waiting costs: `python -m bench.latency [--seconds 30] [--json]`.

| what | how it is measured |
|---|---|
| start | from `start()` in a warm session until the first batch with events is finished |
| tiny batch | the time that Spark reports for a batch with one event, of an otherwise idle query |
| event to sink | from an event's arrival at the hub until Spark has finished the batch with it |
| `latestOffset`, idle | the call in this process, on a group with a lease table, 10 ms after the one before |
| idle planner | CPU of a waiting query's planner process, lease keeper and hub watcher included (Linux) |
| 256 partitions | `addBatch` of a batch with one event in each, in packed tasks, and with a task for each partition |
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

from bench.common import HUB, emulator, session
from spark_ehbalance.emulator.control import EmulatorControl
from spark_ehbalance.options import stream_options
from spark_ehbalance.source.datasource import StreamReader

PARTITIONS, RATE = 8, 1000.0
MANY = 256

#: Seconds between two sends of the producer; an event is taken to have come when its send was answered.
_TICK = 0.01

_BODY = b"x" * 1000


@dataclass
class Outcome:
    """What was measured; times in seconds, CPU as a share of one core."""

    start: float
    tiny_batch: float
    median: float
    p95: float
    p99: float
    longest: float
    batch: float
    latest_offset: float
    idle_cpu: float | None
    packed: float | None
    a_task_each: float | None

    @property
    def passed(self) -> bool:
        quiet = self.idle_cpu is None or self.idle_cpu < 0.03
        return self.median <= 2 * self.tiny_batch and self.latest_offset <= 0.001 and quiet

    def report(self) -> Table:
        """The table for people."""
        table = Table(title="from an event to the sink", title_justify="left")
        for column in ("what", "measured", "bar"):
            table.add_column(column, justify="left" if column == "what" else "right")
        ms = "{:,.1f} ms".format
        table.add_row("start to first events finished", ms(self.start * 1000))
        table.add_row("batch with one event", ms(self.tiny_batch * 1000))
        table.add_row(f"batch at {RATE:,.0f} events/s", ms(self.batch * 1000))
        table.add_row("event to sink, median", ms(self.median * 1000), ms(2000 * self.tiny_batch))
        table.add_row("event to sink, 95 %", ms(self.p95 * 1000))
        table.add_row("event to sink, 99 %", ms(self.p99 * 1000))
        table.add_row("event to sink, longest", ms(self.longest * 1000))
        table.add_row("latestOffset, idle, median", f"{self.latest_offset * 1000:.3f} ms", "1 ms")
        cpu = "not measured" if self.idle_cpu is None else f"{self.idle_cpu:.1%} of a core"
        table.add_row("planner of an idle query", cpu, "3 %")
        for how, took in (("packed", self.packed), ("a task each", self.a_task_each)):
            if took is not None:
                table.add_row(f"{MANY} partitions with an event each, {how}", ms(took * 1000))
        return table


class Producer:
    """Appends events to all partitions in turn and remembers when each had come."""

    def __init__(self, control: EmulatorControl, partitions: int) -> None:
        self._control, self._partitions = control, partitions
        self._sent = 0
        #: Of each partition, the sequence number after each send's last event, and the time of the send.
        self.ends: dict[str, list[int]] = defaultdict(lambda: [0])
        self.times: dict[str, list[float]] = defaultdict(lambda: [0.0])

    def send(self, count: int) -> None:
        """Append `count` events."""
        first = self._sent
        self._sent += count
        for partition in range(self._partitions):
            mine = len(range((partition - first) % self._partitions, count, self._partitions))
            if mine:
                self._control.append(HUB, partition, [_BODY] * mine)
                self.ends[str(partition)].append(self.ends[str(partition)][-1] + mine)
                self.times[str(partition)].append(time.time())

    def run(self, rate: float, stopped: threading.Event) -> None:
        """Send at a steady rate until `stopped`."""
        began, before = time.monotonic(), self._sent
        while not stopped.wait(_TICK):
            self.send(before + int((time.monotonic() - began) * rate) - self._sent)

    def came(self, partition: str, number: int) -> float:
        """When event `number` of a partition had come, on the wall clock."""
        return self.times[partition][bisect_right(self.ends[partition], number)]


def latencies(progress: list[Mapping[str, Any]], producer: Producer) -> list[float]:
    """Of every event in these batches, the time from its arrival until its batch was finished."""
    found = []
    for batch in progress:
        finished = _began(batch) + batch["durationMs"]["triggerExecution"] / 1000
        for partition, each in _offset(batch)["partitions"].items():
            found += [finished - producer.came(partition, n) for n in range(each["from"], each["to"])]
    return found


def planner_cpu(seconds: float) -> float | None:
    """The CPU share of this process's only planner that listens for notices; None where that cannot be told."""
    pid = _planner()
    if pid is None:
        return None
    before = _cpu(pid)
    time.sleep(seconds)
    return (_cpu(pid) - before) / seconds


def idle_calls(options: Mapping[str, str], calls: int = 1000) -> float:
    """The median time of `latestOffset` of a reader in this process that has nothing to read."""
    reader, times = StreamReader(stream_options(options)), []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        start = reader.initialOffset()
        for _ in range(calls):
            began = time.perf_counter()
            reader.latestOffset(start)
            times.append(time.perf_counter() - began)
            time.sleep(0.01)  # Spark's pollingDelay
    finally:
        reader.stop()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return statistics.median(times)


def measure(folder: Path, seconds: float, *, many: bool = True) -> Outcome:
    """Measure everything, in files under `folder`; `many` partitions only if wanted, as they take a minute."""
    spark = session(folder)
    try:
        with emulator(PARTITIONS) as (control, address):
            # Tables of their own: the two readers would share the partitions.
            read = {"connectionString": address, "startingPosition": "earliest"}
            shared = {**read, "leaseTable": str(folder / "leases")}
            calls = idle_calls({**read, "leaseTable": str(folder / "calls")})
            producer = Producer(control, PARTITIONS)
            # Spark's first query loads what the others find loaded.
            _stream(spark, read, folder / "warm", trigger={"availableNow": True}).awaitTermination()
            producer.send(PARTITIONS)
            began = time.time()
            query = _stream(spark, shared, folder / "stream")
            first = _wait_for(query, PARTITIONS)
            start = _began(first[0]) + first[0]["durationMs"]["triggerExecution"] / 1000 - began
            rows = PARTITIONS
            for _ in range(40):
                producer.send(1)
                rows += 1
                _wait_for(query, rows)
            tiny = [each["durationMs"]["triggerExecution"] / 1000 for each in _batches(query)[-20:]]
            idle = planner_cpu(seconds)
            stopped = threading.Event()
            producing = threading.Thread(target=producer.run, args=(RATE, stopped))
            before = len(_batches(query))
            producing.start()
            time.sleep(seconds + 5)
            stopped.set()
            producing.join()
            _wait_for(query, producer._sent)
            # The first seconds are those of code that is compiled meanwhile.
            loaded = _batches(query)[before:]
            loaded = [each for each in loaded if _began(each) - _began(loaded[0]) > 5]
            found = sorted(latencies(loaded, producer))
            query.stop()
        packed, a_task_each = _many(spark, folder) if many else (None, None)
    finally:
        spark.stop()
    cuts = statistics.quantiles(found, n=100)
    return Outcome(
        start=start,
        tiny_batch=statistics.median(tiny),
        median=cuts[49],
        p95=cuts[94],
        p99=cuts[98],
        longest=found[-1],
        batch=statistics.median(each["durationMs"]["triggerExecution"] / 1000 for each in loaded),
        latest_offset=calls,
        idle_cpu=idle,
        packed=packed,
        a_task_each=a_task_each,
    )


def _many(spark: SparkSession, folder: Path, runs: int = 4) -> tuple[float, float]:
    """Medians of `addBatch` with many partitions that hold an event each: packed, and a task for each."""
    times: dict[str, list[float]] = {"packed": [], "each": []}
    with emulator(MANY) as (control, address):
        for _ in range(runs):
            for partition in range(MANY):
                control.append(HUB, partition, [_BODY])
            for how, found in times.items():
                options = {"connectionString": address, "startingPosition": "earliest"}
                if how == "each":
                    options["minPartitions"] = str(MANY)
                query = _stream(spark, options, folder / how, trigger={"availableNow": True})
                query.awaitTermination()
                found += [batch["durationMs"]["addBatch"] / 1000 for batch in _batches(query)]
    return statistics.median(times["packed"][1:]), statistics.median(times["each"][1:])


def _stream(
    spark: SparkSession, options: Mapping[str, str], folder: Path, trigger: Mapping[str, Any] | None = None
) -> StreamingQuery:
    frame = spark.readStream.format("ehbalance").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
    return writer.trigger(**trigger).start() if trigger else writer.start()


def _batches(query: StreamingQuery) -> list[Mapping[str, Any]]:
    """The progress of each batch that had events."""
    reports = (json.loads(each.json) for each in query.recentProgress)  # type: ignore[attr-defined]
    return [report for report in reports if report["numInputRows"] > 0]


def _wait_for(query: StreamingQuery, rows: int, timeout: float = 120.0) -> list[Mapping[str, Any]]:
    """The batches, once they have so many rows."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and query.isActive:
        batches = _batches(query)
        if sum(batch["numInputRows"] for batch in batches) >= rows:
            return batches
        time.sleep(0.05)
    raise TimeoutError(f"the query has not read {rows} events in {timeout:g} s: {query.exception()}")


def _began(batch: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(batch["timestamp"].replace("Z", "+00:00")).timestamp()


def _offset(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    end = batch["sources"][0]["endOffset"]
    decoded: Mapping[str, Any] = json.loads(end) if isinstance(end, str) else end
    return decoded


def _planner() -> int | None:
    """The process that listens for notices, among those that this one has started."""
    try:
        sockets = Path("/proc/net/unix").read_text()
    except OSError:
        return None
    inodes = set(re.findall(rf"(\d+) \S*/ehbalance-{os.getuid()}/", sockets))
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            held = {match[1] for each in (folder / "fd").iterdir() if (match := _socket(each))}
        except OSError:  # ended meanwhile, or another user's
            continue
        if held & inodes and _is_ours(int(folder.name)):
            return int(folder.name)
    return None


def _socket(descriptor: Path) -> re.Match[str] | None:
    return re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))


def _is_ours(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(_stat(pid)[1])
    return False


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` after the command: state, parent and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description="How soon an event is in the sink.")
    parser.add_argument("--seconds", type=float, default=30.0, help="of load, and of idling (default: 30)")
    parser.add_argument("--no-many", action="store_true", help=f"leave the {MANY} partitions out")
    parser.add_argument("--json", action="store_true", help="the outcome for programs, on standard output")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = measure(Path(folder), options.seconds, many=not options.no_many)
    Console(stderr=options.json).print(outcome.report())
    if options.json:
        print(json.dumps(asdict(outcome) | {"passed": outcome.passed}, indent=2))
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    sys.exit(main())
