"""The lease duration as one member sees it: the group's, the one by which others judge this member, and, if it is the
leader, the group's next one. The rule is in `group.durations`. No clock, no I/O."""

from __future__ import annotations

from collections import deque
from statistics import median_low

from spark_ehbalance.group.changes import SetLeaseDuration
from spark_ehbalance.group.durations import LONGEST_COMMIT, Durations, fitting, lowered, minimum_tenure, needed
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: What a commit takes is the median of the last few, so that one that met a busy moment counts for nothing. From the
#: second on it is known: members that start together are to know what they need before the first leases expire.
_MOST_COMMITS, _FEWEST_COMMITS = 9, 2


class LeaseDuration:
    """What a member that is configured with `configured` seconds follows. `follow` comes first, after each look and
    commit."""

    def __init__(self, author: Author, configured: float) -> None:
        self._author = author
        self._configured = configured
        #: The group's, in seconds.
        self.group = configured
        #: The one by which others judge this member: what its row says, or the group's if that is shorter.
        self.own = configured
        #: Those of all members, as of the last look or commit.
        self.durations = Durations({}, configured, configured, configured, 0.0)
        self._commits: deque[float] = deque(maxlen=_MOST_COMMITS)
        self._too_long_since: float | None = None

    def follow(self, snapshot: Snapshot) -> None:
        """Adopt the durations in `snapshot`."""
        before, in_table, row = self.group, snapshot.lease_duration_ms, snapshot.members.get(self._author.id)
        self.group = self._configured if in_table is None else in_table / 1000
        self.durations = self.durations_of(snapshot)
        own = row.lease_duration_ms if row is not None and row.incarnation == self._author.incarnation else None
        self.own = min(self.group, self._configured if own is None else own / 1000)
        if self.group in (before, self._configured):
            return
        # Not if the commits need it. What is measured may have fallen a little since the leader has decided.
        if lowered(self._configured, needed(snapshot)) <= self._configured:
            _LOG.warning(
                "leaseDuration=%g s, but the group uses %g s, as set by %s: using %g s",
                self._configured, self.group, f"member {snapshot.leader}" if snapshot.leader else "one that has left",
                self.group,
            )  # fmt: skip

    def durations_of(self, snapshot: Snapshot) -> Durations:
        """The durations by which the members of `snapshot` renew."""
        return Durations.of(snapshot, self.group, self.first_commit_ms)

    @property
    def shortest(self) -> float:
        """Seconds of silence before which nobody is taken for dead, and of which breaks are short or long."""
        return max(self.durations.shortest, self.durations.needs)

    def wrote(self, seconds: float) -> None:
        """A commit has taken so long, without lost races."""
        self._commits.append(min(LONGEST_COMMIT, seconds))

    @property
    def commit_ms(self) -> float | None:
        """What a commit takes; None if that is not known yet."""
        return 1000 * median_low(self._commits) if len(self._commits) >= _FEWEST_COMMITS else None

    @property
    def first_commit_ms(self) -> float:
        """What a commit counts as while no member says what it takes: who judges others has made one at least."""
        return 1000 * min(self._commits, default=0.0)

    def change(self, snapshot: Snapshot, now: float, at_ms: int) -> list[SetLeaseDuration]:
        """What changes the group's duration, if this member is the leader and that is due."""
        if snapshot.leader != self._author.id or snapshot.table is None:
            self._too_long_since = None
            return []
        seconds, present = needed(snapshot), snapshot.lease_duration_ms
        wanted_ms = round(1000 * fitting(self._configured, seconds))
        if present is not None and wanted_ms <= present:
            wanted_ms = round(1000 * lowered(self._configured, seconds))
            if wanted_ms >= present:
                self._too_long_since = None
                return []
            if self._too_long_since is None:
                self._too_long_since = now
            if now - self._too_long_since < minimum_tenure(wanted_ms / 1000):  # not of a value that makes no sense
                return []
        return [SetLeaseDuration(by=self._author, at_ms=at_ms, lease_duration_ms=wanted_ms)]
