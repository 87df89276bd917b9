"""Injected faults, which connections and endpoints check."""

from __future__ import annotations

import math
import time

from spark_ehbalance.emulator.service_errors import SERVER_BUSY, service_error


class Faults:
    """Active faults, initially none. Methods implement the operations of `Emulator` with the same names."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.refuse_connections = False
        self.silence_connections = False
        self.token_life = math.inf  # seconds for which a new token is valid, at most
        self._busy: dict[str | None, tuple[int, float]] = {}  # by hub: remaining refusals, and end
        self._delays: dict[tuple[str | None, str | None], float] = {}

    def server_busy(self, count: int, seconds: float, hub: str | None) -> None:
        self._busy[hub and hub.lower()] = count, time.monotonic() + seconds

    def check_busy(self, hub: str) -> None:
        """Check an attach, published message, delivery or request. Raises AmqpError while `server_busy` applies."""
        for key in (hub.lower(), None) if self._busy else ():
            count, until = self._busy.get(key, (0, 0.0))
            if count > 0:
                self._busy[key] = count - 1, until
            elif time.monotonic() >= until:
                continue
            raise service_error(SERVER_BUSY)

    def delay(self, seconds: float, hub: str | None, partition: str | None) -> None:
        self._delays[hub and hub.lower(), partition] = seconds

    def delay_for(self, hub: str, partition: str) -> float:
        """The delay of a partition in seconds: the most specific one that is set."""
        keys = ((hub.lower(), partition), (hub.lower(), None), (None, partition), (None, None))
        return next(filter(None, map(self._delays.get, keys)), 0.0) if self._delays else 0.0
