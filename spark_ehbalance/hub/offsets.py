"""Finds the offset of an event whose sequence number is known, by receiving it.

Event Hubs tells the offset of a partition's newest event only, and other readers of a checkpoint may go by nothing
else.
"""

from __future__ import annotations

import contextlib
import time

from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub.conditions import busy_wait
from spark_ehbalance.hub.receiver import Busy, Disconnected, PartitionAddress, Receiver, Unreachable
from spark_ehbalance.hub.rows import sequence_numbers
from spark_ehbalance.hub.unreadable import KEEP
from spark_ehbalance.values.position import START_OFFSET

#: Events that are received at a time, as Azure's client does by default.
_MOST = 300


def find_offset(address: PartitionAddress, sequence_number: int, owner_level: int | None, timeout: float) -> str | None:
    """The offset that stands for this sequence number in a checkpoint; None if it is not found within `timeout`
    seconds.

    It is that of the event with this number. Where a compacted hub has that event no longer, it is that of the last one
    before, and `START_OFFSET` if there is none. A reader of the same or a lower owner level is disconnected for a
    moment: it must be one that opens again.
    """
    deadline = time.monotonic() + timeout
    back = 0
    while time.monotonic() < deadline:
        start = max(0, sequence_number - back)
        most = min(1 + back, _MOST)
        try:
            receiver = Receiver(address, start, owner_level=owner_level, prefetch=most, on_malformed=KEEP)
            receiver.gaps = True
            with contextlib.closing(receiver):
                found = _last_up_to(receiver, sequence_number, most, deadline)
        except (Disconnected, Unreachable, HubUnavailableError) as error:
            time.sleep(busy_wait() if isinstance(error, Busy) else 0.1)
            continue
        if found is not None or start == 0:
            return found or START_OFFSET
        back = max(1, 2 * back)
    return None


def _last_up_to(receiver: Receiver, sequence_number: int, most: int, deadline: float) -> str | None:
    """The offset of the last event of `receiver` up to `sequence_number`, received `most` at a time; None if it begins
    with a later one. Raises `Unreachable` if no event comes that tells, and what `receive` raises."""
    last: str | None = None
    while not receiver.closed and time.monotonic() < deadline:
        events = receiver.receive(most, wait=1.0)
        for number, offset in zip(sequence_numbers(events).to_pylist(), events["offset"].to_pylist(), strict=True):
            if number is not None and number > sequence_number:
                return last
            last = offset or last
            if number == sequence_number:
                return last
    raise Unreachable("no event came")
