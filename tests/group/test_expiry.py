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


@pytest.mark.parametrize("hours", [-8, -1, 1, 8])
def test_clock_skew_does_not_matter_while_the_counter_changes(hours: int) -> None:
    observer = Observer()
    observer.finds_expired(group(renewal=0, at_ms=NOON + hours * HOUR_MS), now=0)
    for step in range(1, 200):
        now = step * 10.0
        renewed = group(renewal=step, at_ms=NOON + hours * HOUR_MS + round(now * 1000))
        assert not observer.finds_expired(renewed, now)


@pytest.mark.parametrize("hours", [-8, 0, 8])
def test_an_unchanged_counter_expires_after_exactly_the_lease_duration(hours: int) -> None:
    observer = Observer()
    observer.finds_expired(group(renewal=0, at_ms=NOON + hours * HOUR_MS), now=0)
    last = group(renewal=1, at_ms=NOON + hours * HOUR_MS)
    assert not observer.finds_expired(last, now=7)
    assert not observer.finds_expired(last, now=7 + DURATION - 0.001)
    assert observer.finds_expired(last, now=7 + DURATION)


def test_time_counts_from_the_first_look_at_a_value() -> None:
    observer = Observer()
    unchanged = group(renewal=3, at_ms=NOON)
    expired = [observer.finds_expired(unchanged, now) for now in (0, 10, 20, 29, 30, 31)]
    assert expired == [False, False, False, False, True, True]


def test_a_renewal_ends_an_expiry() -> None:
    observer = Observer()
    observer.finds_expired(group(renewal=3, at_ms=NOON), now=0)
    assert observer.finds_expired(group(renewal=3, at_ms=NOON), now=DURATION)
    back = group(renewal=4, at_ms=NOON)
    assert not observer.finds_expired(back, now=DURATION + 1)
    assert not observer.finds_expired(back, now=2 * DURATION)
    assert observer.finds_expired(back, now=2 * DURATION + 1)


def test_a_new_owner_or_process_is_a_sign_of_life_even_with_the_same_renewal_count() -> None:
    observer = Observer()
    observer.finds_expired(group(renewal=3, at_ms=NOON), now=0)
    successor = group(renewal=3, at_ms=NOON, owner="bob", epoch=2, incarnation="ann-2")
    assert not observer.finds_expired(successor, now=DURATION)


def test_a_lease_without_an_owner_does_not_expire() -> None:
    free = replace(EMPTY, leases={"0": Lease("0", owner=None)})
    observations = Observations().updated(free, 0)
    for now in (0, DURATION, 1_000 * DURATION):
        observations = observations.updated(free, now)
        assert not expired_leases(observations, free, Durations.of(free, DURATION), now=now, wall_ms=NOON)


def test_each_lease_expires_by_itself() -> None:
    def leases(moving: int) -> Snapshot:
        both = {"0": Lease("0", "ann", 1, 1, renewed_at_ms=NOON), "1": Lease("1", "ann", 1, moving, renewed_at_ms=NOON)}
        return replace(EMPTY, leases=both)

    observations = Observations().updated(leases(1), 0).updated(leases(2), 20).updated(leases(2), DURATION)
    found = expired_leases(observations, leases(2), Durations.of(leases(2), DURATION), now=DURATION, wall_ms=NOON)
    assert found == {"0"}


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


def test_a_stored_time_ahead_of_the_observers_clock_does_not_expire_early() -> None:
    observer = Observer()
    assert not observer.finds_expired(group(renewal=3, at_ms=NOON + HOUR_MS), now=0)
    assert not observer.finds_expired(group(renewal=3, at_ms=NOON + HOUR_MS), now=DURATION - 0.001)


def test_a_stored_time_is_ignored_once_the_counter_has_changed() -> None:
    observer = Observer()
    assert not observer.finds_expired(group(renewal=3, at_ms=NOON - HOUR_MS), now=0)
    moved = group(renewal=4, at_ms=NOON - HOUR_MS)
    assert not observer.finds_expired(moved, now=1)
    assert not observer.finds_expired(moved, now=DURATION)
    assert observer.finds_expired(moved, now=DURATION + 1)


def test_the_stored_time_of_a_member_that_joins_later_is_ignored() -> None:
    observer = Observer()
    observer.finds_expired(EMPTY, now=0)
    newcomer = group(renewal=0, at_ms=NOON - HOUR_MS)
    assert not observer.finds_expired(newcomer, now=1)
    assert observer.finds_expired(newcomer, now=1 + DURATION)


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
