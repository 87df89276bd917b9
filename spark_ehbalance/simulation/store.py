"""The simulated lease table: latency, lost races, outages, and the requests that it would cost."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from functools import cache

from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.simulation.scenario import StoreSettings
from spark_ehbalance.simulation.services import COMMIT, Requests

# What the `delta` store asks of its storage besides `COMMIT`, counted on Azurite. It appends to the history with
# delta-rs (version 1.6).

#: GET of a log file, whether it is there or not.
_LOG_FILE = Requests(reads=1)

#: GET of a version's data file.
_DATA_FILE = Requests(reads=1)

#: So many newer log files are read one after the other; then a LIST finds the newest.
_FOLLOWED, _LIST = 4, Requests(writes=1)

#: HEAD of an older log file with every tenth look: is the log still there?
_CHECK, _LOOKS_PER_CHECK = Requests(reads=1), 10

#: Append to the history: three LIST, two HEAD and two GET, PUT of a data file and of a log file. Each log file since
#: the member's last append, or since the checkpoint if it is the first, is read twice. So are those since the one
#: before by whoever writes a checkpoint, with every twentieth append.
_RECORD, _RECORDED, _RECORDS_PER_CHECKPOINT = Requests(writes=5, reads=4), Requests(reads=2), 20
_RECORDS_CHECKPOINT = Requests(writes=3, reads=12)

#: Tidy up: LIST of the data files and of the log, HEAD and three GET in the log, PUT of a checkpoint and of the
#: reference to it.
_TIDY = Requests(writes=4, reads=4)

#: A request deletes so many files.
_DELETE, _DELETED_AT_ONCE = Requests(deletes=1), 256

_LOG_2 = math.log(2)


@cache
def requests_of_look(newer: int) -> Requests:
    """The requests of a look that finds so many newer versions. Who finds none reads nothing more."""
    if newer == 0:
        return _LOG_FILE
    if newer < _FOLLOWED:
        return _LOG_FILE * (newer + 1) + _DATA_FILE
    return _LOG_FILE * min(newer, _FOLLOWED + 1) + _LIST + _DATA_FILE


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
    #: All that a storage service would have counted so far.
    requests: Requests = field(default_factory=Requests)
    _looks: int = 0
    _records: int = 0
    _recorded: dict[str, int] = field(default_factory=dict)  # appends that each member knows
    _garbage: int = 0  # files: a data file of each lost race, and both of each version

    def look_time(self, requests: int = 1) -> float:
        """Seconds that so many requests of a look take now."""
        return requests * self._drawn(self.settings.look_seconds)

    def more_to_read(self, known: int) -> int:
        """How many requests it takes now, after the first one of a look, to read the newest version of a table of
        which `known` is known."""
        return requests_of_look(self.snapshot.version - known).total - 1

    def look(self, known: int) -> Snapshot:
        """The newest snapshot, for a reader who knows version `known`."""
        self.requests += requests_of_look(self.snapshot.version - known)
        self._looks += 1
        if self._looks % _LOOKS_PER_CHECK == 0:
            self.requests += _CHECK
        return self.snapshot

    def attempt_time(self) -> float:
        """Begin to commit. Returns how many seconds it takes until it is known which commit has won."""
        self.requests += COMMIT
        return self._drawn(self.settings.commit_seconds)

    def won(self, new: Snapshot) -> Snapshot:
        """Write `new` as the next version."""
        self.commits += 1
        self._garbage += COMMIT.writes
        self.snapshot = replace(new, version=self.snapshot.version + 1)
        return self.snapshot

    def lost(self) -> None:
        """Another commit was faster: only a data file was written."""
        self.conflicts += 1
        self._garbage += 1

    def record(self, member: str) -> None:
        """`member` appends to the history."""
        checkpoint = self._records - self._records % _RECORDS_PER_CHECKPOINT
        self.requests += _RECORD + _RECORDED * (self._records - self._recorded.get(member, checkpoint))
        self._recorded[member] = self._records = self._records + 1
        if self._records % _RECORDS_PER_CHECKPOINT == 0:
            self.requests += _RECORDS_CHECKPOINT + _RECORDED * _RECORDS_PER_CHECKPOINT

    def tidy(self) -> None:
        """Write a checkpoint, and remove the files of earlier versions and of lost races."""
        deletes = math.ceil(self._garbage / _DELETED_AT_ONCE)
        self.requests += _TIDY + _DELETE * deletes
        self._garbage = 0

    def _drawn(self, median: float) -> float:
        # Log-uniform from half to double: most are near the median, few take much longer.
        return median * self.slowness * math.exp(self.rng.uniform(-_LOG_2, _LOG_2))
