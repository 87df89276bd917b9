"""CPU, time and memory of one reader per event: the hot loop, from the socket to Arrow with all columns, beside the
client's own `receive_batch`, without any Arrow, in one process and in two; and the source without its hot loop.

Each reader runs in a process of its own, in which connecting does not count.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from azure.eventhub import EventData, PartitionContext

from bench.common import GROUP, Bar, Emulator, Row, Say, emulator
from bench.shapes import FEWER, SHAPES
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.receiver import PartitionAddress, Receiver
from spark_ehbalance.source.concurrent_reader import read_together

SUBJECT = "reader"
PREFETCH = 1000  # the source's default

#: µs of CPU for each event by the hot loop.
BARS = {"1 KB": 2.0, "1 KB, 2 properties, one unique": 5.0, "1 KB, no two alike": 10.0}

#: How many times less than `receive_batch` the hot loop must cost, with events of 1 KB.
TIMES_LESS = 12.0


#: What takes so many times longer reads so many events less, and half as often.
_SLOW = 3

#: Forks of one that has imported everything, which takes seconds.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["bench.__main__"])


class Cost(NamedTuple):
    """Of one event: µs of CPU; of the run: when it began and ended, its events, and MB that the process has had."""

    cpu: float
    begun: float
    ended: float
    events: int
    memory: float

    @property
    def rate(self) -> float:
        return self.events / (self.ended - self.begun)


def ours(connection: Connection, partitions: int, events: int, fast: bool = True) -> Cost:
    """This reader: `events` of each partition, in batches as the source asks for them; several in threads, as it
    reads those that share a task."""

    def read(partition: str, ended: threading.Event) -> Generator[int, None, None]:
        source = PartitionAddress(connection, GROUP, partition)
        with closing(Receiver(source, 0, owner_level=None, prefetch=PREFETCH, fast=fast)) as receiver:
            left = events
            while left:
                most = min(10_000, left) if left < events else 1
                left -= (count := receiver.receive(most, 10.0).num_rows)
                yield count

    counts = read_together([partial(read, f"{number}") for number in range(partitions)])
    next(counts)
    begun, cpu = time.time(), time.process_time()
    return _cost(begun, cpu, sum(counts))


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
            cost = _cost(begun, cpu, got - first)
            consumer.close()

    from_the_start: dict[str, Any] = {"partition_id": partition, "starting_position": "-1"}
    # What has been sent ahead when the first batch is handed out does not count.
    most = min(PREFETCH, events // 10)
    consumer.receive_batch(count, max_batch_size=most, prefetch=most, **from_the_start)
    assert cost is not None
    return cost


def _cost(begun: float, cpu: float, events: int) -> Cost:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return Cost((time.process_time() - cpu) / events * 1e6, begun, time.time(), events, memory)


def measure(
    say: Say, certificate: Path, *, shapes: Sequence[str], partitions: Sequence[int], events: int, runs: int
) -> Iterator[Row]:
    """Every shape; events of 1 KB over TLS as well, and from several partitions in one task."""
    for name in shapes:
        yield from _shape(name, None, events, runs, say)
    yield from _shape("1 KB", certificate, events, runs, say)
    for several in partitions:
        say(f"reader: {several} partitions in one task")
        each = 2 * events // several
        with emulator(several) as server:
            for number in range(several):
                SHAPES["1 KB"](server, f"{number}", each)
            found = _alone(ours, runs, server.connection, several, each)
        yield from _rows(f"1 KB, {several} partitions in one task", {"": found})


def _shape(name: str, certificate: Path | None, events: int, runs: int, say: Say) -> Iterator[Row]:
    label = f"{name}, TLS" if certificate else name
    say(f"reader: {label}")
    events = max(1000, events // FEWER.get(name, 1))
    few, fewer = max(1000, events // _SLOW), max(1, runs // 2)
    with emulator(2, certificate) as server:
        SHAPES[name](server, "0", events)
        SHAPES[name](server, "1", few)
        found = {
            "": _alone(ours, runs, server.connection, 1, events),
            "without the hot loop": _alone(ours, fewer, server.connection, 1, few, False),
            "receive_batch": _alone(client, fewer, server.connection, "0", few),
            "in two processes": _in_two(server, few, fewer),
        }
    yield from _rows(label, found)
    less = statistics.median(each.cpu for each in found["receive_batch"])
    bar = Bar("least", TIMES_LESS) if label == "1 KB" else None
    yield Row(SUBJECT, f"{label}, less than receive_batch", "times", tuple(less / each.cpu for each in found[""]), bar)


def _alone(reader: Any, runs: int, *arguments: Any) -> list[Cost]:
    """What `reader` costs in a new process; its first run there warms up."""
    with ProcessPoolExecutor(1, _PROCESSES) as process:
        return [process.submit(reader, *arguments).result() for _ in range(runs + 1)][1:]


def _in_two(server: Emulator, events: int, runs: int) -> list[Cost]:
    """`receive_batch` of two partitions in a process each: an event's cost, and both processes' time and memory."""
    with ProcessPoolExecutor(2, _PROCESSES) as processes:
        found = []
        for _ in range(runs):
            tasks = [processes.submit(client, server.connection, each, events) for each in ("0", "1")]
            one, two = (task.result() for task in tasks)
            begun, ended = min(one.begun, two.begun), max(one.ended, two.ended)
            cpu = (one.cpu + two.cpu) / 2
            found.append(Cost(cpu, begun, ended, one.events + two.events, one.memory + two.memory))
    return found


def _rows(label: str, found: dict[str, list[Cost]]) -> Iterator[Row]:
    """Ours beside the others, in each unit."""
    for unit, value in (("µs CPU", "cpu"), ("events/s", "rate"), ("MB", "memory")):
        every = {who: tuple(getattr(cost, value) for cost in costs) for who, costs in found.items()}
        bar = Bar("most", BARS[label]) if unit == "µs CPU" and label in BARS else None
        yield Row(SUBJECT, label, unit, every.pop(""), bar, every)
