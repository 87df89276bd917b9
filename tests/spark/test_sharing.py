"""Several queries in processes of their own share one hub."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.ops.command import Command, kept
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


def test_operators_orders_take_effect_in_running_queries(
    hub: Emulator,
    shared_options: dict[str, str],
    owners: Owners,
    processes: Callable[[int], list[QueryProcess]],
    tmp_path: Path,
    ehbalance: Command,
) -> None:
    traffic = Traffic(hub)
    table = shared_options["leaseTable"]
    a, b = (
        process.start(shared_options | {"ownerId": name}, tmp_path / name)
        for process, name in zip(processes(2), "ab", strict=True)
    )
    wait_until(lambda: shares(owners) == [4, 4], "two queries share 4/4")
    for _ in range(3):
        traffic.expect_once(a, b)

    moving, pinned = owners().index("a"), owners().index("b")
    for order in (("transfer", table, moving, "--to", "b"), ("pin", table, pinned, "--to", "a")):
        assert ehbalance(*order).code == 0
    wait_until(lambda: (owners()[moving], owners()[pinned]) == ("b", "a"), "both have moved")
    traffic.expect_once(a, b)

    connection = kept(shared_options["connectionString"], tmp_path)
    said = ehbalance("seek", table, moving, "--to", 1, "--force", *connection).out
    assert said.startswith(f"Partition {moving} continues at sequence number 1.\nPartition {moving} goes back,")
    again = {(str(moving), 1): 2, (str(moving), 2): 2, (str(moving), 3): 2}

    def read() -> Counter[tuple[str, int]]:
        return Counter(row for query in (a, b) for row in query.rows() if row[0] == str(moving))

    wait_until(lambda: read() == {(str(moving), 0): 1} | again, "it is read again from there")
    traffic.expect_once(a, b)
    assert owners()[moving] == "b"
    a.stop()
    b.stop()


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
