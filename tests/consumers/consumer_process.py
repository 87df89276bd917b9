"""A plain consumer in a separate process: `python -m tests.consumers.consumer_process KIND HUB TABLE FILE LEASE`.

KIND is `sync` or `async`, HUB the connection string, LEASE the lease duration in seconds. Every event becomes a line in
FILE, "partition sequence-number", and then a checkpoint. The end of standard input stops it gracefully.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from azure.eventhub import EventHubConsumerClient
from azure.eventhub.aio import EventHubConsumerClient as AsyncClient

from spark_ehbalance.consumers import DeltaCheckpointStore
from spark_ehbalance.consumers.aio import DeltaCheckpointStore as AsyncStore

#: Seconds.
INTERVAL, EXPIRATION = 0.3, 3.0

Write = Callable[[Any, list[Any]], None]

BALANCING = {"load_balancing_interval": INTERVAL, "partition_ownership_expiration_interval": EXPIRATION}


def main(kind: str, hub: str, table: str, file: Path, lease: float) -> None:
    options = {"leaseTable": table, "connectionString": hub, "startingPosition": "earliest"}
    options |= {"leaseDuration": f"{lease}s", "balanceInterval": "1s"}
    client = {"consumer_group": "$Default", "socket_timeout": 0.02, **BALANCING}
    with file.open("a") as out:

        def write(context: Any, events: list[Any]) -> None:
            out.writelines(f"{context.partition_id} {event.sequence_number}\n" for event in events)
            out.flush()

        if kind == "sync":
            with DeltaCheckpointStore(options, load_balancing_interval=INTERVAL) as store:
                consume(EventHubConsumerClient.from_connection_string(hub, checkpoint_store=store, **client), write)
        else:
            asyncio.run(consume_async(hub, options, client, write))


def consume(client: EventHubConsumerClient, write: Write) -> None:
    def on_events(context: Any, events: list[Any]) -> None:
        write(context, events)
        if events:
            context.update_checkpoint(events[-1])

    threading.Thread(target=lambda: (sys.stdin.read(), client.close()), daemon=True).start()
    client.receive_batch(on_events, max_wait_time=1)


async def consume_async(hub: str, options: dict[str, str], settings: dict[str, Any], write: Write) -> None:
    async def on_events(context: Any, events: list[Any]) -> None:
        write(context, events)
        if events:
            await context.update_checkpoint(events[-1])

    async with AsyncStore(options, load_balancing_interval=INTERVAL) as store:
        client = AsyncClient.from_connection_string(hub, checkpoint_store=store, **settings)
        receiving = asyncio.create_task(client.receive_batch(on_events, max_wait_time=1))
        await asyncio.to_thread(sys.stdin.read)
        await client.close()
        receiving.cancel()


if __name__ == "__main__":
    kind, hub, table, file, lease = sys.argv[1:]
    main(kind, hub, table, Path(file), float(lease))
