"""Receivers for tests and the client's handlers that they use; a conftest imports the fixture."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub import receiver as receiver_module
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver
from spark_ehbalance.eventhub.wire.client import check_usable
from tests.query.support import hub_options
from tests.waiting import wait_until


def address_of(emulator: Emulator, connection: Connection | None = None) -> PartitionAddress:
    """Partition 0 of the emulator's hub."""
    return PartitionAddress(connection or hub_options(emulator).connection, "$Default", "0")


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The client's handlers that receivers use, so that tests can change their state as time or a hub would."""
    found: list[Any] = []

    def recorded(handler: Any, link: Any) -> None:
        found.append(handler)
        check_usable(handler, link)

    monkeypatch.setattr(receiver_module, "check_usable", recorded)
    return found


@contextlib.contextmanager
def reading(address: PartitionAddress, start: Any = 0, **settings: Any) -> Iterator[Receiver]:
    """A receiver that is closed at the end of the block."""
    with contextlib.closing(Receiver(address, start, **{"owner_level": None, "prefetch": 100, **settings})) as receiver:
        yield receiver


def receive_until_error(receiver: Receiver, wait: float = 0.2) -> None:
    """Receive until an error is raised; fails if that takes longer than 10 s."""

    def received() -> bool:
        receiver.receive(10_000, wait)
        return False

    wait_until(received, "receiving raises an error")
