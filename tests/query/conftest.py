"""Fixtures for the tests of queries."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.poll_schedule import PollIntervals, PollSchedule
from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver
from spark_ehbalance.eventhub.watcher import HubWatcher
from spark_ehbalance.query import assembly
from tests.eventhub.receiving import handlers
from tests.query.queries import Group
from tests.query.support import CountedReceivers, hub_options
from tests.query.without_network import answer_without_network
from tests.waiting import wait_until

__all__ = ["group", "handlers"]


@pytest.fixture
def group(emulator: Emulator, tmp_path: Path) -> Iterator[Group]:
    """A hub with 8 partitions and a lease table."""
    made = Group(emulator, tmp_path)
    yield made
    made.close()


@pytest.fixture
def without_network(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planners query the emulator directly."""
    answer_without_network(emulator, monkeypatch)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private temporary folder for control sockets, with a short name because socket addresses are limited."""
    tmp_path_factory.getbasetemp()  # pytest's temporary folders must not be inside it
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield Path(short)


@pytest.fixture
def frequent_partition_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes planners list the hub's partitions more often."""

    def watcher(*given: Any, **settings: Any) -> HubWatcher:
        return HubWatcher(*given, **settings, schedule=PollSchedule(PollIntervals(listing=0.5)))

    monkeypatch.setattr(assembly, "HubWatcher", watcher)


@pytest.fixture
def worker() -> Iterator[CountedReceivers]:
    """The open receivers of a worker process; closed after the test."""
    receivers = CountedReceivers()
    yield receivers
    receivers.close()


@pytest.fixture
def rival(emulator: Emulator) -> Iterator[Callable[..., Receiver]]:
    """Opens a competing receiver for a partition with the given owner level; it keeps reading until the test ends."""
    made: list[Receiver] = []

    def come(level: int, partition: str = "0", group: str = "$Default") -> Receiver:
        source = PartitionAddress(hub_options(emulator).connection, group, partition)
        made.append(Receiver(source, 0, owner_level=level, prefetch=1))
        wait_until(lambda: made[-1].receive(1, 0.2).num_rows, "the other one reads")
        return made[-1]

    yield come
    for reader in made:
        reader.close()
