"""The lease duration as one member sees it: the group's, the one by which others judge this member, and, if it is the
leader, the group's next one. The rule is in `group.durations`. No clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median_low

from spark_ehbalance.group.changes import SetLeaseDuration
from spark_ehbalance.group.durations import LONGEST_COMMIT, Durations, lowered, minimum_tenure, needed, raised
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: What a commit takes is the median of the last few, so that one that met a busy moment counts for nothing. From the
#: second on it is known: members that start together are to know what they need before the first leases expire.
_MOST_COMMITS, _FEWEST_COMMITS = 9, 2


@dataclass(frozen=True, slots=True)
class LeaseDuration:
    """What the member `author`, which is configured with `configured` seconds, goes by. `following` comes first, after
    each look and commit. Each method that changes something returns the next.

    `group` is the group's duration in seconds, `own` the one by which others judge this member: what its row says, or
    the group's if that is shorter. `durations` are those of all members, as of the last look or commit, `commits` the
    seconds of the last ones. As the leader, it has found the group's too long since `too_long_since` (monotonic).
    """

    author: Author
    configured: float
    group: float
    own: float
    durations: Durations
    commits: tuple[float, ...] = ()
    too_long_since: float | None = None

    @classmethod
    def initial(cls, author: Author, configured: float) -> LeaseDuration:
        """That of a member that has not looked yet."""
        return cls(author, configured, configured, configured, Durations({}, configured, configured, configured, 0.0))

    def updated(self, snapshot: Snapshot) -> LeaseDuration:
        """Adopt the durations in `snapshot`."""
        in_table, row = snapshot.lease_duration_ms, snapshot.members.get(self.author.id)
        group = self.configured if in_table is None else in_table / 1000
        said = row.lease_duration_ms if row is not None and row.incarnation == self.author.incarnation else None
        own = min(group, self.configured if said is None else said / 1000)
        # What commits need is no reason to warn. What is measured may have fallen since the leader has decided.
        if group not in (self.group, self.configured) and lowered(self.configured, needed(snapshot)) <= self.configured:
            _LOG.warning(
                "leaseDuration=%g s, but the group uses %g s, as set by %s: using %g s",
                self.configured, group, f"member {snapshot.leader}" if snapshot.leader else "one that has left", group,
            )  # fmt: skip
        durations = Durations.from_snapshot(snapshot, group, self.first_commit_ms)
        return replace(self, group=group, own=own, durations=durations)

    def group_durations(self, snapshot: Snapshot) -> Durations:
        """The durations by which the members of `snapshot` renew."""
        return Durations.from_snapshot(snapshot, self.group, self.first_commit_ms)

    @property
    def shortest(self) -> float:
        """Seconds of silence before which nobody is taken for dead, and of which breaks are short or long."""
        return max(self.durations.shortest, self.durations.needs)

    def with_commit(self, seconds: float) -> LeaseDuration:
        """A commit has taken so long, without lost races."""
        return replace(self, commits=(*self.commits, min(LONGEST_COMMIT, seconds))[-_MOST_COMMITS:])

    @property
    def commit_ms(self) -> float | None:
        """What a commit takes; None if that is not known yet."""
        return 1000 * median_low(self.commits) if len(self.commits) >= _FEWEST_COMMITS else None

    @property
    def first_commit_ms(self) -> float:
        """What a commit counts as while no member says what it takes: who judges others has made one at least."""
        return 1000 * min(self.commits, default=0.0)

    def next_change(self, snapshot: Snapshot, now: float, at_ms: int) -> tuple[LeaseDuration, list[SetLeaseDuration]]:
        """What changes the group's duration, if this member is the leader and that is due."""
        right = replace(self, too_long_since=None)
        if snapshot.leader != self.author.id or snapshot.table is None:
            return right, []
        seconds, present = needed(snapshot), snapshot.lease_duration_ms
        wanted_ms = round(1000 * raised(self.configured, seconds))
        if present is None or wanted_ms > present:
            return self, [SetLeaseDuration(by=self.author, at_ms=at_ms, lease_duration_ms=wanted_ms)]
        wanted_ms = round(1000 * lowered(self.configured, seconds))
        if wanted_ms >= present:
            return right, []
        since = now if self.too_long_since is None else self.too_long_since
        lowers = now - since >= minimum_tenure(wanted_ms / 1000)  # not of a value that makes no sense
        change = SetLeaseDuration(by=self.author, at_ms=at_ms, lease_duration_ms=wanted_ms)
        return replace(self, too_long_since=since), [change] if lowers else []
