"""azure-eventhub's own clients, each in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from azure.eventhub import CloseReason, EventData, EventHubConsumerClient
from azure.eventhub.aio import EventHubConsumerClient as AsyncClient

from spark_ehbalance.consumers import DeltaCheckpointStore
from spark_ehbalance.consumers.aio import DeltaCheckpointStore as AsyncStore


class Client:
    """A client that reads, synchronous or asynchronous as its store, until it is stopped.

    `seen` are partitions and sequence numbers, `offsets` the events' own by these; `errors` what `on_error` was told,
    `opened` and `closed` what was told when receivers began and ended.
    """

    def __init__(
        self,
        hub: str,
        store: DeltaCheckpointStore | AsyncStore,
        process: Callable[[str, int], bool] = lambda *_: True,
        **options: Any,
    ) -> None:
        """`hub` is the connection string. `process` is called with each event; it returns whether to checkpoint."""
        self.seen: list[tuple[str, int]] = []
        self.offsets: dict[tuple[str, int], str | None] = {}
        self.errors: list[tuple[str | None, Exception]] = []
        self.opened: list[str] = []
        self.closed: list[tuple[str, CloseReason]] = []
        self._hub = hub
        self._process = process
        self._options = {"load_balancing_interval": 0.5, "socket_timeout": 0.02} | options
        self._stop: Callable[[], object] = lambda: None
        ready = threading.Event()
        target, arguments = (
            (self._run_async, (store, ready)) if isinstance(store, AsyncStore) else (self._run, (store, ready))
        )
        self._thread = threading.Thread(target=target, args=arguments)
        self._thread.start()
        assert ready.wait(60)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._stop()
            self._thread.join(60)

    # --- what the client calls ---------------------------------------------------------------------------------

    def _checkpoints(self, context: Any, event: EventData) -> bool:
        number = event.sequence_number
        assert number is not None
        self.seen.append((context.partition_id, number))
        self.offsets[context.partition_id, number] = event.offset
        return self._process(context.partition_id, number)

    def _failed(self, context: Any, error: Exception) -> None:
        self.errors.append((context and context.partition_id, error))

    def _began(self, context: Any) -> None:
        self.opened.append(context.partition_id)

    def _ended(self, context: Any, reason: CloseReason) -> None:
        self.closed.append((context.partition_id, reason))

    # --- the two kinds -----------------------------------------------------------------------------------------

    def _run(self, store: DeltaCheckpointStore, ready: threading.Event) -> None:
        def process(context: Any, event: EventData) -> None:
            if self._checkpoints(context, event):
                context.update_checkpoint(event)

        client = EventHubConsumerClient.from_connection_string(
            self._hub, "$Default", checkpoint_store=store, **self._options
        )
        self._stop = client.close
        ready.set()
        client.receive(
            process,
            on_error=self._failed,
            on_partition_initialize=self._began,
            on_partition_close=self._ended,
        )

    def _run_async(self, store: AsyncStore, ready: threading.Event) -> None:
        asyncio.run(self._consume(store, ready))

    async def _consume(self, store: AsyncStore, ready: threading.Event) -> None:
        async def process(context: Any, event: EventData) -> None:
            if self._checkpoints(context, event):
                await context.update_checkpoint(event)

        async def failed(context: Any, error: Exception) -> None:
            self._failed(context, error)

        async def began(context: Any) -> None:
            self._began(context)

        async def ended(context: Any, reason: CloseReason) -> None:
            self._ended(context, reason)

        client = AsyncClient.from_connection_string(self._hub, "$Default", checkpoint_store=store, **self._options)
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        receiving = asyncio.create_task(
            client.receive(process, on_error=failed, on_partition_initialize=began, on_partition_close=ended)
        )
        ready.set()
        await stopped.wait()
        await client.close()
        receiving.cancel()
