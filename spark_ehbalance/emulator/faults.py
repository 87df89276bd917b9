"""Faults that tests switch on; connections and endpoints check them."""

from __future__ import annotations

import math
import time

from .service_errors import server_busy


class Faults:
    """Initially without faults. Hub names are case-insensitive."""

    def __init__(self) -> None:
        self.refuse_connections = False
        self.silence_connections = False
        self.token_life = math.inf  # the longest time in seconds that a token is valid after it was put
        self._busy_count = 0
        self._busy_until = 0.0
        self._delays: dict[tuple[str | None, str | None], float] = {}
        self._paused: set[tuple[str, str]] = set()  # hub, partition

    def server_busy(self, count: int, seconds: float) -> None:
        """Refuse the next `count` requests, and all requests for `seconds`."""
        self._busy_count = count
        self._busy_until = time.monotonic() + seconds

    def check_busy(self) -> None:
        """Call it for each attach, published message, delivery and request. Raises AmqpError while `server_busy`
        applies."""
        if self._busy_count > 0:
            self._busy_count -= 1
        elif time.monotonic() >= self._busy_until:
            return
        raise server_busy()

    def delay(self, seconds: float, hub: str | None, partition: str | None) -> None:
        """Delay deliveries and the settling of published messages; 0 ends it. None means every hub or partition."""
        key = (hub and hub.lower(), partition)
        self._delays.pop(key, None)
        if seconds > 0:
            self._delays[key] = seconds

    def delay_of(self, hub: str, partition: str) -> float:
        """The delay of a partition in seconds: the most specific one that is set."""
        if not self._delays:
            return 0.0
        keys = ((hub.lower(), partition), (hub.lower(), None), (None, partition), (None, None))
        return next((self._delays[key] for key in keys if key in self._delays), 0.0)

    def pause(self, hub: str, partition: str) -> None:
        """Deliver nothing from a partition."""
        self._paused.add((hub.lower(), partition))

    def resume(self, hub: str, partition: str) -> None:
        """End `pause`. The caller must make the readers send."""
        self._paused.discard((hub.lower(), partition))

    def is_paused(self, hub: str, partition: str) -> bool:
        return bool(self._paused) and (hub.lower(), partition) in self._paused
