"""Fixtures of this folder's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from azure.eventhub import EventHubConsumerClient

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.metadata import HubMetadata
from tests.eventhub.receiving import handlers
from tests.query.support import HUB, hub_options

__all__ = ["handlers"]


@pytest.fixture
def metadata(emulator: Emulator) -> Iterator[HubMetadata]:
    """Metadata of a hub with three partitions."""
    emulator.add_hub(HUB, 3)
    with HubMetadata(hub_options(emulator).connection, "$Default") as made:
        yield made


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """Contains one entry per created client, that is, per connection."""
    made: list[Connection] = []
    make = Connection.consumer_client

    def counted(connection: Connection, consumer_group: str, **settings: Any) -> EventHubConsumerClient:
        made.append(connection)
        return make(connection, consumer_group, **settings)

    monkeypatch.setattr(Connection, "consumer_client", counted)
    return made
