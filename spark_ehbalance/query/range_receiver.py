"""The receiver for one range, kept open for the next range when this one ends."""

from __future__ import annotations

import pyarrow as pa

from spark_ehbalance.eventhub.receiver import Receiver
from spark_ehbalance.query.receivers import Key, Receivers


class RangeReceiver:
    """The receiver for one range: taken from `receivers` when it is needed, and kept there when the range ends."""

    def __init__(self, receivers: Receivers, key: Key, prefetch: int, end: int, max_rows: int) -> None:
        self._receivers = receivers
        self._key = key
        self._prefetch = prefetch
        self._end = end
        self._max_rows = max_rows
        self._receiver: Receiver | None = None
        #: As of the receiver, after the last call of `receive`.
        self.first: int | None = None
        self.next = 0

    def receive(self, position: int) -> pa.RecordBatch:
        """Up to `max_rows` from `position` on. Raises what a `Receiver` raises; the next call opens another one."""
        if self._receiver is None or self._receiver.closed or self._receiver.next != position:
            self.close()
            self._receiver = self._receivers.take(self._key, position, self._prefetch)
        receiver, left = self._receiver, self._end - position
        try:
            batch = receiver.receive(min(self._max_rows, left), 1.0, left)
        except BaseException:
            self.close()
            raise
        self.first, self.next = receiver.first, position if receiver.next is None else receiver.next
        return batch

    def close(self) -> None:
        """Keep the receiver for the next task if it is at the end of the range, where the next range begins; else close
        it."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None and receiver.next == self._end:
            self._receivers.keep(self._key, receiver)
        elif receiver is not None:
            receiver.close()
