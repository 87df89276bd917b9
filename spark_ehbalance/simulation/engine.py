"""The queue of events of a discrete-event simulation."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Engine:
    """Made-up time in seconds. What is to happen at the same time happens in the order in which it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, what: Callable[[], None]) -> None:
        """Have `what` happen at `time`, or now if that has passed."""
        self._count += 1
        heapq.heappush(self._queue, (max(time, self.now), self._count, what))

    def run(self, until: float) -> None:
        """Let everything happen that is due before `until`, and let that be the time."""
        queue = self._queue
        while queue and queue[0][0] < until:
            self.now, _, what = heapq.heappop(queue)
            what()
        self.now = until
