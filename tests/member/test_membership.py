"""What a member owns and believes: fences, a table that has lost something, and who is taken for dead."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from spark_ehbalance.errors import DataLossError, FencedError
from spark_ehbalance.leases.model import Author, Lease, TableIdentity
from spark_ehbalance.leases.orders import Seek
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import Claim, Drain, Join, Release
from spark_ehbalance.values.position import Position
from tests.member.one import AT_MS, OPERATOR, START, One, kinds
from tests.stores.store_conformance import ANN, BOB, GROUP
from tests.strategies.members import LEASE, LOOK, Members, snapshot_of

# --- who it is -------------------------------------------------------------------------------------------------


def test_a_later_process_of_the_same_member_fences_this_one() -> None:
    one = One()
    one.others(Join(by=Author("ann", "ann-2"), at_ms=AT_MS, host="elsewhere"))
    with pytest.raises(FencedError, match="on elsewhere"):
        one.begin()
    assert not one.ann.owned


def test_a_restored_older_state_of_the_table_with_an_earlier_process_in_it_fences_nobody() -> None:
    one = One()
    before = one.table
    leases = {p: replace(lease, owner=None, epoch=0) for p, lease in before.leases.items()}
    earlier = replace(before.members["ann"], incarnation="ann-0", joined=0)
    one.replace_table(Snapshot(GROUP, before.version, leases, {"ann": earlier}))
    turn = one.begin()
    assert len(one.ann.owned) == 2, "reading goes on"
    one.end(turn)
    assert one.table.members["ann"].incarnation == ANN.incarnation
    assert {p: (each.owner, each.epoch) for p, each in one.table.leases.items()} == {
        p: (each.owner, each.epoch) for p, each in before.leases.items()
    }


def test_another_table_at_the_same_place_stops_this_member() -> None:
    one = One()
    assert one.ann.table is None, "the table is one of an earlier version"
    one.replace_table(replace(one.table, table=TableIdentity("first")))
    one.turn()
    assert one.ann.table == TableIdentity("first")
    one.replace_table(replace(one.table, table=TableIdentity("second")))
    with pytest.raises(DataLossError, match="another lease table"):
        one.begin()
    assert not one.ann.owned


# --- a table that has lost something ---------------------------------------------------------------------------


def test_what_a_table_has_lost_is_put_back_as_last_seen() -> None:
    one, done = One(partitions=4), Position(50)
    one.others(Join(by=BOB, at_ms=AT_MS), Release(by=ANN, at_ms=AT_MS, partition="3", epoch=1))
    one.others(Claim(by=BOB, at_ms=AT_MS, partition="3", epoch=1))
    one.finish(50, "0")
    one.turn()
    before = one.table.leases
    stolen = Lease("1", "new", 0, checkpoint=Position(99))  # by a process that knew nothing
    one.replace_table(snapshot_of((), [stolen]))
    turn = one.begin(balance=True, hub=("0", "2", "3"))
    assert one.ann.owned.keys() == {"0", "1", "2"}, "reading goes on"
    assert turn.decision
    assert not turn.decision.transitions
    written = kinds(one.end(turn))
    assert written[:5] == ["Join", "PutBack", "PutBack", "PutBack", "PutBack"]
    assert not {"AddPartitions", "Claim"} & set(written)
    assert {p: (each.owner, each.epoch, each.checkpoint) for p, each in one.table.leases.items()} == {
        p: (each.owner, each.epoch, each.checkpoint) for p, each in before.items()
    }
    assert before["0"].checkpoint == done
    one.now += LEASE / 6
    assert "PutBack" not in kinds(one.begin().transitions()), "nothing is lost any more"


def test_a_loss_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    one = One()
    one.replace_table(snapshot_of((), ()))
    one.begin()
    one.begin()
    assert caplog.text.count("somebody has removed partitions 0, 1 from the lease table") == 1


def test_a_checkpoint_is_written_again_when_another_has_put_the_lease_back_with_less() -> None:
    one = One()
    less = one.table
    one.finish(50, "0")
    one.turn()
    one.replace_table(Snapshot(GROUP))
    turn = one.begin()
    one.replace_table(replace(less, members=one.table.members))  # by another, who was faster
    one.end(turn)
    assert {type(each.transition).__name__ for each in one.refused} == {"PutBack"}
    assert one.table.leases["0"].checkpoint == START
    one.turn()
    assert one.table.leases["0"].checkpoint == Position(50)


def test_what_is_newer_in_the_table_is_not_put_back() -> None:
    one = One()
    newer = {p: replace(lease, owner="bob", epoch=2, checkpoint=Position(7)) for p, lease in one.table.leases.items()}
    one.replace_table(replace(one.table, leases=newer))
    turn = one.begin()
    assert not one.ann.owned
    assert "PutBack" not in kinds(turn.transitions())


def test_an_operator_s_seek_moves_the_owner_on_at_its_next_look(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_ehbalance.member.membership")
    one = One()
    one.others(Seek(by=OPERATOR, at_ms=AT_MS, partition="0", position=Position(70), force=True))
    one.begin()
    assert (one.ann.owned["0"].epoch, one.ann.owned["0"].checkpoint) == (2, Position(70))
    assert "partition 0: goes on at 71 with epoch 2, because of a seek" in caplog.text


def test_what_nobody_owns_any_more_is_said_to_be_nobody_s(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_ehbalance.member.membership")
    one = One()
    one.others(Drain(by=OPERATOR, at_ms=AT_MS, member="ann"))
    one.turn()
    assert "partition 0: no longer owned, now by nobody" in caplog.text


# --- who is taken for dead -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
# With up to a third since the last renewal, the last one awake has not been silent for a whole lease duration either.
@pytest.mark.parametrize(("away", "apart"), [(0.4, 0.1), (1.2, 0.25), (20, 0.25)])
def test_members_that_are_suspended_together_keep_what_they_own(away: float, apart: float, seed: int) -> None:
    """The store was away, or the machine was suspended; some are awake before the others."""
    group = Members(12, seed=seed)
    names = group.join_many(3)
    group.run(20)
    layout = group.layout()
    for name in names:
        group.freeze(name)
    group.run(away * LEASE)
    for name in names:
        group.nodes[name].frozen = False
        group.run(apart * LEASE)
    group.run(2 * LEASE)
    assert group.layout() == layout


def test_a_member_that_was_suspended_alone_requests_what_it_has_lost() -> None:
    group = Members(12, seed=2)
    group.join("ann", "bob", "cat")
    group.run(20)
    group.freeze("ann")
    group.run(LEASE + 10)
    assert group.counts()["ann"] == 0
    group.moves.clear()
    group.nodes["ann"].frozen = False
    group.run(5 * LOOK)
    assert group.counts() == {"ann": 4, "bob": 4, "cat": 4}
    assert all(move.planned for move in group.moves)


def test_the_leader_removes_a_dead_member_once_its_leases_are_taken() -> None:
    group = Members(6, seed=2)
    group.join("ann")
    group.run(5)
    group.join("bob")
    group.run(5)
    group.crash("ann")
    group.run(20)
    assert group.snapshot.members.keys() == {"ann", "bob"}
    group.run(LEASE)
    assert group.snapshot.members.keys() == {"bob"}
    assert group.counts() == {"bob": 6}
