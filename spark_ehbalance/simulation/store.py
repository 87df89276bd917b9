"""The simulated lease table: latency, conflicts and outages."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.simulation.scenario import StoreSettings

#: Maximum number of newer log files that are read one by one, including the attempt to read the first missing file. If
#: there are more, the store sends a LIST request.
_MAX_LOG_READS = 5

_LOG_2 = math.log(2)


@dataclass(slots=True)
class SimulatedStore:
    """Contains one snapshot, which is replaced by compare-and-swap on its version. Times are drawn from `rng`."""

    settings: StoreSettings
    snapshot: Snapshot
    rng: random.Random
    unreachable: bool = False
    slowness: float = 1.0
    commits: int = 0
    conflicts: int = 0

    def read_time(self, requests: int = 1) -> float:
        """Seconds for this number of read requests."""
        return requests * self._draw(self.settings.read_seconds)

    def remaining_requests(self, known: int) -> int:
        """Number of requests, after the first one, that it takes to read the newest version if `known` is the last
        version read. The numbers are those of the Delta store on Azurite."""
        newer = self.snapshot.version - known
        return min(newer, _MAX_LOG_READS) + 1 if newer else 0

    def attempt_time(self) -> float:
        """Duration of a commit attempt in seconds."""
        return self._draw(self.settings.commit_seconds)

    def write(self, new: Snapshot) -> Snapshot:
        """Write `new` as the next version. Returns it with its version."""
        self.commits += 1
        self.snapshot = replace(new, version=self.snapshot.version + 1)
        return self.snapshot

    def _draw(self, median: float) -> float:
        # Log-uniform from half to double the median.
        return median * self.slowness * math.exp(self.rng.uniform(-_LOG_2, _LOG_2))
