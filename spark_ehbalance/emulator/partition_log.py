"""The events of one partition, in order, in memory or in files.

A record is a gap of `HEADER_SIZE` bytes and the encoded event; the gap holds the record's header in the log and
becomes the transfer header in the copy that a reader is sent. Records lie in append-only segments; two arrays of int64
(position and time) find where a reader starts. An event's offset is its record's position in the partition, in bytes.

Appends to files are handed to the operating system at once and never forced to disk: they survive the end of this
process (kill -9 too), not a power failure. When a log is opened, an incomplete or damaged last record is cut off;
damage before that loses only the damaged events, and the sequence numbers of all others stay.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import time
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from .amqp.frames import TRANSFER_HEADER_SIZE as HEADER_SIZE
from .geo_replication import LostOffsets, ReplicatedOffsets
from .message import Event, has_position, key_and_body

_log = logging.getLogger(__name__)

SEGMENT_BYTES = 32 << 20  # space is freed in steps of at least this size
_FIRST_POSITION = 4096  # not 0, so that not even the first event's offset equals its sequence number
_MAGIC = b"EHB1"
_RECORD = struct.Struct(f">4sIIqq{HEADER_SIZE - 28}x")  # magic, payload length, its CRC-32, sequence number, time in ms


class LogCorruptError(RuntimeError):
    """A log's files do not fit together."""


