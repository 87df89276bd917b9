"""The hub for these tests: a real one named by environment variables, or the emulator's.

Events are never removed from a real hub, so a test reads only the events that it sent.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from azure.eventhub import EventData, EventHubProducerClient
from azure.eventhub.amqp import AmqpAnnotatedMessage

from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.metadata import HubMetadata, PartitionState
from spark_ehbalance.eventhub.receiver import PartitionAddress
from spark_ehbalance.query.options import Options, stream_options
from tests.waiting import wait_until

#: Environment variables that name a real hub, and the options that they set.
VARIABLES = {
    "EHBALANCE_AZURE_CONNECTION_STRING": "connectionString",
    "EHBALANCE_AZURE_NAMESPACE": "fullyQualifiedNamespace",
    "EHBALANCE_AZURE_CREDENTIAL": "credential",
    "EHBALANCE_AZURE_HUB": "eventHubName",
    "EHBALANCE_AZURE_CONSUMER_GROUP": "consumerGroup",
}

#: The variable with the location for lease tables, one folder per table; by default, a temporary folder.
TABLES = "EHBALANCE_AZURE_LEASE_TABLES"


@dataclass(frozen=True)
class Hub:
    """An event hub that nobody else uses during the tests. `raw` contains the options that name it."""

    raw: Mapping[str, str] = field(repr=False)  # pytest prints the arguments of a failed test
    tables: str
    is_real: bool
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def options(self, **more: object) -> Options:
        return stream_options({**self.raw, **{name: str(value) for name, value in more.items()}})

    def table(self) -> str:
        return f"{self.tables.rstrip('/')}/{self.run}-{uuid.uuid4().hex[:8]}"

    @property
    def connection(self) -> Connection:
        return self.options().connection

    @property
    def consumer_group(self) -> str:
        return self.options().consumer_group

    def address(self, partition: str) -> PartitionAddress:
        return PartitionAddress(self.connection, self.consumer_group, partition)

    def metadata(self) -> HubMetadata:
        return HubMetadata(self.connection, self.consumer_group)

    def states(self) -> dict[str, PartitionState]:
        with self.metadata() as metadata:
            return metadata.partition_states(metadata.partition_ids())

    def producer(self) -> EventHubProducerClient:
        text = self.raw.get("connectionString")
        if text is not None:
            return EventHubProducerClient.from_connection_string(text, eventhub_name=self.connection.hub)
        from azure.identity import DefaultAzureCredential

        return EventHubProducerClient(self.connection.namespace, self.connection.hub, DefaultAzureCredential())

    def send(self, partition: str, events: Iterable[EventData | AmqpAnnotatedMessage]) -> range:
        """Send `events` one by one and wait until the hub reports them; returns their sequence numbers."""
        before, sent = self.states()[partition].end, 0
        with self.producer() as producer:
            for event in events:
                producer.send_event(event, partition_id=partition)
                sent += 1
        wait_until(lambda: self.states()[partition].end >= before + sent, "the hub knows what was sent")
        assert self.states()[partition].end == before + sent, "somebody else sends to this hub"
        return range(before, before + sent)


def from_environment() -> Mapping[str, str]:
    """Options from the environment that name the real hub; empty if there are none."""
    return {option: os.environ[name] for name, option in VARIABLES.items() if os.environ.get(name)}
