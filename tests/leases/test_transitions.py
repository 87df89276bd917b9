"""What may happen to a lease and what may not: each transition's valid and invalid cases."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from spark_ehbalance.leases.model import Author, Handover, Lease, Member, MemberLoad, MemberState, Pin
from spark_ehbalance.leases.orders import PinTo, Seek, Transfer, Unpin
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import (
    AddPartitions,
    CancelHandover,
    Checkpoint,
    Claim,
    Defend,
    Drain,
    EndTransfer,
    Forget,
    HandOver,
    Heartbeat,
    Join,
    Leave,
    Release,
    Renew,
    RequestHandover,
    Steal,
    Transition,
    apply,
)
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import Position

ANN, BOB, CAT = Author("ann", "ann-1"), Author("bob", "bob-1"), Author("cat", "cat-1")
STRANGER, ZOMBIE = Author("eve", "eve-1"), Author("ann", "ann-0")
AT = 1_000  # wall-clock milliseconds of whoever writes


def group(**lease: Any) -> Snapshot:
    """Ann, Bob and Cat, and partition 0: Ann's since epoch 3, read up to 10, unless `lease` says otherwise."""
    fields: dict[str, Any] = {"owner": "ann", "epoch": 3, "renewal": 7, "checkpoint": Position(10, "ten")}
    authors = (ANN, BOB, CAT)
    members = {author.id: Member(author.id, author.incarnation, n) for n, author in enumerate(authors)}
    return Snapshot(
        Group("namespace", "hub", "$default"),
        5,
        MappingProxyType({"0": Lease("0", **(fields | lease))}),
        MappingProxyType(members),
    )


def after(snapshot: Snapshot, *transitions: Transition) -> Snapshot:
    """`snapshot` after `transitions`, which must all be valid."""
    outcome = apply(snapshot, transitions)
    assert outcome.before is snapshot
    assert (outcome.accepted, outcome.refused) == (transitions, ())
    return outcome.after


def accepted(snapshot: Snapshot, *transitions: Transition) -> Lease:
    """Partition 0 after `transitions`, which must all be valid."""
    return after(snapshot, *transitions).leases["0"]


def assert_refused(snapshot: Snapshot, transition: Transition, reason: str) -> None:
    outcome = apply(snapshot, [transition])
    assert not outcome.accepted
    assert [refused.transition for refused in outcome.refused] == [transition]
    assert reason in outcome.refused[0].reason
    assert outcome.after is snapshot


def claim(by: Author = BOB, epoch: int = 3, **more: Any) -> Claim:
    return Claim(by=by, at_ms=AT, partition="0", epoch=epoch, **more)


def steal(by: Author = BOB, epoch: int = 3) -> Steal:
    return Steal(by=by, at_ms=AT, partition="0", epoch=epoch)


def renew(by: Author = ANN, epoch: int = 3) -> Renew:
    return Renew(by=by, at_ms=AT, partition="0", epoch=epoch)


def checkpoint(number: int, by: Author = ANN, epoch: int = 3) -> Checkpoint:
    return Checkpoint(by=by, at_ms=AT, partition="0", epoch=epoch, position=Position(number, str(number)))


def release(by: Author = ANN, epoch: int = 3) -> Release:
    return Release(by=by, at_ms=AT, partition="0", epoch=epoch)


def request(to: str = "bob", by: Author = BOB, epoch: int = 3) -> RequestHandover:
    return RequestHandover(by=by, at_ms=AT, partition="0", epoch=epoch, to=to, timeout_ms=30_000)


def hand_over(by: Author = ANN, epoch: int = 3) -> HandOver:
    return HandOver(by=by, at_ms=AT, partition="0", epoch=epoch)


def cancel(by: Author = CAT, epoch: int = 3) -> CancelHandover:
    return CancelHandover(by=by, at_ms=AT, partition="0", epoch=epoch)


PROMISED = Handover("bob", 30_000, AT)
OF_A_LEASE: list[Any] = [claim, steal, renew, release, request, hand_over, cancel, lambda **w: checkpoint(20, **w)]
OF_A_LEASE_IDS = ["claim", "steal", "renew", "release", "request", "hand over", "cancel", "checkpoint"]


