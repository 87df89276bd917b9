"""When events were enqueued, as far as the hub's responses bracket that: a few marks of each partition.

All times are milliseconds since 1970.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict
from typing import NamedTuple

#: Marks of a partition: of events of the last day, two neighbours are apart by about half of their age at most.
_MOST = 32


class _Mark(NamedTuple):
    """The events from `number` on were enqueued at the time `since` or later, the one before it at the time `before`,
    None if there is none."""

    number: int
    since: int
    before: int | None


class Arrivals:
    """The marks of a hub's partitions. For several threads.

    They bracket the time of an event to within an interval between two responses. Of a backlog that came before the
    first response they know nothing but its last event.
    """

    def __init__(self) -> None:
        self._marks: defaultdict[str, list[_Mark]] = defaultdict(list)
        self._lock = threading.Lock()

    def answered(self, partition: str, end: int, enqueued_ms: int | None, asked_ms: int) -> None:
        """At the time `asked_ms` or later the last event was `end - 1`, which was enqueued at `enqueued_ms`; None if
        there never was one. A lower end is that of a hub that was recreated."""
        with self._lock:
            marks = self._marks[partition]
            if marks and end < marks[-1].number:
                marks.clear()
            if marks and end == marks[-1].number:
                marks.pop()
            marks.append(_Mark(end, max(enqueued_ms or 0, asked_ms), enqueued_ms))
            if len(marks) > _MOST:
                _thin(marks)

    def enqueued(self, partition: str, number: int) -> int | None:
        """The earliest time at which the event `number` can have been enqueued; None if nothing is known of it."""
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
    """Remove the mark whose neighbours are closest, for its age."""
    now = marks[-1].since

    def distance(i: int) -> float:
        # The hub's clock and this one may differ, so that later marks may have earlier times.
        return (marks[i + 1].since - marks[i - 1].since) / max(1, now - marks[i].since)

    del marks[min(range(1, len(marks) - 1), key=distance)]
