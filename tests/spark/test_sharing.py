"""Several queries in processes of their own share one hub."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.cli.command import kept
from tests.spark.conftest import HUB
from tests.spark.query_process import Query, QueryProcess
from tests.waiting import wait_until as wait_until_within

pytestmark = pytest.mark.spark

Owners = Callable[[], list[str | None]]

#: Two Sparks' first batches on two busy cores take most of a minute.
wait_until = partial(wait_until_within, timeout=120.0)


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


def test_queries_join_and_leave(
    hub: Emulator, shared_options: dict[str, str], owners: Owners, processes: list[QueryProcess], tmp_path: Path
) -> None:
    traffic = Traffic(hub)
    a = processes[0].start(shared_options, tmp_path / "a")
    b = processes[1].start(shared_options, tmp_path / "b")
    wait_until(lambda: shares(owners) == [4, 4], "two queries share 4/4")
    traffic.expect_once(a, b)

    c = processes[2].start(shared_options, tmp_path / "c")
    wait_until(lambda: shares(owners) == [2, 3, 3], "three queries share 2/3/3")
    traffic.expect_once(a, b, c)

    c.stop()
    wait_until(lambda: shares(owners) == [4, 4], "two queries share 4/4 again")
    traffic.expect_once(a, b, c)

    b.stop()
    stopped = time.monotonic()
    sent = traffic.send()
    wait_until(lambda: sent <= set(a.rows()), "the stopped query's partitions are read by the other")
    print(f"read elsewhere {time.monotonic() - stopped:.1f} s after the stop")
    assert shares(owners) == [8]
    a.stop()
    wait_until(lambda: owners() == [None] * 8, "the last query has given everything back")


@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM"])
def test_a_process_ends(
    end: str,
    hub: Emulator,
    shared_options: dict[str, str],
    owners: Owners,
    pair: list[QueryProcess],
    tmp_path: Path,
) -> None:
    traffic = Traffic(hub)
    a = pair[0].start(shared_options, tmp_path / "a")
    b = pair[1].start(shared_options, tmp_path / "b")
    wait_until(lambda: shares(owners) == [4, 4], "two queries share 4/4")
    traffic.expect_once(a, b)

    pair[1].kill() if end == "SIGKILL" else pair[1].terminate()
    ended = time.monotonic()
    sent = traffic.send()
    # Killed: the lease duration of 6 s and an interval of 1 s have to pass; asked to end, it gives its leases back.
    wait_until(lambda: sent <= set(a.rows()), "the other reads everything")
    print(f"read elsewhere {time.monotonic() - ended:.1f} s after {end}")
    assert shares(owners) == [8]
    a.stop()
    wait_until(lambda: not pair[1].alive, "it has ended, and no other test uses it")


def ehbalance(command: str, options: dict[str, str], *arguments: str) -> str:
    """What the command line says to an operator."""
    run = [sys.executable, "-c", "from spark_ehbalance.cli import main; main()", command, options["leaseTable"]]
    done = subprocess.run([*run, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_operators_orders_take_effect_in_running_queries(
    hub: Emulator, shared_options: dict[str, str], owners: Owners, pair: list[QueryProcess], tmp_path: Path
) -> None:
    traffic = Traffic(hub)
    a = pair[0].start(shared_options | {"ownerId": "a"}, tmp_path / "a")
    b = pair[1].start(shared_options | {"ownerId": "b"}, tmp_path / "b")
    wait_until(lambda: shares(owners) == [4, 4], "two queries share 4/4")
    for _ in range(3):
        traffic.expect_once(a, b)

    moving, pinned = owners().index("a"), owners().index("b")
    ehbalance("transfer", shared_options, str(moving), "--to", "b")
    ehbalance("pin", shared_options, str(pinned), "--to", "a")
    wait_until(lambda: (owners()[moving], owners()[pinned]) == ("b", "a"), "both have moved")
    traffic.expect_once(a, b)

    connection = kept(shared_options["connectionString"], tmp_path)
    said = ehbalance("seek", shared_options, str(moving), "--to", "1", "--force", *connection)
    assert said.startswith(f"Partition {moving} continues at sequence number 1.\nPartition {moving} goes back,")
    again = {(str(moving), 1): 2, (str(moving), 2): 2, (str(moving), 3): 2}

    def read() -> Counter[tuple[str, int]]:
        return Counter(row for query in (a, b) for row in query.rows() if row[0] == str(moving))

    wait_until(lambda: read() == {(str(moving), 0): 1} | again, "it is read again from there")
    traffic.expect_once(a, b)
    assert owners()[moving] == "b"
    a.stop()
    b.stop()