# --- what all have in common -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", OF_A_LEASE, ids=OF_A_LEASE_IDS)
@pytest.mark.parametrize("owner", [None, "ann", "bob"])
@pytest.mark.parametrize("handover", [None, PROMISED])
def test_another_epoch_makes_everything_invalid(make: Any, owner: str | None, handover: Handover | None) -> None:
    snapshot = group(owner=owner, handover=handover)
    for by in (ANN, BOB):
        assert_refused(snapshot, make(by=by, epoch=2), "epoch is 3, not 2")
        assert_refused(snapshot, make(by=by, epoch=4), "epoch is 3, not 4")


@pytest.mark.parametrize("make", OF_A_LEASE, ids=OF_A_LEASE_IDS)
@pytest.mark.parametrize("owner", [None, "ann", "eve"])
def test_a_stranger_and_a_fenced_process_change_no_lease(make: Any, owner: str | None) -> None:
    snapshot = group(owner=owner, handover=PROMISED)
    assert_refused(snapshot, make(by=STRANGER), "eve is not a member")
    assert_refused(snapshot, make(by=ZOMBIE), "a later process has joined as ann")


@pytest.mark.parametrize("make", OF_A_LEASE, ids=OF_A_LEASE_IDS)
def test_an_unknown_partition_is_refused(make: Any) -> None:
    by = {"by": ANN} if make is not steal else {}
    assert_refused(group(), replace(make(**by), partition="9"), "partition 9 is unknown")


def test_of_two_that_contradict_each_other_the_first_wins() -> None:
    free = group(owner=None)
    for first, second in ((CAT, BOB), (BOB, CAT)):
        outcome = apply(free, [claim(first), claim(second)])
        assert outcome.after.leases["0"].owner == first.id
        assert outcome.accepted == (claim(first),)
        assert [refused.transition.by for refused in outcome.refused] == [second]


def test_what_is_refused_does_not_stop_what_follows() -> None:
    outcome = apply(group(), [checkpoint(5), renew(), checkpoint(12)])
    assert outcome.accepted == (renew(), checkpoint(12))
    assert [refused.transition for refused in outcome.refused] == [checkpoint(5)]
    assert outcome.after.leases["0"].checkpoint == Position(12, "12")


def test_the_snapshot_before_and_its_version_stay_as_they_were() -> None:
    before, same = group(), group()
    after = apply(before, [renew(), Leave(by=BOB, at_ms=AT), AddPartitions(by=ANN, at_ms=AT, partitions=("1",))]).after
    assert before == same
    assert after != before
    assert after.version == before.version


# --- claim -------------------------------------------------------------------------------------------------------


def test_a_free_lease_can_be_claimed() -> None:
    lease = accepted(group(owner=None), claim())
    assert (lease.owner, lease.epoch, lease.checkpoint) == ("bob", 4, Position(10, "ten"))
    assert lease.owned_since_ms == lease.renewed_at_ms == AT


def test_ones_own_lease_can_be_claimed_again_which_fences_an_earlier_life() -> None:
    snapshot = group()
    lease = accepted(snapshot, claim(ANN))
    assert (lease.owner, lease.epoch) == ("ann", 4)
    after = apply(snapshot, [claim(ANN)]).after
    assert_refused(after, checkpoint(20, epoch=3), "epoch is 4")


def test_a_lease_that_stood_still_can_be_claimed() -> None:
    lease = accepted(group(), claim(unchanged_counter=(3, 7)))
    assert (lease.owner, lease.epoch) == ("bob", 4)


def test_a_live_lease_cannot_be_claimed() -> None:
    assert_refused(group(), claim(), "owned by ann")


@pytest.mark.parametrize("sign_of_life", [renew(), checkpoint(10), checkpoint(20)])
def test_a_sign_of_life_defeats_the_evidence_of_expiry(sign_of_life: Transition) -> None:
    alive = apply(group(), [sign_of_life]).after
    assert_refused(alive, claim(unchanged_counter=(3, 7)), "owned by ann")


