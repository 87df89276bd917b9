"""When events were enqueued, as far as the hub's answers and events that were read tell: a few marks of each partition.

All times are milliseconds since 1970.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import NamedTuple

#: Marks of a partition: of events of the last day, two neighbours are apart by about half of their age at most.
_MOST = 32


class _Mark(NamedTuple):
    """The events from `number` on were enqueued at the time `since` or later, the one before it at the time `before`,
    if that is known."""

    number: int
    since: int
    before: int | None


class Arrivals:
    """The marks of a hub's partitions. For several threads.

    While reading keeps up they tell the time of an event to within an interval between two answers. Of a backlog that
    came before the first answer they know nothing, except near events that were read.
    """

    def __init__(self) -> None:
        self._marks: defaultdict[str, list[_Mark]] = defaultdict(list)
        self._lock = threading.Lock()

    def answered(self, partition: str, end: int, enqueued_ms: int | None, asked_ms: int) -> None:
        """At the time `asked_ms` or later the last event was `end - 1`, which was enqueued at `enqueued_ms`; None if
        there never was one. A lower end is that of a hub that was made anew."""
        with self._lock:
            marks = self._marks[partition]
            if marks and end < marks[-1].number:
                marks.clear()
            _add(marks, _Mark(end, max(enqueued_ms or 0, asked_ms), enqueued_ms))

    def read(self, partition: str, number: int, enqueued_ms: int) -> None:
        """The event `number` was enqueued at that time."""
        with self._lock:
            _add(self._marks[partition], _Mark(number, enqueued_ms, None))
            _add(self._marks[partition], _Mark(number + 1, enqueued_ms, enqueued_ms))

    def enqueued(self, partition: str, number: int) -> tuple[int, int] | None:
        """The earliest and the latest time at which the event `number` can have been enqueued; None if nothing is known
        of it."""
        with self._lock:
            marks = self._marks[partition]
            after = bisect_right(marks, number, key=_number)
            later = next((each for each in marks[after:] if each.before is not None), None)
            if later is None or later.before is None:
                return None
            if later.number == number + 1:
                return later.before, later.before
            # This clock may be ahead of the hub's.
            return (min(marks[after - 1].since, later.before), later.before) if after else None


def _number(mark: _Mark) -> int:
    return mark.number


def _add(marks: list[_Mark], new: _Mark) -> None:
    last = marks[-1].number if marks else -1
    at = len(marks) - (last == new.number) if last <= new.number else bisect_left(marks, new.number, key=_number)
    if at < len(marks) and marks[at].number == new.number:
        known = marks[at]
        marks[at] = _Mark(new.number, max(known.since, new.since), new.before if known.before is None else known.before)
        return
    marks.insert(at, new)
    if len(marks) > _MOST:
        now = marks[-1].since

        def distance(i: int) -> float:
            """How far the neighbours of a mark are apart, for its age."""
            return (marks[i + 1].since - marks[i - 1].since) / (now - marks[i].since + 1)

        del marks[min(range(1, len(marks) - 1), key=distance)]
