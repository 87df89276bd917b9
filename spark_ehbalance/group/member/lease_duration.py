"""One member's lease duration and, if the member is the leader, the group's next lease duration. The rule is in
`group.durations`. No clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median_low

from spark_ehbalance.group.changes import SetLeaseDuration
from spark_ehbalance.group.durations import LONGEST_COMMIT, Durations, lowered, minimum_tenure, needed, raised
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Maximum and minimum number of commits in the median. With the median, a single slow commit has no effect. Two commits
#: are enough, because members that start together need the median before the first leases expire.
_MAX_COMMITS, _MIN_COMMITS = 9, 2


@dataclass(frozen=True, slots=True)
class LeaseDuration:
    """The durations that apply to the member `author`, in seconds. Call `updated` after each read and commit.

    `configured` is the member's option and `group` is the group's duration. `own` is the duration after which others
    declare this member dead: the one in its row, or the group's if that is shorter. `durations` are those of all
    members as of the last read or commit. `commits` are the durations of the last commits in seconds. `too_long_since`
    is set on the leader only: the monotonic time at which the group's duration became too long.
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
        """The state before the first read."""
        return cls(author, configured, configured, configured, Durations({}, configured, configured, configured, 0.0))

    def updated(self, snapshot: Snapshot) -> LeaseDuration:
        """Adopt the durations in `snapshot`."""
        in_table, row = snapshot.lease_duration_ms, snapshot.members.get(self.author.id)
        group = self.configured if in_table is None else in_table / 1000
        stated = row.lease_duration_ms if row is not None and row.incarnation == self.author.incarnation else None
        own = min(group, self.configured if stated is None else stated / 1000)
        # Do not warn if commits need this duration, even if they have become faster since.
        if group not in (self.group, self.configured) and lowered(self.configured, needed(snapshot)) <= self.configured:
            _LOG.warning(
                "The group's lease duration applies, not the configured one. group=%g leaseDuration=%g leader=%s",
                group, self.configured, snapshot.leader,
            )  # fmt: skip
        durations = Durations.from_snapshot(snapshot, group, self.first_commit_ms)
        return replace(self, group=group, own=own, durations=durations)

    def group_durations(self, snapshot: Snapshot) -> Durations:
        """The durations by which the members of `snapshot` renew."""
        return Durations.from_snapshot(snapshot, self.group, self.first_commit_ms)

    @property
    def shortest(self) -> float:
        """The shortest time without a renewal, in seconds, after which any member is declared dead."""
        return max(self.durations.shortest, self.durations.needs)

    def with_commit(self, seconds: float) -> LeaseDuration:
        """The state after a commit of this duration, without lost races."""
        return replace(self, commits=(*self.commits, min(LONGEST_COMMIT, seconds))[-_MAX_COMMITS:])

    @property
    def commit_ms(self) -> float | None:
        """The median duration of commits; None until known."""
        return 1000 * median_low(self.commits) if len(self.commits) >= _MIN_COMMITS else None

    @property
    def first_commit_ms(self) -> float:
        """The commit duration to use as long as no member's row contains one."""
        return 1000 * min(self.commits, default=0.0)

    def next_change(self, snapshot: Snapshot, now: float, at_ms: int) -> tuple[LeaseDuration, list[SetLeaseDuration]]:
        """The next state, and the change of the group's duration if this member is the leader and a change is due."""
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
        lowers = now - since >= minimum_tenure(wanted_ms / 1000)  # not the current duration, which may be far too long
        change = SetLeaseDuration(by=self.author, at_ms=at_ms, lease_duration_ms=wanted_ms)
        return replace(self, too_long_since=since), [change] if lowers else []
