"""When a member looks, balances and commits, as rules without a clock. The keeper follows them, and a simulator too.

Times are seconds on the member's own monotonic clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from spark_ehbalance.leases.transitions import Transition
from spark_ehbalance.member.membership import is_routine
from spark_ehbalance.strategies.base import Decision

#: All members together use up to this part of the commits that the store could carry one after the other, so that
#: races stay rare. Only checkpoints wait for that: renewals that are due, and what changes owners, never do.
_STORE_SHARE = 0.3

#: Seconds that a commit is taken to last at the most: longer ones tell of a process that stood still, not of the store.
_LONGEST_COMMIT = 1.0

#: Intervals are drawn between these factors, as the Azure SDKs do, so that members do not march in step.
_JITTER = (0.8, 1.2)

#: Renewals are made by up to this part of their interval before they are due. Members that have started together, or
#: waited for the store together, would else renew in step for good: 200 lost four races for each commit, not a half.
_RENEWED_AHEAD = 0.2

#: Seconds before the first new try when the store is away; doubled from try to try, up to half the time between two
#: renewals, as everybody must have renewed a third of the lease duration after the store's return.
FIRST_PAUSE = 0.1

#: Seconds between two looks at the table, to see what others have done: a look costs one listing of the log.
_LOOK_INTERVAL = 1.0

#: The same while a handover is pending that concerns this member, so that it takes about a second in all.
_HANDOVER_LOOK_INTERVAL = 0.2


class Pacing:
    """The timing of one member. `interval` is that of balancing; `reactive`: balance also when something changes."""

    def __init__(self, interval: float, renewal_interval: float, *, reactive: bool, rng: random.Random) -> None:
        self.balance_at = 0.0
        self.look_at = 0.0
        self._interval = interval
        self._renewal_interval = renewal_interval
        self._prompt = reactive
        self._rng = rng
        self._latency = 0.0  # of a commit, as a moving average
        self._routine_at = 0.0  # before that time no commit is for checkpoints alone
        self._held_back = False  # there is something that waits for it
        self._ahead = 0.0  # of the time at which renewals are due

    def due(self, renewal_due: float, *, finished: bool) -> float:
        """When there is something to do next. `finished`: there are checkpoints to write."""
        due = min(self.balance_at, self.look_at, renewal_due - self._ahead)
        return min(due, self._routine_at) if finished or self._held_back else due

    def balances(self, now: float, unsettled: Callable[[], bool]) -> bool:
        """Whether to balance in this turn, for which `unsettled` is a reason, or only to say what there is to say."""
        return now >= self.balance_at or (self._prompt and unsettled())

    def admit(self, said: list[Transition], now: float, renewal_due: float) -> list[Transition]:
        """What of `said` is written in this turn: all or nothing, as nobody else's doings depend on routine."""
        early = now < min(self._routine_at, renewal_due - self._ahead)
        self._held_back = early and bool(said) and is_routine(said)
        return [] if self._held_back else said

    def turned(self, now: float, *, members: int, waits: bool, took: float | None, decision: Decision | None) -> None:
        """A turn that began at `now` is over: there are so many `members`, a handover `waits` for this one, a commit
        `took` so many seconds (None: there was none), and a `decision` was made (None: none)."""
        if took is not None:
            self._latency = 0.7 * self._latency + 0.3 * min(_LONGEST_COMMIT, took)
        spacing = members * self._latency / _STORE_SHARE
        look = _HANDOVER_LOOK_INTERVAL if waits else min(max(_LOOK_INTERVAL, spacing), self._interval)
        self.look_at = now + self.jittered(look)
        if took is not None:
            self._routine_at = now + self.jittered(spacing)
            self._ahead = self._rng.uniform(0, _RENEWED_AHEAD) * self._renewal_interval
        if decision is not None:
            wait = self.jittered(self._interval)
            after = decision.rebalance_after or (0.0 if decision.rebalance_now else wait)
            self.balance_at = now + min(wait, after)

    def pause(self, failures: int) -> float:
        """How long to wait after the store was found away so many times in a row."""
        return self.jittered(min(FIRST_PAUSE * 2 ** min(failures, 16), self._renewal_interval / 2))

    def jittered(self, interval: float) -> float:
        """`interval`, drawn anew."""
        return interval * self._rng.uniform(*_JITTER)
