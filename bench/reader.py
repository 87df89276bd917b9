"""CPU, time and memory of one reader per event, from the socket to Arrow with all columns, compared with the client's
own `receive_batch`, without Arrow.

Each reader runs in a process of its own; connecting is not counted.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from azure.eventhub import EventData, PartitionContext

from bench.common import GROUP, Bar, Log, Row, emulator
from bench.shapes import FEWER, SHAPES
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.receiver import PartitionAddress, Receiver
from spark_ehbalance.source.concurrent_reader import read_together

SUBJECT = "reader"
PREFETCH = 1000  # the source's default

#: µs of CPU per event.
BARS = {"1 KB": 2.0, "1 KB, 2 properties, one unique": 5.0, "1 KB, no two alike": 10.0}

#: How many times less than `receive_batch` it must cost, with events of 1 KB.
TIMES_LESS = 12.0

#: Seconds of a round trip, and the sizes of events, in the measurement of a distant hub.
_ROUND_TRIPS, _DISTANT = (0.001, 0.01, 0.04), ("100 B", "1 KB")

#: With these `most` and `prefetch` at most 1,000 events are on their way, as in other clients.
_THOUSAND = (500, 500)

#: The comparisons take much longer, so they read this many times fewer events, and half as often.
_SLOWER = 3

#: Forked from a process that has imported everything, which takes seconds.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["bench.__main__"])


class Cost(NamedTuple):
    """µs of CPU per event; when the run began and ended, its events, and the most MB of memory of the process."""

    cpu: float
    begun: float
    ended: float
    events: int
    memory: float

    @property
    def rate(self) -> float:
        return self.events / (self.ended - self.begun)


def ours(connection: Connection, partitions: int, events: int, most: int = 10_000, prefetch: int = PREFETCH) -> Cost:
    """This reader: `events` of each partition, in batches as the source requests them; several partitions in threads,
    like those of one task."""

    def read(partition: str, ended: threading.Event) -> Generator[int, None, None]:
        address = PartitionAddress(connection, GROUP, partition)
        with closing(Receiver(address, 0, owner_level=None, prefetch=prefetch)) as receiver:
            left = events
            while left:
                now = min(most, left) if left < events else 1
                left -= (count := receiver.receive(now, 10.0).num_rows)
                yield count

    counts = read_together([partial(read, f"{partition}") for partition in range(partitions)])
    next(counts)
    begun, cpu = time.time(), time.process_time()
    return cost_since(begun, cpu, sum(counts))


def client(connection: Connection, partition: str, events: int) -> Cost:
    """`EventHubConsumerClient.receive_batch`, with a callback that only counts."""
    consumer = connection.consumer_client(GROUP)
    got = first = 0
    begun = cpu = 0.0
    cost: Cost | None = None

    def count(context: PartitionContext, batch: list[EventData]) -> None:
        nonlocal got, first, begun, cpu, cost
        got += len(batch)
        if not first:
            begun, cpu, first = time.time(), time.process_time(), got
        if got >= events and cost is None:
            cost = cost_since(begun, cpu, got - first)
            consumer.close()

    from_the_start: dict[str, Any] = {"partition_id": partition, "starting_position": "-1"}
    # few, because the events that came ahead with the first batch are not counted
    most = min(PREFETCH, events // 10)
    consumer.receive_batch(count, max_batch_size=most, prefetch=most, **from_the_start)
    assert cost is not None
    return cost


def cost_since(begun: float, cpu: float, events: int) -> Cost:
    """Of `events`, from a time and the CPU time that this process then had."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return Cost((time.process_time() - cpu) / events * 1e6, begun, time.time(), events, memory)


def measure(
    _: Path, log: Log, *, shapes: Sequence[str], partitions: Sequence[int], events: int, runs: int
) -> Iterator[Row]:
    """All `shapes`; events of 1 KB by TLS and by websocket, from several `partitions` in one task, and from afar."""
    for name in shapes:
        yield from _shape(name, events, runs, log)
    yield from _shape("1 KB", events, runs, log, tls=True)
    yield from _ways(events, runs, log)
    for several in partitions:
        log(f"reader: {several} partitions in one task")
        each = 2 * events // several
        with emulator(several) as server:
            for partition in range(several):
                SHAPES["1 KB"](server, f"{partition}", each)
            found = _alone(ours, runs, server.connection, several, each)
        yield from _rows(f"1 KB, {several} partitions in one task", {"": found})
    for name in _DISTANT:
        yield from _distant(name, events, runs, log)