def test_evidence_against_an_earlier_owner_is_no_evidence_against_the_next() -> None:
    moved = apply(group(), [steal(CAT)]).after
    assert_refused(moved, claim(unchanged_counter=(3, 7)), "epoch is 4")
    assert_refused(moved, claim(epoch=4, unchanged_counter=(3, 7)), "owned by cat")


def test_a_handover_past_its_deadline_can_be_claimed_by_whom_it_was_promised_although_the_owner_renews() -> None:
    waiting = apply(group(handover=PROMISED), [renew()]).after
    lease = accepted(waiting, claim(BOB, overdue_handover=PROMISED))
    assert (lease.owner, lease.epoch, lease.handover) == ("bob", 4, None)


def test_a_handover_before_its_deadline_cannot_be_claimed() -> None:
    assert_refused(group(handover=PROMISED), claim(BOB), "owned by ann")


def test_a_handover_past_its_deadline_is_not_claimed_by_a_third() -> None:
    waiting = apply(group(handover=PROMISED), [renew()]).after
    assert_refused(waiting, claim(CAT, overdue_handover=PROMISED), "owned by ann")


def test_a_deadline_of_an_earlier_request_says_nothing_about_a_later_one() -> None:
    later = replace(PROMISED, requested_at_ms=PROMISED.requested_at_ms + 1)
    assert_refused(group(handover=later), claim(BOB, overdue_handover=PROMISED), "owned by ann")


def test_evidence_of_expiry_is_not_taken_for_a_deadline_that_has_passed() -> None:
    seen = claim(BOB, unchanged_counter=(3, 7))  # Bob thinks that Ann is gone, and knows of no handover
    now = apply(group(), [renew(), request(to="bob", by=CAT)]).after  # she is not, and has just been asked
    assert_refused(now, seen, "owned by ann")


def test_a_first_claim_says_where_reading_starts() -> None:
    never_read = group(owner=None, epoch=0, renewal=0, checkpoint=None)
    assert_refused(never_read, claim(epoch=0), "its starting position is not known")
    lease = accepted(never_read, claim(epoch=0, starting_position=Position.before(100)))
    assert lease.checkpoint is not None
    assert lease.checkpoint.next == 100


def test_a_start_does_not_replace_a_checkpoint() -> None:
    lease = accepted(group(owner=None), claim(starting_position=Position.before(100)))
    assert lease.checkpoint == Position(10, "ten")


# --- steal -------------------------------------------------------------------------------------------------------


def test_a_live_lease_can_be_stolen_and_keeps_its_checkpoint() -> None:
    lease = accepted(group(handover=Handover("cat", 1)), steal())
    assert (lease.owner, lease.epoch, lease.checkpoint, lease.handover) == ("bob", 4, Position(10, "ten"), None)


@pytest.mark.parametrize("owner", [None, "bob"])
def test_there_must_be_another_to_steal_from(owner: str | None) -> None:
    assert_refused(group(owner=owner), steal(), "no other member owns it")


def test_of_two_thieves_one_gets_it() -> None:
    outcome = apply(group(), [steal(BOB), steal(CAT)])
    assert outcome.after.leases["0"].owner == "bob"
    assert len(outcome.refused) == 1


# --- renew -------------------------------------------------------------------------------------------------------


def test_a_renewal_moves_the_counter_and_nothing_else() -> None:
    before = group(handover=PROMISED)
    after = accepted(before, renew())
    assert after == replace(before.leases["0"], renewal=8, renewed_at_ms=AT)


@pytest.mark.parametrize("owner", [None, "bob"])
def test_only_the_owner_renews(owner: str | None) -> None:
    assert_refused(group(owner=owner), renew(), f"owned by {owner}")


# --- defend ------------------------------------------------------------------------------------------------------


def defend(by: Author = ANN, epoch: int = 3) -> Defend:
    return Defend(by=by, at_ms=AT, partition="0", epoch=epoch)


