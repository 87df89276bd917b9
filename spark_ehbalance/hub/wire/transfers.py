"""Transfer frames: where in the bytes from the socket the messages are.

Nearly all frames begin alike but for delivery id and tag, so that one `struct` and three comparisons are enough for
one: a `_Head` is learned from a frame that was read the general way. Frames of one size are found many at a time.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spark_ehbalance.hub.wire.values import MALFORMED, MalformedError, decode

#: Bytes of a delivery: Event Hubs' largest message, in its dedicated tier, has 20 MB.
MAX_DELIVERY_BYTES = 32 << 20

#: Bytes that a buffer must have after its end, so that reading a head from the last few bytes does not fail.
SLACK = 256

_HEADER = struct.Struct(">IBBH")
_TRANSFER = b"\x00\x53\x14"
_HANDLE, _ID, _TAG, _MORE, _ABORTED = 0, 1, 2, 5, 9

#: Heads in use at a time: ids of one, two and five bytes, and one more.
_MOST_HEADS = 4

#: Frames of one size must be so many for a look at all of them at once to pay, which costs as much as 20 to 30 one by
#: one; where it has not, none is tried in so many of the next buffers.
_RUN_PAYS, _RUN_PAUSE = 40, 20


class _Head(NamedTuple):
    """The beginning of a whole delivery in one frame: size, then bytes that must be these, around id and tag."""

    unpack_from: Callable[[bytearray, int], tuple[int, bytes, bytes, bytes]]
    before_id: bytes
    before_tag: bytes
    after_tag: bytes
    size: int
    mask: npt.NDArray[np.uint64]  # over all of it, in words: 0 where id and tag are


class Transfers:
    """The transfers to the link `handle` on `channel`, found in buffers of bytes.

    `starts` and `ends` say where in the buffer the messages lie that have come whole; a message of several frames is
    put together in `joined`, and its start is -1 minus its index there. `frames` and `deliveries` count up until
    `counted` takes them.
    """

    def __init__(self, channel: int, handle: int, max_frame: int) -> None:
        """`max_frame` is the size in bytes that the client has allowed the peer's frames."""
        self.starts = array("q")  # and no lists: of many frames at a time no number becomes a Python object
        self.ends = array("q")
        self.joined: list[bytes] = []
        self._frames = 0
        self._deliveries = 0
        self._channel = channel
        self._handle = handle
        self._max_frame = max_frame
        self._heads: list[_Head] = []
        self._pause = 0
        self._parts: list[bytes] = []  # of a delivery that has not come to its end
        self._parts_bytes = 0

    def counted(self) -> tuple[int, int]:
        """Frames and deliveries since the last call."""
        counts = self._frames, self._deliveries
        self._frames = self._deliveries = 0
        return counts

    def clear(self) -> None:
        """Forget the messages found, before the buffer is used for others."""
        del self.starts[:], self.ends[:]
        self.joined.clear()

    def find(self, data: bytearray, pos: int, end: int, foreign: Callable[[int, bytes], None]) -> int:
        """Go through the frames in `data` from `pos` on; returns the start of the first that has not come whole.

        `foreign` is called for each frame that is no transfer to this link, with its channel and the frame. `data`
        has `SLACK` more bytes than `end`. Raises `MalformedError`, and whatever `foreign` raises.
        """
        learned = False
        self._pause -= self._pause > 0
        while True:
            if not self._parts:
                pos = self._find_known(data, pos, end)
            if end - pos < 8:
                return pos
            size, words, _, channel = _HEADER.unpack_from(data, pos)
            if not 8 <= 4 * words <= size <= self._max_frame:
                raise MalformedError(
                    f"a frame of {size} bytes, its header of {4 * words}; allowed are {self._max_frame}"
                )
            if end - pos < size:
                return pos
            frame = bytes(memoryview(data)[pos : pos + size])
            fields, places = self._own(frame, 4 * words, channel)
            if fields is None:
                foreign(channel, frame)
            elif self._take(frame, fields, pos, places[-1]) and not learned and len(places) > _MORE:
                learned = True  # one from each buffer: a stream in which no two frames are alike must not cost more
                self._learn(frame, places)
            pos += size

    def _find_known(self, data: bytearray, pos: int, end: int) -> int:
        number = 0
        while number < len(self._heads):
            before, pos = pos, self._find_alike(data, pos, end, self._heads[number])
            if pos > before and number:
                self._heads.insert(0, self._heads.pop(number))
                number = 0
            number += 1
        return pos

    def _find_alike(self, data: bytearray, pos: int, end: int, head: _Head) -> int:
        unpack_from, before_id, before_tag, after_tag, smallest, mask = head
        starts, ends = self.starts, self.ends
        count, size_before = len(starts), 0
        while end - pos >= 8:
            size, one, two, three = unpack_from(data, pos)
            if one != before_id or two != before_tag or three != after_tag or not smallest <= size <= self._max_frame:
                break
            after = pos + size
            if after > end:
                break
            if size == size_before and not self._pause and (most := (end - pos) // size) >= _RUN_PAYS:
                run = _run(data, pos, size, most, mask)
                if run < _RUN_PAYS:
                    self._pause = _RUN_PAUSE
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
        """The fields of a transfer to this link and where each one starts, last where the message starts; else None."""
        if channel != self._channel or frame[5] != 0 or frame[start : start + 3] != _TRANSFER:
            return None, []
        try:
            fields, places = _fields(frame, start + 3)
            if places[-1] > len(frame):
                raise ValueError("its fields are cut off")
        except MALFORMED as error:
            raise MalformedError(f"a transfer that is no sound AMQP: {error}") from error
        return (fields if fields and fields[_HANDLE] == self._handle else None), places

    def _take(self, frame: bytes, fields: list[Any], pos: int, start: int) -> bool:
        """Take note of a frame at `pos` in the buffer, of which the message begins at `start`.

        Returns whether it is a whole delivery.
        """
        self._frames += 1
        more, aborted = (len(fields) > field and fields[field] for field in (_MORE, _ABORTED))
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
            self.joined.append(b"".join(parts))
        self.starts.append(-len(self.joined) if parts else pos + start)
        self.ends.append(0 if parts else pos + len(frame))
        return not parts

    def _learn(self, frame: bytes, places: list[int]) -> None:
        """Make a head from a transfer with id and tag."""
        tag, after_tag, start = places[_TAG], places[_TAG + 1], places[-1]
        identity = places[_ID] + 1  # what comes after the byte that says how the id is written
        tag += {0xA0: 2, 0xB0: 5}.get(frame[tag], 1)
        parts = frame[4:identity], frame[places[_TAG] : tag], frame[after_tag:start]
        gaps = places[_TAG] - identity, after_tag - tag
        form = f">I{len(parts[0])}s{gaps[0]}x{len(parts[1])}s{gaps[1]}x{len(parts[2])}s"
        if start <= SLACK:
            same = (
                b"\xff" * identity,
                bytes(gaps[0]),
                b"\xff" * len(parts[1]),
                bytes(gaps[1]),
                b"\xff" * len(parts[2]),
            )
            mask = np.frombuffer(b"".join(same) + bytes(-start % 8), np.uint64)
            self._heads.insert(0, _Head(struct.Struct(form).unpack_from, *parts, start, mask))
            del self._heads[_MOST_HEADS:]


def _run(data: bytearray, pos: int, size: int, most: int, mask: npt.NDArray[np.uint64]) -> int:
    """How many frames from `pos` on, at most `most`, have this size and begin like the first one, under `mask`."""
    rows = np.ndarray((most, len(mask)), np.uint64, data, pos, (size, 8))
    other = ((rows ^ rows[0]) & mask).any(axis=1)
    return int(other.argmax()) if other.any() else most


def _fields(frame: bytes, pos: int) -> tuple[list[Any], list[int]]:
    """The fields of the performative of which the list starts at `pos`, and where they start and end."""
    code = frame[pos]
    if code == 0x45:
        return [], [pos + 1]
    if code not in (0xC0, 0xD0):
        raise ValueError("its fields are no list")
    count, pos = (
        (frame[pos + 2], pos + 3) if code == 0xC0 else (int.from_bytes(frame[pos + 5 : pos + 9], "big"), pos + 9)
    )
    fields, places = [], [pos]
    for _ in range(count):
        value, pos = decode(frame, pos)
        fields.append(value)
        places.append(pos)
    return fields, places
