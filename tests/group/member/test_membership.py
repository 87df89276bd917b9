"""A member's partitions and state: fencing, a table that lost rows, and members declared dead."""

from __future__ import annotations

import logging
import random
import re
from dataclasses import replace
from typing import Any

import pytest

from spark_ehbalance.errors import DataLossError, FencedError
from spark_ehbalance.group.changes import (
    CancelHandover,
    Claim,
    HandOver,
    Heartbeat,
    Join,
    Leave,
    Renew,
    RequestHandover,
    Steal,
    apply,
)
from spark_ehbalance.group.commands import Seek
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.membership import Clocks, OwnedLease, OwnedLeases
from spark_ehbalance.group.member.protocol import (
    Committed,
    Fail,
    GroupRead,
    ReadGroup,
    StopRequested,
    StoreFailed,
    Tick,
)
from spark_ehbalance.group.member.query_state import Progress, QueryState
from spark_ehbalance.group.model import Author, Lease, TableIdentity
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import STRATEGIES
from tests.group.member.one import AT_MS, OPERATOR, START, One, Turn, member
from tests.group.strategies.members import CYCLE, LEASE, LOOK, Members, balance_now, looked, snapshot_of, unfailing
from tests.lease_table.store_conformance import BOB
from tests.raising import assert_reports, raises

#: The longest pause before a retry after a failure, in seconds: see `pacing.pause`.
PAUSE = 6.0

# --- identity --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("incarnation", ["ann-0", "ann-2"])
@pytest.mark.parametrize("meanwhile", [False, True], ids=["before the read", "during the commit"])
def test_later_process_of_the_same_member_fences_this_one(meanwhile: bool, incarnation: str) -> None:
    one, later = One(), Author("ann", incarnation)
    one.now += LEASE / 3
    turn = one.begin() if meanwhile else None
    claim = Claim(by=later, at_ms=AT_MS, partition="0", epoch=one.table.leases["0"].epoch)
    one.others(Join(by=later, at_ms=AT_MS, host="elsewhere"), claim)
    with pytest.raises(FencedError, match="on elsewhere"):
        one.begin() if turn is None else one.end(turn)
    assert not one.ann.owned


def test_lease_without_a_position_is_not_owned() -> None:
    """A blob store shows one after the member has left, if an earlier process could not write the position."""
    one = One()
    one.add(Lease("2", owner="ann", epoch=1))
    one.turn()
    assert one.ann.owned.keys() == {"0", "1"}


def test_later_process_that_left_still_fences_this_one() -> None:
    one, later = One(lineage="l"), Author("ann", "ann-2")
    one.others(Join(by=later, at_ms=AT_MS, lineage="l"), Leave(by=later, at_ms=AT_MS))
    with pytest.raises(FencedError):
        one.begin()


@pytest.mark.parametrize("incarnation", ["ann-0", "ann-2"])
def test_later_process_of_the_query_under_another_name_fences_this_one(incarnation: str) -> None:
    one = One(lineage="l")
    one.others(Join(by=Author("bob", incarnation), at_ms=AT_MS, lineage="l"))
    with pytest.raises(FencedError):
        one.begin()


@pytest.mark.parametrize("meanwhile", [False, True], ids=["before the read", "during the commit"])
def test_process_that_read_its_checkpoint_before_the_last_batch_does_not_join(meanwhile: bool) -> None:
    """It fences nobody: the process that began that batch continues."""
    one = One(lineage="l")
    late = MemberEngine(
        Author("ann", "ann-2"),
        Settings(STRATEGIES["greedy"], LEASE, lineage="l"),
        random.Random(0),
        query=QueryState(batch=6, begun=7, planner="ann-1"),
    )
    turn = Turn(*looked(late, one.table, ("0", "1"), one.clocks)) if meanwhile else None
    one.ann.record_batch(8, "ann-1")
    one.now += LEASE / 3
    one.turn()
    with raises(DataLossError, "EHB_CHECKPOINT_STALE", batch=7, begun=8, owner="ann"):
        if turn is None:
            Turn(*looked(late, one.table, ("0", "1"), one.clocks))
        else:
            unfailing(late.handle(Committed(apply(one.table, turn.transitions), 0.1), one.clocks))
    one.now += LEASE / 3
    one.turn()
    assert one.ann.owned.keys() == {"0", "1"}


