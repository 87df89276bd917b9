"""The lease duration: one for the whole group, set by its leader.

A group's commits are sequential, and each member must be able to commit once within a third of the duration:

    needed   = 3 × Σ commit time of the active members / STORE_SHARE
    in force = the smallest (leader's leaseDuration × 1.25^n) that is at least `needed`

The leader raises the duration at once, and lowers it only after it has been clearly too long throughout a minimum
tenure.

A member's row contains the duration by which the member renews (`Member.lease_duration_ms`), and other members use only
that value to decide whether the member expired. Thus the longer duration still applies to an owner that has not yet
read a shorter one, and an owner uses a longer duration only once its row contains it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_ehbalance.group.model import MemberState
from spark_ehbalance.group.snapshot import Snapshot

#: The fraction of time that all members together spend on commits, so that races stay rare.
STORE_SHARE = 0.3

#: Maximum duration of a counted commit, in seconds. If a commit takes longer, the process must have been suspended.
LONGEST_COMMIT = 1.0

#: Durations are the leader's option times a power of this factor, so that small fluctuations do not change them.
_STEP = 1.25


def renewal_interval(duration: float) -> float:
    """A third of the lease duration, so that a lease survives two lost renewals."""
    return duration / 3


def short_outage(duration: float) -> float:
    """The longest outage of the store, in seconds, after which no live member is declared dead.

    A live member renewed at most a renewal interval before the outage, and retries within a fifth of the duration after
    it."""
    return duration * 4 / 9


def minimum_tenure(duration: float) -> float:
    """Ten lease durations (5 minutes by default), after which moving averages no longer reflect the last move."""
    return 10 * duration


def needed(snapshot: Snapshot, unmeasured_ms: float = 0.0) -> float:
    """The lease duration, in seconds, that the active members need. Members without a measured commit count as the
    average, or as `unmeasured_ms` if no member has one."""
    commits = [member.commit_ms for member in snapshot.members.values() if member.state is MemberState.ACTIVE]
    measured = [min(ms, 1000 * LONGEST_COMMIT) for ms in commits if ms is not None]
    average_ms = sum(measured) / len(measured) if measured else unmeasured_ms
    return 3 * len(commits) * (average_ms / 1000) / STORE_SHARE


def raised(configured: float, seconds: float) -> float:
    """`configured`, raised in steps to at least `seconds`."""
    while configured < seconds:
        configured *= _STEP
    return configured


def lowered(configured: float, seconds: float) -> float:
    """The duration to lower to if `seconds` are needed, with a margin so that it is not raised again soon."""
    return raised(configured, _STEP * seconds)


class Durations(NamedTuple):
    """Lease durations of a group's members, in seconds: `by_member` from their rows, the `shortest`, the `longest`, and
    the `default` for rows without a duration. Members are never declared dead earlier than `needs`."""

    by_member: Mapping[str, float]
    shortest: float
    longest: float
    default: float
    needs: float

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, default: float, unmeasured_ms: float = 0.0) -> Durations:
        """The durations of the members of `snapshot`; see `needed` for `unmeasured_ms`."""
        members = snapshot.members
        stated = {id: ms / 1000 for id, row in members.items() if (ms := row.lease_duration_ms) is not None}
        values = [*stated.values()] if len(stated) == len(members) > 0 else [*stated.values(), default]
        return cls(stated, min(values), max(values), default, needed(snapshot, unmeasured_ms))

    def allowed_silence(self, owner: str | None) -> float:
        """The seconds without a renewal after which the member `owner` is declared dead."""
        return max(self.by_member.get(owner or "", self.default), self.needs)
