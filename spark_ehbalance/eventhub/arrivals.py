"""Estimates when events were enqueued, using marks: recorded responses of the hub.

All times are milliseconds since 1970.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict
from typing import NamedTuple

#: Maximum number of marks per partition. With this number, the distance between neighbouring marks from the last day is
#: at most about half their age.
_MAX_MARKS = 32


class _Mark(NamedTuple):
    """Events from `number` on were enqueued at `since` or later. The previous event was enqueued at `before`, which is
    None if there is no previous event."""

    number: int
    since: int
    before: int | None


class Arrivals:
    """The marks of a hub's partitions. Thread-safe.

    Marks limit the time of an event to the interval between two responses. Among the events before the first response,
    only the last one has a known time.
    """

    def __init__(self) -> None:
        self._marks: defaultdict[str, list[_Mark]] = defaultdict(list)
        self._lock = threading.Lock()

    def record(self, partition: str, end: int, enqueued_ms: int | None, requested_ms: int) -> None:
        """Record a response to a request at `requested_ms`: the last event was `end - 1` and was enqueued at
        `enqueued_ms`, which is None if the partition never had an event. A lower `end` than before means that the hub
        was recreated."""
        with self._lock:
            marks = self._marks[partition]
            if marks and end < marks[-1].number:
                marks.clear()
            if marks and end == marks[-1].number:
                marks.pop()
            marks.append(_Mark(end, max(enqueued_ms or 0, requested_ms), enqueued_ms))
            if len(marks) > _MAX_MARKS:
                _thin(marks)

    def enqueued_ms(self, partition: str, number: int) -> int | None:
        """Earliest time at which event `number` may have been enqueued; None if unknown."""
        with self._lock:
            marks = self._marks[partition]
            after = bisect_right(marks, number, key=_number)
            if after == len(marks) or (latest := marks[after].before) is None:
                return None
            if marks[after].number == number + 1:
                return latest
            return min(marks[after - 1].since, latest) if after else None  # this clock may be ahead of the hub's


def _number(mark: _Mark) -> int:
    return mark.number


def _thin(marks: list[_Mark]) -> None:
    """Remove the mark whose neighbours are closest relative to its age."""
    now = marks[-1].since

    def distance(i: int) -> float:
        # The hub's clock and this machine's clock may differ, so later marks may have earlier times.
        return (marks[i + 1].since - marks[i - 1].since) / max(1, now - marks[i].since)

    del marks[min(range(1, len(marks) - 1), key=distance)]
