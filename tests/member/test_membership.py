"""One member's part in its group, with made-up clocks: what it says and when, and what it makes of what it sees."""

from __future__ import annotations

import random
from dataclasses import replace
from types import MappingProxyType

import pytest

from spark_ehbalance.errors import FencedError
from spark_ehbalance.leases.model import Author, Lease, Load, MemberLoad
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import (
    CancelHandover,
    Checkpoint,
    Claim,
    Defend,
    Drain,
    HandOver,
    Heartbeat,
    Join,
    Leave,
    Refused,
    Release,
    Renew,
    RequestHandover,
    Transition,
    apply,
)
from spark_ehbalance.member.membership import Clocks, Membership, Progress, Settings
from spark_ehbalance.strategies import STRATEGIES
from spark_ehbalance.values.position import Position
from tests.stores.store_conformance import ANN, BOB, GROUP
from tests.strategies.members import LEASE, LOOK, Members

OPERATOR = Author("operator", "")
AT_MS = 0


class One:
    """A membership of ann's, the table, and a clock that the test moves. `others` write without anybody's asking."""

    def __init__(self, partitions: int = 2, **settings: object) -> None:
        self.now = 1000.0
        leases = {str(p): Lease(str(p), checkpoint=Position(-1)) for p in range(partitions)}
        self.table = Snapshot(GROUP, leases=MappingProxyType(leases))
        chosen = Settings(STRATEGIES["greedy"], LEASE, **settings)  # type: ignore[arg-type]
        self.member = Membership(ANN, chosen, random.Random(0))
        self.turn(balance=True)
        self.turn(balance=True)
        assert len(self.member.holdings) == partitions

    @property
    def clocks(self) -> Clocks:
        return Clocks(self.now, round(self.now * 1000))

    def see(self) -> None:
        self.member.see(self.table, self.clocks)

    def say(self) -> list[Transition]:
        self.see()
        return self.member.say(self.table, self.clocks)

    def write(self, said: list[Transition]) -> tuple[Refused, ...]:
        outcome = apply(self.table, said)
        self.table = replace(outcome.after, version=self.table.version + (outcome.after != self.table))
        self.member.written(replace(outcome, after=self.table), self.clocks)
        return outcome.refused

    def turn(self, *, balance: bool = False) -> list[Transition]:
        self.see()
        partitions = tuple(self.table.leases)
        said = self.member.say(self.table, self.clocks)
        if balance:
            said, _ = self.member.balance(self.table, self.clocks, partitions, lambda p: Position(-1))
        assert not self.write(said)
        return said

    def others(self, *said: Transition) -> None:
        outcome = apply(self.table, said)
        assert not outcome.refused
        self.table = replace(outcome.after, version=self.table.version + 1)

    def promise(self, partition: str) -> None:
        """bob joins, if he has not, and asks for a partition."""
        if BOB.id not in self.table.members:
            self.others(Join(by=BOB, at_ms=AT_MS))
        epoch = self.table.leases[partition].epoch
        self.others(
            RequestHandover(by=BOB, at_ms=AT_MS, partition=partition, epoch=epoch, to=BOB.id, timeout_ms=30_000)
        )


def kinds(said: list[Transition]) -> list[str]:
    return [type(each).__name__ for each in said]


def claimed(said: list[Transition]) -> set[str]:
    return {each.partition for each in said if isinstance(each, Claim)}


# --- joining ---------------------------------------------------------------------------------------------------


def test_who_starts_is_seen_first_and_takes_then() -> None:
    member = Membership(ANN, Settings(STRATEGIES["greedy"], LEASE), random.Random(0))
    table = Snapshot(GROUP, leases=MappingProxyType({"0": Lease("0", checkpoint=Position(-1))}))
    clocks = Clocks(0.0, 0)
    member.see(table, clocks)
    said, decision = member.balance(table, clocks, ("0",), lambda p: Position(-1))
    assert kinds(said) == ["Join"]
    assert decision.rebalance_now


