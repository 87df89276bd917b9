"""azure-eventhub's own client in a thread. `consumer_process` runs the asynchronous client too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from azure.eventhub import CloseReason, EventData, EventHubConsumerClient

from spark_ehbalance.consumers import DeltaCheckpointStore


class Client:
    """A client that reads until it is stopped.

    `seen` contains (partition, sequence number) of events, `offsets` maps these to the events' offsets; `errors`,
    `opened` and `closed` contain the arguments of `on_error` and of the callbacks for opened and closed receivers.
    """

    def __init__(
        self,
        hub: str,
        store: DeltaCheckpointStore,
        process: Callable[[str, int], bool] = lambda *_: True,
        **options: Any,
    ) -> None:
        """`hub` is the connection string. `process` is called with every event and returns whether to checkpoint."""
        self.seen: list[tuple[str, int]] = []
        self.offsets: dict[tuple[str, int], str | None] = {}
        self.errors: list[tuple[str | None, Exception]] = []
        self.opened: list[str] = []
        self.closed: list[tuple[str, CloseReason]] = []
        self._process = process
        quick = {"load_balancing_interval": 0.5, "socket_timeout": 0.02} | options
        self._client = EventHubConsumerClient.from_connection_string(hub, "$Default", checkpoint_store=store, **quick)
        self._thread = threading.Thread(
            target=self._client.receive,
            args=(self._read,),
            kwargs={
                "on_error": lambda context, error: self.errors.append((context and context.partition_id, error)),
                "on_partition_initialize": lambda context: self.opened.append(context.partition_id),
                "on_partition_close": lambda context, reason: self.closed.append((context.partition_id, reason)),
            },
        )
        self._thread.start()

    def stop(self) -> None:
        self._client.close()
        self._thread.join(60)

    def _read(self, context: Any, event: EventData) -> None:
        number = event.sequence_number
        assert number is not None
        self.seen.append((context.partition_id, number))
        self.offsets[context.partition_id, number] = event.offset
        if self._process(context.partition_id, number):
            context.update_checkpoint(event)
