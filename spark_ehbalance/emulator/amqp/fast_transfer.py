"""Settled transfer frames of whole messages, written in bulk.

All their headers have the same length. A log can therefore leave a gap of that length before each stored message, and
a delivery is one copy of the stored bytes with the gaps filled in: 0.2 µs an event, against 5 µs with `encode_frame`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

# size | doff, type, channel | performative, list of 11 fields in 22 bytes | handle | delivery-id | the constant rest
_HEADER = struct.Struct(">I16sI11s")
_BEFORE_ID = struct.Struct(">BBH6sBIB")
_LIST_OF_11 = b"\x00\x53\x14\xc0\x16\x0b"
# tag (always the same: the Azure Python client keeps every tag), format 0, settled, not more, and five defaults
_AFTER_ID = b"\xa0\x01\x00" + b"\x43" + b"\x41" + b"\x42" + b"\x40\x40\x42\x42\x42"
HEADER_SIZE = _HEADER.size


def fill_headers(chunk: bytearray, starts: Sequence[int], channel: int, handle: int, first_delivery_id: int) -> None:
    """Write a transfer header at each of `starts` but the last, which is the end of the last frame.

    At each start is a gap of HEADER_SIZE bytes, followed by a message. Delivery ids rise from `first_delivery_id`; the
    caller keeps them below 2^32.
    """
    before_id = _BEFORE_ID.pack(2, 0, channel, _LIST_OF_11, 0x70, handle, 0x70)
    pack_into = _HEADER.pack_into
    delivery_id = first_delivery_id
    start = starts[0]
    for end in starts[1:]:
        pack_into(chunk, start, end - start, before_id, delivery_id, _AFTER_ID)
        delivery_id += 1
        start = end
