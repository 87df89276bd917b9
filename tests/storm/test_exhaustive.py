"""All states of small groups, and bugs that the exploration must find; `make exhaustive` explores larger groups."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from spark_ehbalance.group import expiry
from spark_ehbalance.group.changes import Claim, Transition
from spark_ehbalance.group.durations import Durations
from spark_ehbalance.group.expiry import Observations
from spark_ehbalance.group.member import balancing, engine
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.membership import Clocks, Membership
from spark_ehbalance.group.member.pending import pending
from spark_ehbalance.group.member.query_state import QueryState
from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.snapshot import Snapshot
from storm.exhaustive.__main__ import Case, explore
from storm.exhaustive.state import LEASE, Budget


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


#: Two members that share the partitions and can be killed: without further events, with a handover, and with a handover
#: during a batch. TWINS has a second process of the same member.
DEATHS = Case("ab", 1, Budget(starts=0), settled=True)
SHARED = Case("ab", 2, Budget(starts=0), settled=True)
HANDOVER = Case("ab", 1, Budget(starts=0, delays=1, requests=1), settled=True)
BATCH = Case("ab", 1, Budget(starts=0, batches=1, requests=1), settled=True)
TWINS = Case("aa", 1, Budget(starts=1), settled=True)


@pytest.mark.parametrize(("case", "depth"), [(DEATHS, 9), (BATCH, 7), (TWINS, 100)], ids=["deaths", "batch", "twins"])
def test_small_groups_have_single_owners_and_settle(case: Case, depth: int) -> None:
    result = explore(case, depth)
    assert not result.story, "\n".join(result.story)
    assert result.complete or result.depth == depth


Expired = Callable[[Observations, Snapshot, Durations, float, int], frozenset[str]]


def early(expired: Expired) -> Expired:
    def expired_early(
        observations: Observations, snapshot: Snapshot, durations: Durations, now: float, wall_ms: int
    ) -> frozenset[str]:
        return expired(observations, snapshot, durations, now + LEASE / 2, wall_ms)

    return expired_early


def expire_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(balancing, "expired_leases", early(expiry.expired_leases))
    patch.setattr(balancing, "expired_members", early(expiry.expired_members))


def never_lapse(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "still_valid", lambda self, holdings, now: holdings)


def restart_in_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    def after(self: Claim, lease: Lease) -> Lease:
        return replace(taken(self, lease), epoch=lease.epoch if lease.owner == self.by.id else lease.epoch + 1)

    taken = Claim.after
    patch.setattr(Claim, "after", after)


def take_before_the_deadline(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(balancing, "overdue_handovers", lambda seen, snapshot, now: frozenset(snapshot.ownership.pending))


def plan_during_a_handover(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemberEngine, "plannable", lambda self, *, replay=False: dict(self.owned))


def hand_over_during_a_batch(patch: pytest.MonkeyPatch) -> None:
    def pending_at_rest(
        member: Membership, query: QueryState, in_flight: frozenset[str], now: Clocks, *, leaving: bool
    ) -> list[Transition]:
        return pending(member, query, frozenset(), now, leaving=leaving)

    patch.setattr(engine, "pending", pending_at_rest)


def ignore_later_processes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "_check_fence", lambda self, snapshot: None)


FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Case, str]] = [
    (expire_early, SHARED, "may both plan"),
    (never_lapse, DEATHS, "may both plan"),
    (restart_in_the_same_epoch, TWINS, "may both plan"),
    (take_before_the_deadline, HANDOVER, "before the handover is overdue"),
    (plan_during_a_handover, HANDOVER, "may both plan"),
    (hand_over_during_a_batch, BATCH, "during a batch"),
    (ignore_later_processes, TWINS, "has joined, and continues"),
]


@pytest.mark.parametrize(("fault", "case", "violation"), FAULTS, ids=[fault.__name__ for fault, _, _ in FAULTS])
def test_exploration_finds_bug(
    fault: Callable[[pytest.MonkeyPatch], None], case: Case, violation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    assert violation in "\n".join(explore(case).story)
