"""When leases and members expire for one observer: its own monotonic clock decides, no wall clock does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.group.durations import Durations
from spark_ehbalance.group.expiry import CLOCK_SKEW_ALLOWANCE, Observations, expired_leases, expired_members
from spark_ehbalance.group.model import Lease, Member
from spark_ehbalance.group.snapshot import Snapshot
from tests.lease_table.store_conformance import GROUP

DURATION = 30.0
HOUR_MS = 3_600_000
NOON = 1_700_000_000_000  # the observer's wall clock at its monotonic 0
EMPTY = Snapshot(GROUP)


def group(
    *, renewal: int, at_ms: int, owner: str | None = "ann", epoch: int = 1, incarnation: str = "ann-1"
) -> Snapshot:
    """A lease and a member that were both renewed for the `renewal`-th time at `at_ms` by the owner's wall clock."""
    lease = Lease("0", owner, epoch, renewal, renewed_at_ms=at_ms)
    member = Member("ann", incarnation, 1, renewal, renewed_at_ms=at_ms)
    return replace(EMPTY, leases={"0": lease}, members={"ann": member})


class Observer:
    """Looks at snapshots at times of its own monotonic clock, in seconds."""

    def __init__(self, wall_ms: int = NOON) -> None:
        self._wall_ms = wall_ms
        self._observations = Observations()

    def finds_expired(self, snapshot: Snapshot, now: float) -> bool:
        """Whether lease and member have expired: both follow the same rule."""
        self._observations = self._observations.updated(snapshot, now)
        wall_ms = self._wall_ms + round(now * 1000)
        durations = Durations.of(snapshot, DURATION)
        leases = expired_leases(self._observations, snapshot, durations, now=now, wall_ms=wall_ms)
        members = expired_members(self._observations, snapshot, durations, now=now, wall_ms=wall_ms)
        assert leases in (frozenset(), {"0"})
        assert members in (frozenset(), {"ann"})
        assert bool(leases) == bool(members)
        return bool(leases)


@pytest.mark.parametrize(("commit_ms", "said", "seconds"), [(100.0, 30, 100), (None, 30, 50), (100.0, 120, 120)])
def test_nobody_is_judged_by_less_than_the_group_needs(commit_ms: float | None, said: int, seconds: float) -> None:
    row = Member("ann", "ann-1", 1, lease_duration_ms=1000 * said, commit_ms=commit_ms)
    members = {f"{number}": replace(row, id=f"{number}", joined=number) for number in range(100)}
    snapshot = replace(EMPTY, leases={"0": Lease("0", "0", 1)}, members=members)
    seen = Observations().updated(snapshot, 0.0)
    for now in (seconds - 0.1, seconds + 0.1):
        arguments = (seen.updated(snapshot, now), snapshot, Durations.of(snapshot, DURATION, 50.0), now, 0)
        assert (expired_leases(*arguments), expired_members(*arguments)) == (
            (frozenset(), frozenset()) if now < seconds else ({"0"}, members.keys())
        )


# --- cold start --------------------------------------------------------------------------------------------------

ALLOWANCE_MS = round((DURATION + CLOCK_SKEW_ALLOWANCE) * 1000)


def test_on_a_cold_start_a_stored_time_beyond_the_skew_allowance_expires_after_a_third_of_the_duration() -> None:
    old, not_so_old = Observer(), Observer()
    assert not old.finds_expired(group(renewal=3, at_ms=NOON - ALLOWANCE_MS), now=0)
    assert not old.finds_expired(group(renewal=3, at_ms=NOON - ALLOWANCE_MS), now=DURATION / 3 - 0.001)
    assert old.finds_expired(group(renewal=3, at_ms=NOON - ALLOWANCE_MS), now=DURATION / 3)
    later = group(renewal=3, at_ms=NOON - ALLOWANCE_MS + round(DURATION * 1000))
    assert not not_so_old.finds_expired(later, now=0)
    assert not not_so_old.finds_expired(later, now=DURATION / 3)


def test_after_a_long_outage_of_the_table_owners_that_renew_soon_enough_do_not_expire() -> None:
    observer = Observer()
    assert not observer.finds_expired(group(renewal=3, at_ms=NOON - HOUR_MS), now=0)
    back = group(renewal=4, at_ms=NOON + 5_000)
    assert not observer.finds_expired(back, now=5)
    assert not observer.finds_expired(back, now=DURATION)


# --- any history -------------------------------------------------------------------------------------------------


@given(
    skew_ms=st.integers(-8 * HOUR_MS, 8 * HOUR_MS),
    looks=st.lists(st.tuples(st.floats(0.1, 60), st.booleans()), min_size=1, max_size=30),
)
def test_after_the_first_look_only_the_time_without_a_change_counts(
    skew_ms: int, looks: list[tuple[float, bool]]
) -> None:
    observer = Observer()
    now, renewal, changed = 0.0, 0, 0.0
    observer.finds_expired(EMPTY, now)
    for wait, renewed in [(0.0, True), *looks]:
        now += wait
        if renewed:
            renewal, changed = renewal + 1, now
            at_ms = NOON + skew_ms + round(now * 1000)
        assert observer.finds_expired(group(renewal=renewal, at_ms=at_ms), now) == (now - changed >= DURATION)
