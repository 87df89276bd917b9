"""Fixtures of the emulator's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_ehbalance.emulator import Emulator
from tests.emulator.clients import Reader, numbers, reader


@pytest.fixture
def connection(emulator: Emulator) -> str:
    """The connection string of `hub`, which has four partitions."""
    emulator.add_hub("hub", 4)
    return emulator.connection_string("hub")


@pytest.fixture
def bystander(emulator: Emulator, connection: str) -> Iterator[Reader]:
    """A real client that reads partition 0, and must still receive events at the end of the test."""
    with reader(connection) as events:
        yield events
        count = len(events.events)
        emulator.append("hub", 0, [b"x"] * 3)
        assert numbers(events.read(count + 3))[-1] == count + 2
