"""Fixtures of this folder's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.fixtures import emulator
from tests.hub.receiving import handlers
from tests.source.queries import Group

__all__ = ["emulator", "group", "handlers"]


@pytest.fixture
def group(emulator: Emulator, tmp_path: Path) -> Iterator[Group]:
    """A hub with 8 partitions and a lease table."""
    made = Group(emulator, tmp_path)
    yield made
    made.close()
