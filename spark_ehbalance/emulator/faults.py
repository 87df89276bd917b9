"""Faults that tests switch on; connections and endpoints check them."""

from __future__ import annotations

import math
import time

from spark_ehbalance.emulator.service_errors import SERVER_BUSY, service_error


class Faults:
    """Initially without faults. Its methods do as the operations of `Administration` of the same names say."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.refuse_connections = False
        self.silence_connections = False
        self.token_life = math.inf  # the longest time in seconds that a token is valid after it was put
        self._busy: dict[str | None, tuple[int, float]] = {}  # by hub: how often still, and until when
        self._delays: dict[tuple[str | None, str | None], float] = {}

    def server_busy(self, count: int, seconds: float, hub: str | None) -> None:
        self._busy[hub and hub.lower()] = count, time.monotonic() + seconds

    def check_busy(self, hub: str) -> None:
        """Call it for each attach, published message, delivery and request. Raises AmqpError while `server_busy`
        applies."""
        for which in (hub.lower(), None) if self._busy else ():
            count, until = self._busy.get(which, (0, 0.0))
            if count > 0:
                self._busy[which] = count - 1, until
            elif time.monotonic() >= until:
                continue
            raise service_error(SERVER_BUSY)

    def delay(self, seconds: float, hub: str | None, partition: str | None) -> None:
        self._delays[hub and hub.lower(), partition] = seconds

    def delay_for(self, hub: str, partition: str) -> float:
        """The delay of a partition in seconds: the most specific one that is set."""
        keys = ((hub.lower(), partition), (hub.lower(), None), (None, partition), (None, None))
        return next(filter(None, map(self._delays.get, keys)), 0.0) if self._delays else 0.0