def test_who_comes_back_takes_its_own_with_a_new_epoch_in_the_commit_of_its_join() -> None:
    own = Lease("0", owner="ann", epoch=4, checkpoint=Position(8))
    other = Lease("1", owner="bob", epoch=4, checkpoint=Position(8))
    free, moved_on = Lease("2", epoch=4, checkpoint=Position(8)), Lease("3", epoch=4, checkpoint=Position(9))
    table = Snapshot(GROUP, leases=MappingProxyType({each.partition: each for each in (own, other, free, moved_on)}))
    member = Membership(
        ANN,
        Settings(STRATEGIES["greedy"], LEASE),
        random.Random(0),
        finished={"0": Progress(4, Position(20)), "1": Progress(3, Position(20))},
        resume={"1": 9, "2": 9, "3": 9},
    )
    clocks = Clocks(0.0, 0)
    member.see(table, clocks)
    said = member.say(table, clocks)
    outcome = apply(table, said)
    assert [each.transition for each in outcome.refused] == [each for each in said if isinstance(each, Checkpoint)][1:]
    assert {p: (lease.owner, lease.epoch) for p, lease in outcome.after.leases.items()} == {
        "0": ("ann", 5),
        "1": ("bob", 4),
        "2": ("ann", 5),
        "3": (None, 4),
    }
    member.written(outcome, clocks)
    assert {p: held.checkpoint.next for p, held in member.holdings.items()} == {"0": 21, "2": 9}
    assert not [each for each in member.say(outcome.after, clocks) if isinstance(each, Checkpoint)], (
        "a refused one is dropped"
    )


def test_an_older_state_of_the_table_with_an_earlier_process_in_it_is_put_right() -> None:
    one = One()
    before = one.table
    leases = {p: replace(lease, owner=None, epoch=0) for p, lease in before.leases.items()}
    earlier = replace(before.members["ann"], incarnation="ann-0", joined=0)
    older = Snapshot(GROUP, before.version + 1, MappingProxyType(leases), MappingProxyType({"ann": earlier}))
    one.table = older
    one.see()
    assert len(one.member.holdings) == 2, "reading goes on"
    said = one.say()
    one.write(said)
    assert one.table.members["ann"].incarnation == ANN.incarnation
    assert {p: (each.owner, each.epoch) for p, each in one.table.leases.items()} == {
        p: (each.owner, each.epoch) for p, each in before.leases.items()
    }


def test_a_later_process_is_noticed() -> None:
    one = One()
    one.others(Join(by=Author("ann", "ann-2"), at_ms=AT_MS, host="elsewhere"))
    with pytest.raises(FencedError, match="on elsewhere"):
        one.see()
    assert not one.member.holdings


def test_who_was_forgotten_joins_again_and_goes_on() -> None:
    one = One()
    one.table = replace(one.table, members=MappingProxyType({}))
    said = one.turn()
    assert kinds(said) == ["Join"]
    assert {lease.epoch for lease in one.table.leases.values()} == {1}, "its batch in flight is its own"
    assert one.member.holdings.keys() == {"0", "1"}


# --- signs of life ---------------------------------------------------------------------------------------------


def test_renewals_are_due_at_a_third_of_the_lease_and_go_along_from_half_that_time_on() -> None:
    one = One()
    assert one.member.renewal_due() == one.now + LEASE / 3
    one.now += LEASE / 6 - 0.1
    assert one.turn() == []
    one.now += 0.2
    assert kinds(one.turn()) == ["Heartbeat", "Renew", "Renew"]
    assert one.member.renewal_due() == one.now + LEASE / 3


def test_the_load_goes_along_with_a_sign_of_life() -> None:
    one = One()
    one.member.measure({"0": Load(5.0, 7.0)})
    one.now += LEASE / 3
    one.turn()
    assert one.table.leases["0"].load == Load(5.0, 7.0)
    assert one.table.leases["1"].load is None
    one.member.measure({}, MemberLoad(6.0, 8.0, 0.5, 0.25))
    one.now += LEASE / 3
    assert kinds(one.turn()).count("Heartbeat") == 1, "it takes no commit of its own"
    assert one.table.leases["0"].load == Load(5.0, 7.0), "what is not measured anew stands"
    assert one.table.members[one.member.author.id].load == MemberLoad(6.0, 8.0, 0.5, 0.25)