@pytest.mark.parametrize("lost", ["members", "queries"])
def test_member_whose_row_or_record_is_gone_joins_again(lost: str) -> None:
    one = One(lineage="l")
    one.turn()
    one.replace_table(replace(one.table, **{lost: {}}))
    assert isinstance(one.turn()[0], Join)
    assert (one.table.members.keys(), one.table.queries.keys()) == ({"ann"}, {"l"})


@pytest.mark.parametrize(("lineage", "left"), [("l", False), ("l", True), ("", False)])
def test_member_that_joins_again_does_not_fence_a_later_process(lineage: str, left: bool) -> None:
    one, later = One(lineage="l"), Author("ann", "ann-2")
    one.turn()
    one.replace_table(replace(one.table, members={}))
    turn = one.begin()
    one.others(Join(by=later, at_ms=AT_MS, lineage=lineage), *([Leave(by=later, at_ms=AT_MS)] if left else []))
    table = one.table
    with pytest.raises(FencedError):
        one.end(turn)
    assert (one.table.members, one.table.queries) == (table.members, table.queries)


@pytest.mark.parametrize("acknowledged", [True, False])
def test_member_that_joined_again_without_an_answer_leaves(acknowledged: bool) -> None:
    """Others had declared it dead. Joining again is another start of the query, and its commit was not answered."""
    one = One(lineage="l")
    one.turn()
    one.replace_table(replace(one.table, members={}))
    one.others(*one.begin().transitions)
    one.ann.handle(StoreFailed(writing=True), one.clocks)
    one.now += PAUSE
    if acknowledged:
        one.stop()
    else:
        one.stopping = True
        one.ann.handle(StopRequested(), one.clocks)
        one.others(*one.begin().transitions)
        one.ann.handle(StoreFailed(writing=True), one.clocks)
        one.now += PAUSE
        one.end(one.begin())
    assert (one.table.members, one.table.queries["l"].run) == ({}, "")


@pytest.mark.parametrize("found", ["second", "another"])
def test_replaced_table_stops_this_member(found: str) -> None:
    one = One()
    one.replace_table(replace(one.table, table=TableIdentity("first")))
    one.turn()
    assert one.ann.table == TableIdentity("first")
    one.replace_table(replace(one.table, table=TableIdentity(found)))
    with raises(DataLossError, "EHB_LEASE_TABLE_REPLACED", known="first", found=found):
        one.begin()
    assert not one.ann.owned


def test_table_lost_between_check_and_join_stops_this_member() -> None:
    checked = snapshot_of((), [Lease("0", epoch=3, checkpoint=START)])
    late = member(checked=checked)
    late.handle(Tick(), Clocks(1000.0, AT_MS))
    (failed,) = late.handle(GroupRead(replace(checked, leases={}), ()), Clocks(1000.0, AT_MS))
    assert isinstance(failed, Fail)
    assert_reports(failed.error, "EHB_LEASE_TABLE_STALE", what="epoch of partition 0", known=3, found="missing")


@pytest.mark.parametrize("lost", ["a row", "an epoch", "everything", "a checkpoint"])
@pytest.mark.parametrize("meanwhile", [False, True], ids=["before the read", "during the commit"])
def test_rolled_back_table_stops_this_member(lost: str, meanwhile: bool) -> None:
    one = One()
    before = one.table.leases
    one.finish(5, "1")
    one.turn()
    one.now += LEASE / 3
    turn = one.begin() if meanwhile else None
    now = one.table.leases
    left = {
        "a row": {"0": now["0"]},
        "an epoch": {**now, "1": replace(now["1"], epoch=0)},
        "everything": {},
        "a checkpoint": before,
    }
    one.replace_table(replace(one.table, leases=left[lost]))
    facts: dict[str, object] = {"what": re.compile("epoch of partition")}
    if lost == "a checkpoint":
        facts = {"what": "position of partition 1", "known": 6, "found": 0}
    with raises(DataLossError, "EHB_LEASE_TABLE_STALE", **facts):
        one.begin() if turn is None else one.end(turn)
    assert not one.ann.owned


@pytest.mark.parametrize("acknowledged", [True, False])
def test_member_accepts_its_own_reset(acknowledged: bool) -> None:
    one = One()
    one.finish(5, "0")
    one.turn()
    one.ann.reset({"0": Progress(1, Position(2))})
    turn = one.begin()
    if acknowledged:
        one.end(turn)
    else:
        one.others(*turn.transitions)
    one.turn()
    one.turn()
    assert one.ann.owned["0"].checkpoint == Position(2)