def test_a_defence_is_a_sign_of_life_that_is_counted() -> None:
    before = group()
    after = accepted(before, defend())
    assert after == replace(before.leases["0"], renewal=8, renewed_at_ms=AT, defences=1)


def test_only_the_owner_defends_and_only_what_it_has_not_promised() -> None:
    assert_refused(group(owner="bob"), defend(), "owned by bob")
    assert_refused(group(handover=PROMISED), defend(), f"a handover to {PROMISED.to} is pending")


# --- checkpoint --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [10, 11, 2**62])
def test_a_checkpoint_stays_or_moves_on_and_counts_as_a_renewal(number: int) -> None:
    lease = accepted(group(), checkpoint(number))
    assert lease.checkpoint == Position(number, str(number))
    assert lease.counter == (3, 8)


def test_a_checkpoint_does_not_move_back() -> None:
    assert_refused(group(), checkpoint(9), "moves back from 10 to 9")


def test_a_checkpoint_is_refused_after_a_change_of_owner() -> None:
    stolen = apply(group(), [steal(BOB)]).after
    assert_refused(stolen, checkpoint(20), "epoch is 4")
    assert_refused(stolen, checkpoint(20, epoch=4), "owned by bob")


def test_a_checkpoint_is_refused_after_the_lease_went_away_and_came_back() -> None:
    returned = apply(group(), [steal(BOB), steal(ANN, epoch=4)]).after
    assert returned.leases["0"].owner == "ann"
    assert_refused(returned, checkpoint(20, epoch=3), "epoch is 5")


def test_a_checkpoint_may_follow_ones_own_release() -> None:
    lease = accepted(group(), release(), checkpoint(20))
    assert (lease.owner, lease.epoch, lease.checkpoint) == (None, 3, Position(20, "20"))


def test_a_checkpoint_after_release_is_refused_once_somebody_has_claimed() -> None:
    claimed = apply(group(), [release(), claim(BOB)]).after
    assert_refused(claimed, checkpoint(20), "epoch is 4")
    given_back = apply(claimed, [release(BOB, epoch=4)]).after
    assert_refused(given_back, checkpoint(20), "epoch is 4")


# --- release -----------------------------------------------------------------------------------------------------


def test_a_released_lease_is_nobodys_and_keeps_checkpoint_and_epoch() -> None:
    lease = accepted(group(handover=PROMISED), release())
    assert (lease.owner, lease.epoch, lease.checkpoint, lease.handover) == (None, 3, Position(10, "ten"), None)


@pytest.mark.parametrize("owner", [None, "bob"])
def test_only_the_owner_releases(owner: str | None) -> None:
    assert_refused(group(owner=owner), release(), f"owned by {owner}")


# --- handover ----------------------------------------------------------------------------------------------------


def test_a_request_leaves_the_lease_with_its_owner() -> None:
    before = group()
    assert accepted(before, request()) == replace(before.leases["0"], handover=PROMISED)


def test_a_handover_may_be_asked_for_another() -> None:
    assert accepted(group(), request(to="bob", by=CAT)).handover == PROMISED


def test_a_request_is_no_sign_of_life_of_the_owner() -> None:
    asked = apply(group(), [request(to="cat", by=CAT)]).after
    assert accepted(asked, claim(BOB, unchanged_counter=(3, 7))).owner == "bob"


def test_a_second_request_is_refused_while_one_is_pending() -> None:
    assert_refused(group(handover=PROMISED), request(to="cat", by=CAT), "a handover to bob is pending")


@pytest.mark.parametrize("owner", [None, "bob"])
def test_there_must_be_another_to_hand_over(owner: str | None) -> None:
    assert_refused(group(owner=owner), request(), "no other member owns it")


def test_the_next_owner_must_be_an_active_member() -> None:
    assert_refused(group(), request(to="eve", by=CAT), "eve is not an active member")
    leaving = apply(group(), [Drain(by=BOB, at_ms=AT, member="bob")]).after
    assert_refused(leaving, request(to="bob", by=CAT), "bob is not an active member")


