"""The events of one partition, in order, in memory or in files.

A record is a gap of `HEADER_SIZE` bytes and the encoded event; the gap holds the record's header in the log and
becomes the transfer header when a reader is sent a copy. Records lie in append-only segments; two arrays of int64
(position and time) find where a reader starts. An event's offset is its record's position in the partition, in bytes.

In files, appends are handed to the operating system at once and never forced to disk: they survive the end of this
process (kill -9 too), not a power failure. When the log is opened, an incomplete or damaged last record is cut off, and
damage before the end costs only the events that it has hit: what comes after it keeps its numbers.
"""

from __future__ import annotations

import logging
import struct
import time
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from .amqp.fast_transfer import HEADER_SIZE
from .message import Event, is_at

_log = logging.getLogger(__name__)

SEGMENT_BYTES = 32 << 20  # the smallest step in which space is given back
_FIRST_POSITION = 4096  # not 0, so that not even the first event's offset equals its sequence number
_MAGIC = b"EHB1"
_RECORD = struct.Struct(f">4sIIqq{HEADER_SIZE - 28}x")  # magic, payload length, its CRC-32, sequence number, time in ms


class LogCorruptError(RuntimeError):
    """A log's files do not fit together."""


class Chunk(NamedTuple):
    """Consecutive records: `data` is a copy, `starts` says where each begins and, last, where the last one ends."""

    data: bytearray
    starts: list[int]


class _MemorySegment:
    def __init__(self, first_sequence_number: int, position: int) -> None:
        self.first_sequence_number = first_sequence_number
        self.position = position
        self._data = bytearray()

    @property
    def size(self) -> int:
        return len(self._data)

    def append(self, records: bytes) -> None:
        self._data += records

    def read(self, start: int, end: int) -> bytearray:
        return self._data[start:end]

    def delete(self) -> None:
        pass


