"""Checks whether a compacted event hub has deleted all events of a partition from a sequence number on.

A partition's properties do not show this, because they contain the number of the last event even if it was deleted. Nor
does silence, because the hub may only be slow. So a receiver starts at an earlier event: if there were a later one, it
would arrive right after that event. A second receiver repeats the check, in case the hub stalled at that moment.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver, RowFormat
from spark_ehbalance.eventhub.rows import KEEP, sequence_numbers

#: Seconds within which a new receiver receives its first event, if there is one.
_OPENING = 5.0

#: Seconds to wait for the next event; or `_SLOWDOWN` times the longest time between two events so far, if that is
#: longer.
_QUIET = 3.0
_SLOWDOWN = 3

#: Time limit of one receiver in seconds.
_MAX_SECONDS = 18.0

#: Factor by which the distance between a receiver's start and the position grows if no event remains in between.
_GROWTH = 64

_PREFETCH, _MAX_EVENTS = 300, 1000


def is_compacted_away(
    address: PartitionAddress, position: int, begin: int, owner_level: int | None, is_over: Callable[[], bool]
) -> bool:
    """Whether no event at or after `position` remains; False if unknown. Also returns False soon after `is_over`
    returns True.

    `begin` is the first retained sequence number: the check needs an event between `begin` and `position`. Takes 6 s if
    `begin` is directly before `position`. Raises the errors of `Receiver.receive`.
    """
    distance = 1
    while (start := max(begin, position - distance)) < position:
        result = _ends_before(address, start, position, owner_level, is_over)
        if result is not None:
            return result and _ends_before(address, start, position, owner_level, is_over) is True
        if start == begin or is_over():
            break
        distance *= _GROWTH
    return False


def _ends_before(
    address: PartitionAddress, start: int, position: int, owner_level: int | None, is_over: Callable[[], bool]
) -> bool | None:
    """Whether the last event from `start` on is before `position`; None if no event arrives."""
    begun = last = time.monotonic()
    wait, quiet, result = _OPENING, _QUIET, None
    receiver = Receiver(
        address, start, owner_level=owner_level, prefetch=_PREFETCH, row_format=RowFormat(on_malformed=KEEP), gaps=True
    )
    with contextlib.closing(receiver):
        while (now := time.monotonic()) < last + wait:
            numbers = sequence_numbers(receiver.receive(_MAX_EVENTS, 0.5))
            if receiver.closed or is_over() or now > begun + _MAX_SECONDS:
                return False
            if len(numbers):
                if numbers[-1].as_py() >= position:
                    return False
                previous, last, result = last, time.monotonic(), True
                wait = quiet = max(quiet, _SLOWDOWN * (last - previous))
    return result