def test_owner_follows_a_seek_at_its_next_read(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_ehbalance.group.member.membership")
    one = One()
    one.others(Seek(by=OPERATOR, at_ms=AT_MS, partition="0", position=Position(70), force=True))
    one.begin()
    assert (one.ann.owned["0"].epoch, one.ann.owned["0"].checkpoint) == (2, Position(70))
    assert "Continuing after a seek. partition=0 next=71 epoch=2" in caplog.text


# --- members declared dead -------------------------------------------------------------------------------------


def test_unwritable_table_moves_no_partitions_and_reading_continues() -> None:
    group, idle = Members(6), 0.0
    group.join(*"012")
    group.run(40)
    layout, group.fails = group.layout(), lambda name: True
    for _ in range(200):
        group.run(0.5)
        idle += 0.5 * sum(not node.member.readable(group.now) for node in group.nodes.values())
    assert group.layout() == layout
    assert idle <= LEASE, "until it is seen that nobody can write"


@pytest.mark.parametrize("failing", [0.05, 0.1])
@pytest.mark.parametrize("seed", range(6))
def test_occasional_failures_do_not_block_takeovers(failing: float, seed: int) -> None:
    group, rng = Members(6, seed=seed), random.Random(seed)
    group.join(*"012")
    group.run(40)
    began, group.fails = group.now, lambda name: rng.random() < failing
    group.run(50)
    group.crash("2")
    group.run(LEASE + LEASE / 3 + LOOK + PAUSE)
    assert {move.before for move in group.moves if move.at > began} == {"2"}, "nobody else is declared dead"
    assert sum(len(node.member.readable(group.now)) for node in group.nodes.values()) == 6


@pytest.mark.parametrize(("gap", "takes"), [(0.49, True), (0.51, False)])
def test_after_half_a_lease_without_a_read_all_members_have_a_full_lease(gap: float, takes: bool) -> None:
    one = One()
    one.others(Join(by=BOB, at_ms=AT_MS))
    one.add(Lease("2", BOB.id, 1, checkpoint=START))
    for wait in (0.0, 0.01, 0.98 - gap, gap, 0.02):
        one.now += wait * LEASE
        one.turn(balance=True)
    assert ("2" in one.ann.owned) is takes


@pytest.mark.parametrize("fails", [True, False])
def test_after_writes_failed_for_long_all_members_have_a_full_lease(fails: bool) -> None:
    """They may have been unable to write as well."""
    one = One()
    one.others(Join(by=BOB, at_ms=AT_MS))
    one.add(Lease("2", BOB.id, 1, checkpoint=START))
    one.turn(balance=True)
    for _ in range(3):
        one.now += LEASE / 3
        turn = one.begin(balance=True)
        if fails:
            one.ann.handle(StoreFailed(writing=True), one.clocks)
        else:
            one.end(turn)
    one.now += 1
    one.turn(balance=True)
    assert ("2" in one.ann.owned) is not fails


@pytest.mark.parametrize(("unchanged", "reads_on"), [(0.49, False), (0.51, True)])
def test_table_unchanged_for_half_a_lease_counts_as_unwritable(unchanged: float, reads_on: bool) -> None:
    one = One()
    one.replace_table(one.table)
    for wait in (1 - unchanged, unchanged):
        one.now += wait * LEASE
        one.begin()
        one.ann.handle(StoreFailed(writing=True), one.clocks)
    assert bool(one.ann.readable(one.now)) is reads_on


def test_lease_that_ends_first_is_renewed_first() -> None:
    leases = {"0": OwnedLease(1, START, renewed=0.0, lasts=90.0), "1": OwnedLease(1, START, renewed=5.0, lasts=30.0)}
    assert OwnedLeases(by_partition=leases).first_due == (5.0, 30.0)


# --- suspended while waiting for the table ---------------------------------------------------------------------


def read_during_suspension(one: One, table: Snapshot, seconds: float) -> None:
    """Answer ann's read with `table` and suspend her before she receives the answer."""
    balance_now(one.ann, one.clocks)
    assert one.ann.handle(Tick(), one.clocks) == [ReadGroup()]
    one.now += seconds
    unfailing(one.ann.handle(GroupRead(table, tuple(table.leases)), one.clocks))


def bob_hands_over(one: One) -> None:
    """Let bob, who has stolen partition 1, hand it over to ann."""
    one.others(RequestHandover(by=BOB, at_ms=AT_MS, partition="1", epoch=2, to="ann", timeout_ms=30_000))
    one.others(HandOver(by=BOB, at_ms=AT_MS, partition="1", epoch=2))


def test_suspension_during_a_read_expires_leases() -> None:
    """An unchanged table would mean that it is not writable, but it was read before the suspension."""
    one = One()
    read_during_suspension(one, one.table, 2 * LEASE)
    assert not one.ann.readable(one.now)


def test_suspension_during_a_read_counts_incoming_leases_from_before() -> None:
    one = One()
    one.others(Join(by=BOB, at_ms=AT_MS))
    one.others(Steal(by=BOB, at_ms=AT_MS, partition="1", epoch=1))
    one.turn()
    one.now += 1
    old, began = one.table, one.now
    bob_hands_over(one)
    read_during_suspension(one, old, LEASE / 2)
    outcome = apply(one.table, [Heartbeat(by=one.ann.author, at_ms=AT_MS)])
    unfailing(one.ann.handle(Committed(replace(outcome, seconds=0.0)), one.clocks))
    assert one.ann.owned["1"].renewed == began


def test_incoming_lease_counts_from_the_read_before() -> None:
    """The owner may have handed it over right after that read."""
    one = One()
    one.others(Join(by=BOB, at_ms=AT_MS), Steal(by=BOB, at_ms=AT_MS, partition="1", epoch=1))
    one.turn()
    before = one.now
    bob_hands_over(one)
    one.now += 1
    one.turn()
    assert one.ann.owned["1"].renewed == before


@pytest.mark.parametrize("answered", [True, False])
def test_incoming_lease_has_the_duration_in_force_before_it_was_read(answered: bool) -> None:
    """When the lease was handed over, the member's row contained the shorter duration, which other members have read
    and apply until they read the longer one."""
    one = One()
    one.others(Join(by=BOB, at_ms=AT_MS), Steal(by=BOB, at_ms=AT_MS, partition="1", epoch=1))
    one.turn()
    old = one.table
    bob_hands_over(one)
    one.replace_table(replace(one.table, lease_duration_ms=round(4000 * LEASE)))
    outcome = apply(one.table, [Heartbeat(by=one.ann.author, at_ms=AT_MS, lease_duration_ms=round(4000 * LEASE))])
    one.replace_table(outcome.after)
    one.now += LEASE / 3
    balance_now(one.ann, one.clocks)
    assert one.ann.handle(Tick(), one.clocks) == [ReadGroup()]
    if answered:
        unfailing(one.ann.handle(GroupRead(old, tuple(old.leases)), one.clocks))
        unfailing(one.ann.handle(Committed(replace(outcome, seconds=0.0)), one.clocks))
    else:
        unfailing(one.ann.handle(GroupRead(one.table, tuple(one.table.leases)), one.clocks))
    assert one.ann._member.duration.own == 4 * LEASE
    assert one.ann.owned["1"].lasts == LEASE
    one.now += LEASE / 3
    one.turn()
    assert one.ann.owned["1"].lasts == 4 * LEASE


def test_suspension_during_a_failing_read_is_not_an_outage() -> None:
    one = One()
    assert one.ann.handle(Tick(), replace(one.clocks, monotonic=one.now + LEASE / 3)) == [ReadGroup()]
    one.now += 2 * LEASE
    one.ann.handle(StoreFailed(writing=False), one.clocks)
    assert not one.ann.readable(one.now)
    one.now += 1
    one.ann.handle(Tick(), one.clocks)
    one.ann.handle(StoreFailed(writing=False), one.clocks)
    assert one.ann.readable(one.now).keys() == {"0", "1"}, "the table is away now"
    for wait, owns in ((2 * CYCLE - 0.1, True), (0.2, False)):
        one.now += wait
        assert bool(one.ann.readable(one.now)) is owns, "suspended since"


def test_commit_extends_only_the_leases_that_it_renews() -> None:
    """Others would declare the lease dead while this member still relies on it."""
    one = One()
    one.reserve("0")
    one.request("0")
    one.turn()
    before, held = one.ann._member, one.ann.owned["0"]
    one.now += 1
    about: dict[str, Any] = {"by": one.ann.author, "at_ms": AT_MS, "partition": "0", "epoch": held.epoch}
    for transition, renewed in ((CancelHandover(**about), held.renewed), (Renew(**about), one.now)):
        outcome = apply(one.table, [transition])
        assert before.after_commit(outcome, one.clocks, one.now, one.ann.query).owned["0"].renewed == renewed
