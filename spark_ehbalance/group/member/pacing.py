"""When a member reads, balances and commits. No clock: times are seconds on the member's monotonic clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from spark_ehbalance.group.capabilities import LONGEST_RETRY_WAIT
from spark_ehbalance.group.changes import Transition
from spark_ehbalance.group.durations import LONGEST_COMMIT, STORE_SHARE
from spark_ehbalance.group.member.member_settings import TIDY_INTERVAL, Settings
from spark_ehbalance.group.member.pending import is_routine
from spark_ehbalance.group.strategies.base import Decision

#: Jitter of intervals, as in the Azure SDKs, so that members do not act in lockstep.
_JITTER = (0.8, 1.2)

#: Renewals are early by up to this fraction of their interval. Otherwise, members that started together would always
#: renew at the same time: in a test with 200 members, each commit then lost 4 races instead of 0.5.
_MAX_RENEWAL_LEAD = 0.2

_NEVER = float("inf")

#: Seconds before the first retry when the store is unavailable. The pause doubles with each failure, up to half a
#: renewal interval, because all members must renew within a third of the lease duration after the store becomes
#: available again.
FIRST_PAUSE = 0.1

#: Number of table versions between two maintenance runs of the leader, unless `Settings.tidy_interval` ends first. A
#: new reader reads at most this many log files, which takes about a second on a storage account.
_TIDY_VERSIONS = 100


def tidying_due(versions: int, passed: float, interval: float = TIDY_INTERVAL) -> bool:
    """Whether the leader must run maintenance. `versions` and `passed` (seconds) are counted from the last run."""
    return versions >= _TIDY_VERSIONS or (versions > 0 and passed >= interval)


def jittered(interval: float, rng: random.Random) -> float:
    """A random time around `interval`."""
    return interval * rng.uniform(*_JITTER)


@dataclass(frozen=True, slots=True)
class Pace:
    """When one member acts: it balances at `balance_at`, reads at `read_at`, and does nothing before `paused_until`,
    because the store was unavailable or too many races were lost. `admit` and `after_turn` return the next pace.

    Before `others_until`, only due renewals are committed. Before `routine_at`, no commit contains only routine
    transitions. A commit that must wait is held until `held_until`. `latency` is the moving average of a commit's
    duration. `ahead` is the fraction of their interval by which the next renewals are early.
    """

    balance_at: float = 0.0
    read_at: float = 0.0
    paused_until: float = 0.0
    others_until: float = 0.0
    routine_at: float = 0.0
    held_until: float = _NEVER
    latency: float = 0.0
    ahead: float = 0.0

    def due(self, renewal_due: float, *, progress: bool) -> float:
        """When the next turn is due. `progress`: whether there is new progress to commit."""
        due = min(max(self.balance_at, self.others_until), self.read_at, renewal_due, self.held_until)
        if progress:
            due = min(due, max(self.routine_at, self.others_until))
        return due

    @property
    def is_holding(self) -> bool:
        """Whether a commit is being held."""
        return self.held_until < _NEVER

    def admit(self, transitions: list[Transition], now: float, renewal_due: float) -> Pace:
        """Admit `transitions` to a commit in this turn, or hold all of them (`is_holding`)."""
        until = max(self.others_until, self.routine_at if is_routine(transitions) else 0.0)
        held = bool(transitions) and now < min(until, renewal_due)
        return replace(self, held_until=until if held else _NEVER)

    def after_turn(
        self,
        settings: Settings,
        rng: random.Random,
        now: float,
        *,
        members: int,
        in_handover: bool,
        took: float | None,
        waited: float,
        decision: Decision | None,
    ) -> Pace:
        """The pace after a turn that began at `now`.

        `in_handover`: whether a handover from or to this member is pending. `took` is the duration of the turn's commit
        in seconds, including the `waited` seconds spent on lost races; None if there was no commit. `decision` is None
        if the turn did not balance.
        """
        latency = self.latency if took is None else 0.7 * self.latency + 0.3 * min(LONGEST_COMMIT, took)
        # Only routine transitions wait; due renewals and ownership changes never wait. After losing races, a
        # member gives others precedence for as long as the races took; otherwise, some members would always win and
        # others would lose their leases.
        spacing = members * latency / STORE_SHARE
        interval = min(max(settings.read_interval, spacing), settings.balance_interval)
        read_at = now + jittered(settings.handover_read_interval if in_handover else interval, rng)
        pace = replace(self, latency=latency, read_at=read_at)
        if took is not None:
            pace = replace(pace, others_until=now + took + min(waited, settings.balance_interval))
            if settings.capabilities.atomic:
                routine_at = now + jittered(spacing, rng)
                pace = replace(pace, routine_at=routine_at, ahead=rng.uniform(0, _MAX_RENEWAL_LEAD))
        if decision is not None:
            wait = jittered(settings.balance_interval, rng)
            after = decision.rebalance_after or (0.0 if decision.rebalance_now else wait)
            pace = replace(pace, balance_at=now + min(wait, after))
        if settings.read_interval >= settings.balance_interval:
            pace = replace(pace, read_at=max(now, pace.balance_at))  # each balancing begins with a read
        if not settings.capabilities.atomic:
            pace = replace(pace, routine_at=pace.balance_at)  # each change is a separate request, so wait for the read
        return pace


def pause(settings: Settings, rng: random.Random, failures: int, renewal_interval: float) -> float:
    """Seconds to wait after consecutive store `failures`."""
    longest = min(renewal_interval / 2, settings.balance_interval)  # the retry comes before the leases expire
    return jittered(min(FIRST_PAUSE * 2 ** min(failures, 16), longest), rng)


def contended_pause(rng: random.Random) -> float:
    """Seconds to wait after a commit lost too many races."""
    return jittered(LONGEST_RETRY_WAIT, rng)
