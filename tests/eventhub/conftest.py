"""Fixtures of this folder's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.metadata import HubMetadata
from tests.eventhub.receiving import handlers
from tests.query.support import HUB, hub_options

__all__ = ["handlers"]


@pytest.fixture
def metadata(emulator: Emulator) -> Iterator[HubMetadata]:
    """Of a hub with three partitions."""
    emulator.add_hub(HUB, 3)
    with HubMetadata(hub_options(emulator).connection, "$Default") as made:
        yield made
