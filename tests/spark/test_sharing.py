"""Several queries in processes of their own share one hub."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.spark.conftest import HUB
from tests.spark.query_process import Query, QueryProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

Owners = Callable[[], list[str | None]]


def shares(owners: Owners) -> list[int]:
    """How many partitions each owner has, the fewest first; 0 in front for partitions that nobody owns."""
    counts = Counter(owners())
    return ([0] if None in counts else []) + sorted(count for owner, count in counts.items() if owner is not None)


class Traffic:
    """Sends one event to each partition at a time, and checks who has read it."""

    def __init__(self, hub: Emulator) -> None:
        self._hub = hub
        self._rounds = 0

    def send(self) -> set[tuple[str, int]]:
        for partition in range(8):
            self._hub.append(HUB, str(partition), [f"round {self._rounds}".encode()])
        self._rounds += 1
        return {(str(partition), self._rounds - 1) for partition in range(8)}

    def expect_once(self, *queries: Query) -> None:
        """One event more for each partition is read by exactly one of `queries`."""
        sent = self.send()

        def read() -> list[tuple[str, int]]:
            return [row for query in queries for row in query.rows() if row in sent]

        wait_until(lambda: set(read()) == sent, "every event is read")
        assert sorted(read()) == sorted(sent)


def test_queries_join_and_leave_and_their_processes_end(
    hub: Emulator,
    shared_options: dict[str, str],
    owners: Owners,
    processes: Callable[[int], list[QueryProcess]],
    tmp_path: Path,
) -> None:
    """By SIGTERM, by SIGKILL, and stopped."""
    traffic, running = Traffic(hub), processes(3)
    a, b = (running[number].start(shared_options, tmp_path / "ab"[number]) for number in range(2))
    wait_until(lambda: shares(owners) == [4, 4], "two queries share 4/4")
    traffic.expect_once(a, b)

    c = running[2].start(shared_options, tmp_path / "c")
    wait_until(lambda: shares(owners) == [2, 3, 3], "three queries share 2/3/3")
    traffic.expect_once(a, b, c)

    running[1].terminate()
    wait_until(lambda: shares(owners) == [4, 4], "two queries share 4/4 again")
    traffic.expect_once(a, b, c)
    wait_until(lambda: not running[1].alive, "it has ended, and no other test uses it")

    running[2].kill()
    ended = time.monotonic()
    sent = traffic.send()
    # The lease duration of 6 s and an interval of 1 s have to pass.
    wait_until(lambda: sent <= set(a.rows()), "the partitions of the killed one are read by the other")
    print(f"read elsewhere {time.monotonic() - ended:.1f} s after SIGKILL")
    assert shares(owners) == [8]
    a.stop()
    wait_until(lambda: owners() == [None] * 8, "the last query has given everything back")
