"""Fixtures of this folder's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.consumers.consumers import Consumers


@pytest.fixture
def partitions() -> int:
    """The hub's number of partitions; test files can override it."""
    return 4


@pytest.fixture
def consumers(emulator: Emulator, tmp_path: Path, partitions: int) -> Iterator[Consumers]:
    made = Consumers(emulator, tmp_path, partitions)
    yield made
    made.close()
