"""A member's turns as a function of its reads, with a clock that the test moves: the commits and their times."""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from spark_ehbalance.group.capabilities import Capabilities
from spark_ehbalance.group.changes import (
    Checkpoint,
    Claim,
    Drain,
    Join,
    Release,
    Reset,
    Transition,
    apply,
)
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.membership import Clocks, ResumePoint
from spark_ehbalance.group.member.protocol import (
    CommitChanges,
    Committed,
    GroupRead,
    LeaveRequested,
    ReadGroup,
    RebalancingBegan,
    StopRequested,
    StoreFailed,
    Tick,
)
from spark_ehbalance.group.member.query_state import Progress, QueryState
from spark_ehbalance.group.model import Handover, Lease, Load, MemberLoad, MemberState, TableIdentity
from spark_ehbalance.group.position import Position
from tests.group.member.one import AT_MS, OPERATOR, START, One, Turn, kinds, member
from tests.group.strategies.members import CYCLE, LEASE, balance_now, looked, snapshot_of
from tests.lease_table.store_conformance import ANN, BOB

#: An interval that never elapses in a test.
SELDOM = dict.fromkeys(("read_interval", "handover_read_interval", "balance_interval"), 1e6)


def claimed(transitions: list[Transition]) -> set[str]:
    return {transition.partition for transition in transitions if isinstance(transition, Claim)}