def test_a_lease_is_believed_in_from_before_the_commit() -> None:
    one = One()
    one.now += LEASE / 3
    said, before = one.say(), one.clocks
    outcome = apply(one.table, said)
    one.now += 5  # so long the commit takes
    one.member.written(outcome, before)
    assert {held.renewed for held in one.member.holdings.values()} == {before.monotonic}


def test_what_could_not_be_written_is_said_again() -> None:
    one = One()
    one.member.finish("0", Progress(1, Position(9)))
    first = one.say()
    assert first == one.say()
    assert [each.position for each in first if isinstance(each, Checkpoint)] == [Position(9)]


def test_a_later_end_that_came_during_the_commit_is_not_lost() -> None:
    one = One()
    one.member.finish("0", Progress(1, Position(9)))
    said = one.say()
    one.member.finish("0", Progress(1, Position(19)))
    one.write(said)
    one.turn()
    assert one.table.leases["0"].checkpoint == Position(19)


# --- handing over ----------------------------------------------------------------------------------------------


def test_what_is_promised_is_not_planned_with_and_handed_over_when_it_is_at_rest() -> None:
    one = One()
    one.member.in_flight = frozenset("01")
    one.promise("0")
    assert one.turn() == []
    assert one.member.plannable().keys() == {"1"}
    assert one.member.waits(one.table)

    one.member.finish("0", Progress(1, Position(9)))
    one.member.finish("1", Progress(1, Position(9)))
    one.member.in_flight = frozenset()
    said = one.turn()
    assert kinds(said) == ["Checkpoint", "Checkpoint", "HandOver"]
    lease = one.table.leases["0"]
    assert (lease.owner, lease.epoch, lease.checkpoint) == ("bob", 2, Position(9))
    assert one.member.holdings.keys() == {"1"}
    assert not one.member.waits(one.table)


def test_a_promise_that_is_called_off_is_planned_with_again() -> None:
    one = One()
    one.member.in_flight = frozenset("01")
    one.promise("0")
    one.see()
    one.others(CancelHandover(by=BOB, at_ms=AT_MS, partition="0", epoch=1))
    one.see()
    assert one.member.plannable().keys() == {"0", "1"}


def test_a_promise_made_during_the_commit_is_known_after_it() -> None:
    one = One()
    one.now += LEASE / 3
    said = one.say()
    one.promise("0")
    one.write(said)
    assert one.member.plannable().keys() == {"1"}


def test_who_leaves_gives_back_what_is_at_rest_and_plans_nothing() -> None:
    one = One()
    one.member.in_flight = frozenset("0")
    one.others(Drain(by=OPERATOR, at_ms=AT_MS, member="ann"))
    said = one.turn(balance=True)
    assert kinds(said) == ["Release"]
    assert one.member.plannable() == {}
    assert one.member.holdings.keys() == {"0"}
    one.member.finish("0", Progress(1, Position(9)))
    one.member.in_flight = frozenset()
    assert kinds(one.turn(balance=True)) == ["Checkpoint", "Release"]
    assert {lease.owner for lease in one.table.leases.values()} == {None}
    assert one.turn(balance=True) == [], "and takes nothing"
    one.others(Drain(by=OPERATOR, at_ms=AT_MS, member="ann", undo=True))
    assert claimed(one.turn(balance=True)) == {"0", "1"}


def test_who_wants_to_leave_does_so_at_once() -> None:
    one = One()
    one.member.in_flight = frozenset("0")
    one.see()
    one.member.leave()
    assert one.member.plannable() == {}
    said, decision = one.member.balance(one.table, one.clocks, ("0", "1", "2"), lambda p: Position(-1))
    assert "leaving" in decision.reason
    assert {each.partition for each in said if isinstance(each, Release)} == {"1"}
    assert not claimed(said)


