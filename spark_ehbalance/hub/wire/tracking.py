"""The last enqueued event of a partition, which the service adds to each message if the receiver has asked for it
(`track_last_enqueued_event_properties` of the client), in delivery annotations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from spark_ehbalance.hub.wire.scan import Scan, big_endian
from spark_ehbalance.hub.wire.transfers import RawMessages
from spark_ehbalance.hub.wire.values import MALFORMED, decode

#: How delivery annotations begin.
_SECTION = bytes((0x00, 0x53, 0x71))

_SEQUENCE_NUMBER, _OFFSET, _TIME = (
    b"last_enqueued_sequence_number",
    b"last_enqueued_offset",
    b"last_enqueued_time_utc",
)


class Newest(NamedTuple):
    """A partition's newest event when the message was sent: its sequence number and offset, and when it was enqueued,
    in milliseconds since 1970."""

    sequence_number: int
    offset: str
    enqueued_ms: int


def newest(message: bytes) -> Newest | None:
    """The newest event according to `message`; None if it has none, or none that can be read."""
    if not message.startswith(_SECTION):
        return None
    try:
        found: Any = decode(message, 3)[0]
        number, offset, at = found[_SEQUENCE_NUMBER], found[_OFFSET], found[_TIME]
        valid = isinstance(number, int) and isinstance(at, int) and number >= 0
        return Newest(number, bytes(offset).decode(), at) if valid else None
    except (*MALFORMED, KeyError):  # TypeError too, if it is no map
        return None


def without_annotations(messages: RawMessages) -> RawMessages:
    """The messages without the delivery annotations that they begin with; what came in several frames keeps them."""
    scan = Scan(messages.data, np.maximum(messages.starts, 0))
    rows = scan.look(8)
    wide = rows[:, 3] == 0xD1
    sizes = np.where(wide, 8 + big_endian(rows, 4, 4), 5 + rows[:, 4].astype(np.int64))
    annotated = scan.good & (messages.starts >= 0) & (rows[:, :3] == np.frombuffer(_SECTION, np.uint8)).all(axis=1)
    annotated &= wide | (rows[:, 3] == 0xC1)
    starts = messages.starts + np.where(annotated, sizes, 0)
    # A size that lies beyond the message is for the tiers to find out, with the message as it is.
    starts = np.where(starts < messages.ends, starts, messages.starts)
    return RawMessages(messages.data, starts, messages.ends, messages.joined)