def gaps(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


def older_bob(one: One) -> None:
    """Let bob join as a member older than ann."""
    one.others(Join(by=BOB, at_ms=AT_MS))
    one.replace_table(
        replace(one.table, members={**one.table.members, "bob": replace(one.table.members["bob"], joined=0)})
    )


# --- joining ---------------------------------------------------------------------------------------------------


def test_new_member_joins_first_and_records_latest() -> None:
    """Even a query that is stopped before its first batch counts as started."""
    ann, table = member(latest_ms=70, ends={"1": Position(4)}), snapshot_of((), [])
    turn = Turn(*looked(ann, table, ("0", "1"), Clocks(0.0, 0)))
    after = apply(table, turn.transitions).after
    assert after.latest_ms == 70
    assert {p: lease.checkpoint for p, lease in after.leases.items()} == {"0": None, "1": Position(4)}
    assert not after.owned_by("ann"), "it claims when it has seen who else is there"
    assert turn.decision
    assert turn.decision.rebalance_now


def test_restarted_member_reclaims_its_leases_with_new_epochs_as_it_joins() -> None:
    own = Lease("0", owner="ann", epoch=4, checkpoint=Position(8))
    other = Lease("1", owner="bob", epoch=4, checkpoint=Position(8))
    free, moved_on = Lease("2", epoch=4, checkpoint=Position(8)), Lease("3", epoch=4, checkpoint=Position(9))
    sought = Lease("4", epoch=4, owned_since_ms=5, checkpoint=Position(70), seek_epoch=4)
    sought_before, taken_since = replace(sought, partition="5", seek_epoch=3), replace(sought, partition="6")
    others = [
        replace(sought, partition="7"),  # taken since, by a machine with a slow clock
        replace(sought, partition="8", owned_since_ms=0),  # stalled since
        replace(sought, partition="9", seek_epoch=2),
        replace(free, partition="10", checkpoint=Position(7)),  # moved back
    ]
    ann = member(
        query=QueryState({"0": Progress(4, Position(20)), "1": Progress(3, Position(20))}),
        resume=dict.fromkeys([*"12345", "9", "10"], ResumePoint(9, since_ms=5, epoch=3))
        | {p: ResumePoint(9, since_ms=since, epoch=3) for p, since in (("6", 4), ("7", 6), ("8", 0))},
    )
    table = snapshot_of((), [own, other, free, moved_on, sought, sought_before, taken_since, *others])
    turn = Turn(*looked(ann, table, tuple(table.leases), Clocks(0.0, 0)))
    outcome = apply(table, turn.transitions)
    assert [
        rejection.transition.partition for rejection in outcome.rejected if isinstance(rejection.transition, Checkpoint)
    ] == ["1"]
    assert len(outcome.rejected) == 1
    assert {p: (lease.owner, lease.epoch) for p, lease in outcome.after.leases.items()} == {
        "0": ("ann", 5),
        "1": ("bob", 4),
        "2": ("ann", 5),
        "3": (None, 4),
        "4": ("ann", 5),
        **dict.fromkeys(["5", "6", "7", "8", "9", "10"], (None, 4)),
    }
    ann.handle(Committed(outcome), Clocks(0.0, 0))
    assert {p: held.checkpoint.next for p, held in ann.owned.items()} == {"0": 21, "2": 9, "4": 71}
    again = Turn(*looked(ann, outcome.after, tuple(table.leases), Clocks(1.0, 0))).transitions
    assert "Checkpoint" not in kinds(again), "a refused checkpoint is dropped"


@pytest.mark.parametrize(
    ("limit", "kept", "incoming"), [(2, "02", ""), (4, "012", "3"), (9, "012", "34"), (None, "012", "34")]
)
def test_restarted_member_keeps_to_its_limit(limit: int | None, kept: str, incoming: str) -> None:
    """It keeps the partitions that its earlier process was reading, and as many handovers as it has room for."""
    own = [Lease(p, "ann", 4, checkpoint=Position(8)) for p in "01"] + [Lease("2", "ann", 4, checkpoint=Position(9))]
    handovers = [
        Lease(p, "bob", 4, checkpoint=Position(8), handover=Handover(to, 30_000))
        for p, to in (("3", "ann"), ("4", "ann"), ("5", "abe"), ("6", "zoe"))
    ]
    ann, table = member(max_owned=limit, resume={"2": ResumePoint(10)}), snapshot_of((), [*own, *handovers])
    after = apply(table, Turn(*looked(ann, table, tuple(table.leases), Clocks(0.0, 0))).transitions).after
    assert {*after.owned_by("ann")} == {after.leases[p] for p in kept}
    assert {p for p, handover in after.ownership.pending.items() if handover.to == "ann"} == {*incoming}
    assert after.ownership.pending.keys() >= {"5", "6"}


def test_restarted_member_at_its_limit_reclaims_all_released_leases_despite_a_pending_handover_to_it() -> None:
    """A lease left in its epoch would look as if the batch that is run again had finished its range."""
    own = [Lease(p, None, 4, checkpoint=Position(8), owned_since_ms=5) for p in "01"]
    coming = Lease("2", "bob", 4, checkpoint=Position(8), handover=Handover("ann", 30_000))
    ann = member(max_owned=2, resume=dict.fromkeys("01", ResumePoint(9, 5, 4)))
    table = snapshot_of(("bob",), [*own, coming])
    after = apply(table, Turn(*looked(ann, table, tuple(table.leases), Clocks(0.0, 0))).transitions).after
    assert {lease.partition for lease in after.owned_by("ann")} == {"0", "1"}
    assert not after.ownership.pending


@pytest.mark.parametrize("owner", [None, "ann"], ids=["stopped", "killed"])
def test_lease_released_beyond_the_limit_is_not_continued_by_the_next_process(owner: str | None) -> None:
    """The batch is run again without the partition, and a sink that skips known batch numbers would skip a later run
    with the partition."""
    leases = [Lease(p, owner, 4, checkpoint=Position(8), owned_since_ms=5) for p in "01"]
    table = snapshot_of((), leases)
    ann = member(max_owned=1, resume=dict.fromkeys("01", ResumePoint(9, 5, 4)))
    after = apply(table, Turn(*looked(ann, table, ("0", "1"), Clocks(0.0, 0))).transitions).after
    assert [(lease.owner, lease.owned_since_ms) for lease in after.leases.values()] == [("ann", 5), (None, 0)]


@pytest.mark.parametrize(("epoch", "since_ms", "waits"), [(4, 0, True), (5, 5, True), (5, 0, False)])
def test_released_lease_is_awaited_only_if_the_tenure_continues(epoch: int, since_ms: int, waits: bool) -> None:
    """Without the tenure, the batch is run again without the partition, however often the query is restarted."""
    leases = [
        Lease("0", "ann", 4, checkpoint=Position(8), owned_since_ms=5),
        Lease("1", None, epoch, checkpoint=Position(8), owned_since_ms=since_ms),
    ]
    table = snapshot_of((), leases)
    ann = member(max_owned=1, resume=dict.fromkeys("01", ResumePoint(9, 5, 4)))
    turn = Turn(*looked(ann, table, ("0", "1"), Clocks(0.0, 0)))
    joined = apply(table, [change for change in turn.transitions if getattr(change, "partition", "0") == "0"])
    ann.handle(Committed(joined), Clocks(0.0, 0))
    assert ann.unclaimed == (frozenset("1") if waits else frozenset())


@pytest.mark.parametrize(("stops", "limit"), [(False, None), (True, None), (False, 2)])
def test_lease_claimed_concurrently_by_an_earlier_process_is_claimed_again(stops: bool, limit: int | None) -> None:
    """Otherwise, both would own it in the same epoch, and the hub could not fence the earlier process."""
    one = One()
    one.add(Lease("2", checkpoint=START))
    settings = replace(one.ann.settings, max_owned=limit)
    later = MemberEngine(replace(ANN, incarnation="ann-2"), settings, random.Random(0))

    def turn(*others: Transition) -> None:
        _, write = looked(later, one.table, tuple(one.table.leases), one.clocks)
        assert write is not None
        one.others(*others)
        outcome = apply(one.table, write.changes)
        one.replace_table(outcome.after)
        later.handle(Committed(outcome), one.clocks)

    turn(Claim(by=ANN, at_ms=AT_MS, partition="2", epoch=0))
    assert later.owned.keys() == {"0", "1"}
    if stops:
        later.handle(StopRequested(), one.clocks)
    turn()
    if stops:
        assert {lease.owner for lease in one.table.leases.values()} == {None}
        return
    if limit is not None:
        assert (one.table.leases["2"].owner, later.owned.keys()) == (None, {"0", "1"})
        return
    assert {p: holding.epoch for p, holding in later.owned.items()} == {"0": 2, "1": 2, "2": 2}
    assert one.table.leases["2"].owned_since_ms == AT_MS, "it was owned without a break"


# --- heartbeats ------------------------------------------------------------------------------------------------


def test_renewals_are_due_at_a_third_and_included_from_a_sixth_of_the_lease() -> None:
    one = One(**SELDOM)
    assert 0.8 * LEASE / 3 <= one.ann.due() - one.now <= LEASE / 3, "a little ahead, so that members spread out"
    one.now += LEASE / 6 - 0.1
    assert one.turn() == []
    one.now += 0.2
    assert kinds(one.turn()) == ["Heartbeat", "Renew", "Renew"]
    assert 0.8 * LEASE / 3 <= one.ann.due() - one.now <= LEASE / 3


def test_load_is_written_with_a_renewal() -> None:
    one = One()
    one.ann.measure({"0": Load(5.0, 7.0)})
    one.now += LEASE / 3
    one.turn()
    assert one.table.leases["0"].load == Load(5.0, 7.0)
    assert one.table.leases["1"].load is None
    one.ann.measure({"0": Load(5.1, 7.0)}, MemberLoad(6.0, 8.0, 0.5))
    one.now += LEASE / 3
    assert kinds(one.turn()).count("Heartbeat") == 1, "it takes no commit of its own"
    assert one.table.leases["0"].load == Load(5.0, 7.0), "a small change is not written"
    assert one.table.members["ann"].load == MemberLoad(6.0, 8.0, 0.5)


# --- batches ---------------------------------------------------------------------------------------------------


def test_partitions_in_another_epoch_are_not_reserved() -> None:
    one = One(4)
    one.request("2")
    one.begin()
    assert one.ann.begin_batch({"0": 1, "1": 7, "2": 1, "3": 0, "9": 1}, one.now) == {"0"}


def test_reset_replaces_earlier_progress_and_is_written_immediately() -> None:
    one = One()
    one.finish(50, "0", "1")
    one.turn()
    one.finish(60, "0")
    one.ann.reset({"0": Progress(1, Position(7))})
    assert one.ann.due() == 0.0
    assert [type(output) for output in one.turn()] == [Reset]
    one.turn()
    assert {p: lease.checkpoint for p, lease in one.table.leases.items()} == {"0": Position(7), "1": Position(50)}
    assert one.ann.due() > one.now


# --- leaving ---------------------------------------------------------------------------------------------------


def test_drained_member_releases_idle_partitions_and_rejoins_after_an_undo() -> None:
    one = One()
    one.reserve("0")
    one.others(Drain(by=OPERATOR, at_ms=AT_MS, member="ann"))
    assert kinds(one.turn(balance=True)) == ["Release"]
    assert one.ann.owned.keys() == {"0"}
    one.finish(9, "0")
    assert kinds(one.turn(balance=True)) == ["Checkpoint", "Release"]
    assert one.turn(balance=True) == [], "it takes nothing"
    one.others(Drain(by=OPERATOR, at_ms=AT_MS, member="ann", undo=True))
    assert claimed(one.turn(balance=True)) == {"0", "1"}


def test_leaving_query_releases_everything_after_its_batch() -> None:
    one = One()
    assert not one.ann.idle
    one.reserve("0")
    one.ann.handle(LeaveRequested(), one.clocks)
    assert one.ann.due() == 0.0
    assert one.ann.plannable() == {}, "from that moment on"
    turn = one.begin(balance=True, hub=("2",))
    assert turn.decision
    assert "leaving" in turn.decision.reason
    transitions = one.end(turn)
    assert {transition.partition for transition in transitions if isinstance(transition, Release)} == {"1"}
    assert not claimed(transitions)
    assert one.table.members["ann"].state is MemberState.LEAVING
    assert not one.ann.idle
    one.finish(9, "0")
    one.end(one.begin(balance=True))
    assert one.ann.idle
    assert {p: (lease.owner, lease.checkpoint) for p, lease in one.table.leases.items()} == {
        "0": (None, Position(9)),
        "1": (None, START),
        "2": (None, START),
    }
    one.end(one.begin(balance=True))
    assert {lease.owner for lease in one.table.leases.values()} == {None}


def test_member_is_idle_only_without_a_batch_and_uncommitted_progress() -> None:
    one = One(0)
    assert one.ann.idle
    one.ann.query = replace(one.ann.query, in_flight=frozenset("0"))
    assert not one.ann.idle
    one.finish(9, "0")
    assert not one.ann.idle


def test_last_commit_writes_progress_releases_and_leaves() -> None:
    one = One(3)
    one.reserve("0", "1", "2")
    one.request("1")
    one.finish(9, "0")
    transitions = one.stop()
    assert kinds(transitions) == ["Checkpoint", "Release", "HandOver", "Release", "Release", "Leave"]
    assert [refused.transition for refused in one.refused] == [transitions[3]], "what was handed over is not released"
    assert {p: lease.owner for p, lease in one.table.leases.items()} == {"0": None, "1": "bob", "2": None}
    assert one.table.members.keys() == {"bob"}


def test_begun_batch_is_recorded_with_the_next_commit() -> None:
    one = One(1, lineage="l")
    one.turn()
    one.ann.record_batch(3, "run")
    assert one.turn() == [], "it is no reason to commit"
    one.now += LEASE / 3
    assert kinds(one.turn()) == ["Heartbeat", "Renew", "Advance"]
    assert (one.table.queries["l"].run, one.table.queries["l"].begun) == (ANN.incarnation, 3)
    one.ann.record_batch(3, "another run, which plans it again")
    one.now += LEASE / 3
    one.turn()
    assert one.table.queries["l"].planner == "another run, which plans it again"
    one.ann.finish_batch({}, 3)
    for advances in (True, False):
        one.now += LEASE / 3
        assert ("Advance" in kinds(one.turn())) is advances
        assert one.table.queries["l"].batch == 3
    one.ann.record_batch(4, "run")
    one.stop()
    assert (one.table.queries["l"].run, one.table.queries["l"].begun) == ("", 4)
    one.stop()  # the answer is lost


# --- hanging queries -------------------------------------------------------------------------------------------


def test_hanging_query_releases_everything_until_its_batch_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = One(max_stall=20.0)
    one.reserve("0", "1")
    one.now += 20.0
    one.turn(balance=True)
    assert one.ann.plannable().keys() == {"0", "1"}
    one.now += 0.1
    assert kinds(one.turn(balance=True)) == ["Release", "Release", "Drain"]
    assert one.ann.plannable() == {}
    assert one.table.members["ann"].state is MemberState.LEAVING, "others are to take what it gives back"
    (line,) = (record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)
    assert "maxStall=20 partitions=0,1" in line
    turn = one.begin(balance=True)
    assert turn.decision
    assert turn.decision.reason == "nothing, because the query hangs"
    assert one.end(turn) == []

    one.finish(9, "0")
    assert kinds(one.turn(balance=True)) == ["Checkpoint", "Drain"]
    assert one.table.members["ann"].state is MemberState.ACTIVE
    assert claimed(one.turn(balance=True)) == {"0", "1"}
    assert one.ann.owned["0"].checkpoint == Position(9), "nobody has had it since"
    assert caplog.text.count("claiming partitions again") == 1


def test_operators_drain_outlasts_a_stall() -> None:
    one = One(max_stall=20.0)
    one.others(Drain(by=OPERATOR, at_ms=AT_MS, member="ann"))
    one.ann.begin_batch({}, one.now)
    one.now += 25.0
    one.turn()
    assert one.table.members["ann"].state is MemberState.LEAVING
    one.finish(9)
    one.turn()
    assert one.table.members["ann"].state is MemberState.LEAVING


# --- balancing -------------------------------------------------------------------------------------------------


def test_changed_members_or_owners_trigger_balancing() -> None:
    one = One(reactive=True)

    def balances() -> bool:
        return one.begin().balances

    one.turn(balance=True)
    assert not balances()
    one.now += LEASE / 3 - 3
    one.turn()
    assert not balances(), "signs of life are no reason"
    one.others(Join(by=BOB, at_ms=AT_MS))
    assert balances()
    one.turn(balance=True)
    assert not balances()
    one.request("0")
    assert balances()
    one.turn(balance=True)
    one.others(Drain(by=OPERATOR, at_ms=AT_MS, member="bob"))
    assert balances()
    one.turn(balance=True)
    one.now += 1.2 * CYCLE
    assert balances(), "the interval has passed"


@pytest.mark.parametrize(("members", "start"), [(True, Position(-1)), (False, Position(41))])
def test_starting_position_applies_only_to_the_initial_partitions(members: bool, start: Position) -> None:
    """If a store has no rows for known partitions, it is unknown which partitions are new."""
    one = One(0, capabilities=Capabilities(members=members))
    one.turn(balance=True, hub="01")
    one.turn(balance=True)
    assert one.ann.owned.keys() == {"0", "1"}
    one.end(one.begin(balance=True, hub="2", start=Position(41)))
    assert (one.table.leases["2"].owner, one.table.leases["2"].checkpoint) == ("ann", start)


@pytest.mark.parametrize(("leases", "recorded"), [([], 7), ([Lease("0", checkpoint=START)], None)])
def test_only_a_new_table_records_the_hub(leases: list[Lease], recorded: int | None) -> None:
    """The positions in an older table may be another hub's."""
    ann, table = member(), replace(snapshot_of((), leases), table=TableIdentity("one") if leases else None)
    ann.handle(Tick(), Clocks(0.0, 0))
    *_, write = ann.handle(GroupRead(table, ("0", "1"), 7), Clocks(0.0, 0))
    assert isinstance(write, CommitChanges)
    after = apply(table, write.changes).after
    assert after.table is not None
    assert after.table.hub_created_ms == recorded


def test_starting_positions_are_resolved_in_batches() -> None:
    one, resolved = One(0), []
    one.replace_table(replace(one.table, table=TableIdentity("one")))
    one.add(*(Lease(str(p)) for p in range(80)))
    for start in range(3):
        turn = one.begin(balance=True, start=Position(start))
        assert turn.decision
        resolved.append((len(claimed(turn.transitions)), turn.decision.rebalance_now))
        one.end(turn)
        assert not one.refused
    assert resolved == [(32, True), (32, True), (16, True)]
    assert Counter(lease.checkpoint for lease in one.table.leases.values()) == {
        Position(0): 32,
        Position(1): 32,
        Position(2): 16,
    }


def test_rebalancing_repeats_until_no_partition_is_left_to_claim() -> None:
    one = One()
    one.add(Lease("2", checkpoint=START))
    assert not one.begin().balances
    one.ann.handle(RebalancingBegan(), one.clocks)
    cycles, settled = one.ann.cycles, one.ann.idle_cycles
    turn = one.begin(balance=True)
    assert turn.balances
    assert claimed(one.end(turn)) == {"2"}
    assert (one.ann.cycles, one.ann.idle_cycles) == (cycles, settled)
    turn = one.begin(balance=True)
    assert turn.balances
    one.end(turn)
    assert (one.ann.cycles, one.ann.idle_cycles) == (cycles + 1, settled + 1)
    assert not one.begin().balances


# --- the store -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("balance_interval", [CYCLE, 0.5])
def test_owned_partitions_are_readable_in_an_outage_but_not_after_a_suspension(balance_interval: float) -> None:
    one = One(balance_interval=balance_interval)
    late = one.now + LEASE
    assert one.ann.readable(late - 0.1).keys() == {"0", "1"}
    assert one.ann.readable(late) == {}, "it has not looked"
    one.ann.handle(StoreFailed(writing=False), Clocks(late, 0))
    assert one.ann.readable(late + 1.9 * CYCLE).keys() == {"0", "1"}, "nobody else can take it"
    assert one.ann.readable(late + 2 * CYCLE) == {}


def test_slow_store_is_not_a_suspension() -> None:
    one = One(balance_interval=0.5)
    one.now += LEASE
    assert one.ann.handle(Tick(), one.clocks) == [ReadGroup()]
    one.now += 5.0  # the timeout of a request
    one.ann.handle(StoreFailed(writing=False), one.clocks)
    assert one.ann.readable(one.now).keys() == {"0", "1"}
    assert one.ann.due() > one.now, "it pauses before the next try"


def runs_maintenance(one: One) -> bool:
    """Whether a turn triggers maintenance."""
    turn = one.begin()
    one.end(turn)
    return turn.tidies


def test_only_the_leader_runs_due_maintenance() -> None:
    one = One(tidy_interval=50.0, **SELDOM)
    one.now += 60.0
    assert runs_maintenance(one), "with the renewals"
    one.now += 4.0
    assert not runs_maintenance(one), "nothing has been written"
    one.replace_table(one.table)
    assert not runs_maintenance(one)
    one.now += 50.0
    assert runs_maintenance(one)
    one.now += 1.0
    one.replace_table(replace(one.table, version=one.table.version + 300))
    one.table = replace(one.table, version=one.table.version + 300)
    assert runs_maintenance(one), "after many versions"
    older_bob(one)
    one.table = replace(one.table, version=one.table.version + 600)
    one.now += 5.0
    assert not runs_maintenance(one)


def test_next_oldest_member_leads_after_the_leaders_death() -> None:
    one = One(max_owned=2, tidy_interval=0.0)
    older_bob(one)
    one.add(Lease("7", "bob", 1, checkpoint=START))
    assert not runs_maintenance(one)
    for _ in range(3):
        one.now += LEASE / 2.5
        balance_now(one.ann, one.clocks)
        tidies = runs_maintenance(one)
    assert one.table.leases["7"].owner == "bob", "ann owns two already"
    assert tidies
