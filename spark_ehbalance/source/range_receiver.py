"""The receiver for one range, kept open for the next range when this one ends."""

from __future__ import annotations

import pyarrow as pa

from spark_ehbalance.hub.receiver import Receiver
from spark_ehbalance.hub.rows import sequence_numbers
from spark_ehbalance.source.ranges import Range
from spark_ehbalance.source.receivers import Key, Receivers
from spark_ehbalance.values.position import names_event


class Diverged(Exception):
    """The hub does not have the event that was read last any more."""


def is_identified(wanted: Range) -> bool:
    """Whether offsets identify the events of this range, so that they are needed to read it."""
    return names_event(wanted.start_offset) or names_event(wanted.end_offset)


class RangeReceiver:
    """The receiver for one range: taken from `receivers` when it is needed, and kept there when the range ends."""

    def __init__(self, receivers: Receivers, key: Key, prefetch: int, wanted: Range, max_rows: int) -> None:
        self._receivers = receivers
        self._key = key
        self._prefetch = prefetch
        self._end = wanted.end
        self._max_rows = max_rows
        #: The offset of the last event before the position, in a hub whose offsets identify events; else None.
        self.after = wanted.start_offset
        self._identified = is_identified(wanted)
        self._checks = False  # what comes first is the event at `after`
        self._receiver: Receiver | None = None
        #: As of the receiver, after the last call of `receive`.
        self.first: int | None = None
        self.next = 0

    def receive(self, position: int) -> pa.RecordBatch:
        """Up to `max_rows` from `position` on. Raises what a `Receiver` raises; the next call opens another one.

        Raises `Diverged` if the event before `position` is not the one at `after`.
        """
        waits = self._checks and self._receiver is not None and not self._receiver.closed
        if not waits and (self._receiver is None or self._receiver.closed or self._receiver.next != position):
            self.close()
            after = self.after if names_event(self.after) else None
            self._receiver = self._receivers.take(self._key, position, self._prefetch, after)
            self._receiver.gaps = self._key.address in self._receivers.compacted
            self._checks = self._receiver.next is None
        assert self._receiver is not None
        receiver, left = self._receiver, self._end - position + self._checks
        try:
            batch = receiver.receive(min(self._max_rows, left), 1.0, left)
        except BaseException:
            self.close()
            raise
        self.first, self.next = receiver.first, position if receiver.next is None else receiver.next
        if self._checks and receiver.first is not None:
            batch = self._without_checked(batch, position)
        if self._identified and batch.num_rows:
            last = batch.slice(batch.num_rows - 1)
            self.after = last["offset"][0].as_py() if sequence_numbers(last)[0].as_py() == self.next - 1 else None
        return batch

    def _without_checked(self, batch: pa.RecordBatch, position: int) -> pa.RecordBatch:
        """`batch` without the event at `after`, with which it begins; where that has aged out, the whole of it."""
        self._checks = False
        if not batch.num_rows:  # it cannot be read, and is left out
            self.first = max(self.first or 0, position)
            return batch
        number, offset = (batch[name][0].as_py() for name in ("sequenceNumber", "offset"))
        if number is None or number >= position:
            return batch
        if offset not in (None, self.after) or (offset is None and number < position - 1):
            self.close()
            raise Diverged(f"event {number} has come after offset {self.after}")
        gap = number < position - 1 or (batch.num_rows == 1 and self._receiver is not None and self._receiver.closed)
        if gap:  # as in a compacted hub: a receiver that begins at the position tells whether there are such events
            self.close()
            self.after, self.next = None, position
        self.first = position
        return batch.slice(1, 0 if gap else None)

    def goes_on(self, end: int) -> None:
        """From now on at another position, of which no offset is known, and up to before `end`."""
        self.close()
        self.after, self._checks, self._end = None, False, end

    def pass_over_gaps(self) -> bool:
        """From now on, because the hub is compacted. Returns whether that is new."""
        new = self._key.address not in self._receivers.compacted
        self._receivers.compacted.add(self._key.address)
        if self._receiver is not None:
            self._receiver.gaps = True
        return new

    def close(self) -> None:
        """Keep the receiver for the next task if it is at the end of the range, where the next range begins; else close
        it."""
        receiver, self._receiver = self._receiver, None
        self._checks = False
        if receiver is not None and receiver.next == self._end:
            self._receivers.keep(self._key, receiver)
        elif receiver is not None:
            receiver.close()
