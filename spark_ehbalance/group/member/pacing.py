"""When a member looks, balances and commits. No clock: all times are seconds on the member's monotonic clock."""

from __future__ import annotations

import random
from collections.abc import Callable

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


class Pacing:
    """The timing of one member."""

    def __init__(self, settings: Settings, rng: random.Random) -> None:
        self.balance_at = 0.0
        self.look_at = 0.0
        #: Before that time there is no turn: the store was away, or too many races were lost.
        self.waits_until = 0.0
        self._settings = settings
        self._rng = rng
        self._latency = 0.0  # of a commit, as a moving average
        self._routine_at = 0.0  # before that time no commit is for routine alone
        self._others_until = 0.0  # before that time no commit is for anything else than renewals that are due
        self._progress_at = 0.0  # before that time no commit is for progress alone
        self._held_until = _NEVER  # something waits for one of them
        #: The part of their interval by which the next renewals are made before they are due.
        self.ahead = 0.0
        #: Progress waits no more: others are to go on from there.
        self.hurried = False

    def due(self, renewal_due: float, *, progress: bool) -> float:
        """When the next turn is due. `progress`: there is new progress to commit."""
        due = min(max(self.balance_at, self._others_until), self.look_at, renewal_due, self._held_until)
        if not progress:
            return due
        return min(due, max(self._routine_at, self._others_until, 0.0 if self.hurried else self._progress_at))

    def balances(self, now: float, unsettled: Callable[[], bool]) -> bool:
        """Whether to balance in this turn: once per interval, and in a reactive group whenever it is `unsettled`; not
        while it is the others' turn to commit."""
        return now >= self._others_until and (now >= self.balance_at or (self._settings.reactive and unsettled()))

    def admit(self, transitions: list[Transition], now: float, renewal_due: float) -> list[Transition]:
        """What of `transitions` is committed in this turn: all, or nothing if it may wait. Progress goes along with
        everything else."""
        until = max(self._others_until, self._routine_at if is_routine(transitions) else 0.0)
        if not self.hurried and now < self._progress_at and not without_progress(transitions):
            until = max(until, self._progress_at)
        held = bool(transitions) and now < min(until, renewal_due)
        self._held_until = until if held else _NEVER
        return [] if held else transitions

    def turned(
        self,
        now: float,
        *,
        members: int,
        in_handover: bool,
        took: float | None,
        waited: float,
        decision: Decision | None,
    ) -> None:
        """A turn that began at `now` has ended. `in_handover`: a handover from or to this member is pending. `took`:
        the seconds of its commit, of which it `waited` some for others that won the race; None: there was none.
        `decision`: None if it did not balance."""
        settings = self._settings
        if took is not None:
            self._latency = 0.7 * self._latency + 0.3 * min(LONGEST_COMMIT, took)
        # Only routine waits for that: renewals that are due, and what changes owners, never do. But who had to wait for
        # others then lets them go first for as long: otherwise some win again and again, and others not for a lease.
        spacing = members * self._latency / STORE_SHARE
        look = min(max(settings.look_interval, spacing), settings.balance_interval)
        self.look_at = now + self._jittered(settings.handover_look_interval if in_handover else look)
        if took is not None:
            self._others_until = now + took + min(waited, settings.balance_interval)
            self._progress_at = now + settings.checkpoint_interval
            if settings.capabilities.atomic:
                self._routine_at = now + self._jittered(spacing)
                self.ahead = self._rng.uniform(0, _RENEWED_AHEAD)
        if decision is not None:
            wait = self._jittered(settings.balance_interval)
            after = decision.rebalance_after or (0.0 if decision.rebalance_now else wait)
            self.balance_at = now + min(wait, after)
        if settings.look_interval >= settings.balance_interval:
            self.look_at = max(now, self.balance_at)  # each balancing begins with a look
        if not settings.capabilities.atomic:
            self._routine_at = self.balance_at  # each write is a request, so it waits for the next look

    def pause(self, failures: int, renewal_interval: float) -> float:
        """How long to wait after the store was away for so many tries in a row."""
        longest = min(renewal_interval / 2, self._settings.balance_interval)  # who tries keeps what it holds
        return self._jittered(min(FIRST_PAUSE * 2 ** min(failures, 16), longest))

    def contended_pause(self) -> float:
        """How long to wait after a commit has lost too many races."""
        return self._jittered(LONGEST_RETRY_WAIT)

    def _jittered(self, interval: float) -> float:
        return jittered(interval, self._rng)
