"""Concurrent users of one store, in threads or processes. A store's tests import one of the two fixtures as
`contenders`."""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from spark_ehbalance.errors import StoreFormatError
from spark_ehbalance.group.changes import Claim, Join
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Author
from spark_ehbalance.lease_table.contract import LeaseStore, commit

#: Opens another handle on the same store. Must be picklable if contenders are processes.
Opening = Callable[[], LeaseStore]

CONTENDERS = 4

#: Attempts of a commit: that many consecutive lost races are not an accident.
ATTEMPTS = 200

_start_line: threading.Barrier | None = None


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    """Processes as contenders."""
    spawn = multiprocessing.get_context("spawn")  # a fork would lose delta-rs's threads
    with ProcessPoolExecutor(CONTENDERS, spawn, _line_up, (spawn.Barrier(CONTENDERS),)) as pool:
        yield pool


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    """Threads as contenders."""
    with ThreadPoolExecutor(CONTENDERS, initializer=_line_up, initargs=(threading.Barrier(CONTENDERS),)) as pool:
        yield pool


def _line_up(barrier: Any) -> None:
    """Initializer of a contender's thread or process: the contenders wait for one another at `barrier`."""
    global _start_line
    _start_line = barrier


def wait_for_the_others() -> None:
    assert _start_line is not None
    _start_line.wait(timeout=60)


def create_group(opening: Opening, group: Group) -> Group | None:
    """Create the group. Returns the group in the store, or None if that is another group."""
    wait_for_the_others()
    with opening() as store:
        try:
            store.create(group)
        except StoreFormatError:
            return None
        return store.read().group


def claim_all(opening: Opening, me: Author) -> list[str]:
    """Claim free partitions one by one in random order until none is left; returns the claimed partitions."""
    won = []
    with opening() as store:
        snapshot = commit(store, store.read(), [Join(by=me, at_ms=1)], attempts=ATTEMPTS).after
        wait_for_the_others()
        while free := [lease for lease in snapshot.leases.values() if lease.owner is None]:
            lease = random.choice(free)
            claim = Claim(by=me, at_ms=1, partition=lease.partition, epoch=lease.epoch)
            outcome = commit(store, snapshot, [claim], attempts=ATTEMPTS)
            snapshot = outcome.after
            if outcome.accepted:
                won.append(lease.partition)
    return won
