"""The injected faults. Connections and endpoints check them."""

from __future__ import annotations

import math
import time

from spark_ehbalance.emulator.service_errors import SERVER_BUSY, service_error


class Faults:
    """The active faults; initially there are none. The methods implement the operations of `Emulator` with the same
    names."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.refuse_connections = False
        self.silence_connections = False
        self.token_life = math.inf  # maximum seconds for which a new token is valid
        self._busy: dict[str | None, tuple[int, float]] = {}  # hub → (remaining refusals, end time)
        self._delays: dict[tuple[str | None, str | None], float] = {}

    def server_busy(self, count: int, seconds: float, hub: str | None) -> None:
        self._busy[hub and hub.lower()] = count, time.monotonic() + seconds

    def check_busy(self, hub: str) -> None:
        """Call this for each attach, published message, delivery and request. Raises AmqpError while `server_busy`
        applies."""
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
        """The most specific delay that is set for a partition, in seconds."""
        keys = ((hub.lower(), partition), (hub.lower(), None), (None, partition), (None, None))
        return next(filter(None, map(self._delays.get, keys)), 0.0) if self._delays else 0.0
