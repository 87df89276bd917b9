"""How long a lease lasts: one duration for the whole group, written by its leader and used by all members.

All commits of a group form one line, in which each member must be able to commit once within a third of the duration:

    needed   = 3 × Σ commit time of the active members / STORE_SHARE
    in force = the leader's leaseDuration × 1.25^n, the first that is at least `needed`

It is raised at once. It is lowered when it has been clearly too long for a minimum tenure.

A member's row states the duration by which the member renews (`Member.lease_duration_ms`), and others judge it by that
alone. Duration and signs of life are in one snapshot, so nobody has to remember earlier durations: an owner that does
not know of a shorter duration yet is judged by the longer one in its row, and an owner uses a longer one only once its
row states it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_ehbalance.group.model import MemberState
from spark_ehbalance.group.snapshot import Snapshot

#: All members together use up to this part of the commits that the store could carry one after the other, so that
#: races stay rare.
STORE_SHARE = 0.3

#: The longest time of a commit that counts, in seconds: a longer one was a suspended process, not the store.
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
    commits = [member.commit_ms for member in snapshot.members.values() if member.state is MemberState.ACTIVE]
    measured = [min(ms, 1000 * LONGEST_COMMIT) for ms in commits if ms is not None]
    average_ms = sum(measured) / len(measured) if measured else unmeasured_ms
    return 3 * len(commits) * (average_ms / 1000) / STORE_SHARE


def raised(configured: float, seconds: float) -> float:
    """The first of the durations that begin with `configured` that is at least `seconds`."""
    while configured < seconds:
        configured *= _STEP
    return configured


def lowered(configured: float, seconds: float) -> float:
    """The duration to lower to if `seconds` are needed: with room for some more, or it would soon be raised again."""
    return raised(configured, _STEP * seconds)


class Durations(NamedTuple):
    """The lease durations by which a group's members renew, in seconds: `by_member` as their rows state them, the
    `shortest`, the `longest`, and the `default` of members whose rows state none. Nobody is taken for dead before the
    duration that the group `needs`."""

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
        """The seconds without a sign of life after which `owner`, a member's id, is taken for dead."""
        return max(self.by_member.get(owner or "", self.default), self.needs)
