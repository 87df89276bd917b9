"""Several worker processes that live on after their tasks, as Spark's do, and what each leaves open."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from spark_ehbalance.emulator import Emulator
from tests.query.support import HUB, SOON
from tests.waiting import wait_until

#: One more than the readers without owner level that Event Hubs allows a partition in a consumer group.
WORKERS = 6

_PROGRAM = """
import json, sys
from spark_ehbalance.query.options import stream_options
from spark_ehbalance.query.range_reader import read_range
from spark_ehbalance.eventhub.ranges import Range
print("ready", flush=True)
for line in sys.stdin:
    address, partition, start, end, level = json.loads(line)
    options = stream_options({"connectionString": address, "receiverTimeout": "10 s"})
    try:
        read = sum(batch.num_rows for batch in read_range(options, Range(partition, 0, start, end), None, level))
    except Exception as error:
        read = str(error)
    print(json.dumps(read), flush=True)
"""


class Worker:
    """A process that carries out tasks until it is ended."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _PROGRAM]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ready(self) -> None:
        """Wait until it has started."""
        assert self._process.stdout
        assert self._process.stdout.readline() == "ready\n"

    def read(self, emulator: Emulator, partition: str, start: int, end: int, level: int | None) -> int | str:
        """How many events it has read, or the error."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([emulator.connection_string(HUB), partition, start, end, level]) + "\n")
        self._process.stdin.flush()
        answer: int | str = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        """Have it end by itself, which it does soon."""
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def workers() -> Iterator[list[Worker]]:
    made = [Worker() for _ in range(WORKERS)]
    for each in made:
        each.ready()
    yield made
    for each in made:
        each.end()


def test_more_workers_than_allowed_readers_read_a_partition_without_level(
    emulator: Emulator, workers: list[Worker]
) -> None:
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [b"x"] * 10 * WORKERS)
    got = [each.read(emulator, "0", 10 * index, 10 * index + 10, None) for index, each in enumerate(workers)]
    assert got == [10] * WORKERS
    wait_until(lambda: emulator.connections() == 0, "no connection is left", SOON)


def test_workers_that_take_turns_leave_one_connection_per_partition(emulator: Emulator, workers: list[Worker]) -> None:
    partitions, rounds = 3, 4
    emulator.add_hub(HUB, partitions)
    for partition in range(partitions):
        emulator.append(HUB, partition, [b"x"] * 10 * rounds)
    for turn in range(rounds):
        for partition in range(partitions):
            worker = workers[(turn * partitions + partition * 2) % WORKERS]
            assert worker.read(emulator, str(partition), 10 * turn, 10 * turn + 10, 5) == 10
    wait_until(lambda: emulator.connections() <= partitions, "only the last reader of each partition is left", SOON)
