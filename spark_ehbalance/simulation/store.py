"""The simulated lease table: latency, lost races and outages."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.simulation.scenario import StoreSettings

#: The most newer log files that are read one after the other, with the first that is missing; then a LIST finds the
#: newest.
_FOLLOWED = 5

_LOG_2 = math.log(2)


@dataclass(slots=True)
class SimulatedStore:
    """One snapshot with a compare-and-swap on its version. Times are drawn from `rng`."""

    settings: StoreSettings
    snapshot: Snapshot
    rng: random.Random
    away: bool = False
    slowness: float = 1.0
    commits: int = 0
    conflicts: int = 0

    def look_time(self, requests: int = 1) -> float:
        """Seconds that so many requests of a look take now."""
        return requests * self._drawn(self.settings.look_seconds)

    def more_to_read(self, known: int) -> int:
        """How many requests it takes now, after the first one of a look, to read the newest version of a table of
        which `known` is known: as the `delta` store makes them, counted on Azurite."""
        newer = self.snapshot.version - known
        return min(newer, _FOLLOWED) + 1 if newer else 0

    def attempt_time(self) -> float:
        """Seconds from the beginning of a commit until it is known which commit has won."""
        return self._drawn(self.settings.commit_seconds)

    def won(self, new: Snapshot) -> Snapshot:
        """Write `new` as the next version."""
        self.commits += 1
        self.snapshot = replace(new, version=self.snapshot.version + 1)
        return self.snapshot

    def _drawn(self, median: float) -> float:
        # Log-uniform from half to double: most are near the median, few take much longer.
        return median * self.slowness * math.exp(self.rng.uniform(-_LOG_2, _LOG_2))
