"""A query with Spark, in its own process, shares a hub with a query without Spark."""

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
from tests.spark.test_single_query import fill
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


@pytest.mark.parametrize("end", [QueryProcess.kill, pytest.param(QueryProcess.terminate, marks=pytest.mark.heavy)])
def test_survivor_takes_over_when_the_sharing_process_ends(
    hub: Emulator,
    shared_options: dict[str, str],
    owners: Callable[[], list[str | None]],
    processes: Callable[[int], list[QueryProcess]],
    survivor: Member,
    tmp_path: Path,
    end: Callable[[QueryProcess], None],
) -> None:
    """The process ends by SIGKILL or SIGTERM. `test_single_query.py` tests two queries with Spark."""
    (process,) = processes(1)
    query = process.start(shared_options, tmp_path / "query")
    wait_until(lambda: sorted(Counter(owners()).values()) == [4, 4] and None not in owners(), "each owns four")
    sent = fill(hub, 1)
    wait_until(lambda: {*survivor.read_events(), *query.rows()} == sent, "every event is read")
    assert sorted([*survivor.read_events(), *query.rows()]) == sorted(sent)
    end(process)
    ended, later = time.monotonic(), fill(hub, 1) - sent
    # After SIGKILL, the lease duration of 6 s and an interval of 1 s must pass.
    wait_until(lambda: later <= set(survivor.read_events()), "the partitions of the query are read by the other")
    print(f"read elsewhere {time.monotonic() - ended:.1f} s after the end")
    assert owners() == ["survivor"] * 8
    wait_until(lambda: not process.alive, "it has ended, and no other test uses it")