def test_the_owner_hands_over_after_its_last_checkpoint() -> None:
    asked = group(handover=PROMISED)
    lease = accepted(asked, checkpoint(30), hand_over())
    assert (lease.owner, lease.epoch, lease.checkpoint, lease.handover) == ("bob", 4, Position(30, "30"), None)
    after = apply(asked, [checkpoint(30), hand_over()]).after
    assert_refused(after, checkpoint(40), "epoch is 4")


def test_nothing_is_handed_over_unasked_or_by_another() -> None:
    assert_refused(group(), hand_over(), "no handover is pending")
    assert_refused(group(handover=PROMISED), hand_over(BOB), "owned by ann")


@pytest.mark.parametrize("by", [ANN, BOB, CAT])
def test_a_handover_can_be_called_off(by: Author) -> None:
    before = group(handover=PROMISED)
    lease = accepted(before, cancel(by))
    assert lease == replace(before.leases["0"], handover=None)
    called_off = apply(before, [cancel(by)]).after
    assert_refused(called_off, hand_over(), "no handover is pending")


def test_there_must_be_a_handover_to_call_off() -> None:
    assert_refused(group(), cancel(), "no handover is pending")


def test_a_deadline_that_passed_is_nothing_once_the_handover_was_called_off() -> None:
    called_off = apply(group(handover=PROMISED), [renew(), cancel()]).after
    assert_refused(called_off, claim(BOB, overdue_handover=PROMISED), "owned by ann")


# --- members -----------------------------------------------------------------------------------------------------


def test_a_newcomer_is_the_youngest_member() -> None:
    new = after(group(), Join(by=STRANGER, at_ms=AT, host="host", max_owned=2, strategy="race"))
    eve = new.members["eve"]
    assert (eve.incarnation, eve.host, eve.max_owned, eve.state) == ("eve-1", "host", 2, MemberState.ACTIVE)
    assert eve.strategy == "race"
    assert eve.joined > max(new.members[name].joined for name in ("ann", "bob", "cat"))
    assert new.leader == "ann"


def test_one_joins_once() -> None:
    assert_refused(group(), Join(by=ANN, at_ms=AT), "ann has joined already")


def test_joining_again_fences_the_older_incarnation() -> None:
    new_ann = Author("ann", "ann-2")
    snapshot = after(group(handover=PROMISED), Join(by=new_ann, at_ms=AT))
    old: list[Transition] = [
        renew(ANN),
        checkpoint(20, ANN),
        claim(ANN),
        release(ANN),
        hand_over(ANN),
        cancel(ANN),
        request("cat", ANN),
        Heartbeat(by=ANN, at_ms=AT),
        Leave(by=ANN, at_ms=AT),
        Forget(by=ANN, at_ms=AT, member="bob", counter=("bob-1", 0)),
        AddPartitions(by=ANN, at_ms=AT, partitions=("1",)),
    ]
    for transition in old:
        assert_refused(snapshot, transition, "a later process has joined as ann")
    assert accepted(snapshot, claim(new_ann)).epoch == 4


def test_who_joins_again_keeps_its_leases_and_is_no_longer_the_oldest() -> None:
    snapshot = apply(group(), [Join(by=Author("ann", "ann-2"), at_ms=AT)]).after
    assert snapshot.leases == group().leases
    assert snapshot.leader == "bob"


@pytest.mark.parametrize("by", [ANN, Author("operator:eve", "")])
def test_a_member_is_drained_by_itself_or_by_an_operator(by: Author) -> None:
    snapshot = after(group(), Drain(by=by, at_ms=AT, member="ann"))
    assert snapshot.members["ann"] == replace(group().members["ann"], state=MemberState.LEAVING)
    assert snapshot.leader == "bob", "who leaves does not lead"
    assert_refused(snapshot, Drain(by=by, at_ms=AT, member="ann"), "leaving already")
    back = apply(snapshot, [Drain(by=by, at_ms=AT, member="ann", undo=True)]).after
    assert back == group()


