"""Whether a partition of a compacted event hub has any event left from a sequence number on.

A partition's properties name the last event that was ever sent, whether it is left or not, and silence may be a slow
hub. But a receiver that begins at an earlier event gets that one first, and would get the next one right after it. A
second receiver rules out a hub that stops at that very moment.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver, RowFormat
from spark_ehbalance.eventhub.rows import KEEP, sequence_numbers

#: Seconds in which a receiver is opened and gets its first event, if there is one.
_OPENING = 5.0

#: Seconds after an event in which the next one comes, if there is one; longer where those before were slower.
_QUIET = 3.0
_TIMES = 3

#: Seconds that one receiver may take.
_LONGEST = 18.0

#: If no event is left between a receiver's start and the position, the next one begins so many times as far before it.
_FARTHER = 64

_PREFETCH, _MOST = 300, 1000


def is_compacted_away(
    address: PartitionAddress, position: int, begin: int, owner_level: int | None, over: Callable[[], bool]
) -> bool:
    """Whether no event at or after `position` is left. False if that is not known.

    `begin` is the first retained sequence number: an event between it and `position` is needed. Receivers have the
    `owner_level`. Takes 6 s where that event is the one before `position`, and returns False soon after `over` returns
    True. Raises what a `Receiver` raises.
    """
    distance = 1
    while (start := max(begin, position - distance)) < position:
        found = _look(address, start, position, owner_level, over)
        if found is not None:
            return found and _look(address, start, position, owner_level, over) is True
        if start == begin or over():
            break
        distance *= _FARTHER
    return False


def _look(
    address: PartitionAddress, start: int, position: int, owner_level: int | None, over: Callable[[], bool]
) -> bool | None:
    """Whether events before `position` come from `start` on, and then none; None if none comes at all."""
    begun = last = time.monotonic()
    wait, quiet, found = _OPENING, _QUIET, None
    receiver = Receiver(
        address, start, owner_level=owner_level, prefetch=_PREFETCH, row_format=RowFormat(on_malformed=KEEP), gaps=True
    )
    with contextlib.closing(receiver):
        while (now := time.monotonic()) < last + wait:
            numbers = sequence_numbers(receiver.receive(_MOST, 0.5))
            if receiver.closed or over() or now > begun + _LONGEST:
                return False
            if len(numbers):
                if numbers[-1].as_py() >= position:
                    return False
                before, last, found = last, time.monotonic(), True
                wait = quiet = max(quiet, _TIMES * (last - before))
    return found
