"""A query whose executors get no CPU: its planner is a process of its own, and goes on holding the leases."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from chaos.processes import running, send
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.source.assembly import start_planner
from spark_ehbalance.source.options import stream_options
from spark_ehbalance.source.planner import Planner
from spark_ehbalance.stores.delta import DeltaStore
from tests.spark.conftest import HUB
from tests.spark.query_process import QueryProcess
from tests.waiting import wait_until as wait_until_within

pytestmark = pytest.mark.spark

#: Seconds. Short, and still long enough for a planner on two busy cores.
LEASE, INTERVAL = 3, 1

#: Spark's first batches on two busy cores take most of a minute.
wait_until = partial(wait_until_within, timeout=120.0)


class Load:
    """One event for each partition every tenth of a second, from a thread, until stopped; `sent` to each so far."""

    def __init__(self, hub: Emulator) -> None:
        self._hub, self.sent = hub, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            for partition in range(8):
                self._hub.append(HUB, partition, [b"event"])
            self.sent += 1


@pytest.fixture
def load(hub: Emulator) -> Iterator[Load]:
    running = Load(hub)
    yield running
    running.stop()


@pytest.fixture
def options(shared_options: dict[str, str]) -> dict[str, str]:
    """Options of a member. A handover is never taken by force: the first batches of a Spark may take longer."""
    times = {"leaseDuration": f"{LEASE} s", "balanceInterval": f"{INTERVAL} s", "handoverTimeout": "2 minutes"}
    return {**shared_options, **times}


@pytest.fixture
def join(options: dict[str, str]) -> Iterator[Callable[[], Planner]]:
    """Starts another member of the group, without a Spark."""
    started: list[Planner] = []

    def make() -> Planner:
        started.append(start_planner(stream_options(options), "other"))
        return started[-1]

    yield make
    for planner in started:
        planner.stop()


@pytest.fixture
def table(tmp_path: Path) -> Callable[[], Snapshot]:
    """Asks the lease table."""
    return DeltaStore(str(tmp_path / "leases")).read


@contextmanager
def starved(process: QueryProcess) -> Iterator[None]:
    """Stop driver, JVM and Python workers of a query process: all but the planner, which must be there."""
    session, stopped = process.pid, set[int]()

    def all_but_planner() -> set[int]:
        own = {each.pid: each.command for each in running() if _session_of(each.pid) == session}
        planner = {pid for pid, command in own.items() if "python_streaming_source_runner" in command}
        assert len(planner) == 1
        return own.keys() - planner

    try:
        while new := all_but_planner() - stopped:  # also what was forked meanwhile
            send(new, signal.SIGSTOP)
            stopped |= new
        yield
    finally:
        send(stopped, signal.SIGCONT)


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def test_a_query_whose_executors_are_starved_for_five_lease_durations_keeps_its_partitions(
    hub: Emulator,
    load: Load,
    options: dict[str, str],
    join: Callable[[], Planner],
    table: Callable[[], Snapshot],
    pair: list[QueryProcess],
    tmp_path: Path,
) -> None:
    query = pair[0].start({**options, "ownerId": "starved"}, tmp_path / "starved")
    wait_until(lambda: len({partition for partition, _ in query.rows()}) == 8, "everything is read by one query")
    other = join()
    wait_until(lambda: len(other.holdings()) == 4, "two members share 4/4")
    owned = {lease.partition for lease in table().owned_by("starved")}

    def leases(snapshot: Snapshot) -> dict[str, tuple[str | None, int]]:
        return {partition: (snapshot.leases[partition].owner, snapshot.leases[partition].epoch) for partition in owned}

    def read() -> Counter[tuple[str, int]]:
        """How often each event of its partitions was read."""
        return Counter(row for row in query.rows() if row[0] in owned)

    before, known = leases(table()), load.sent
    assert len(owned) == 4
    wait_until(lambda: {number for _, number in read()} > set(range(known)), "it is reading the four")
    with starved(pair[0]):
        first, rows = table(), read()
        until = time.monotonic() + 5 * LEASE
        while time.monotonic() < until:
            assert leases(table()) == before
            time.sleep(0.05)
        last = table()
        assert read() == rows, "its executors stood still"
    for member in ("starved", "other"):
        assert last.members[member].renewal > first.members[member].renewal, f"{member} is alive"

    known = load.sent
    wait_until(lambda: {number for _, number in read()} > set(range(known)), "it reads on")
    load.stop()
    sent = {(partition, number): 1 for partition in owned for number in range(load.sent)}
    wait_until(lambda: read().keys() >= sent.keys(), "it has read everything")
    assert read() == sent, "nothing twice"
    assert leases(table()) == before
    query.stop()
