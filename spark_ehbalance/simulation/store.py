"""The simulated lease table: latency, lost races, outages, and the requests that it would cost."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.simulation.scenario import StoreSettings

#: Requests to the storage: of a look (a listing of the log), of reading a version that is new to the reader (log entry
#: and data file), of an attempt to commit (data file and log entry), of tidying up after a commit (both are removed).
_LOOK, _FETCH, _ATTEMPT, _TIDYING = 1, 2, 2, 2


@dataclass(slots=True)
class SimulatedStore:
    """One snapshot with a compare-and-swap on its version. Times are drawn from `rng`."""

    settings: StoreSettings
    snapshot: Snapshot
    rng: random.Random
    away: bool = False
    slowness: float = 1.0
    looks: int = 0
    fetches: int = 0
    attempts: int = 0
    commits: int = 0
    conflicts: int = 0

    def look_time(self) -> float:
        """Seconds that a look takes now."""
        return self._drawn(self.settings.look)

    def commit_time(self) -> float:
        """Seconds that an attempt to commit takes now."""
        return self._drawn(self.settings.commit)

    def look(self, known: int) -> Snapshot:
        """The newest snapshot, for a reader who knows version `known`."""
        self.looks += 1
        self.fetches += self.snapshot.version != known
        return self.snapshot

    def put(self, new: Snapshot) -> Snapshot:
        """Write `new` as the next version."""
        self.commits += 1
        self.snapshot = new.written_as(self.snapshot.version + 1)
        return self.snapshot

    @property
    def operations(self) -> int:
        """Requests that a storage account would have counted so far."""
        return _LOOK * self.looks + _FETCH * self.fetches + _ATTEMPT * self.attempts + _TIDYING * self.commits

    def _drawn(self, median: float) -> float:
        # Log-uniform from half to double: most are near the median, few take much longer.
        return median * self.slowness * math.exp(self.rng.uniform(-_LOG_2, _LOG_2))


_LOG_2 = math.log(2)
