"""Finds the messages in the transfer frames that a socket delivers.

Nearly all frames begin with the same bytes except for the delivery's id and tag, so one `struct` and three comparisons
suffice per frame. The expected bytes (`_Head`) are learned from the last frame that differed. Consecutive frames of the
same size are located in bulk."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spark_ehbalance.eventhub.wire.frames import HEADER, MORE, check_size, fields_of
from spark_ehbalance.eventhub.wire.values import MALFORMED, MalformedError

#: Maximum size of a delivery in bytes. Messages in the dedicated tier of Event Hubs can be up to 20 MB.
MAX_DELIVERY_BYTES = 32 << 20

#: Padding bytes after the end of the data, so that a header can be read even at its last bytes.
SLACK = 256

_TRANSFER = b"\x00\x53\x14"
_HANDLE, _ID, _TAG, _ABORTED = 0, 1, 2, 9

#: Minimum length of a run of equal frames for which a bulk comparison pays off, as it costs as much as 20 to 30 single
#: frames; and number of buffers to skip after a shorter run.
_RUN_PAYS, _RUN_PAUSE = 40, 20


_Positions = npt.NDArray[np.int64]


class RawMessages:
    """Messages in a buffer: message i is `data` from `starts[i]` to `ends[i]`. `data` has `SLACK` bytes after the last
    end.

    If `starts[i]` is negative, the message consists of several frames, and is `joined[-1 - starts[i]]`.
    """

    __slots__ = ("data", "ends", "joined", "starts")  # not a dataclass, because creating a frozen one takes 2 µs

    def __init__(self, data: bytearray, starts: _Positions, ends: _Positions, joined: Sequence[bytes] = ()) -> None:
        self.data, self.starts, self.ends, self.joined = data, starts, ends, joined

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        return next(iter(self.select([index])))

    def __iter__(self) -> Iterator[bytes]:
        with memoryview(self.data) as view:
            for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
                yield bytes(view[start:end]) if start >= 0 else self.joined[-1 - start]

    def select(self, which: Any) -> RawMessages:
        """The messages that a mask, indices or a slice selects."""
        return RawMessages(self.data, self.starts[which], self.ends[which], self.joined)


class _Head(NamedTuple):
    """The beginning of a frame with a whole delivery: the size, then bytes that are constant except for id and tag."""

    unpack_from: Callable[[bytearray, int], tuple[int, bytes, bytes, bytes]]
    before_id: bytes
    before_tag: bytes
    after_tag: bytes
    size: int
    mask: npt.NDArray[np.uint64]  # mask of the bytes in words of eight; 0 at id and tag


class Transfers:
    """The transfers to the link `handle` on `channel`, found in buffers of bytes."""

    def __init__(
        self, channel: int, handle: int, max_frame: int, *, run_pays: int = _RUN_PAYS, run_pause: int = _RUN_PAUSE
    ) -> None:
        """`max_frame` is the maximum size of the peer's frames in bytes."""
        self._starts = array("q")  # arrays, because lists would need a Python object per integer
        self._ends = array("q")
        self._joined: list[bytes] = []
        self._frames = self._deliveries = 0
        self._channel, self._handle, self._max_frame = channel, handle, max_frame
        self._head: _Head | None = None
        self._run_pays, self._run_pause = run_pays, run_pause
        self._pause = 0  # number of buffers in which not to search for runs
        self._parts: list[bytes] = []  # the frames of an incomplete delivery
        self._parts_bytes = 0

    def __len__(self) -> int:
        """Number of messages found since `clear`."""
        return len(self._starts)

    def messages(self, data: bytearray, first: int, end: int) -> RawMessages:
        """The messages `first` to `end` (exclusive) of those found in `data`."""
        return RawMessages(data, np.array(self._starts[first:end]), np.array(self._ends[first:end]), self._joined)

    def take_counts(self) -> tuple[int, int]:
        """Return the numbers of frames and deliveries since the last call, and reset them."""
        counts = self._frames, self._deliveries
        self._frames = self._deliveries = 0
        return counts

    def clear(self) -> None:
        """Drop the messages, before the buffer is reused."""
        del self._starts[:], self._ends[:]
        self._joined.clear()

    def find(self, data: bytearray, pos: int, end: int, other_frame: Callable[[int, bytes], None]) -> int:
        """Find the messages in `data` from `pos` to `end`. Returns the start of the first incomplete frame.

        Calls `other_frame` with the channel and the bytes of each frame that is not a transfer to this link. `data`
        must have `SLACK` bytes after `end`. Raises `MalformedError`, and the errors of `other_frame`.
        """
        learned = False
        self._pause -= self._pause > 0
        while True:
            if self._head is not None and not self._parts:
                pos = self._find_alike(data, pos, end, self._head)
            if end - pos < 8:
                return pos
            size, words, _, channel = HEADER.unpack_from(data, pos)
            check_size(size, words, self._max_frame)
            if end - pos < size:
                return pos
            frame = bytes(memoryview(data)[pos : pos + size])
            fields, positions = self._own(frame, 4 * words, channel)
            if fields is None:
                other_frame(channel, frame)
            elif self._record(frame, fields, pos, positions[-1]) and not learned and len(positions) > MORE:
                learned = True  # only once per buffer, to limit the cost if frames keep differing
                self._head = _learn_head(frame, positions) or self._head
            pos += size

    def _find_alike(self, data: bytearray, pos: int, end: int, head: _Head) -> int:
        unpack_from, before_id, before_tag, after_tag, smallest, mask = head
        starts, ends, run_pays = self._starts, self._ends, self._run_pays
        count, size_before = len(starts), 0
        while end - pos >= 8:
            size, one, two, three = unpack_from(data, pos)
            if one != before_id or two != before_tag or three != after_tag or not smallest <= size <= self._max_frame:
                break
            after = pos + size
            if after > end:
                break
            if size == size_before and not self._pause and (most := (end - pos) // size) >= run_pays:
                run = _count_run(data, pos, size, most, mask)
                if run < run_pays:
                    self._pause = self._run_pause
                after = pos + run * size
                run_ends = np.arange(pos + size, after + 1, size)
                starts.frombytes((run_ends - (size - smallest)).tobytes())
                ends.frombytes(run_ends.tobytes())
            else:
                starts.append(pos + smallest)
                ends.append(after)
            pos, size_before = after, size
        count = len(starts) - count
        self._frames += count
        self._deliveries += count
        return pos

    def _own(self, frame: bytes, start: int, channel: int) -> tuple[list[Any] | None, list[int]]:
        """The fields of a transfer to this link, or None for any other frame; and the positions of the fields, followed
        by the message's."""
        if channel != self._channel or frame[5] != 0 or frame[start : start + 3] != _TRANSFER:
            return None, []
        try:
            fields, positions = fields_of(frame, start + 3)
            if positions[-1] > len(frame):
                raise ValueError("its fields are truncated")
        except MALFORMED as error:
            raise MalformedError(f"an invalid AMQP transfer: {error}") from error
        return (fields if fields and fields[_HANDLE] == self._handle else None), positions

    def _record(self, frame: bytes, fields: list[Any], pos: int, start: int) -> bool:
        """Record the frame at `pos`, in which the message begins at `start`. Returns whether the frame is a whole
        delivery."""
        self._frames += 1
        more, aborted = (len(fields) > field and fields[field] for field in (MORE, _ABORTED))
        if more or self._parts:
            self._parts.append(frame[start:])
            self._parts_bytes += len(frame) - start
            if self._parts_bytes > MAX_DELIVERY_BYTES:
                raise MalformedError(f"a delivery of more than {MAX_DELIVERY_BYTES} bytes")
        if more and not aborted:
            return False
        self._deliveries += 1
        parts, self._parts, self._parts_bytes = self._parts, [], 0
        if aborted:
            return False
        if parts:
            self._joined.append(b"".join(parts))
        self._starts.append(-len(self._joined) if parts else pos + start)
        self._ends.append(0 if parts else pos + len(frame))
        return not parts


def _learn_head(frame: bytes, positions: list[int]) -> _Head | None:
    """The head of a transfer frame that has id and tag; None if the head is too long."""
    after_tag, start = positions[_TAG + 1], positions[-1]
    if start > SLACK:
        return None
    identity = positions[_ID] + 1  # after the id's type code
    tag = positions[_TAG] + {0xA0: 2, 0xB0: 5}.get(frame[positions[_TAG]], 1)
    parts = frame[4:identity], frame[positions[_TAG] : tag], frame[after_tag:start]
    gaps = positions[_TAG] - identity, after_tag - tag
    form = f">I{len(parts[0])}s{gaps[0]}x{len(parts[1])}s{gaps[1]}x{len(parts[2])}s"
    mask = bytearray(b"\xff" * start + bytes(-start % 8))
    mask[identity : positions[_TAG]] = bytes(gaps[0])
    mask[tag:after_tag] = bytes(gaps[1])
    return _Head(struct.Struct(form).unpack_from, *parts, start, np.frombuffer(mask, np.uint64))


def _count_run(data: bytearray, pos: int, size: int, most: int, mask: npt.NDArray[np.uint64]) -> int:
    """The number of frames, at most `most`, that follow each other from `pos` on, have this size, and equal the first
    one in the bytes that `mask` selects."""
    rows = np.ndarray((most, len(mask)), np.uint64, data, pos, (size, 8))
    other = ((rows ^ rows[0]) & mask).any(axis=1)
    return int(other.argmax()) if other.any() else most