class _FileSegment:
    """A file named after the sequence number and position of its first record.

    It is open only while it is used: a namespace may have more partitions than a process may have open files.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.first_sequence_number, self.position = (int(part) for part in path.stem.split("-"))
        path.touch()
        self.size = path.stat().st_size

    @classmethod
    def create(cls, directory: Path, first_sequence_number: int, position: int) -> _FileSegment:
        return cls(directory / f"{first_sequence_number:020d}-{position:020d}.log")

    def append(self, records: bytes) -> None:
        try:
            with open(self.path, "ab") as file:
                file.write(records)
        except OSError:
            self.truncate(self.size)  # half a record would hide all that follow it
            raise
        self.size += len(records)

    def read(self, start: int, end: int) -> bytearray:
        data = bytearray(end - start)
        with open(self.path, "rb") as file:
            file.seek(start)
            if file.readinto(data) != len(data):
                raise LogCorruptError(f"{self.path} is shorter than it was")
        return data

    def truncate(self, size: int) -> None:
        with open(self.path, "ab") as file:
            file.truncate(size)
        self.size = size

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


class PartitionLog:
    """Append-only events with rising sequence numbers; not thread-safe.

    `first_sequence_number` is that of the first retained event, `next_sequence_number` that of the next one to come.
    """

    def __init__(self, directory: Path | None = None) -> None:
        """Open the log in `directory`, or an empty one in memory. Raises LogCorruptError, and OSError from the disk."""
        self._directory = directory
        self._segments: list[_MemorySegment | _FileSegment] = []
        self._positions = array("q", [_FIRST_POSITION])  # one more than events held: the last is where the log ends
        self._times = array("q")
        self._lost: list[range] = []  # sequence numbers of damaged events; they take up the space up to the next one
        self._held_from = 0  # sequence number of the first event in the arrays; those before the first retained wait
        self.first_sequence_number = 0
        self.largest_record = 0
        self._waiting: list[Callable[[], None]] = []
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            try:
                self._load(directory)
            except ValueError as error:
                raise LogCorruptError(f"{directory} holds something that is no log: {error}") from None
        if not self._segments:
            self._roll()

    @property
    def next_sequence_number(self) -> int:
        return self._held_from + len(self._times)

    @property
    def is_empty(self) -> bool:
        return self.first_sequence_number == self.next_sequence_number

    @property
    def last_offset(self) -> str:
        """The last event's offset, also when that event is not retained any more; "-1" when there never was one."""
        return str(self._positions[-2]) if self._times else "-1"

    @property
    def last_enqueued_ms(self) -> int | None:
        """The last event's time in milliseconds since 1970; None when there never was one."""
        return self._times[-1] if self._times else None

    @property
    def bytes_held(self) -> int:
        return sum(segment.size for segment in self._segments)

    def append(self, events: Sequence[Event]) -> None:
        """Add `events` with the present time, and wake whoever waits for them. Raises OSError from the disk."""
        if self._segments[-1].size >= SEGMENT_BYTES or (self.is_empty and self._segments[-1].size):
            self._roll()
        now = max(time.time_ns() // 1_000_000, self._times[-1] if self._times else 0)  # bisecting needs a rising order
        sequence_number, position = self.next_sequence_number, self._positions[-1]
        parts: list[bytes] = []
        positions: list[int] = []
        for event in events:
            payload = event.render(sequence_number, str(position), now)
            check = zlib.crc32(payload) if self._directory else 0
            parts += (_RECORD.pack(_MAGIC, len(payload), check, sequence_number, now), payload)
            position += HEADER_SIZE + len(payload)
            sequence_number += 1
            positions.append(position)
        self._segments[-1].append(b"".join(parts))
        self._extend(positions, [now] * len(positions))
        self._drop_segments()
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def when_appended(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, at the next append."""
        self._waiting.append(wake)

    def forget(self, wake: Callable[[], None]) -> None:
        """Undo `when_appended`."""
        if wake in self._waiting:
            self._waiting.remove(wake)

    def read(self, sequence_number: int, max_events: int, max_bytes: int) -> Chunk:
        """Some records from a `readable` sequence number on: at least one, which may exceed `max_bytes`."""
        first = sequence_number - self._held_from
        ahead = (lost.start - sequence_number for lost in self._lost)
        max_events = min([max_events, *(distance for distance in ahead if distance > 0)])
        start = self._positions[first]
        segment = self._segments[bisect_right(self._segments, start, key=lambda each: each.position) - 1]
        limit = min(start + max_bytes, segment.position + segment.size)
        last = bisect_right(self._positions, limit, first, min(first + max_events, len(self._times)) + 1) - 1
        last = max(last, first + 1)
        starts = [position - start for position in self._positions[first : last + 1]]
        return Chunk(segment.read(start - segment.position, start - segment.position + starts[-1]), starts)

    def readable(self, sequence_number: int) -> int:
        """The first number from `sequence_number` on whose event is retained and not lost, or is the next to come."""
        wanted = max(sequence_number, self.first_sequence_number)
        return next((lost.stop for lost in self._lost if wanted in lost), wanted)

    def holds_offset(self, offset: int) -> bool:
        """Whether `offset` is not beyond the end of the partition."""
        return offset <= self._positions[-1]

    def after_offset(self, offset: int, inclusive: bool) -> int:
        """The sequence number of the first retained event at (if `inclusive`) or after `offset`."""
        find = bisect_left if inclusive else bisect_right
        return self._retained(find(self._positions, offset, 0, len(self._times)))

    def after_time(self, milliseconds: int, inclusive: bool) -> int:
        """The sequence number of the first retained event enqueued at (if `inclusive`) or after a time since 1970."""
        find = bisect_left if inclusive else bisect_right
        return self._retained(find(self._times, milliseconds))

    def _retained(self, index: int) -> int:
        return max(self._held_from + index, self.first_sequence_number)

    def trim(self, before_sequence_number: int) -> None:
        """Let go of the events before `before_sequence_number`; what is already gone or not yet there is ignored."""
        self._let_go(before_sequence_number)
        if self._directory is not None:
            temporary = self._directory / "first.tmp"
            temporary.write_text(str(self.first_sequence_number))
            temporary.replace(self._directory / "first")

    def expire(self, before_ms: int) -> None:
        """Let go of the events enqueued before a time in milliseconds since 1970."""
        self._let_go(self._held_from + bisect_left(self._times, before_ms))

    def _let_go(self, before_sequence_number: int) -> None:
        wanted = min(before_sequence_number, self.next_sequence_number)
        self.first_sequence_number = max(self.first_sequence_number, wanted)
        self._drop_segments()

    def _extend(self, positions: Sequence[int], times: Sequence[int]) -> None:
        before = self._positions[-1]
        for position in positions:
            self.largest_record = max(self.largest_record, position - before)
            before = position
        self._positions.extend(positions)
        self._times.extend(times)

    def _roll(self) -> None:
        next_one = (self.next_sequence_number, self._positions[-1])
        if self._directory is None:
            self._segments.append(_MemorySegment(*next_one))
        else:
            self._segments.append(_FileSegment.create(self._directory, *next_one))

    def _drop_segments(self) -> None:
        # the last segment stays even when nothing in it is retained: it says what the last event was
        while len(self._segments) > 1 and self._segments[1].first_sequence_number <= self.first_sequence_number:
            self._segments.pop(0).delete()
            gone = self._segments[0].first_sequence_number - self._held_from
            del self._positions[:gone]
            del self._times[:gone]
            self._held_from += gone

    def _load(self, directory: Path) -> None:
        paths = sorted(directory.glob("*.log"))
        for path in paths:
            segment = _FileSegment(path)
            if not self._segments:
                self._held_from = self.first_sequence_number = segment.first_sequence_number
                self._positions[0] = segment.position
            self._lose(segment.first_sequence_number, segment.position, self.last_enqueued_ms or 0)
            if (segment.first_sequence_number, segment.position) != (self.next_sequence_number, self._positions[-1]):
                raise LogCorruptError(f"{path} does not continue the file before it")
            self._segments.append(segment)
            self._scan(segment, is_last=path == paths[-1])
        if self._lost:
            told = ", ".join(f"{lost.start} to {lost.stop - 1}" for lost in self._lost)
            _log.warning("%s: damage has cost the events %s; all others are kept", directory, told)
        trimmed = directory / "first"
        if trimmed.exists():
            self.first_sequence_number = min(
                max(self.first_sequence_number, int(trimmed.read_text())), self.next_sequence_number
            )

    def _scan(self, segment: _FileSegment, is_last: bool) -> None:
        data = segment.path.read_bytes()
        start, before = 0, len(self._times)
        while (found := self._next_sound(data, start, segment.position)) is not None:
            start, end, sequence_number, enqueued_ms = found
            self._lose(sequence_number, segment.position + start, enqueued_ms)
            self._extend([segment.position + end], [enqueued_ms])
            start = end
        if start != len(data) and is_last:
            count = len(self._times) - before
            _log.warning("%s: cut off %d damaged bytes after %d events", segment.path, len(data) - start, count)
            segment.truncate(start)

    def _next_sound(self, data: bytes, start: int, position: int) -> tuple[int, int, int, int] | None:
        """The first sound record from `start` on: start, end, sequence number and time; `position` is that of `data`.

        An event's own annotations must say the same as its header, so that nothing else can be taken for a record.
        """
        while (start := data.find(_MAGIC, start)) >= 0 and start + HEADER_SIZE <= len(data):
            _, length, check, sequence_number, enqueued_ms = _RECORD.unpack_from(data, start)
            end = start + HEADER_SIZE + length
            payload = data[start + HEADER_SIZE : end]
            if (
                end <= len(data)
                and zlib.crc32(payload) == check
                and is_at(payload, sequence_number, str(position + start), enqueued_ms)
                and sequence_number >= self.next_sequence_number
            ):
                return start, end, sequence_number, enqueued_ms
            start += 1
        return None

    def _lose(self, until: int, position: int, enqueued_ms: int) -> None:
        """The events that are still to come before number `until`, which is at `position`, are damaged."""
        lost = range(self.next_sequence_number, until)
        if lost:
            joins = bool(self._lost) and self._lost[-1].stop == lost.start
            self._lost.append(range(self._lost.pop().start, until) if joins else lost)
            self._extend([position] * len(lost), [enqueued_ms] * len(lost))
