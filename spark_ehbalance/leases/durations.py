"""How long a lease lasts: one duration for the whole group, written by its leader and used by all members.

All commits of a group form one line, in which each member must be able to commit once within a third of the duration:

    needed   = 3 × Σ commit time of the active members / STORE_SHARE
    in force = the leader's leaseDuration × 1.25^n, the first that is at least `needed`

It is raised at once. It is lowered when it has been clearly too long for a minimum tenure.

A member's row says by which duration the member renews (`Member.lease_duration_ms`), and others judge it by that alone.
The duration and the signs of life that go with it are in one snapshot, so nobody has to remember what was in force
before: an owner that does not know of a shorter duration yet is judged by the longer one that it has said, and an owner
uses a longer one only from when it has said so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_ehbalance.leases.derived import Identity
from spark_ehbalance.leases.model import Member, MemberState
from spark_ehbalance.leases.snapshot import Snapshot

#: All members together use up to this part of the commits that the store could carry one after the other, so that
#: races stay rare.
STORE_SHARE = 0.3

#: A commit counts as so many seconds at most: longer ones tell of a suspended process, not of the store.
LONGEST_COMMIT = 1.0

#: Durations are the leader's times a power of this, so that a measurement that fluctuates changes nothing; and one is
#: lowered only if it is too long by more than this.
_STEP = 1.25


def renewal_interval(duration: float) -> float:
    """A third of the lease duration: two renewals may be lost before the lease is."""
    return duration / 3


def short_outage(duration: float) -> float:
    """How long nobody may be able to write without any live member's being taken for dead: a live member renewed at
    most a renewal interval before the outage, and retries within a fifth of the lease duration after it."""
    return duration * 4 / 9


def minimum_tenure(duration: float) -> float:
    """Ten lease durations (5 minutes by default): moving averages of the load have then forgotten the last move."""
    return 10 * duration


def needed(snapshot: Snapshot, unmeasured_ms: float = 0.0) -> float:
    """The seconds that the group's active members need. Those that have not measured a commit count as the average, or
    with `unmeasured_ms` where nobody has."""
    members = snapshot.members
    active, average_ms = snapshot.derived.by_ownership.get(
        "commit times", lambda: _commit_times(members), Identity(members)
    )
    return 3 * active * ((unmeasured_ms if average_ms is None else average_ms) / 1000) / STORE_SHARE


def _commit_times(members: Mapping[str, Member]) -> tuple[int, float | None]:
    """The number of active members, and the average ms that a commit takes those that have measured one."""
    active = [each.commit_ms for each in members.values() if each.state is MemberState.ACTIVE]
    measured = [min(each, 1000 * LONGEST_COMMIT) for each in active if each is not None]
    return len(active), sum(measured) / len(measured) if measured else None


def fitting(configured: float, seconds: float) -> float:
    """The first of the durations that begin with `configured` that is at least `seconds`."""
    while configured < seconds:
        configured *= _STEP
    return configured


def lowered(configured: float, seconds: float) -> float:
    """The duration to lower to if `seconds` are needed: with room for some more, or it would soon be raised again."""
    return fitting(configured, _STEP * seconds)


class Said(NamedTuple):
    """What the members' rows say, in seconds: by member, the shortest and the longest. Those that say nothing count
    with a duration that the caller knows."""

    by_member: Mapping[str, float]
    shortest: float
    longest: float


def said(snapshot: Snapshot, unsaid: float) -> Said:
    """By which durations the members of `snapshot` renew; `unsaid` counts for those that do not say."""

    def compute() -> Said:
        rows = snapshot.members.items()
        by_member = {id: each.lease_duration_ms / 1000 for id, each in rows if each.lease_duration_ms is not None}
        found = {*by_member.values()} if len(by_member) == len(rows) > 0 else {*by_member.values(), unsaid}
        return Said(by_member, min(found), max(found))

    return snapshot.load_version.get("said durations", compute, unsaid)