def test_a_query_that_hangs_gives_back_also_what_is_in_its_batch() -> None:
    one = One()
    one.member.in_flight = frozenset("01")
    one.member.stalled = True
    assert kinds(one.turn(balance=True)) == ["Release", "Release"]
    assert one.turn(balance=True) == []
    one.member.finish("0", Progress(1, Position(9)))
    one.member.in_flight, one.member.stalled = frozenset(), False
    said = one.turn(balance=True)
    assert kinds(said) == ["Checkpoint", "Claim", "Claim"]
    assert one.member.holdings["0"].checkpoint == Position(9), "nobody has had it since"


def test_the_last_words_are_checkpoints_then_leases_then_the_membership() -> None:
    one = One(3)
    one.member.in_flight = frozenset("012")
    one.promise("1")
    one.member.finish("0", Progress(1, Position(9)))
    one.see()
    said = one.member.farewell(one.clocks)
    assert kinds(said) == ["Checkpoint", "Release", "HandOver", "Release", "Release", "Leave"]
    assert [each.transition for each in one.write(said)] == [said[3]], "what was handed over is not released"
    assert {p: lease.owner for p, lease in one.table.leases.items()} == {"0": None, "1": "bob", "2": None}
    assert one.table.members.keys() == {"bob"}


def test_who_never_joined_has_no_last_words() -> None:
    member = Membership(ANN, Settings(STRATEGIES["greedy"], LEASE), random.Random(0))
    assert member.farewell(Clocks(0.0, 0)) == []


def test_what_a_table_has_lost_is_put_back_as_it_was_last_seen() -> None:
    one, gone = One(partitions=4), Position(50)
    one.others(Join(by=BOB, at_ms=AT_MS), Release(by=ANN, at_ms=AT_MS, partition="3", epoch=1))
    one.others(Claim(by=BOB, at_ms=AT_MS, partition="3", epoch=1))
    one.member.finish("0", Progress(1, gone))
    one.turn()
    before = one.table.leases
    stolen = Lease("1", "new", 1, checkpoint=Position(99))  # by who has not known anything
    one.table = Snapshot(GROUP, one.table.version + 1, MappingProxyType({"1": replace(stolen, epoch=0)}))
    one.see()
    assert one.member.holdings.keys() == {"0", "1", "2"}, "reading goes on"
    said, decision = one.member.balance(one.table, one.clocks, ("0", "1", "2", "3"), lambda p: Position(-1))
    assert kinds(said)[:5] == ["Join", "PutBack", "PutBack", "PutBack", "PutBack"]
    assert not decision.transitions
    assert not {"AddPartitions", "Claim"} & set(kinds(said))
    one.write(said)
    after = one.table.leases
    assert {p: (each.owner, each.epoch, each.checkpoint) for p, each in after.items()} == {
        p: (each.owner, each.epoch, each.checkpoint) for p, each in before.items()
    }
    assert before["0"].checkpoint == gone
    one.now += LEASE / 6
    assert "PutBack" not in kinds(one.say()), "nothing is lost any more"


def test_what_another_has_put_back_with_less_is_said_again() -> None:
    one = One()
    less = one.table
    one.member.finish("0", Progress(1, Position(50)))
    one.turn()
    one.table = Snapshot(GROUP, one.table.version + 1)
    said = one.say()
    one.table = replace(less, version=one.table.version + 1, members=one.table.members)  # by who was quicker
    assert {type(each.transition).__name__ for each in one.write(said)} == {"PutBack"}
    assert one.table.leases["0"].checkpoint == Position(-1)
    one.turn()
    assert one.table.leases["0"].checkpoint == Position(50)


def test_a_reset_is_not_said_back() -> None:
    one = One()
    one.member.finish("0", Progress(1, Position(50)))
    one.turn()
    one.member.reset("0", Progress(1, Position(7)))
    one.turn()
    one.turn()
    assert one.table.leases["0"].checkpoint == Position(7)


def test_who_was_away_puts_nothing_back_that_is_newer() -> None:
    one = One()
    newer = {p: replace(lease, owner="bob", epoch=2, checkpoint=Position(7)) for p, lease in one.table.leases.items()}
    one.table = replace(one.table, leases=MappingProxyType(newer), version=one.table.version + 1)
    one.see()
    assert not one.member.holdings
    assert "PutBack" not in kinds(one.say())


