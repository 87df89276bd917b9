"""A pytest fixture; a conftest imports it: `from spark_ehbalance.emulator.fixtures import emulator`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .emulator import Emulator


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """A running emulator without hubs, stopped after the test."""
    with Emulator() as running:
        yield running
