"""Each transition's valid and invalid cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import pytest

from spark_ehbalance.group.changes import (
    AddPartitions,
    Advance,
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
    NoteHub,
    NoteLatest,
    Release,
    Renew,
    RequestHandover,
    Reset,
    Stall,
    Steal,
    Transition,
    apply,
)
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.model import (
    Author,
    Handover,
    Lease,
    Member,
    MemberLoad,
    MemberState,
    Pin,
    QueryRecord,
    TableIdentity,
)
from spark_ehbalance.group.orders import PinTo, Seek, Transfer, Unpin
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from tests.lease_table.store_conformance import GROUP

_T = TypeVar("_T")

ANN, BOB, CAT = Author("ann", "ann-1"), Author("bob", "bob-1"), Author("cat", "cat-1")
STRANGER, OLD_ANN, NEW_ANN = Author("eve", "eve-1"), Author("ann", "ann-0"), Author("ann", "ann-2")
OPERATOR = Author("operator:jo", "")
AT = 1_000  # the author's wall clock, in milliseconds
TO_BOB = Handover("bob", 30_000, AT)
EXPIRED = (3, 7)  # the counter of the lease in `group`
READ_TO_TEN = Position(10, "ten")
PINNED = Pin("ann", "operator:jo", "why not")
UNREAD = Lag(11, 15, 900, AT)
MOVED_ONCE = replace(PINNED, transfer=True)


def group(**lease: Any) -> Snapshot:
    """Ann, Bob and Cat, and partition 0, which Ann has owned since epoch 3 and read to 10, unless `lease` differs."""
    fields: dict[str, Any] = {"owner": "ann", "epoch": 3, "renewal": 7, "checkpoint": READ_TO_TEN}
    members = {author.id: Member(author.id, author.incarnation, n) for n, author in enumerate((ANN, BOB, CAT))}
    leases = {"0": Lease("0", **(fields | lease))}
    return Snapshot(GROUP, 5, MappingProxyType(leases), MappingProxyType(members))


def with_member(snapshot: Snapshot, id: str, **changes: Any) -> Snapshot:
    return replace(snapshot, members={**snapshot.members, id: replace(snapshot.members[id], **changes)})


def with_lease(snapshot: Snapshot, lease: Lease) -> Snapshot:
    return replace(snapshot, leases={**snapshot.leases, lease.partition: lease})


def after(snapshot: Snapshot, *transitions: Transition) -> Snapshot:
    """The state after `transitions`, which must all be valid."""
    outcome = apply(snapshot, transitions)
    assert not outcome.refused
    return outcome.after


def accepted(snapshot: Snapshot, *transitions: Transition) -> Lease:
    """Partition 0 after `transitions`, which must all be valid."""
    return after(snapshot, *transitions).leases["0"]


def assert_refused(snapshot: Snapshot, transition: Transition, reason: str) -> None:
    outcome = apply(snapshot, [transition])
    assert [refused.transition for refused in outcome.refused] == [transition]
    assert reason in outcome.refused[0].reason
    assert outcome.after == snapshot


def about_lease(kind: Callable[..., _T], by: Author, epoch: int, **more: Any) -> _T:
    return kind(by=by, at_ms=AT, partition="0", epoch=epoch, **more)


def claim(by: Author = BOB, epoch: int = 3, **evidence: Any) -> Claim:
    return about_lease(Claim, by, epoch, **evidence)


def steal(by: Author = BOB, epoch: int = 3, **more: Any) -> Steal:
    return about_lease(Steal, by, epoch, **more)


def renew(by: Author = ANN, epoch: int = 3) -> Renew:
    return about_lease(Renew, by, epoch)


def defend(by: Author = ANN, epoch: int = 3) -> Defend:
    return about_lease(Defend, by, epoch)


def checkpoint(sequence_number: int = 20, by: Author = ANN, epoch: int = 3) -> Checkpoint:
    position = Position(sequence_number, str(sequence_number))
    return about_lease(Checkpoint, by, epoch, position=position)


def release(by: Author = ANN, epoch: int = 3) -> Release:
    return about_lease(Release, by, epoch)


def stall(by: str = "ann", epoch: int = 3, since_ms: int = 0, partition: str = "0") -> Stall:
    """A task reports it, which is no member."""
    return Stall(by=Author(by, ""), at_ms=AT, partition=partition, epoch=epoch, since_ms=since_ms)


def request(to: str = "bob", by: Author = BOB, epoch: int = 3) -> RequestHandover:
    return about_lease(RequestHandover, by, epoch, to=to, timeout_ms=30_000)


def hand_over(by: Author = ANN, epoch: int = 3) -> HandOver:
    return about_lease(HandOver, by, epoch)


def cancel(by: Author = CAT, epoch: int = 3) -> CancelHandover:
    return about_lease(CancelHandover, by, epoch)


def end_transfer(by: Author = CAT, epoch: int = 3) -> EndTransfer:
    return about_lease(EndTransfer, by, epoch)


def drain(member: str, by: Author = OPERATOR, *, undo: bool = False) -> Drain:
    return Drain(by=by, at_ms=AT, member=member, undo=undo)


def forget(by: Author = BOB) -> Forget:
    return Forget(by=by, at_ms=AT, member="ann", counter=group().members["ann"].counter)


def add(*partitions: str, by: Author = BOB, checkpoint: Position | None = None) -> AddPartitions:
    return AddPartitions(by=by, at_ms=AT, partitions=partitions, checkpoint=checkpoint)


def transfer(to: str = "bob", partition: str = "0") -> Transfer:
    return Transfer(by=OPERATOR, at_ms=AT, partition=partition, to=to, timeout_ms=9_000, why="upgrade")


def pin(to: str = "bob") -> PinTo:
    return PinTo(by=OPERATOR, at_ms=AT, partition="0", to=to, timeout_ms=9_000, why="upgrade")


def unpin(partition: str = "0") -> Unpin:
    return Unpin(by=OPERATOR, at_ms=AT, partition=partition)


def seek(sequence_number: int, *, force: bool = False) -> Seek:
    return Seek(by=OPERATOR, at_ms=AT, partition="0", position=Position(sequence_number), force=force)


# --- common rules ------------------------------------------------------------------------------------------------

ABOUT_A_LEASE = [claim, steal, renew, release, request, hand_over, cancel, checkpoint, defend, end_transfer]


@pytest.mark.parametrize("make", ABOUT_A_LEASE)
@pytest.mark.parametrize("owner", [None, "ann", "bob"])
@pytest.mark.parametrize("handover", [None, TO_BOB])
def test_another_epoch_makes_a_transition_invalid(make: Any, owner: str | None, handover: Handover | None) -> None:
    snapshot = group(owner=owner, handover=handover)
    for by in (ANN, BOB):
        assert_refused(snapshot, make(by=by, epoch=2), "epoch is 3, not 2")
        assert_refused(snapshot, make(by=by, epoch=4), "epoch is 3, not 4")


@pytest.mark.parametrize("make", ABOUT_A_LEASE)
@pytest.mark.parametrize("owner", [None, "ann", "eve"])
def test_only_members_that_are_not_fenced_change_a_lease(make: Any, owner: str | None) -> None:
    snapshot = group(owner=owner, handover=TO_BOB)
    assert_refused(snapshot, make(by=STRANGER), "eve is not a member")
    assert_refused(snapshot, make(by=OLD_ANN), "a later process has joined as ann")


@pytest.mark.parametrize("make", ABOUT_A_LEASE)
def test_an_unknown_partition_is_refused(make: Any) -> None:
    assert_refused(group(), replace(make(), partition="9"), "partition 9 is unknown")


@pytest.mark.parametrize(("snapshot", "make"), [(group(owner=None), claim), (group(), steal)], ids=["claim", "steal"])
@pytest.mark.parametrize(("first", "second"), [(BOB, CAT), (CAT, BOB)])
def test_of_two_contradicting_transitions_the_first_wins(
    snapshot: Snapshot, make: Any, first: Author, second: Author
) -> None:
    outcome = apply(snapshot, [make(first), make(second)])
    assert outcome.after.leases["0"].owner == first.id
    assert outcome.accepted == (make(first),)
    assert [refused.transition for refused in outcome.refused] == [make(second)]


def test_a_refused_transition_does_not_stop_the_next() -> None:
    outcome = apply(group(), [checkpoint(5), renew(), checkpoint(12)])
    assert [refused.transition for refused in outcome.refused] == [checkpoint(5)]
    assert outcome.after.leases["0"].checkpoint == Position(12, "12")


# --- refusals: state, transition, reason ---------------------------------------------------------------------------

NEVER_READ = group(owner=None, epoch=0, renewal=0, checkpoint=None)
ASKED = group(handover=TO_BOB)
CANCELLED = after(ASKED, renew(), cancel())
STOLEN = after(group(), steal(BOB))
WITHOUT_ANN = after(group(), Leave(by=ANN, at_ms=AT))
BOB_LEAVING = with_member(group(), "bob", state=MemberState.LEAVING)
BOB_FULL = with_lease(with_member(group(), "bob", max_owned=1), Lease("1", owner="ann", handover=Handover("bob", 1)))
LATER_REQUEST = replace(TO_BOB, requested_at_ms=AT + 1)

REFUSALS = {
    "claim: live lease": (group(), claim(), "owned by ann"),
    "claim: renewed since": (after(group(), renew()), claim(unchanged_counter=EXPIRED), "owned by ann"),
    "claim: checkpointed since": (after(group(), checkpoint(10)), claim(unchanged_counter=EXPIRED), "owned by ann"),
    "claim: moved on since": (after(group(), checkpoint(20)), claim(unchanged_counter=EXPIRED), "owned by ann"),
    "claim: evidence against the owner before": (STOLEN, claim(CAT, 4, unchanged_counter=EXPIRED), "owned by bob"),
    "claim: before the deadline": (ASKED, claim(BOB), "owned by ann"),
    "claim: handover to another": (after(ASKED, renew()), claim(CAT, overdue_handover=TO_BOB), "owned by ann"),
    "claim: deadline of an earlier request": (
        group(handover=LATER_REQUEST),
        claim(BOB, overdue_handover=TO_BOB),
        "owned by ann",
    ),
    "claim: handover cancelled since": (CANCELLED, claim(BOB, overdue_handover=TO_BOB), "owned by ann"),
    # Bob took Ann's lease for expired; since then she has renewed it and Cat has asked her to hand it over to Bob.
    "claim: expiry is no passed deadline": (
        after(group(), renew(), request(to="bob", by=CAT)),
        claim(BOB, unchanged_counter=EXPIRED),
        "owned by ann",
    ),
    "claim: no position": (NEVER_READ, claim(epoch=0), "its starting position is not known"),
    "claim: owner left": (WITHOUT_ANN, claim(BOB), "owned by ann"),
    "steal: no owner": (group(owner=None), steal(), "no other member owns it"),
    "steal: own lease": (group(owner="bob"), steal(), "no other member owns it"),
    "steal: no position": (group(checkpoint=None), steal(), "its starting position is not known"),
    "renew: no owner": (group(owner=None), renew(), "owned by None"),
    "renew: another owner": (group(owner="bob"), renew(), "owned by bob"),
    "defend: another owner": (group(owner="bob"), defend(), "owned by bob"),
    "defend: handover pending": (ASKED, defend(), "a handover to bob is pending"),
    "checkpoint: moves back": (group(), checkpoint(9), "moves back from 10 to 9"),
    "checkpoint: stolen": (STOLEN, checkpoint(20), "epoch is 4"),
    "checkpoint: another owner": (STOLEN, checkpoint(20, epoch=4), "owned by bob"),
    "release: no owner": (group(owner=None), release(), "owned by None"),
    "release: another owner": (group(owner="bob"), release(), "owned by bob"),
    "request: another is pending": (ASKED, request(to="cat", by=CAT), "a handover to bob is pending"),
    "request: no owner": (group(owner=None), request(), "no other member owns it"),
    "request: own lease": (group(owner="bob"), request(), "no other member owns it"),
    "request: to no member": (group(), request(to="eve", by=CAT), "eve is not an active member"),
    "request: to a leaving member": (
        after(group(), drain("bob", BOB)),
        request(to="bob", by=CAT),
        "bob is not an active member",
    ),
    "hand over: not asked": (group(), hand_over(), "no handover is pending"),
    "hand over: another owner": (ASKED, hand_over(BOB), "owned by ann"),
    "hand over: next owner leaves": (after(ASKED, drain("bob")), hand_over(), "the next owner is not active"),
    "cancel: nothing pending": (group(), cancel(), "no handover is pending"),
    "join: joined already": (group(), Join(by=ANN, at_ms=AT), "ann has joined already"),
    "drain: no member": (group(), drain("eve"), "eve is not a member: members are ann, bob, cat"),
    "drain: drained already": (after(group(), drain("ann", ANN)), drain("ann", ANN), "ann is leaving already"),
    "forget: heartbeat since": (after(group(), Heartbeat(by=ANN, at_ms=AT)), forget(), "has shown a sign of life"),
    "forget: joined again since": (after(group(), Join(by=NEW_ANN, at_ms=AT)), forget(), "has shown a sign of life"),
    "add: all known": (group(), add("0"), "the table has these partitions already"),
    "transfer: to no member": (group(), transfer("eve"), "eve is not an active member: active are ann, bob, cat"),
    "transfer: to a leaving member": (BOB_LEAVING, transfer(), "bob is not an active member: active are ann, cat"),
    "transfer: to its owner": (group(), transfer("ann"), "partition 0 is owned by ann already"),
    "transfer: unknown partition": (group(), transfer(partition="7"), "partition 7 is unknown: there are 0"),
    "transfer: no room": (BOB_FULL, transfer(), "bob has 1 partitions, and maxPartitionsOwned=1"),
    "transfer: pinned": (group(pin=PINNED), transfer(), "partition 0 is pinned to ann: remove that pin first"),
    "pin: to no member": (group(), pin("eve"), "eve is not a member: members are ann, bob, cat"),
    "pin: pinned already": (group(pin=PINNED), pin("ann"), "partition 0 is pinned to ann already"),
    "unpin: not pinned": (
        with_lease(group(pin=PINNED), Lease("1")),
        unpin("1"),
        "partition 1 is not pinned: pinned are 0",
    ),
    "seek: owned": (group(), seek(2), "partition 0 is owned by ann: stop that query first, or use --force"),
    "end transfer: pinned": (group(pin=PINNED), end_transfer(), "no transfer is marked"),
    "end transfer: no pin": (group(), end_transfer(), "no transfer is marked"),
    "stall: another epoch": (after(group(), claim(ANN)), stall(), "owned by ann in epoch 4"),
    "stall: stolen": (STOLEN, stall(), "owned by bob in epoch 4"),
    "stall: reported already": (after(group(), stall()), stall(), "owned by None in epoch 4"),
    "stall: another owner": (group(), stall("bob"), "owned by ann in epoch 3"),
    "stall: unknown partition": (group(), stall(partition="9"), "partition 9 is unknown"),
    "stall: its batch's checkpoint": (after(group(), stall()), checkpoint(20), "epoch is 4, not 3"),
}


@pytest.mark.parametrize(("snapshot", "transition", "reason"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refused(snapshot: Snapshot, transition: Transition, reason: str) -> None:
    assert_refused(snapshot, transition, reason)


# --- effects on a lease: state, transitions, the fields of the lease that change -------------------------------------

TAKEN_AGAIN = {"epoch": 4, "renewal": 8, "renewed_at_ms": AT, "handover": None}
TAKEN = {**TAKEN_AGAIN, "owned_since_ms": AT}
ALIVE = {"renewal": 8, "renewed_at_ms": AT}
NOT_OWNED = {"owner": None, "handover": None, "renewed_at_ms": AT}
PINNED_TO_BOB = Pin("bob", "operator:jo", "upgrade")
ASKED_BY_OPERATOR = Handover("bob", 9_000, AT)
TO_CAT = Handover("cat", 30_000, 1)
TO_BOB_SINCE = Handover("bob", 30_000, 1)
FIRST = Position.before(100)

STALLED = {"owner": None, "epoch": 4, "renewed_at_ms": AT, "owned_since_ms": 0, "stalled": 1}
STALLED_AND_TAKEN = {**TAKEN, "owner": "bob", "epoch": 5, "stalled": 1}

EFFECTS: dict[str, tuple[Snapshot, list[Transition], dict[str, Any]]] = {
    "stall: owned": (group(owned_since_ms=7), [stall(since_ms=7)], STALLED),
    "stall: handover pending": (ASKED, [stall()], {**STALLED, "handover": None}),
    "stall: released meanwhile": (group(), [release(), stall()], STALLED),
    "stall: sought meanwhile": (
        group(owned_since_ms=7, stalled=5),
        [seek(2, force=True), stall(since_ms=7)],
        {**STALLED, "epoch": 5, "sought": 4, "checkpoint": Position(2)},
    ),
    "stall: claimed by another": (group(), [stall(), claim(epoch=4)], STALLED_AND_TAKEN),
    "stall: given back before is no claim without a break": (
        group(owned_since_ms=7),
        [stall(since_ms=7), claim(ANN, epoch=4, owned_since_ms=7)],
        {**STALLED_AND_TAKEN, "owner": "ann"},
    ),
    "stall: twice in a row": (
        group(),
        [stall(), claim(epoch=4), stall("bob", 5)],
        {**STALLED, "epoch": 6, "renewal": 8, "stalled": 2},
    ),
    "stall: a renewal and a checkpoint that does not move are no progress": (
        group(),
        [stall(), claim(epoch=4), renew(BOB, 5), checkpoint(10, BOB, 5)],
        {**STALLED_AND_TAKEN, "renewal": 10, "checkpoint": Position(10, "10")},
    ),
    "stall: progress": (
        group(),
        [stall(), claim(epoch=4), checkpoint(11, BOB, 5)],
        {**STALLED_AND_TAKEN, "renewal": 9, "checkpoint": Position(11, "11"), "stalled": 0},
    ),
    "stall: progress that is reported late": (
        group(owner=None, stalled=1),
        [checkpoint(11)],
        {"checkpoint": Position(11, "11"), "stalled": 0},
    ),
    "stall: a seek": (
        group(owner=None, stalled=1),
        [seek(10)],
        {"epoch": 4, "sought": 4, "owned_since_ms": 0, "stalled": 0, "checkpoint": Position(10)},
    ),
    "stall: a reset": (
        group(stalled=1),
        [about_lease(Reset, ANN, 3, position=Position(4))],
        {**ALIVE, "checkpoint": Position(4), "stalled": 0},
    ),
    "claim: free": (group(owner=None), [claim()], {"owner": "bob", **TAKEN}),
    "claim: own, from an earlier process": (group(), [claim(ANN)], TAKEN_AGAIN),
    "claim: given back by an earlier process": (
        group(owner=None, owned_since_ms=7),
        [claim(ANN, owned_since_ms=7)],
        {"owner": "ann", **TAKEN_AGAIN},
    ),
    "claim: given back, and another has had it": (
        group(owner=None, owned_since_ms=8),
        [claim(ANN, owned_since_ms=7)],
        {"owner": "ann", **TAKEN},
    ),
    "claim: expired": (group(), [claim(unchanged_counter=EXPIRED)], {"owner": "bob", **TAKEN}),
    "claim: expired and pinned": (group(pin=PINNED), [claim(unchanged_counter=EXPIRED)], {"owner": "bob", **TAKEN}),
    "claim: a request is no sign of life": (
        group(),
        [request(to="cat", by=CAT), claim(BOB, unchanged_counter=EXPIRED)],
        {"owner": "bob", **TAKEN},
    ),
    "claim: deadline passed although the owner renews": (
        ASKED,
        [renew(), claim(BOB, overdue_handover=TO_BOB)],
        {"owner": "bob", **TAKEN, "renewal": 9},
    ),
    "claim: a member that left": (WITHOUT_ANN, [claim(BOB, unchanged_counter=EXPIRED)], {"owner": "bob", **TAKEN}),
    "claim: first": (
        NEVER_READ,
        [claim(epoch=0, starting_position=FIRST)],
        {"owner": "bob", **TAKEN, "epoch": 1, "renewal": 1, "checkpoint": FIRST},
    ),
    "claim: keeps the checkpoint": (
        group(owner=None),
        [claim(starting_position=FIRST)],
        {"owner": "bob", **TAKEN},
    ),
    "steal: keeps the checkpoint": (
        group(handover=TO_CAT),
        [steal(starting_position=FIRST)],
        {"owner": "bob", **TAKEN},
    ),
    "steal: from an owner without a checkpoint": (
        group(checkpoint=None),
        [steal(starting_position=FIRST)],
        {"owner": "bob", **TAKEN, "checkpoint": FIRST},
    ),
    "renew": (ASKED, [renew()], ALIVE),
    "renew: measured": (group(), [replace(renew(), lag=UNREAD)], {**ALIVE, "lag": UNREAD}),
    "renew: not measured": (group(lag=UNREAD), [renew()], {**ALIVE, "lag": UNREAD}),
    "checkpoint: measured": (
        group(),
        [replace(checkpoint(11), lag=UNREAD)],
        {**ALIVE, "checkpoint": Position(11, "11"), "lag": UNREAD},
    ),
    "defend": (group(), [defend()], {**ALIVE, "defences": 1}),
    "checkpoint: next": (group(), [checkpoint(11)], {**ALIVE, "checkpoint": Position(11, "11")}),
    "checkpoint: after release": (
        group(),
        [release(), checkpoint(20)],
        {**NOT_OWNED, "checkpoint": Position(20, "20")},
    ),
    "release": (ASKED, [release()], NOT_OWNED),
    "request": (group(), [request()], {"handover": TO_BOB}),
    "hand over after the last checkpoint": (
        ASKED,
        [checkpoint(30), hand_over()],
        {"owner": "bob", **TAKEN, "renewal": 9, "checkpoint": Position(30, "30")},
    ),
    "cancel: by the owner": (ASKED, [cancel(ANN)], {"handover": None}),
    "transfer": (
        group(),
        [transfer()],
        {"pin": replace(PINNED_TO_BOB, transfer=True), "handover": ASKED_BY_OPERATOR},
    ),
    "pin": (group(), [pin()], {"pin": PINNED_TO_BOB, "handover": ASKED_BY_OPERATOR}),
    "transfer: outlives the move": (
        group(),
        [transfer(), hand_over()],
        {"owner": "bob", **TAKEN, "pin": replace(PINNED_TO_BOB, transfer=True)},
    ),
    "pin: outlives the move": (group(), [pin(), hand_over()], {"owner": "bob", **TAKEN, "pin": PINNED_TO_BOB}),
    "transfer: no owner": (group(owner=None), [transfer()], {"pin": replace(PINNED_TO_BOB, transfer=True)}),
    "pin: no owner": (group(owner=None), [pin()], {"pin": PINNED_TO_BOB}),
    "transfer: replaces a member's request": (
        group(handover=TO_CAT),
        [transfer()],
        {"pin": replace(PINNED_TO_BOB, transfer=True), "handover": ASKED_BY_OPERATOR},
    ),
    "transfer: replaces a transfer": (
        group(pin=MOVED_ONCE),
        [transfer()],
        {"pin": replace(PINNED_TO_BOB, transfer=True), "handover": ASKED_BY_OPERATOR},
    ),
    "pin: to its owner cancels a request": (
        group(handover=TO_CAT),
        [pin("ann")],
        {"pin": replace(PINNED_TO_BOB, to="ann"), "handover": None},
    ),
    "pin: keeps the deadline of the same request": (group(handover=TO_BOB_SINCE), [pin()], {"pin": PINNED_TO_BOB}),
    "pin: to a leaving member waits": (BOB_LEAVING, [pin()], {"pin": PINNED_TO_BOB}),
    "pin: to a full member waits": (with_member(group(), "bob", max_owned=0), [pin()], {"pin": PINNED_TO_BOB}),
    "pin: replaces a transfer": (group(pin=MOVED_ONCE), [pin("ann")], {"pin": replace(PINNED_TO_BOB, to="ann")}),
    "pin: replaces a pin": (group(pin=PINNED), [pin()], {"pin": PINNED_TO_BOB, "handover": ASKED_BY_OPERATOR}),
    "unpin": (group(pin=PINNED, handover=TO_BOB), [unpin()], {"pin": None}),
    "end transfer": (group(pin=MOVED_ONCE), [end_transfer()], {"pin": None}),
    "seek: back": (group(owner=None), [seek(2)], {"epoch": 4, "sought": 4, "checkpoint": Position(2)}),
    "seek: forward": (group(owner=None), [seek(99)], {"epoch": 4, "sought": 4, "checkpoint": Position(99)}),
    "seek: never read": (
        group(owner=None, checkpoint=None),
        [seek(5)],
        {"epoch": 4, "sought": 4, "checkpoint": Position(5)},
    ),
    "seek: owned and forced": (
        group(handover=TO_BOB, pin=PINNED),
        [seek(2, force=True)],
        {"epoch": 4, "sought": 4, "checkpoint": Position(2), "handover": None},
    ),
    "seek: what was begun before counts no longer": (
        group(owner=None, owned_since_ms=7, sought=3),
        [seek(2), claim(ANN, epoch=4, owned_since_ms=7)],
        {**TAKEN, "owner": "ann", "epoch": 5, "sought": 4, "checkpoint": Position(2)},
    ),
    "seek: the owner goes on in the new epoch": (
        group(),
        [seek(2, force=True), checkpoint(3, epoch=4)],
        {**ALIVE, "epoch": 4, "sought": 4, "checkpoint": Position(3, "3")},
    ),
}


@pytest.mark.parametrize(("snapshot", "transitions", "changes"), EFFECTS.values(), ids=EFFECTS.keys())
def test_effect(snapshot: Snapshot, transitions: list[Transition], changes: dict[str, Any]) -> None:
    assert accepted(snapshot, *transitions) == replace(snapshot.leases["0"], **changes)


BEGUN = group(owned_since_ms=7)


@pytest.mark.parametrize(
    ("transitions", "still"),
    [
        ([], True),
        ([seek(2, force=True)], True),
        ([seek(2, force=True), seek(99, force=True)], True),
        ([seek(2, force=True), release(epoch=4)], True),
        ([seek(2, force=True), release(epoch=4), seek(99)], False),
        ([release(), seek(2)], False),
        ([claim(ANN)], False),
        ([stall()], False),
        ([stall(), claim(ANN, epoch=4)], False),
        ([seek(2, force=True), claim(ANN, epoch=4)], False),
        ([steal()], False),
        ([seek(2, force=True), steal(epoch=4)], False),
        ([steal(), seek(2, force=True)], False),
        ([steal(), release(BOB, epoch=4), seek(2)], False),
    ],
    ids=lambda each: "-".join(type(one).__name__ for one in each) if isinstance(each, list) else "",
)
def test_what_an_owner_has_begun_is_its_own_after_a_seek_alone(transitions: list[Transition], still: bool) -> None:
    lease = accepted(BEGUN, *transitions) if transitions else BEGUN.leases["0"]
    assert lease.still_owned(3, since_ms=7) is still
    assert lease.still_owned(3, since_ms=0) is (lease.epoch == 3), "where it is not known since when"


@pytest.mark.parametrize("take", [steal(), request("bob")], ids=["steal", "request"])
def test_a_lease_pinned_to_its_active_owner_is_not_taken(take: Transition) -> None:
    pinned = group(pin=PINNED)
    assert_refused(pinned, take, "pinned to ann")
    accepted(with_member(pinned, "ann", state=MemberState.LEAVING), take)
    accepted(group(pin=replace(PINNED, to="bob")), take)
    accepted(replace(pinned, members={id: each for id, each in pinned.members.items() if id != "ann"}), take)


@pytest.mark.parametrize("other", [Lease("1", owner="bob"), Lease("1", owner="ann", handover=TO_BOB)])
@pytest.mark.parametrize(
    ("owner", "transition"),
    [(None, claim()), ("ann", claim(unchanged_counter=EXPIRED)), ("ann", steal()), ("ann", request())],
)
def test_pending_handovers_count_towards_a_members_limit(other: Lease, owner: str | None, transition: Any) -> None:
    full = with_lease(with_member(group(owner=owner), "bob", max_owned=1), other)
    assert_refused(full, transition, "bob has 1 partitions, and maxPartitionsOwned=1")
    accepted(with_member(full, "bob", max_owned=2), transition)


def test_a_member_over_its_limit_may_claim_its_own_lease_to_release_it() -> None:
    lease = accepted(with_member(group(), "ann", max_owned=0), claim(ANN), release(ANN, epoch=4))
    assert (lease.owner, lease.epoch) == (None, 4)


# --- effects on members and on the set of partitions -----------------------------------------------------------------


def test_a_new_member_is_the_youngest() -> None:
    joined = after(group(), Join(by=STRANGER, at_ms=AT, host="host", max_owned=2))
    assert joined.members["eve"] == Member("eve", "eve-1", 3, 0, AT, AT, "host", MemberState.ACTIVE, max_owned=2)
    assert joined.leader == "ann"


def test_a_member_that_joins_again_keeps_its_leases_and_is_the_youngest() -> None:
    joined = after(group(), Join(by=NEW_ANN, at_ms=AT))
    assert joined.leases == group().leases
    assert joined.leader == "bob"
    assert accepted(joined, claim(NEW_ANN)).epoch == 4


# --- queries, by the lineage of their checkpoint ---------------------------------------------------------------------


def run_of(author: Author, lineage: str = "l", batch: int = 0, **more: Any) -> Join:
    return Join(by=author, at_ms=AT, lineage=lineage, batch=batch, host="here", **more)


def test_a_query_is_recorded_and_its_runs_are_counted() -> None:
    first = after(group(), run_of(STRANGER, batch=3, begun=4, planner="eve-0"))
    assert first.queries == {"l": QueryRecord("l", "eve-1", "eve", 1, 3, 4, "eve-0", AT, "here")}
    ended = Advance(by=STRANGER, at_ms=AT + 1, lineage="l", batch=7, begun=8, planner="eve-1")
    again = after(first, ended, Leave(by=STRANGER, at_ms=AT))
    assert "eve" not in again.members
    record = QueryRecord("l", "", "eve", 1, 7, 8, "eve-1", AT + 1, "here")
    assert again.queries["l"] == record, "the record stays, and says that the process has left"
    later = after(again, run_of(Author("eve", "eve-2"), batch=6, begun=6)).queries["l"]
    assert (later.run, later.start, later.batch, later.begun, later.planner) == ("eve-2", 2, 7, 8, "eve-1")


def test_a_query_that_was_forgotten_has_not_left() -> None:
    running = after(group(), run_of(STRANGER))
    forgotten = after(running, Forget(by=ANN, at_ms=AT, member="eve", counter=running.members["eve"].counter))
    assert "eve" not in forgotten.members
    assert forgotten.queries["l"].run == "eve-1"


def test_the_later_of_two_queries_with_one_owner_id_is_the_member() -> None:
    running = after(group(owner="eve"), run_of(STRANGER))
    taken = after(running, run_of(Author("eve", "eve-9"), "other"))
    assert taken.members["eve"].incarnation == "eve-9"
    assert (taken.leases["0"].owner, taken.leases["0"].owned_since_ms) == ("eve", AT), "and has not owned it before"
    assert_refused(taken, about_lease(Renew, STRANGER, 3), "a later process has joined as eve")


def test_a_query_has_not_owned_what_a_forgotten_namesake_has() -> None:
    left = with_lease(group(), Lease("0", owner="eve", epoch=3, owned_since_ms=7))
    assert after(left, run_of(STRANGER)).leases["0"].owned_since_ms == AT
    again = after(after(left, run_of(STRANGER)), run_of(Author("eve", "eve-2")))
    assert again.leases["0"].owned_since_ms == AT, "its own leases stay its own"


def test_the_oldest_stopped_query_is_forgotten_when_there_are_too_many() -> None:
    state = after(group(), replace(run_of(STRANGER, "running"), at_ms=AT - 9))
    for number in range(1000):
        author = Author(f"job-{number}", "1")
        job = Join(by=author, at_ms=AT + number, lineage=f"l{number}")
        state = after(state, job, Leave(by=author, at_ms=AT))
    assert {*state.queries} == {"running", *(f"l{number}" for number in range(1, 1000))}


def test_a_fast_clock_forgets_no_query() -> None:
    state = after(group(), run_of(STRANGER), Leave(by=STRANGER, at_ms=AT))
    fast = Join(by=BOB, at_ms=AT + 10 * 365 * 24 * 3600 * 1000, lineage="new")
    assert {*after(state, fast).queries} == {"l", "new"}


@pytest.mark.parametrize("by", [ANN, OPERATOR])
def test_a_member_is_drained_by_itself_or_by_an_operator(by: Author) -> None:
    drained = after(group(), drain("ann", by))
    assert drained == with_member(group(), "ann", state=MemberState.LEAVING)
    assert drained.leader == "bob", "a leaving member does not lead"
    assert after(drained, drain("ann", by, undo=True)) == group()


def test_a_heartbeat_renews_the_member_and_not_its_leases() -> None:
    before, renewed = group(), after(group(), Heartbeat(by=ANN, at_ms=AT))
    assert renewed == with_member(before, "ann", renewal=1, renewed_at_ms=AT)
    assert renewed.members["ann"].counter != before.members["ann"].counter


def test_a_heartbeat_without_a_load_keeps_the_last_one() -> None:
    load = MemberLoad(120.0, 7.0, 1.5, 0.4)
    beats = [Heartbeat(by=ANN, at_ms=AT, load=load), Heartbeat(by=ANN, at_ms=AT), Heartbeat(by=BOB, at_ms=AT)]
    members = after(group(), *beats).members
    assert (members["ann"].load, members["bob"].load) == (load, None)


@pytest.mark.parametrize("end", [Leave(by=ANN, at_ms=AT), forget()], ids=["leave", "forget"])
def test_a_member_that_left_or_was_forgotten_keeps_its_leases_until_they_expire(end: Transition) -> None:
    gone = after(group(), end)
    assert gone.members.keys() == {"bob", "cat"}
    assert gone.leases == group().leases


def test_added_partitions_have_no_owner_and_are_in_order() -> None:
    added = after(group(), add("10", "2", "0", "blue"))
    assert list(added.leases) == ["0", "2", "10", "blue"]
    assert added.leases["0"] == group().leases["0"], "a known partition does not change"
    assert added.leases["10"] == Lease("10")


def test_added_partitions_may_have_a_starting_position() -> None:
    added = after(group(), add("0", "1", checkpoint=Position(-1)))
    assert added.leases["1"].checkpoint == Position(-1)
    assert added.leases["0"].checkpoint == READ_TO_TEN


# --- the hub ----------------------------------------------------------------------------------------------------


def test_the_hub_of_a_table_is_noted_once() -> None:
    first = NoteHub(by=ANN, at_ms=AT, created_ms=7)
    assert_refused(group(), first, "the table has no partitions yet")
    known = after(replace(group(), table=TableIdentity("t1")), first)
    assert known.table == TableIdentity("t1", 7)
    assert after(known, first) is known
    other = replace(first, created_ms=9)
    assert_refused(known, other, "the table has the positions of another event hub")
    known = replace(known, leases={"5": Lease("5", lag=Lag(3, 9, None, 1))})
    moved = after(known, replace(other, moved=True))
    assert (moved.table, moved.leases["5"].lag) == (TableIdentity("t1", 9), None)
    assert after(known, replace(first, moved=True)).leases == known.leases


def test_latest_is_one_moment_for_the_whole_group() -> None:
    first = NoteLatest(by=ANN, at_ms=AT, latest_ms=70)
    assert_refused(group(), first, "the table has no partitions yet")
    table = after(replace(group(), leases={"5": Lease("5")}, table=TableIdentity("t1")), first)
    assert table.table == TableIdentity("t1", latest_ms=70)
    assert_refused(table, replace(first, latest_ms=90), "the group has started before")
    claim = Claim(by=ANN, at_ms=AT, partition="5", epoch=0, starting_position=Position(3), latest_ms=70)
    assert_refused(table, replace(claim, latest_ms=90), "its starting position does not match the group's first start")
    assert after(table, claim).leases["5"].checkpoint == Position(3)


def test_never_read_partitions_begin_at_the_ends_of_the_first_start() -> None:
    read, unread = Lease("4", checkpoint=READ_TO_TEN), Lease("5")
    ends = {"4": Position(70), "5": Position(70), "6": Position(70)}
    table = replace(group(), leases={"4": read, "5": unread, "7": Lease("7")}, table=TableIdentity("t1"))
    started = after(table, NoteLatest(by=ANN, at_ms=AT, latest_ms=70, ends=ends))
    assert started.leases == {"4": read, "5": Lease("5", checkpoint=Position(70)), "7": Lease("7")}


def test_a_hub_is_another_one_if_both_times_are_known_and_differ() -> None:
    known = replace(group(), table=TableIdentity("t1", hub_created_ms=1_700_000_000_000))
    assert known.described_other_hub(1_800_000_000_000) == (
        f"it has the positions of event hub hub of {GROUP.namespace}, created 2023-11-14 22:13:20+00:00, and this one "
        "was created 2027-01-15 08:00:00+00:00: it was recreated, or is another one, with other events"
    )
    same = [(known, 1_700_000_000_000), (known, None), (replace(known, table=TableIdentity("t1")), 1), (group(), 1)]
    assert [found.described_other_hub(created_ms) for found, created_ms in same] == [""] * 4