def test_a_heartbeat_tells_that_one_lives() -> None:
    snapshot = after(group(), Heartbeat(by=ANN, at_ms=AT))
    before, ann = group().members["ann"], snapshot.members["ann"]
    assert ann == replace(before, renewal=before.renewal + 1, renewed_at_ms=AT)
    assert ann.counter != before.counter
    assert snapshot.leases == group().leases, "a member's heartbeat does not hold its leases"


@pytest.mark.parametrize("make", [Heartbeat, Leave])
def test_a_stranger_has_no_heartbeat_and_cannot_leave(make: type[Heartbeat] | type[Leave]) -> None:
    assert_refused(group(), make(by=STRANGER, at_ms=AT), "eve is not a member")


def test_who_leaves_is_fenced_and_its_leases_wait_for_expiry() -> None:
    snapshot = apply(group(), [Leave(by=ANN, at_ms=AT)]).after
    assert "ann" not in snapshot.members
    assert_refused(snapshot, renew(), "ann is not a member")
    assert_refused(snapshot, claim(BOB), "owned by ann")
    assert accepted(snapshot, claim(BOB, unchanged_counter=(3, 7))).owner == "bob"


def test_a_member_that_stood_still_is_forgotten() -> None:
    forget = Forget(by=BOB, at_ms=AT, member="ann", counter=group().members["ann"].counter)
    snapshot = after(group(), forget)
    assert set(snapshot.members) == {"bob", "cat"}
    assert_refused(snapshot, forget, "has shown a sign of life or has left")


@pytest.mark.parametrize("sign", [Heartbeat(by=ANN, at_ms=AT), Join(by=Author("ann", "ann-2"), at_ms=AT)])
def test_a_sign_of_life_saves_from_being_forgotten(sign: Transition) -> None:
    forget = Forget(by=BOB, at_ms=AT, member="ann", counter=group().members["ann"].counter)
    alive = apply(group(), [sign]).after
    assert_refused(alive, forget, "ann has shown a sign of life")


# --- partitions --------------------------------------------------------------------------------------------------


def test_new_partitions_are_nobodys_and_stand_in_their_order() -> None:
    partitions = ("10", "2", "0", "blue")
    snapshot = after(group(), AddPartitions(by=BOB, at_ms=AT, partitions=partitions))
    assert list(snapshot.leases) == ["0", "2", "10", "blue"]
    assert snapshot.leases["0"] == group().leases["0"], "what is known stays as it is"
    assert snapshot.leases["10"] == Lease("10")


def test_partitions_that_come_later_may_have_a_position_to_start_from() -> None:
    add = AddPartitions(by=BOB, at_ms=AT, partitions=("0", "1"), checkpoint=Position(-1))
    snapshot = apply(group(), [add]).after
    assert snapshot.leases["1"].checkpoint == Position(-1)
    assert snapshot.leases["0"].checkpoint == Position(10, "ten")


def test_partitions_that_are_all_known_are_nothing_to_write() -> None:
    assert_refused(group(), AddPartitions(by=BOB, at_ms=AT, partitions=("0",)), "has these partitions already")


# --- operators -------------------------------------------------------------------------------------------------

OPERATOR = Author("operator:jo", "")
PINNED = Pin("ann", "operator:jo", "why not")


def transfer(to: str = "bob", partition: str = "0") -> Transfer:
    return Transfer(by=OPERATOR, at_ms=AT, partition=partition, to=to, timeout_ms=9_000, why="upgrade")


def pin(to: str = "bob", partition: str = "0") -> PinTo:
    return PinTo(by=OPERATOR, at_ms=AT, partition=partition, to=to, timeout_ms=9_000, why="upgrade")


def unpin(partition: str = "0") -> Unpin:
    return Unpin(by=OPERATOR, at_ms=AT, partition=partition)


def seek(number: int, *, force: bool = False, partition: str = "0") -> Seek:
    return Seek(by=OPERATOR, at_ms=AT, partition=partition, position=Position(number), force=force)


def end_transfer(by: Author = CAT, epoch: int = 3) -> EndTransfer:
    return EndTransfer(by=by, at_ms=AT, partition="0", epoch=epoch)