# --- looking ---------------------------------------------------------------------------------------------------


def test_everything_that_changes_who_should_own_what_is_a_reason_to_balance() -> None:
    one = One()
    one.turn(balance=True)
    assert not one.member.unsettled(one.table, one.clocks)
    one.now += LEASE / 3
    one.turn()
    assert not one.member.unsettled(one.table, one.clocks), "signs of life are none"
    one.others(Join(by=BOB, at_ms=AT_MS))
    assert one.member.unsettled(one.table, one.clocks)
    one.turn(balance=True)
    assert not one.member.unsettled(one.table, one.clocks)
    one.promise("0")
    assert one.member.unsettled(one.table, one.clocks)
    one.turn(balance=True)
    one.others(Drain(by=OPERATOR, at_ms=AT_MS, member="bob"))
    assert one.member.unsettled(one.table, one.clocks)


@pytest.mark.parametrize("seed", range(4))
# With up to a third since the last renewal, the last one awake is not gone for a whole lease duration either.
@pytest.mark.parametrize(("away", "apart"), [(0.4, 0.1), (1.2, 0.25), (20, 0.25)])
def test_all_that_stand_still_together_go_on_together(away: float, apart: float, seed: int) -> None:
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


def test_one_that_stood_still_alone_asks_for_what_it_has_lost() -> None:
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


def test_a_forgotten_name_is_removed_by_the_leader_once_its_leases_are_taken() -> None:
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


def test_the_next_oldest_leads_when_the_leader_is_gone_though_nobody_may_take_what_it_had() -> None:
    one = One(max_owned=2)
    old = Author("old", "old-1")
    one.others(Join(by=old, at_ms=AT_MS))
    oldest = replace(one.table.members["old"], joined=0)
    full = {"7": Lease("7", "old", 1, checkpoint=Position(-1))}
    one.table = replace(one.table, members={**one.table.members, "old": oldest}, leases={**one.table.leases, **full})
    one.turn(balance=True)
    assert not one.member.leads(one.table, one.clocks)
    for _ in range(3):
        one.now += LEASE / 2.5
        one.turn(balance=True)
    assert one.table.leases["7"].owner == "old", "one owns two already"
    assert one.member.leads(one.table, one.clocks)


def test_only_heartbeats_while_there_is_nothing_else() -> None:
    group = Members(2, seed=2)
    group.join("ann", "bob", "cat")
    group.run(20)
    idle = next(name for name, count in group.counts().items() if count == 0)
    version, renewal = group.snapshot.version, group.snapshot.members[idle].renewal
    group.run(LEASE)
    assert 3 <= group.snapshot.members[idle].renewal - renewal <= 6
    assert group.snapshot.version - version <= 3 * 6


def test_what_a_member_says_is_of_its_own_epoch() -> None:
    """A checkpoint of an epoch that has passed is refused, and with it nothing else."""
    one = One()
    one.promise("0")
    one.turn()
    assert one.table.leases["0"].owner == "bob"
    one.member.finish("0", Progress(1, Position(50)))
    one.member.finish("1", Progress(1, Position(50)))
    refused = one.write(one.say())
    assert [each.transition.partition for each in refused if isinstance(each.transition, Checkpoint)] == ["0"]
    assert one.table.leases["0"].checkpoint == Position(-1)
    assert one.table.leases["1"].checkpoint == Position(50)
    assert not any(isinstance(each, (Checkpoint, HandOver, Leave, Renew, Heartbeat)) for each in one.say())


def test_a_member_joins_with_its_strategy() -> None:
    one = One(strategy_name="race")
    assert one.table.members["ann"].strategy == "race"


def test_a_defence_renews() -> None:
    one = One()
    for _ in range(20):
        one.now += LEASE / 8
        said = one.say()
        assert not any(isinstance(each, Renew) and each.partition == "0" for each in said)
        assert not one.write([*said, Defend(by=ANN, at_ms=0, partition="0", epoch=1)])
    assert one.member.renewal_due() > one.now
