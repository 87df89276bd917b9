"""Sends numbered events at a steady rate."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.partition_keys import partition_for_key

_TICK = 0.1

#: Enough keys to give all partitions about the same number of events.
_KEYS = 997


class Producer:
    """Appends `rate` events per second to a hub, in its own thread. It must be the hub's only producer.

    The body of event N is N. Its partition key, one of many, determines the partition. `sent[partition]` lists the
    numbers in the bodies, indexed by sequence number.
    """

    def __init__(self, emulator: Emulator, hub: str, partitions: int, rate: float) -> None:
        self._emulator, self._hub, self._rate = emulator, hub, rate
        self._partitions = partitions
        self._next = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self.sent: dict[str, list[int]] = {str(partition): [] for partition in range(partitions)}
        self.error: Exception | None = None

    @property
    def count(self) -> int:
        return self._next

    def by_key(self) -> dict[tuple[str, str], list[tuple[object, ...]]]:
        """The bodies of the events that were sent, in order, by partition key and partition."""
        found: dict[tuple[str, str], list[tuple[object, ...]]] = defaultdict(list)
        for partition, numbers in self.sent.items():
            for number in numbers:
                found[f"key-{number % _KEYS}", partition].append((str(number),))
        return found

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the last event. Raises the error that ended the thread, if there was one."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.error is not None:
            raise self.error

    def add_partitions(self, count: int) -> None:
        """Send to `count` more partitions, which the hub must already have."""
        self.sent |= {str(self._partitions + more): [] for more in range(count)}
        self._partitions += count

    def _run(self) -> None:
        began = time.monotonic()
        try:
            while not self._stopping.wait(_TICK):
                self._send(int((time.monotonic() - began) * self._rate) - self._next)
        except Exception as error:  # raised by `stop`
            self.error = error

    def _send(self, count: int) -> None:
        by_key: dict[str, list[int]] = defaultdict(list)
        for number in range(self._next, self._next + count):
            by_key[f"key-{number % _KEYS}"].append(number)
        for key, numbers in by_key.items():
            partition = str(partition_for_key(key, self._partitions))
            bodies = [str(number).encode() for number in numbers]
            self._emulator.append(self._hub, partition, bodies, partition_key=key)
            self.sent[partition] += numbers
        self._next += count