def in_state(snapshot: Snapshot, member: str, **changes: Any) -> Snapshot:
    return replace(snapshot, members={**snapshot.members, member: replace(snapshot.members[member], **changes)})


@pytest.mark.parametrize("make", [transfer, pin])
def test_who_owns_what_is_to_move_is_asked_to_hand_it_over(make: Any) -> None:
    before = group()
    after = accepted(before, make())
    assert after.pin == Pin("bob", "operator:jo", "upgrade", transfer=make is transfer)
    assert after.handover == Handover("bob", 9_000, AT)
    assert replace(after, pin=None, handover=None) == before.leases["0"]
    moved = accepted(before, make(), hand_over())
    assert (moved.owner, moved.epoch, moved.pin) == ("bob", 4, after.pin), "the mark outlives the move"


@pytest.mark.parametrize("make", [transfer, pin])
def test_what_nobody_owns_is_only_marked(make: Any) -> None:
    after = accepted(group(owner=None), make())
    assert after.handover is None
    assert after.pin is not None
    assert after.pin.to == "bob"


def test_an_order_replaces_what_a_member_has_asked_for() -> None:
    asked = Handover("cat", 30_000, 1)
    assert accepted(group(handover=asked), transfer()).handover == Handover("bob", 9_000, AT)
    assert accepted(group(handover=asked), pin("ann")).handover is None, "its owner is to keep it"
    same = Handover("bob", 30_000, 1)
    assert accepted(group(handover=same), pin()).handover == same, "whose deadline runs already"


def test_a_transfer_goes_to_an_active_member_with_room_that_does_not_own_it() -> None:
    assert_refused(group(), transfer("eve"), "eve is not an active member: active are ann, bob, cat")
    leaving = in_state(group(), "bob", state=MemberState.LEAVING)
    assert_refused(leaving, transfer(), "bob is not an active member: active are ann, cat")
    assert_refused(group(), transfer("ann"), "partition 0 is owned by ann already")
    assert_refused(group(), transfer(partition="7"), "partition 7 is unknown: there are 0")
    full = in_state(group(), "bob", max_owned=1)
    full = replace(full, leases={**full.leases, "1": Lease("1", handover=Handover("bob", 1), owner="ann")})
    assert_refused(full, transfer(), "bob has 1 partitions, and maxPartitionsOwned=1")
    assert_refused(group(pin=PINNED), transfer(), "partition 0 is pinned to ann: unpin it first")
    accepted(group(pin=replace(PINNED, transfer=True)), transfer())


def test_a_pin_to_a_member_that_cannot_take_it_now_waits_for_it() -> None:
    for changes in ({"state": MemberState.LEAVING}, {"max_owned": 0}):
        after = accepted(in_state(group(), "bob", **changes), pin())
        assert after.handover is None
        assert after.pin is not None
    assert_refused(group(), pin("eve"), "eve is not a member: members are ann, bob, cat")
    assert_refused(group(pin=PINNED), pin("ann"), "partition 0 is pinned to ann already")
    assert accepted(group(pin=replace(PINNED, transfer=True)), pin("ann")).pin == Pin("ann", "operator:jo", "upgrade")
    assert accepted(group(pin=PINNED), pin("bob")).handover is not None


def test_unpin_leaves_everything_else_as_it_is() -> None:
    snapshot = group(pin=PINNED, handover=Handover("bob", 1))
    assert accepted(snapshot, unpin()) == replace(snapshot.leases["0"], pin=None)
    several = replace(snapshot, leases={**snapshot.leases, "1": Lease("1")})
    assert_refused(several, unpin("1"), "partition 1 is not pinned: pinned are 0")


@pytest.mark.parametrize("take", [steal(), request("bob")])
def test_what_is_pinned_to_its_owner_is_not_taken_from_it(take: Transition) -> None:
    assert_refused(group(pin=PINNED), take, "pinned to ann")
    accepted(in_state(group(pin=PINNED), "ann", state=MemberState.LEAVING), take)
    accepted(group(pin=replace(PINNED, to="bob")), take)
    gone = group(pin=PINNED)
    accepted(replace(gone, members={id: each for id, each in gone.members.items() if id != "ann"}), take)