class Segment:
    """A part of a log that is deleted as a whole. Its first byte is at `position` in the partition.

    A file is open only during a call: a namespace may have more partitions than a process may have open files.
    """

    def __init__(self, first_sequence_number: int, position: int, path: Path | None) -> None:
        """Open or create the file at `path`; None: in memory. Raises OSError."""
        self.first_sequence_number = first_sequence_number
        self.position = position
        self.size = 0
        self._data = bytearray()
        self._path = path
        if path is not None:
            path.touch()
            self.size = path.stat().st_size

    def append(self, records: bytes) -> None:
        """Add records at the end. Raises OSError, and then the file is as it was before."""
        if self._path is None:
            self._data += records
        else:
            try:
                with open(self._path, "ab") as file:
                    file.write(records)
            except OSError:
                self.truncate(self.size)  # a partial record would hide all that follow it
                raise
        self.size += len(records)

    def read(self, start: int, end: int) -> bytearray:
        """A copy of the bytes from `start` to `end`, counted from the beginning of the segment. Raises OSError, and
        LogCorruptError if the file has become shorter."""
        if self._path is None:
            return self._data[start:end]
        data = bytearray(end - start)
        with open(self._path, "rb") as file:
            file.seek(start)
            if file.readinto(data) != len(data):
                raise LogCorruptError(f"{self._path} is shorter than it was")
        return data

    def truncate(self, size: int) -> None:
        del self._data[size:]
        if self._path is not None:
            with open(self._path, "ab") as file:
                file.truncate(size)
        self.size = size

    def delete(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class Chunk(NamedTuple):
    """Consecutive records: `data` is a copy; `starts` holds the start of each record and the end of the last."""

    data: bytearray
    starts: list[int]


class PartitionLog:
    """Append-only events with rising sequence numbers; not thread-safe.

    `first_sequence_number` belongs to the first retained event, `next_sequence_number` to the next new one.
    """

    def __init__(
        self, directory: Path | None = None, segment_bytes: int = SEGMENT_BYTES, *, geo_replicated: bool = False
    ) -> None:
        """Open the log in `directory`, or an empty one in memory. Raises LogCorruptError, and OSError from the disk.

        A segment of `segment_bytes` or more gets no more events.
        """
        self.replicated = ReplicatedOffsets(directory) if geo_replicated else None  # None: offsets are numbers
        self.first_sequence_number = 0
        self.largest_record = 0  # bytes
        self.on_append: set[Callable[[], None]] = set()  # called once, by the next append
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._segments: list[Segment] = []
        self._positions = array("q", [_FIRST_POSITION])  # of each indexed event, and the end of the log
        self._times = array("q")
        self._indexed_from = 0  # sequence number of the first event in the arrays: the first of the first segment
        self._lost: list[range] = []  # sequence numbers of damaged or removed events, in order
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            try:
                self._load(directory)
            except ValueError as error:
                raise LogCorruptError(f"{directory} contains a file that is not part of a log: {error}") from None
        if not self._segments:
            self._start_segment()

    @property
    def next_sequence_number(self) -> int:
        return self._indexed_from + len(self._times)

    @property
    def is_empty(self) -> bool:
        return self.first_sequence_number == self.next_sequence_number

    @property
    def last_offset(self) -> str:
        """The offset of the last event, retained or not; "-1" if there never was one (or a text that ends with it)."""
        return self._offset(self.next_sequence_number - 1, self._positions[-2] if self._times else -1)

    @property
    def last_enqueued_ms(self) -> int | None:
        """The time of the last event in milliseconds since 1970, retained or not; None if there never was one."""
        return self._times[-1] if self._times else None

    @property
    def bytes_held(self) -> int:
        return sum(segment.size for segment in self._segments)

    def append(self, events: Sequence[Event]) -> None:
        """Add `events` with the present time, and call those that wait for it. Raises OSError from the disk."""
        if self._segments[-1].size >= self._segment_bytes or (self.is_empty and self._segments[-1].size):
            self._start_segment()
        now = max(time.time_ns() // 1_000_000, self._times[-1] if self._times else 0)  # bisecting needs a rising order
        sequence_number, position = self.next_sequence_number, self._positions[-1]
        parts: list[bytes] = []
        positions: list[int] = []
        for event in events:
            payload = event.render(sequence_number, self._offset(sequence_number, position), now)
            check = zlib.crc32(payload) if self._directory else 0
            parts += (_RECORD.pack(_MAGIC, len(payload), check, sequence_number, now), payload)
            position += HEADER_SIZE + len(payload)
            sequence_number += 1
            positions.append(position)
        self._segments[-1].append(b"".join(parts))
        self._extend_index(positions, [now] * len(positions))
        self._delete_segments()
        callbacks, self.on_append = self.on_append, set()
        for callback in callbacks:
            callback()

    def read(self, sequence_number: int, max_events: int, max_bytes: int) -> Chunk:
        """Records from a `readable` sequence number on: at least one, which may exceed `max_bytes`."""
        first = sequence_number - self._indexed_from
        ahead = (lost.start - sequence_number for lost in self._lost)
        max_events = min([max_events, *(distance for distance in ahead if distance > 0)])
        start = self._positions[first]
        segment = self._segments[bisect_right(self._segments, start, key=lambda each: each.position) - 1]
        limit = min(start + max_bytes, segment.position + segment.size)
        last = bisect_right(self._positions, limit, first, min(first + max_events, len(self._times)) + 1) - 1
        last = max(last, first + 1)
        starts = [position - start for position in self._positions[first : last + 1]]
        return Chunk(segment.read(start - segment.position, start - segment.position + starts[-1]), starts)

    def message(self, sequence_number: int) -> bytes:
        """The rendered message with a `readable` sequence number."""
        return bytes(self.read(sequence_number, 1, 0).data[HEADER_SIZE:])

    def readable(self, sequence_number: int) -> int:
        """The first sequence number from `sequence_number` on that is retained and not lost, or that is the next."""
        wanted = max(sequence_number, self.first_sequence_number)
        for lost in self._lost:
            if wanted in lost:
                wanted = lost.stop
        return wanted

    @property
    def end(self) -> int:
        """The offset of the next event, where offsets are numbers."""
        return self._positions[-1]

    def after(self, position: int, inclusive: bool, *, is_time: bool) -> int:
        """The sequence number of the first retained event at (if `inclusive`) or after an offset, or a time in
        milliseconds since 1970."""
        index, bisect = self._times if is_time else self._positions, bisect_left if inclusive else bisect_right
        return max(self._indexed_from + bisect(index, position, 0, len(self._times)), self.first_sequence_number)

    def trim(self, before_sequence_number: int) -> None:
        """Delete the events before `before_sequence_number`, as far as there are any."""
        self._delete_before(before_sequence_number)
        if self._directory is not None:
            temporary = self._directory / "first.tmp"
            temporary.write_text(str(self.first_sequence_number))
            temporary.replace(self._directory / "first")

    def delete_files(self) -> None:
        """Delete the log's files, and its directory unless something else is in it."""
        for segment in self._segments:
            segment.delete()
        if self._directory is not None:
            for name in ("first", "first.tmp", "promotions"):
                (self._directory / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._directory.rmdir()

    def remove(self, start: int, end: int) -> None:
        """Deliver the retained events from `start` to before `end` no more, until the log is opened again."""
        self._lost.append(range(start, min(end, self.next_sequence_number)))
        self._lost.sort(key=lambda lost: lost.start)

    def compact(self, keep_tombstones: bool) -> list[int]:
        """`remove` each event that a later one of its key replaces, and tombstones (events without body) unless
        `keep_tombstones`; returns the sequence numbers of those that stay."""
        newest: dict[bytes, int] = {}
        left: set[int] = set()
        number = start = self.readable(self.first_sequence_number)
        while number < self.next_sequence_number:
            key, body = key_and_body(self.message(number))
            if key is not None:
                left.discard(newest.get(key, -1))
                newest[key] = number
            if key is None or body or keep_tombstones:
                left.add(number)
            number = self.readable(number + 1)
        stay = sorted(left)
        for first, following in pairwise([start - 1, *stay, self.next_sequence_number]):
            if first + 1 < following:
                self.remove(first + 1, following)
        return stay

    def promote(self, lost: int, lost_offsets: LostOffsets) -> None:
        """Drop the last `lost` events, whose sequence numbers new ones take, as a secondary region takes over. Raises
        ValueError if there are fewer, or if the hub is not geo-replicated."""
        if self.replicated is None:
            raise ValueError("only a geo-replicated hub can be promoted")
        retained = self.next_sequence_number - self.first_sequence_number
        if not 0 <= lost <= retained:
            raise ValueError(f"lost={lost}: allowed are 0 to {retained}, the number of retained events")
        del self._times[len(self._times) - lost :]
        del self._positions[len(self._times) + 1 :]
        while len(self._segments) > 1 and self._segments[-1].position >= self._positions[-1]:
            self._segments.pop().delete()
        self._segments[-1].truncate(self._positions[-1] - self._segments[-1].position)
        self.replicated.promote(self.next_sequence_number, lost_offsets)

    def holds(self, sequence_number: int, position: int) -> bool:
        """Whether the event with this number is, or was before it aged out, at this position."""
        index = sequence_number - self._indexed_from
        return index < 0 or (index < len(self._times) and self._positions[index] == position)

    def expire(self, before_ms: int) -> None:
        """Delete the events enqueued before a time in milliseconds since 1970."""
        self._delete_before(self._indexed_from + bisect_left(self._times, before_ms))

    def _delete_before(self, sequence_number: int) -> None:
        wanted = min(sequence_number, self.next_sequence_number)
        self.first_sequence_number = max(self.first_sequence_number, wanted)
        self._delete_segments()

    def _offset(self, sequence_number: int, position: int) -> str:
        return str(position) if self.replicated is None else self.replicated.text(sequence_number, position)

    def _extend_index(self, positions: Sequence[int], times: Sequence[int]) -> None:
        before = self._positions[-1]
        for position in positions:
            self.largest_record = max(self.largest_record, position - before)
            before = position
        self._positions.extend(positions)
        self._times.extend(times)

    def _start_segment(self) -> None:
        start = (self.next_sequence_number, self._positions[-1])
        path = self._directory and self._directory / "{:020d}-{:020d}.log".format(*start)
        self._segments.append(Segment(*start, path))

    def _delete_segments(self) -> None:
        # the last segment stays even if none of its events is retained: it holds the last event's offset and time
        while len(self._segments) > 1 and self._segments[1].first_sequence_number <= self.first_sequence_number:
            self._segments.pop(0).delete()
            deleted = self._segments[0].first_sequence_number - self._indexed_from
            del self._positions[:deleted]
            del self._times[:deleted]
            self._indexed_from += deleted

    def _load(self, directory: Path) -> None:
        paths = sorted(directory.glob("*.log"))
        for path in paths:
            number, position = (int(part) for part in path.stem.split("-"))
            if not self._segments:
                self._indexed_from = self.first_sequence_number = number
                self._positions[0] = position
            self._mark_lost(number, position, self.last_enqueued_ms or 0)
            if (number, position) != (self.next_sequence_number, self._positions[-1]):
                raise LogCorruptError(f"{path} does not continue the file before it")
            self._segments.append(Segment(number, position, path))
            self._scan(path, is_last=path == paths[-1])
        if self._lost:
            ranges = ", ".join(f"{lost.start} to {lost.stop - 1}" for lost in self._lost)
            _log.warning("%s: damaged; the events %s are lost, all others are kept", directory, ranges)
        trimmed = directory / "first"
        if trimmed.exists():
            first = max(self.first_sequence_number, int(trimmed.read_text()))
            self.first_sequence_number = min(first, self.next_sequence_number)

    def _scan(self, path: Path, is_last: bool) -> None:
        """Index the intact records in the last segment's file.

        An event's own annotations must agree with the record's header, so that nothing else is taken for a record.
        """
        data, segment, start, intact = path.read_bytes(), self._segments[-1], 0, 0
        while (start := data.find(_MAGIC, start)) >= 0 and start + HEADER_SIZE <= len(data):
            _, length, check, sequence_number, enqueued_ms = _RECORD.unpack_from(data, start)
            end = start + HEADER_SIZE + length
            payload, position = data[start + HEADER_SIZE : end], segment.position + start
            if (
                end <= len(data)
                and zlib.crc32(payload) == check
                and has_position(payload, sequence_number, self._offset(sequence_number, position), enqueued_ms)
                and sequence_number >= self.next_sequence_number
            ):
                self._mark_lost(sequence_number, position, enqueued_ms)
                self._extend_index([segment.position + end], [enqueued_ms])
                start = intact = end
            else:
                start += 1
        if intact != len(data) and is_last:
            _log.warning("%s: cut off %d damaged bytes at the end", path, len(data) - intact)
            segment.truncate(intact)

    def _mark_lost(self, until: int, position: int, enqueued_ms: int) -> None:
        """Index the events before sequence number `until` that were not found, as lost; `until` is at `position`."""
        lost = range(self.next_sequence_number, until)
        if lost:
            adjacent = bool(self._lost) and self._lost[-1].stop == lost.start
            self._lost.append(range(self._lost.pop().start, until) if adjacent else lost)
            self._extend_index([position] * len(lost), [enqueued_ms] * len(lost))
