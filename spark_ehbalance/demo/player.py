"""Sends events to a hub with Azure's client, at a steady rate."""

from __future__ import annotations

import threading
import time

import pandas as pd
from azure.eventhub import EventData, EventDataBatch, EventHubProducerClient

from . import flights

#: Seconds of events that are sent together, in one batch per partition.
SLICE = 0.5


class Player:
    """Sends `data`, in its order within each partition, over `seconds`, in its own thread. It waits for `resume` before
    it sends the last part, from `pause_at` of all on.

    Sending each event by its key would be one call per event. Here the partition is chosen by the key as a hub would
    choose it, and each event carries its key as the annotation that a hub puts on it.
    """

    def __init__(
        self,
        connection_string: str,
        hub: str,
        partitions: int,
        data: pd.DataFrame,
        seconds: float,
        pause_at: float,
    ) -> None:
        # Each call of the client waits this long for its socket.
        self._client = EventHubProducerClient.from_connection_string(
            connection_string, eventhub_name=hub, socket_timeout=0.02
        )
        self._bodies, self._keys = flights.bodies(data), flights.keys(data)
        self._partitions = flights.partitions_of(self._keys, partitions)
        self._seconds = seconds
        self._pause_at = pause_at * len(data)
        self._resumed = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="player", daemon=True)
        self.sent = [0] * partitions  # events of each partition that the hub has accepted
        self.error: Exception | None = None

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def resume(self) -> None:
        """Send the last part too."""
        self._resumed.set()

    def stop(self) -> None:
        """Stop sending, even before the end."""
        self._stopping.set()
        self._resumed.set()
        if self._thread.ident is not None:
            self._thread.join(10)

    def _run(self) -> None:
        try:
            with self._client:
                self._play()
        except Exception as error:  # the demo reports it
            self.error = error

    def _play(self) -> None:
        size = max(1, round(len(self._bodies) * SLICE / self._seconds))
        self._send(range(min(size, len(self._bodies))))  # opening a connection per partition takes seconds
        began = time.monotonic()
        for number, start in enumerate(range(size, len(self._bodies), size), start=1):
            if start >= self._pause_at:
                paused = time.monotonic()
                self._resumed.wait()
                began += time.monotonic() - paused
            if self._stopping.wait(max(0.0, began + number * SLICE - time.monotonic())):
                return
            self._send(range(start, min(start + size, len(self._bodies))))

    def _send(self, events: range) -> None:
        batches: dict[int, EventDataBatch] = {}
        for number in events:
            partition, event = self._partitions[number], self._event(number)
            try:
                self._batch(batches, partition).add(event)
            except ValueError:  # full
                self._flush(partition, batches.pop(partition))
                self._batch(batches, partition).add(event)
        for partition, batch in batches.items():
            self._flush(partition, batch)

    def _batch(self, batches: dict[int, EventDataBatch], partition: int) -> EventDataBatch:
        if partition not in batches:
            batches[partition] = self._client.create_batch(partition_id=str(partition))
        return batches[partition]

    def _flush(self, partition: int, batch: EventDataBatch) -> None:
        self._client.send_batch(batch)
        self.sent[partition] += len(batch)

    def _event(self, number: int) -> EventData:
        event = EventData(self._bodies[number])
        key = self._keys[number]
        if key is not None:
            event.raw_amqp_message.annotations = {"x-opt-partition-key": key}
        return event
