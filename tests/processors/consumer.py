"""An unmodified `EventHubConsumerClient` in a separate process: `python -m tests.processors.consumer JSON`.

For every event, it appends a line with partition and sequence number to a file before it checkpoints, until standard
input ends or it is killed.
"""

from __future__ import annotations

import json
import sys
import threading

from azure.core.credentials import AzureNamedKeyCredential
from azure.eventhub import EventHubConsumerClient
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore


def main() -> None:
    settings = json.loads(sys.argv[1])
    account = AzureNamedKeyCredential(settings["account"], settings["key"])
    store = BlobCheckpointStore(settings["service"], settings["container"], account)
    client = EventHubConsumerClient.from_connection_string(
        settings["connection"],
        settings["consumer_group"],
        checkpoint_store=store,
        load_balancing_interval=settings["interval"],
        partition_ownership_expiration_interval=settings["expiry"],
        load_balancing_strategy=settings["strategy"],
    )
    with open(settings["seen"], "a") as seen:

        def on_batch(context, events) -> None:  # type: ignore[no-untyped-def]
            if not events:
                return
            for event in events:
                seen.write(f"{context.partition_id} {event.sequence_number}\n")
            seen.flush()
            context.update_checkpoint()

        wait = settings["max_wait_time"]
        receiving = {"on_event_batch": on_batch, "starting_position": "-1", "max_wait_time": wait}
        thread = threading.Thread(target=client.receive_batch, kwargs=receiving, daemon=True)
        thread.start()
        sys.stdin.read()
        client.close()
        thread.join(20)


if __name__ == "__main__":
    main()