def test_a_pin_does_not_save_an_owner_that_shows_no_sign_of_life() -> None:
    assert accepted(group(pin=PINNED), claim(unchanged_counter=(3, 7))).owner == "bob"


def test_seeking_moves_the_checkpoint_either_way_and_fences_whoever_was_there() -> None:
    for number in (2, 10, 99):
        after = accepted(group(owner=None), seek(number))
        assert (after.owner, after.epoch, after.checkpoint) == (None, 4, Position(number))
        sought = apply(group(owner=None), [seek(number)]).after
        assert_refused(sought, checkpoint(11), "epoch is 4, not 3")
    assert accepted(group(owner=None, checkpoint=None), seek(5)).checkpoint == Position(5)


def test_seeking_in_what_is_owned_must_be_forced_and_its_owner_stays() -> None:
    owned = group(handover=Handover("bob", 1), pin=PINNED)
    assert_refused(owned, seek(2), "partition 0 is owned by ann: stop that query first, or use --force")
    after = accepted(owned, seek(2, force=True))
    assert (after.owner, after.epoch, after.checkpoint) == ("ann", 4, Position(2))
    assert (after.handover, after.pin) == (None, PINNED), "a promise was made at another place"
    sought = apply(owned, [seek(2, force=True)]).after
    for late in (checkpoint(11), renew(), hand_over(), claim(unchanged_counter=(3, 7))):
        assert_refused(sought, late, "epoch is 4, not 3")
    assert accepted(sought, checkpoint(3, epoch=4)).checkpoint == Position(3, "3")


def test_only_a_transfer_s_mark_is_taken_away_by_members() -> None:
    assert accepted(group(pin=replace(PINNED, transfer=True)), end_transfer()).pin is None
    assert_refused(group(pin=PINNED), end_transfer(), "no transfer is marked")
    assert_refused(group(), end_transfer(), "no transfer is marked")
    assert_refused(group(pin=replace(PINNED, transfer=True)), end_transfer(epoch=2), "epoch is 3, not 2")
    assert_refused(group(pin=replace(PINNED, transfer=True)), end_transfer(by=STRANGER), "eve is not a member")


def test_a_heartbeat_tells_what_the_member_carries_and_one_without_changes_nothing_about_it() -> None:
    load = MemberLoad(120.0, 7.0, 1.5, 0.4)
    new = after(
        group(), Heartbeat(by=ANN, at_ms=AT, load=load), Heartbeat(by=ANN, at_ms=AT), Heartbeat(by=BOB, at_ms=AT)
    )
    assert new.members["ann"].load == load
    assert new.members["bob"].load is None


# --- limits ------------------------------------------------------------------------------------------------------


def test_nobody_gets_more_than_its_limit_whatever_was_decided_before_others_came_first() -> None:
    """What is promised counts as well: here Bob may have one, and either owns or is promised partition 1."""
    for other in (Lease("1", owner="bob"), Lease("1", owner="ann", handover=Handover("bob", 1))):
        full = in_state(group(), "bob", max_owned=1)
        full = replace(full, leases={**full.leases, "1": other})
        free = replace(full, leases={**full.leases, "0": replace(full.leases["0"], owner=None)})
        for snapshot, transition in (
            (free, claim()),
            (full, claim(unchanged_counter=(3, 7))),
            (full, steal()),
            (full, request()),
        ):
            assert_refused(snapshot, transition, "bob has 1 partitions, and maxPartitionsOwned=1")
            accepted(in_state(snapshot, "bob", max_owned=2), transition)


def test_who_comes_back_with_a_smaller_limit_may_claim_what_is_its_own_to_give_it_back() -> None:
    before = in_state(group(), "ann", max_owned=0)
    lease = accepted(before, claim(ANN), release(ANN, epoch=4))
    assert (lease.owner, lease.epoch) == (None, 4)
