"""Consumers that share a hub through the Azure SDK's own, unmodified checkpoint store."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from azure.eventhub import EventHubConsumerClient
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore

from chaos.storage.azurite import ACCOUNT, KEY
from tests.waiting import wait_until

#: (partition, sequence number)
Event = tuple[str, int]


def checkpoint_store(storage: str, container: str) -> BlobCheckpointStore:
    """The SDK's store in a container of the Azurite server at `storage`."""
    return BlobCheckpointStore(f"{storage}/{ACCOUNT}", container, KEY)


def read_with_sdk(
    connection: str,
    hub: str,
    storage: str,
    container: str,
    most: Mapping[str, int],
    group: str = "$Default",
    starting_position: str = "-1",
) -> list[Event]:
    """The events that one consumer processes: `most` per partition, with a checkpoint after every event. It stops
    gracefully, so these events are not read again."""
    processed: list[Event] = []
    lock = threading.Lock()

    def process(context: Any, event: Any) -> None:
        partition = context.partition_id
        with lock:
            if sum(read == partition for read, _ in processed) >= most.get(partition, 0):
                return
            processed.append((partition, event.sequence_number))
        context.update_checkpoint(event)

    client = EventHubConsumerClient.from_connection_string(
        connection,
        group,
        eventhub_name=hub,
        checkpoint_store=checkpoint_store(storage, container),
        load_balancing_interval=0.2,
        socket_timeout=0.02,
    )
    how = {"on_event": process, "starting_position": starting_position}
    thread = threading.Thread(target=client.receive, kwargs=how)
    with client:
        thread.start()
        try:
            wait_until(lambda: len(processed) == sum(most.values()), "the consumer has processed its events")
        finally:
            client.close()
            thread.join()
    return processed