def _distant(name: str, events: int, runs: int, log: Log) -> Iterator[Row]:
    """Where a round trip takes long, compared with at most 1,000 events on their way; in turns."""
    more = 5 * events
    with emulator(1) as server:
        SHAPES[name](server, "0", more)
        for seconds in _ROUND_TRIPS:
            label = f"{name}, a round trip of {1000 * seconds:.0f} ms"
            log(f"reader: {label}")
            ways: dict[str, tuple[int, ...]] = {"": (more,), "1,000 events on their way": (events, *_THOUSAND)}
            found: dict[str, list[float]] = {way: [] for way in ways}
            with server.relayed(seconds) as (distant, _), ProcessPoolExecutor(1, PROCESSES) as process:
                for run in range(runs + 1):
                    for way, arguments in ways.items():
                        rate = process.submit(ours, distant.connection, 1, *arguments).result().rate
                        found[way] += [rate] if run else []  # the first run warms up
            rates = {way: tuple(each) for way, each in found.items()}
            yield Row(SUBJECT, label, "events/s", rates.pop(""), None, rates)


def _shape(name: str, events: int, runs: int, log: Log, *, tls: bool = False) -> Iterator[Row]:
    label = f"{name}, TLS" if tls else name
    log(f"reader: {label}")
    events = max(1000, events // FEWER.get(name, 1))
    few, fewer = max(1000, events // _SLOWER), max(1, runs // 2)
    with emulator(1, tls=tls) as server:
        SHAPES[name](server, "0", events)
        found = {
            "": _alone(ours, runs, server.connection, 1, events),
            "receive_batch": _alone(client, fewer, server.connection, "0", few),
        }
    yield from _rows(label, found)
    less = statistics.median(each.cpu for each in found["receive_batch"])
    bar = Bar("least", TIMES_LESS) if label == "1 KB" else None
    yield Row(SUBJECT, f"{label}, less than receive_batch", "times", tuple(less / each.cpu for each in found[""]), bar)


def _ways(events: int, runs: int, log: Log) -> Iterator[Row]:
    """By websocket with TLS, compared with TLS and with neither; in turns, with one process for each way."""
    label = "1 KB, websocket and TLS"
    log(f"reader: {label}")
    ways: dict[str, dict[str, bool]] = {"": {"tls": True, "websocket": True}, "TLS": {"tls": True}, "plain": {}}
    found: dict[str, list[Cost]] = {way: [] for way in ways}
    with ExitStack() as stack:
        servers = {way: stack.enter_context(emulator(1, **settings)) for way, settings in ways.items()}
        processes = {way: stack.enter_context(ProcessPoolExecutor(1, PROCESSES)) for way in ways}
        for server in servers.values():
            SHAPES["1 KB"](server, "0", events)
        for run in range(runs + 1):
            for way, server in servers.items():
                cost = processes[way].submit(ours, server.connection, 1, events).result()
                found[way] += [cost] if run else []  # the first run warms up
    every = {way: tuple(each.rate for each in costs) for way, costs in found.items()}
    yield from _rows(label, found)
    for way in ("TLS", "plain"):
        shares = tuple(mine / theirs for mine, theirs in zip(every[""], every[way], strict=True))
        yield Row(SUBJECT, f"{label}, events/s of {way}", "times", shares)


def _alone(reader: Any, runs: int, *arguments: Any) -> list[Cost]:
    """What `reader` costs in a new process, without its first run."""
    with ProcessPoolExecutor(1, PROCESSES) as process:
        return [process.submit(reader, *arguments).result() for _ in range(runs + 1)][1:]


def _rows(label: str, found: dict[str, list[Cost]]) -> Iterator[Row]:
    for unit, value in (("µs CPU", "cpu"), ("events/s", "rate"), ("MB", "memory")):
        every = {who: tuple(getattr(cost, value) for cost in costs) for who, costs in found.items()}
        bar = Bar("most", BARS[label]) if unit == "µs CPU" and label in BARS else None
        yield Row(SUBJECT, label, unit, every.pop(""), bar, every)
