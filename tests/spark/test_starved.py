"""A query whose executors get no CPU: its planner is a process of its own, and goes on holding the leases."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.processes import running, send
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.delta import DeltaStore
from spark_ehbalance.query.assembly import start_planner
from spark_ehbalance.query.options import stream_options
from tests.spark.query_process import QueryProcess
from tests.spark.test_single_query import fill
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

#: Seconds. Short, and still long enough for a planner on two busy cores.
LEASE = 3


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


def test_a_query_whose_executors_are_starved_for_three_lease_durations_keeps_its_partitions(
    hub: Emulator,
    shared_options: dict[str, str],
    processes: Callable[[int], list[QueryProcess]],
    tmp_path: Path,
) -> None:
    (process,) = processes(1)
    # A handover is never taken by force: the first batches of a Spark may take longer.
    options = {**shared_options, "leaseDuration": f"{LEASE} s", "handoverTimeout": "2 minutes"}
    table = DeltaStore(options["leaseTable"]).read
    query = process.start({**options, "ownerId": "starved"}, tmp_path / "starved")
    fill(hub, 1)
    wait_until(lambda: len(query.rows()) == 8, "everything is read by one query")
    other = start_planner(stream_options(options), "other")
    try:
        wait_until(lambda: len(other.holdings()) == 4, "two members share 4/4")
        owned = {lease.partition for lease in table().owned_by("starved")}
        assert len(owned) == 4

        def leases(snapshot: Snapshot) -> dict[str, tuple[str | None, int]]:
            return {p: (snapshot.leases[p].owner, snapshot.leases[p].epoch) for p in owned}

        def read() -> Counter[tuple[str, int]]:
            """How often each event of its partitions was read."""
            return Counter(row for row in query.rows() if row[0] in owned)

        before = leases(table())
        with starved(process):
            fill(hub, 20)
            first, rows = table(), read()
            until = time.monotonic() + 3 * LEASE
            while time.monotonic() < until:
                assert leases(table()) == before
                time.sleep(0.05)
            last = table()
            assert read() == rows, "its executors stood still"
        for member in ("starved", "other"):
            assert last.members[member].renewal > first.members[member].renewal, f"{member} is alive"

        sent = Counter(event for event in fill(hub, 20) if event[0] in owned)
        wait_until(lambda: read().keys() >= sent.keys(), "it has read everything")
        assert read() == sent, "nothing twice"
        assert leases(table()) == before
        query.stop()
    finally:
        other.stop()
