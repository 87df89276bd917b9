"""Receivers that a worker process keeps open between tasks."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver, RowFormat
from spark_ehbalance.query.range_reader import BatchFormat, read_range
from spark_ehbalance.query.receivers import RECEIVERS, ReceiverKey, Receivers
from tests.query.support import HUB, SOON, CountedReceivers, hub_options, numbers
from tests.waiting import wait_until

LEVEL = 5


@pytest.fixture(autouse=True)
def hub(emulator: Emulator) -> Iterator[None]:
    """Four partitions with events; kept receivers are closed after the test."""
    emulator.add_hub(HUB, 4)
    for partition in range(4):
        emulator.append(HUB, partition, [b"x"] * 600)
    yield
    RECEIVERS.close()


def read(emulator: Emulator, start: int, end: int, partition: str = "0", worker: Receivers = RECEIVERS) -> list[int]:
    """The sequence numbers read by a task with an owner level in a process that has these receivers."""
    return numbers(
        read_range(hub_options(emulator), OffsetRange(partition, 0, start, end), None, LEVEL, receivers=worker)
    )


def kept(emulator: Emulator, position: int) -> Receiver:
    """The receiver for partition 0 that `read` kept; it remains kept."""
    options = hub_options(emulator)
    address = PartitionAddress(options.connection, options.consumer_group, "0")
    key = ReceiverKey(address, LEVEL, RowFormat())
    receiver = RECEIVERS.take(key, position, 100)
    RECEIVERS.keep(key, receiver)
    return receiver


def test_query_with_other_columns_gets_its_own_receiver(emulator: Emulator) -> None:
    worker = CountedReceivers()

    def columns(start: int, *names: str) -> list[str]:
        wanted = OffsetRange("0", 0, start, start + 10)
        batches = BatchFormat(frozenset(names))
        read = read_range(hub_options(emulator), wanted, None, LEVEL, receivers=worker, batches=batches)
        return pa.Table.from_batches(read).column_names

    assert columns(0, "body") == ["body", "sequenceNumber"]
    assert columns(10, "offset", "body") == ["body", "offset", "sequenceNumber"]
    assert columns(20, "offset", "body") == ["body", "offset", "sequenceNumber"]
    worker.close()
    assert worker.opened == [0, 10]


def all_receivers_are_closed(emulator: Emulator) -> bool:
    return emulator.connections() == 0


def test_kept_receiver_closes_when_another_reader_disconnects_it(
    emulator: Emulator, rival: Callable[[int], Receiver]
) -> None:
    read(emulator, 0, 10)
    assert emulator.connections() == 1
    rival(LEVEL)
    wait_until(lambda: emulator.connections() == 1, "only the other worker's is open", SOON)


def test_unused_receiver_is_closed(emulator: Emulator) -> None:
    worker = Receivers(idle=1.0)
    read(emulator, 0, 10, worker=worker)
    assert emulator.readers(HUB, 0) == [LEVEL]
    wait_until(lambda: all_receivers_are_closed(emulator), "it is closed")
    wait_until(lambda: not is_checking_thread_running(), "the thread has ended")
    assert read(emulator, 10, 20) == list(range(10, 20))


def is_checking_thread_running() -> bool:
    """Whether the thread that checks the kept receivers is running."""
    return any(thread.name == "ehbalance-receivers" for thread in threading.enumerate())


def token_ends(handlers: list[Any]) -> None:
    token = handlers[0]._cbs_authenticator
    token._expires_on = int(time.time()) + token._refresh_window


def test_kept_receiver_is_closed_before_its_token_expires(emulator: Emulator, handlers: list[Any]) -> None:
    read(emulator, 0, 10)
    token_ends(handlers)
    wait_until(lambda: all_receivers_are_closed(emulator), "it is closed", SOON)


#: Incidents that make a receiver unusable.
ENDS: dict[str, Callable[[Emulator, list[Any]], object]] = {
    "drop": lambda emulator, _: emulator.drop_connections(),
    "detach": lambda emulator, _: emulator.detach(HUB, 0),
    "its token is about to expire": lambda _, handlers: token_ends(handlers),
}


@pytest.mark.parametrize("end", ENDS)
def test_unusable_receiver_is_not_reused(emulator: Emulator, handlers: list[Any], end: str) -> None:
    worker = CountedReceivers(check_interval=60.0)
    read(emulator, 0, 10, worker=worker)
    ENDS[end](emulator, handlers)
    wait_until(lambda: "token" in end or emulator.readers(HUB, 0) == [], "the hub has let go of it")
    assert read(emulator, 10, 20, worker=worker) == list(range(10, 20))
    worker.close()
    assert worker.opened == [0, 10]


def test_the_number_of_kept_receivers_is_limited(emulator: Emulator) -> None:
    worker = Receivers(most=2)
    for partition in range(4):
        read(emulator, 0, 10, str(partition), worker)
    wait_until(lambda: emulator.connections() == 2, "the ones unused longest are closed", SOON)
    assert [emulator.readers(HUB, partition) for partition in range(4)] == [[], [], [LEVEL], [LEVEL]]
    worker.close()


def test_tasks_and_the_checking_thread_do_not_interfere(emulator: Emulator) -> None:
    """Receivers are kept, taken and closed as unused concurrently: events are neither lost nor duplicated."""
    worker = Receivers(idle=0.001, check_interval=0.0005)

    def task(partition: int) -> list[int]:
        chance, got, start = random.Random(partition), list[int](), 0
        while start < 600:
            end = min(600, start + chance.randrange(1, 40))
            got += read(emulator, start, end, str(partition), worker)
            start = end
            if chance.random() < 0.3:
                threading.Event().wait(chance.uniform(0, 0.003))
        return got

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(task, range(4))) == [list(range(600))] * 4
    wait_until(lambda: all_receivers_are_closed(emulator), "all are closed")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_process_drops_the_receivers(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    read(emulator, 0, 10)
    checking, forked = threading.Event(), threading.Event()
    receiver, is_usable = kept(emulator, 10), Receiver.is_usable

    def slowly(checked: Receiver) -> bool:
        if threading.current_thread() is not threading.main_thread():
            checking.set()
            forked.wait(60)
        return is_usable(checked)

    monkeypatch.setattr(Receiver, "is_usable", slowly)
    assert checking.wait(60), "the thread holds the lock"
    child = os.fork()
    if not child:
        signal.alarm(30)  # or else it waits for a lock that no thread here holds
        gc.collect()
        os._exit(RECEIVERS.count())
    forked.set()
    assert os.waitpid(child, 0)[1] == 0
    assert not receiver.closed
    assert read(emulator, 10, 20) == list(range(10, 20))
    assert kept(emulator, 20) is receiver
