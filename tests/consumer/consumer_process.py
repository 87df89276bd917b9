"""A plain consumer in a process of its own: `python -m tests.consumer.consumer_process KIND HUB TABLE FILE LEASE`.

KIND is `sync` or `async`, HUB the connection string, LEASE the lease duration in seconds. Each event becomes a line of
FILE, "partition sequence-number",
and then a checkpoint. SIGTERM stops it in order.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from azure.eventhub import EventHubConsumerClient
from azure.eventhub.aio import EventHubConsumerClient as AsyncClient

from spark_ehbalance.consumer import DeltaCheckpointStore
from spark_ehbalance.consumer.aio import DeltaCheckpointStore as AsyncStore

#: Seconds.
INTERVAL, EXPIRATION = 0.3, 3.0

BALANCING = {"load_balancing_interval": INTERVAL, "partition_ownership_expiration_interval": EXPIRATION}


def options(hub: str, lease: float) -> dict[str, Any]:
    return {
        "connection_string": hub,
        "starting_position": "earliest",
        **BALANCING,
        "lease_duration": lease,
    }


def consume(hub: str, table: str, file: Path, lease: float) -> None:
    with DeltaCheckpointStore(table, **options(hub, lease)) as store, file.open("a") as out:

        def on_events(context: Any, events: list[Any]) -> None:
            out.writelines(f"{context.partition_id} {each.sequence_number}\n" for each in events)
            out.flush()
            if events:
                context.update_checkpoint(events[-1])

        client = EventHubConsumerClient.from_connection_string(
            hub, "$Default", checkpoint_store=store, socket_timeout=0.02, **BALANCING
        )
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=client.close).start())
        client.receive_batch(on_events, max_wait_time=1)


async def consume_async(hub: str, table: str, file: Path, lease: float) -> None:
    with file.open("a") as out:
        async with AsyncStore(table, **options(hub, lease)) as store:

            async def on_events(context: Any, events: list[Any]) -> None:
                out.writelines(f"{context.partition_id} {each.sequence_number}\n" for each in events)
                out.flush()
                if events:
                    await context.update_checkpoint(events[-1])

            client = AsyncClient.from_connection_string(
                hub, "$Default", checkpoint_store=store, socket_timeout=0.02, **BALANCING
            )
            receiving = asyncio.create_task(client.receive_batch(on_events, max_wait_time=1))
            stopped = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
            await stopped.wait()
            await client.close()
            receiving.cancel()


if __name__ == "__main__":
    kind, hub, table, file, lease = sys.argv[1:]
    if kind == "sync":
        consume(hub, table, Path(file), float(lease))
    else:
        asyncio.run(consume_async(hub, table, Path(file), float(lease)))
