"""Event queue of a discrete-event simulation."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Engine:
    """Simulated time in seconds. Actions scheduled for the same time run in the order of scheduling."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Schedule `action` for `time`, or for now if `time` has passed."""
        self._count += 1
        heapq.heappush(self._queue, (max(time, self.now), self._count, action))

    def run(self, until: float) -> None:
        """Run all actions scheduled before `until`, and advance the time to `until`."""
        queue = self._queue
        while queue and queue[0][0] < until:
            self.now, _, action = heapq.heappop(queue)
            action()
        self.now = until
