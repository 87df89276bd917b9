"""When a member looks, balances and commits. No clock: all times are seconds on the member's monotonic clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from spark_ehbalance.group.capabilities import LONGEST_RETRY_WAIT
from spark_ehbalance.group.changes import Transition
from spark_ehbalance.group.durations import LONGEST_COMMIT, STORE_SHARE
from spark_ehbalance.group.member.member_settings import TIDY_INTERVAL, Settings
from spark_ehbalance.group.member.pending import is_routine, without_progress
from spark_ehbalance.group.strategies.base import Decision

#: Intervals are drawn between these factors, as the Azure SDKs do, so that members do not march in step.
_JITTER = (0.8, 1.2)

#: Renewals are made up to this part of their interval before they are due. Members that started together, or waited for
#: the store together, would otherwise renew at the same moments forever: 200 lost four races per commit, not a half.
_RENEWED_AHEAD = 0.2

_NEVER = float("inf")

#: Seconds before the first retry when the store is away; doubled from try to try, up to half a renewal interval,
#: because everybody must have renewed within a third of the lease duration after the store's return.
FIRST_PAUSE = 0.1

#: The leader tidies the store up after so many versions, if that comes before `Settings.tidy_interval`: a new reader
#: goes through as many log files at most, which takes it about a second on a storage account.
_TIDY_VERSIONS = 100


def tidying_due(versions: int, passed: float, interval: float = TIDY_INTERVAL) -> bool:
    """Whether the leader must tidy up, so many versions and seconds after it last did."""
    return versions >= _TIDY_VERSIONS or (versions > 0 and passed >= interval)


def jittered(interval: float, rng: random.Random) -> float:
    """A random time around `interval`, so that members do not act in step."""
    return interval * rng.uniform(*_JITTER)


@dataclass(frozen=True, slots=True)
class Pace:
    """When one member acts: it balances at `balance_at`, reads at `read_at`, and does nothing before `paused_until`,
    because the store was unavailable or too many races were lost. Each method that changes it returns the next.

    Before `others_until` no commit is for anything else than renewals that are due, before `routine_at` none for
    routine alone, and before `progress_at` none for progress alone, unless the member is `hurried`: others are to go on
    from there. Something waits for one of them `held_until`. `latency` is that of a commit, as a moving average.
    `ahead` is the part of their interval by which the next renewals are made before they are due.
    """

    balance_at: float = 0.0
    read_at: float = 0.0
    paused_until: float = 0.0
    others_until: float = 0.0
    routine_at: float = 0.0
    progress_at: float = 0.0
    held_until: float = _NEVER
    latency: float = 0.0
    ahead: float = 0.0
    hurried: bool = False

    def due(self, renewal_due: float, *, progress: bool) -> float:
        """When the next turn is due. `progress`: there is new progress to commit."""
        due = min(max(self.balance_at, self.others_until), self.read_at, renewal_due, self.held_until)
        if progress:
            due = min(due, max(self.routine_at, self.others_until, 0.0 if self.hurried else self.progress_at))
        return due

    @property
    def is_holding(self) -> bool:
        """Whether what was to be committed waits."""
        return self.held_until < _NEVER

    def admit(self, transitions: list[Transition], now: float, renewal_due: float) -> Pace:
        """Commit `transitions` in this turn, unless it now `holds` all of them: progress goes along with everything
        else."""
        until = max(self.others_until, self.routine_at if is_routine(transitions) else 0.0)
        if not self.hurried and now < self.progress_at and not without_progress(transitions):
            until = max(until, self.progress_at)
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
        """A turn that began at `now` has ended. `in_handover`: a handover from or to this member is pending. `took`:
        the seconds of its commit, of which it `waited` some for others that won the race; None: there was none.
        `decision`: None if it did not balance."""
        latency = self.latency if took is None else 0.7 * self.latency + 0.3 * min(LONGEST_COMMIT, took)
        # Only routine waits for that: renewals that are due, and what changes owners, never do. But who had to wait for
        # others then lets them go first for as long: otherwise some win again and again, and others not for a lease.
        spacing = members * latency / STORE_SHARE
        look = min(max(settings.read_interval, spacing), settings.balance_interval)
        read_at = now + jittered(settings.handover_read_interval if in_handover else look, rng)
        pace = replace(self, latency=latency, read_at=read_at)
        if took is not None:
            others_until = now + took + min(waited, settings.balance_interval)
            pace = replace(pace, others_until=others_until, progress_at=now + settings.checkpoint_interval)
            if settings.capabilities.atomic:
                routine_at = now + jittered(spacing, rng)
                pace = replace(pace, routine_at=routine_at, ahead=rng.uniform(0, _RENEWED_AHEAD))
        if decision is not None:
            wait = jittered(settings.balance_interval, rng)
            after = decision.rebalance_after or (0.0 if decision.rebalance_now else wait)
            pace = replace(pace, balance_at=now + min(wait, after))
        if settings.read_interval >= settings.balance_interval:
            pace = replace(pace, read_at=max(now, pace.balance_at))  # each balancing begins with a look
        if not settings.capabilities.atomic:
            pace = replace(pace, routine_at=pace.balance_at)  # each write is a request: it waits for the next look
        return pace


def pause(settings: Settings, rng: random.Random, failures: int, renewal_interval: float) -> float:
    """How many seconds to wait after the store was away for so many tries in a row."""
    longest = min(renewal_interval / 2, settings.balance_interval)  # who tries keeps what it holds
    return jittered(min(FIRST_PAUSE * 2 ** min(failures, 16), longest), rng)


def contended_pause(rng: random.Random) -> float:
    """How many seconds to wait after a commit has lost too many races."""
    return jittered(LONGEST_RETRY_WAIT, rng)
