"""Queries in processes of their own share one hub."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.members import Member
from tests.spark.query_process import QueryProcess
from tests.spark.test_single_query import Rows, fill
from tests.waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def survivor(shared_options: dict[str, str], tmp_path: Path) -> Iterator[Member]:
    """A query without Spark."""
    file = tmp_path / "survivor"
    command = [sys.executable, "-m", "tests.query_process", "survivor", json.dumps(shared_options), str(file)]
    member = Member("survivor", subprocess.Popen(command, stdin=subprocess.PIPE, text=True), file)
    yield member
    member.end()


def test_queries_share_and_their_processes_end(
    hub: Emulator,
    shared_options: dict[str, str],
    owners: Callable[[], list[str | None]],
    processes: Callable[[int], list[QueryProcess]],
    survivor: Member,
    tmp_path: Path,
) -> None:
    """By SIGTERM and by SIGKILL."""
    everything = set(fill(hub, 0))
    terminated, killed = processes(2)
    queries = [terminated.start(shared_options, tmp_path / "terminated")]

    def share(*expected: int) -> None:
        def shared() -> bool:
            found = owners()
            return None not in found and sorted(Counter(found).values()) == [*expected]

        wait_until(shared, f"the partitions are shared as {expected}")

    def send() -> set[tuple[str, int]]:
        """Send one event more to each partition."""
        sent = fill(hub, 1) - everything
        everything.update(sent)
        return sent

    def expect_once() -> None:
        """One event more of each partition is read by exactly one query."""
        sent = send()

        def read() -> Rows:
            rows = [row for query in queries for row in query.rows()]
            return sorted(event for event in [*survivor.seen(), *rows] if event in sent)

        wait_until(lambda: set(read()) == sent, "every event is read")
        assert read() == sorted(sent)

    share(4, 4)
    expect_once()
    queries.append(killed.start(shared_options, tmp_path / "killed"))
    share(2, 3, 3)
    expect_once()
    terminated.terminate()
    share(4, 4)
    expect_once()
    wait_until(lambda: not terminated.alive, "it has ended, and no other test uses it")
    killed.kill()
    ended, sent = time.monotonic(), send()
    # The lease duration of 6 s and an interval of 1 s have to pass.
    wait_until(lambda: sent <= set(survivor.seen()), "the partitions of the killed query are read by the other")
    print(f"read elsewhere {time.monotonic() - ended:.1f} s after SIGKILL")
    assert owners() == ["survivor"] * 8
