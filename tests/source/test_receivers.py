"""What becomes of the receivers that a worker keeps between two tasks."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.hub.receiver import PartitionAddress, Receiver
from spark_ehbalance.hub.rows import sequence_numbers
from spark_ehbalance.source import receivers
from spark_ehbalance.source.range_reader import read_range
from spark_ehbalance.source.ranges import Range
from spark_ehbalance.source.receivers import RECEIVERS
from tests.source.support import HUB, count_openings, hub_options
from tests.waiting import wait_until

LEVEL = 5


@pytest.fixture(autouse=True)
def hub(emulator: Emulator) -> Iterator[None]:
    """Four partitions with events; and the kept receivers are closed in the end."""
    emulator.add_hub(HUB, 4)
    for partition in range(4):
        emulator.append(HUB, partition, [b"x"] * 2000)
    yield
    RECEIVERS.close()
    RECEIVERS.forget()  # the thread may be asleep for as long as a test has told it


def read(emulator: Emulator, start: int, end: int, partition: str = "0") -> list[int]:
    """The sequence numbers that are read, with an owner level."""
    batches = read_range(hub_options(emulator), Range(partition, 0, start, end), None, LEVEL)
    return [number for batch in batches for number in sequence_numbers(batch).to_pylist()]


def the_kept() -> Receiver:
    ((_, kept),) = RECEIVERS._kept.values()
    return kept


def none_is_open(emulator: Emulator) -> bool:
    return emulator.connections() == 0


def test_one_that_was_taken_over_closes_by_itself(emulator: Emulator) -> None:
    read(emulator, 0, 10)
    assert emulator.connections() == 1
    other = Receiver(
        PartitionAddress(hub_options(emulator).connection, "$Default", "0"), 10, owner_level=LEVEL, prefetch=10
    )
    try:
        assert other.receive(1, 5.0, 1).num_rows == 1
        wait_until(lambda: emulator.connections() == 1, "only the other worker's is open", 5)
    finally:
        other.close()


def test_one_that_nobody_asks_for_closes_by_itself(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "RECEIVER_IDLE", 1.0)
    read(emulator, 0, 10)
    assert emulator.readers(HUB, 0) == [LEVEL]
    wait_until(lambda: none_is_open(emulator), "it is closed", 5)
    wait_until(lambda: RECEIVERS._thread is None, "the thread has ended", 5)
    assert read(emulator, 10, 20) == list(range(10, 20))


def test_the_idle_time_is_seconds() -> None:
    assert receivers.RECEIVER_IDLE <= 10


def test_one_whose_token_is_about_to_end_closes_by_itself(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = count_openings(monkeypatch)
    read(emulator, 0, 10)
    token = the_kept()._consumer._handler._cbs_authenticator
    token._expires_on = int(time.time()) + token._refresh_window
    wait_until(lambda: none_is_open(emulator), "it is closed", 5)
    assert read(emulator, 10, 20) == list(range(10, 20))
    assert opened == [0, 10]


def test_one_whose_token_is_about_to_end_is_not_used_again(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "_LOOK", 60.0)  # too late to close it before it is asked for
    opened = count_openings(monkeypatch)
    read(emulator, 0, 10)
    token = the_kept()._consumer._handler._cbs_authenticator
    token._expires_on = int(time.time()) + token._refresh_window
    assert read(emulator, 10, 20) == list(range(10, 20))
    assert opened == [0, 10]


@pytest.mark.parametrize("how", ["dropped", "detached"])
def test_one_that_was_disconnected_is_not_used_again(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(receivers, "_LOOK", 60.0)
    opened = count_openings(monkeypatch)
    read(emulator, 0, 10)
    if how == "dropped":
        emulator.drop_connections()
    else:
        emulator.detach(HUB, 0)
    wait_until(lambda: emulator.readers(HUB, 0) == [], "the hub has let go of it")
    assert read(emulator, 10, 20) == list(range(10, 20))
    assert opened == [0, 10]


def test_one_that_fills_up_is_closed(emulator: Emulator) -> None:
    read(emulator, 0, 10)
    emulator.append(HUB, 0, [bytes(100_000)] * 10)
    the_kept()._consumer._handler._link.flow(link_credit=5000)  # more than was wanted
    wait_until(lambda: none_is_open(emulator), "it is closed", 5)
    assert read(emulator, 10, 2010) == list(range(10, 2010))


def test_only_so_many_stay_open(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "MOST_RECEIVERS", 2)
    for partition in range(4):
        read(emulator, 0, 10, str(partition))
    wait_until(lambda: emulator.connections() == 2, "the ones unused longest are closed", 5)
    assert [emulator.readers(HUB, partition) for partition in range(4)] == [[], [], [LEVEL], [LEVEL]]


def test_readers_and_the_watching_thread_do_not_disturb_each_other(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receivers are given back, asked for and closed for age all at the same time: nothing is lost or doubled."""
    monkeypatch.setattr(receivers, "_LOOK", 0.0005)
    monkeypatch.setattr(receivers, "RECEIVER_IDLE", 0.001)

    def task(partition: int) -> list[int]:
        chance, got, start = random.Random(partition), list[int](), 0
        while start < 2000:
            end = min(2000, start + chance.randrange(1, 40))
            got += read(emulator, start, end, str(partition))
            start = end
            if chance.random() < 0.3:
                threading.Event().wait(chance.uniform(0, 0.003))
        return got

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(task, range(4))) == [list(range(2000))] * 4
    wait_until(lambda: none_is_open(emulator), "all are closed", 10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_leaves_them_to_the_parent(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = count_openings(monkeypatch)
    read(emulator, 0, 10)
    with RECEIVERS._lock:  # as if the thread were at work just then
        child = os.fork()
        if not child:
            gc.collect()
            free = RECEIVERS._lock.acquire(timeout=5)
            os._exit(0 if free and not RECEIVERS._kept and RECEIVERS._thread is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert read(emulator, 10, 20) == list(range(10, 20))
    assert opened == [0]


def test_kept_receivers_let_their_process_end(emulator: Emulator) -> None:
    program = f"""
from spark_ehbalance.source.options import stream_options
from spark_ehbalance.source.range_reader import read_range
from spark_ehbalance.source.ranges import Range
from spark_ehbalance.source.receivers import RECEIVERS
options = stream_options({{"connectionString": {emulator.connection_string(HUB)!r}}})
print(sum(batch.num_rows for batch in read_range(options, Range("0", 0, 0, 10), None, {LEVEL})), len(RECEIVERS._kept))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "10 1\n", "")
    wait_until(lambda: none_is_open(emulator), "its connections have gone with it", 5)
