"""The events of one partition, in order, in memory.

A record consists of a gap of `HEADER_SIZE` bytes and the encoded event; in a reader's copy, the gap becomes the header
of the transfer. Offsets, like the service's, begin at 0, increase by the size in bytes, and jump to multiples of 2^32.
Here they jump after every 11 events, as was once observed. In a geo-replicated hub, an offset consists of the number of
the primary region, which each promotion increments, the position in bytes, and the sequence number. The service's
offsets have the same form (azure-sdk-for-go shows `2:-1:-1` for an empty partition), but the meaning of their numbers
is not documented. The epoch of a sequence number is the region's number, because it counts the changes of the primary
region (azure-sdk issue 7454); in other hubs, the epoch is -1.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from spark_ehbalance.emulator.amqp.frames import TRANSFER_HEADER_SIZE as HEADER_SIZE
from spark_ehbalance.emulator.message import EncodedEvent

_SEGMENT, _SEGMENT_EVENTS = 1 << 32, 11  # bytes, and events, after which offsets jump to the next segment


class Chunk(NamedTuple):
    """Consecutive records. `data` is a copy; `starts` contains the start of each record, and the end of the last."""

    data: bytearray
    starts: list[int]


class PartitionLog:
    """Append-only events with increasing sequence numbers; not thread-safe.

    `first_sequence_number` belongs to the first retained event, `next_sequence_number` to the next new one.
    """

    def __init__(self, arrivals: Iterator[int], *, geo_replicated: bool = False) -> None:
        """`arrivals` yields a number for each append to any partition of the hub."""
        self.geo_replicated = geo_replicated  # if False, offsets are plain numbers
        self.refuses_lost_offsets = False  # offsets of events that a promotion has lost
        self._region_starts = [0]  # the sequence number of the first event of each primary region, in order
        self.first_sequence_number = 0
        self.largest_record = 0  # bytes
        self.on_append: set[Callable[[], None]] = set()  # called once, by the next append
        self._data = bytearray()  # the records of the indexed events
        self._positions = array("q", [0])  # byte position of each indexed event, then the end of the log
        self._offsets = array("q")
        self._times = array("q")
        self._arrivals = array("q")
        self._next_arrival = arrivals
        self._indexed_from = 0  # sequence number of the first event in the arrays
        self._removed: list[range] = []  # sequence numbers of removed events, in order

    @property
    def next_sequence_number(self) -> int:
        return self._indexed_from + len(self._times)

    @property
    def is_empty(self) -> bool:
        return self.first_sequence_number == self.next_sequence_number

    @property
    def first_epoch(self) -> int:
        """The epoch of the first retained event's sequence number."""
        return self._epoch(self.first_sequence_number)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last event's sequence number, retained or not."""
        return self._epoch(self.next_sequence_number - 1)

    @property
    def last_offset(self) -> str:
        """The offset of the last event, retained or not. If there never was an event, it is "-1", or "1:-1:-1" in a
        geo-replicated hub."""
        if self._times:
            return self._offset(len(self._times) - 1)
        return "1:-1:-1" if self.geo_replicated else "-1"

    @property
    def last_enqueued_ms(self) -> int | None:
        """The time of the last event, retained or not, in milliseconds since 1970; None if there never was an event."""
        return self._times[-1] if self._times else None

    def append(self, events: Sequence[EncodedEvent]) -> None:
        """Add `events` with the current time, and call `on_append`."""
        now = max(time.time_ns() // 1_000_000, self._times[-1] if self._times else 0)  # bisection needs sorted times
        sequence_number, position, arrival = self.next_sequence_number, self._positions[-1], next(self._next_arrival)
        offset = self.next_offset
        epoch, gap = self._epoch(sequence_number), bytes(HEADER_SIZE)
        for event in events:
            if sequence_number and sequence_number % _SEGMENT_EVENTS == 0:
                offset = (offset // _SEGMENT + 1) * _SEGMENT
            self._offsets.append(offset)
            payload = event.render(epoch, sequence_number, self._offset(len(self._times)), now)
            self._data += gap
            self._data += payload
            size = HEADER_SIZE + len(payload)
            self.largest_record = max(self.largest_record, size)
            position += size
            offset += size
            sequence_number += 1
            self._positions.append(position)
            self._times.append(now)
            self._arrivals.append(arrival)
        callbacks, self.on_append = self.on_append, set()
        for callback in callbacks:
            callback()

    def read(self, sequence_number: int, max_events: int, max_bytes: int) -> Chunk:
        """The records from `sequence_number` on, which must be readable (see `next_readable`). Contains at least one
        record, even if that one exceeds `max_bytes`."""
        first = sequence_number - self._indexed_from
        ahead = (removed.start - sequence_number for removed in self._removed)
        max_events = min([max_events, *(distance for distance in ahead if distance > 0)])
        start = self._positions[first]
        last = (
            bisect_right(self._positions, start + max_bytes, first, min(first + max_events, len(self._times)) + 1) - 1
        )
        last = max(last, first + 1)
        starts = [position - start for position in self._positions[first : last + 1]]
        begin = start - self._positions[0]
        return Chunk(self._data[begin : begin + starts[-1]], starts)

    def messages(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield the arrival number, the sequence number and the rendered message of each readable event."""
        for number in range(self.first_sequence_number, self.next_sequence_number):
            if self.next_readable(number) == number:
                message = bytes(self.read(number, 1, 0).data[HEADER_SIZE:])
                yield self._arrivals[number - self._indexed_from], number, message

    def next_readable(self, sequence_number: int) -> int:
        """The first readable sequence number from `sequence_number` on, or that of the next new event."""
        number = max(sequence_number, self.first_sequence_number)
        for removed in self._removed:
            if number in removed:
                number = removed.stop
        return number

    @property
    def next_offset(self) -> int:
        """The offset of the next event in a hub whose offsets are plain numbers."""
        return self._offsets[-1] + self._positions[-1] - self._positions[-2] if self._times else 0

    def after(self, position: int, inclusive: bool, *, is_time: bool) -> int:
        """The sequence number of the first retained event after `position`, or at it if `inclusive`. The position is an
        offset, or a time in milliseconds since 1970 if `is_time`."""
        index, bisect = self._times if is_time else self._offsets, bisect_left if inclusive else bisect_right
        return max(self._indexed_from + bisect(index, position, 0, len(self._times)), self.first_sequence_number)

    def trim(self, before_sequence_number: int) -> None:
        """Delete the events before `before_sequence_number`."""
        self.first_sequence_number = max(
            self.first_sequence_number, min(before_sequence_number, self.next_sequence_number)
        )
        # The last event's offset and time are still reported after it is deleted.
        deleted = min(self.first_sequence_number, self.next_sequence_number - 1) - self._indexed_from
        if deleted > 0:
            del self._data[: self._positions[deleted] - self._positions[0]]
            del self._positions[:deleted]
            del self._offsets[:deleted]
            del self._times[:deleted]
            del self._arrivals[:deleted]
            self._indexed_from += deleted

    def remove(self, start: int, end: int) -> None:
        """Stop delivering the retained events with the sequence numbers `start` to `end` - 1."""
        self._removed.append(range(start, min(end, self.next_sequence_number)))
        self._removed.sort(key=lambda removed: removed.start)

    def promote(self, lost: int, refuse_lost: bool) -> None:
        """Drop the last `lost` events, as happens when a secondary region takes over. New events reuse their sequence
        numbers. Raises ValueError if fewer events are retained, or if the hub is not geo-replicated."""
        if not self.geo_replicated:
            raise ValueError("only a geo-replicated hub can be promoted")
        retained = self.next_sequence_number - self.first_sequence_number
        if not 0 <= lost <= retained:
            raise ValueError(f"lost={lost}: expected 0 to {retained}, the number of retained events")
        del self._times[len(self._times) - lost :]
        del self._arrivals[len(self._times) :]
        del self._offsets[len(self._times) :]
        del self._positions[len(self._times) + 1 :]
        del self._data[self._positions[-1] - self._positions[0] :]
        self._region_starts.append(self.next_sequence_number)
        self.refuses_lost_offsets = refuse_lost

    def is_lost(self, sequence_number: int, offset: str) -> bool:
        """Whether a promotion lost the event with this number and offset."""
        index = sequence_number - self._indexed_from
        if index < 0:
            return False
        return index >= len(self._times) or self._offset(index) != offset

    def _offset(self, index: int) -> str:
        if not self.geo_replicated:
            return str(self._offsets[index])
        sequence_number = self._indexed_from + index
        return f"{self._epoch(sequence_number)}:{self._positions[index]}:{sequence_number}"

    def _epoch(self, sequence_number: int) -> int:
        if not self.geo_replicated:
            return -1
        return max((n for n, first in enumerate(self._region_starts, 1) if first <= sequence_number), default=1)
