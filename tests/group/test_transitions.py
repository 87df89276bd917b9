"""Valid and invalid cases of each transition. `test_transitions_stateful` tests the invariants."""

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
    RecordHub,
    RecordLatest,
    Release,
    Renew,
    RequestHandover,
    Reset,
    Restore,
    SetLeaseDuration,
    Stall,
    Steal,
    Transition,
    apply,
)
from spark_ehbalance.group.commands import PinTo, Seek, Transfer, Unpin
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.model import (
    Author,
    Handover,
    Lease,
    Load,
    Member,
    MemberLoad,
    MemberState,
    Pin,
    QueryRecord,
    TableIdentity,
)
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from tests.lease_table.store_conformance import GROUP

_T = TypeVar("_T")

ANN, BOB, CAT = Author("ann", "ann-1"), Author("bob", "bob-1"), Author("cat", "cat-1")
STRANGER, OLD_ANN, NEW_ANN = Author("eve", "eve-1"), Author("ann", "ann-0"), Author("ann", "ann-2")
OPERATOR = Author("operator:jo", "")
AT = 1_000  # the author's wall clock, in milliseconds
TO_BOB, TO_CAT = Handover("bob", 30_000, AT), Handover("cat", 30_000, 1)
EXPIRED = (3, 7)  # the counter of the lease in `group`
READ_TO_TEN, FIRST = Position(10, "ten"), Position.before(100)
PINNED = Pin("ann", "operator:jo", "upgrade")
TRANSFERRED = replace(PINNED, transfer=True)


def group(**lease: Any) -> Snapshot:
    """Ann, Bob and Cat, and partition 0, which Ann owns in epoch 3 and has read up to 10, unless `lease` differs."""
    fields: dict[str, Any] = {"owner": "ann", "epoch": 3, "renewal": 7, "checkpoint": READ_TO_TEN}
    members = {author.id: Member(author.id, author.incarnation, n) for n, author in enumerate((ANN, BOB, CAT))}
    leases = {"0": Lease("0", **(fields | lease))}
    return Snapshot(GROUP, 5, MappingProxyType(leases), MappingProxyType(members))


def with_member(snapshot: Snapshot, id: str, **changes: Any) -> Snapshot:
    return replace(snapshot, members={**snapshot.members, id: replace(snapshot.members[id], **changes)})


def with_lease(snapshot: Snapshot, lease: Lease) -> Snapshot:
    return replace(snapshot, leases={**snapshot.leases, lease.partition: lease})


def after(snapshot: Snapshot, *transitions: Transition) -> Snapshot:
    """Apply `transitions`, which must all be valid, and return the new state."""
    outcome = apply(snapshot, transitions)
    assert not outcome.rejected
    return outcome.after


def assert_rejected(snapshot: Snapshot, transition: Transition, reason: str) -> None:
    outcome = apply(snapshot, [transition])
    assert [refused.transition for refused in outcome.rejected] == [transition]
    assert reason in outcome.rejected[0].reason
    assert outcome.after == snapshot


def about_lease(kind: Callable[..., _T], by: Author, epoch: int, **more: Any) -> _T:
    return kind(by=by, at_ms=AT, partition="0", epoch=epoch, **more)


def claim(by: Author = BOB, epoch: int = 3, **evidence: Any) -> Claim:
    return about_lease(Claim, by, epoch, **evidence)


def steal(by: Author = BOB, epoch: int = 3, **more: Any) -> Steal:
    return about_lease(Steal, by, epoch, **more)


def renew(by: Author = ANN, epoch: int = 3, **more: Any) -> Renew:
    return about_lease(Renew, by, epoch, **more)


def checkpoint(sequence_number: int = 20, by: Author = ANN, epoch: int = 3, **more: Any) -> Checkpoint:
    position = Position(sequence_number, str(sequence_number))
    return about_lease(Checkpoint, by, epoch, position=position, **more)


def release(by: Author = ANN, epoch: int = 3) -> Release:
    return about_lease(Release, by, epoch)


def stall(by: str = "ann", epoch: int = 3, since_ms: int = 0, partition: str = "0") -> Stall:
    """A stall reported by a task, which is not a member."""
    return Stall(by=Author(by, ""), at_ms=AT, partition=partition, epoch=epoch, since_ms=since_ms)


def request(to: str = "bob", by: Author = BOB) -> RequestHandover:
    return about_lease(RequestHandover, by, 3, to=to, timeout_ms=30_000)


def drain(member: str, by: Author = OPERATOR, *, undo: bool = False) -> Drain:
    return Drain(by=by, at_ms=AT, member=member, undo=undo)


def forget(by: Author = BOB) -> Forget:
    return Forget(by=by, at_ms=AT, member="ann", counter=group().members["ann"].counter)


def add(*partitions: str, checkpoint: Position | None = None) -> AddPartitions:
    return AddPartitions(by=BOB, at_ms=AT, partitions=partitions, checkpoint=checkpoint)


def transfer(to: str = "bob", partition: str = "0") -> Transfer:
    return Transfer(by=OPERATOR, at_ms=AT, partition=partition, to=to, timeout_ms=9_000, why="upgrade")


def pin(to: str = "bob") -> PinTo:
    return PinTo(by=OPERATOR, at_ms=AT, partition="0", to=to, timeout_ms=9_000, why="upgrade")


def unpin(partition: str = "0") -> Unpin:
    return Unpin(by=OPERATOR, at_ms=AT, partition=partition)


def seek(sequence_number: int, *, force: bool = False) -> Seek:
    return Seek(by=OPERATOR, at_ms=AT, partition="0", position=Position(sequence_number), force=force)


def restore(checkpoint: Position | None, partition: str = "0") -> Restore:
    return Restore(by=OPERATOR, at_ms=AT, partition=partition, checkpoint=checkpoint)


def lead(by: Author) -> SetLeaseDuration:
    return SetLeaseDuration(by=by, at_ms=AT, lease_duration_ms=60_000)


CANCEL = about_lease(CancelHandover, CAT, 3)
END_TRANSFER = about_lease(EndTransfer, CAT, 3)
HAND_OVER = about_lease(HandOver, ANN, 3)

# --- rejected transitions: state, transition, reason ----------------------------------------------------------------

FREE = group(owner=None)
NEVER_READ = group(owner=None, epoch=0, renewal=0, checkpoint=None)
REQUESTED = group(handover=TO_BOB)
CANCELLED = after(REQUESTED, renew(), CANCEL)
STOLEN = after(group(), steal(BOB))
STALLED_ONCE = after(group(), stall())
BOB_LEAVING = with_member(group(), "bob", state=MemberState.LEAVING)
BOB_FULL = with_lease(with_member(group(), "bob", max_owned=1), Lease("1", owner="ann", handover=Handover("bob", 1)))
FULL = "bob has 1 partitions, but maxPartitionsOwned=1"

REFUSALS = {
    "earlier epoch": (group(), renew(epoch=2), "epoch is 3, not 2"),
    "later epoch": (group(), renew(epoch=4), "epoch is 3, not 4"),
    "no member": (group(), claim(STRANGER), "eve is not a member"),
    "fenced": (group(), renew(OLD_ANN), "a later process joined as ann"),
    "unknown partition": (group(), replace(renew(), partition="9"), "partition 9 is unknown"),
    "claim: live lease": (group(), claim(), "owned by ann"),
    "claim: deadline of an earlier request": (
        group(handover=replace(TO_BOB, requested_at_ms=AT + 1)),
        claim(BOB, overdue_handover=TO_BOB),
        "owned by ann",
    ),
    "claim: handover cancelled since": (CANCELLED, claim(BOB, overdue_handover=TO_BOB), "owned by ann"),
    "claim: handover to another": (group(handover=TO_CAT), claim(BOB, overdue_handover=TO_CAT), "owned by ann"),
    "claim: handover to a third": (REQUESTED, claim(CAT, overdue_handover=TO_BOB), "owned by ann"),
    # Bob considered Ann's lease expired; since then, she has renewed it and Cat has requested a handover to Bob.
    "claim: expiry is no passed deadline": (
        after(group(), renew(), request(to="bob", by=CAT)),
        claim(BOB, unchanged_counter=EXPIRED),
        "owned by ann",
    ),
    "claim: no position": (NEVER_READ, claim(epoch=0), "its starting position is unknown"),
    "claim: full": (with_lease(BOB_FULL, FREE.leases["0"]), claim(), FULL),
    "claim: expired, full": (BOB_FULL, claim(unchanged_counter=EXPIRED), FULL),
    "steal: no owner": (FREE, steal(), "no other member owns it"),
    "steal: full": (BOB_FULL, steal(), FULL),
    "steal: pinned": (group(pin=PINNED), steal(), "pinned to ann"),
    "renew: another owner": (group(owner="bob"), renew(), "owned by bob"),
    "defend: handover pending": (REQUESTED, about_lease(Defend, ANN, 3), "a handover to bob is pending"),
    "checkpoint: moves back": (group(), checkpoint(9), "moves back from 10 to 9"),
    "checkpoint: another owner": (STOLEN, checkpoint(20, epoch=4), "owned by bob"),
    "checkpoint: a third owner": (STOLEN, checkpoint(20, CAT, epoch=4), "owned by bob"),
    "request: another is pending": (REQUESTED, request(to="cat", by=CAT), "a handover to bob is pending"),
    "request: no owner": (FREE, request(), "no other member owns it"),
    "request: to no member": (group(), request(to="eve", by=CAT), "eve is not an active member"),
    "request: to a leaving member": (BOB_LEAVING, request(by=CAT), "bob is not an active member"),
    "request: to a full member": (BOB_FULL, request(by=CAT), FULL),
    "request: pinned": (group(pin=PINNED), request(), "pinned to ann"),
    "hand over: not requested": (group(), HAND_OVER, "no handover is pending"),
    "hand over: next owner leaves": (after(REQUESTED, drain("bob")), HAND_OVER, "the next owner is not active"),
    "cancel: nothing pending": (group(), CANCEL, "no handover is pending"),
    "join: joined already": (group(), Join(by=ANN, at_ms=AT), "ann has already joined"),
    "drain: no member": (group(), drain("eve"), "eve is not a member; members: ann, bob, cat"),
    "drain: fenced": (group(), drain("ann", OLD_ANN), "a later process joined as ann"),
    "drain: drained already": (BOB_LEAVING, drain("bob", BOB), "bob is already leaving"),
    "forget: heartbeat since": (
        after(group(), Heartbeat(by=ANN, at_ms=AT)),
        forget(),
        "ann has renewed its membership",
    ),
    "forget: joined again since": (
        after(group(), Join(by=NEW_ANN, at_ms=AT)),
        forget(),
        "ann has renewed its membership",
    ),
    "forget: joined again since, with an earlier incarnation": (
        after(group(), Join(by=OLD_ANN, at_ms=AT)),
        forget(),
        "ann has renewed its membership",
    ),
    "add: all known": (group(), add("0"), "the table already has these partitions"),
    "transfer: to no member": (group(), transfer("eve"), "eve is not an active member; active members: ann, bob, cat"),
    "transfer: to a leaving member": (BOB_LEAVING, transfer(), "bob is not an active member; active members: ann, cat"),
    "transfer: to its owner": (group(), transfer("ann"), "partition 0 is already owned by ann"),
    "transfer: unknown partition": (group(), transfer(partition="7"), "partition 7 is unknown; known partitions: 0"),
    "transfer: no room": (BOB_FULL, transfer(), FULL),
    "transfer: pinned": (group(pin=PINNED), transfer(), "partition 0 is pinned to ann, so remove that pin first"),
    "pin: to no member": (group(), pin("eve"), "eve is not a member; members: ann, bob, cat"),
    "pin: pinned already": (group(pin=PINNED), pin("ann"), "partition 0 is already pinned to ann"),
    "unpin: not pinned": (with_lease(group(pin=PINNED), Lease("1")), unpin("1"), "not pinned; pinned partitions: 0"),
    "seek: owned": (group(), seek(2), "partition 0 is owned by ann, so stop that query first, or use --force"),
    "end transfer: pinned": (group(pin=PINNED), END_TRANSFER, "the partition has no transfer"),
    "end transfer: no pin": (group(), END_TRANSFER, "the partition has no transfer"),
    "stall: stolen": (STOLEN, stall(), "owned by bob in epoch 4"),
    "stall: reported already": (STALLED_ONCE, stall(), "owned by None in epoch 4"),
    "stall: unknown partition": (group(), stall(partition="9"), "partition 9 is unknown"),
    "stall: its batch's checkpoint": (STALLED_ONCE, checkpoint(20), "epoch is 4, not 3"),
    "lease duration: by another than the leader": (group(), lead(BOB), "ann is the leader"),
    "lease duration: by a younger member": (with_member(group(), "ann", joined=9), lead(ANN), "bob is the leader"),
    "lease duration: by no member": (group(), lead(STRANGER), "eve is not a member"),
    "lease duration: no partitions yet": (group(), lead(ANN), "the table has no partitions yet"),
    "restore: has a position": (group(), restore(FIRST), "the table already has partition 0"),
    "restore: known, without a position": (NEVER_READ, restore(None), "the table already has partition 0"),
    "hub: no partitions yet": (group(), RecordHub(by=ANN, at_ms=AT, created_ms=7), "the table has no partitions yet"),
    "latest: no partitions yet": (group(), RecordLatest(by=ANN, at_ms=AT, latest_ms=7), "has no partitions yet"),
}


@pytest.mark.parametrize(("snapshot", "transition", "reason"), REFUSALS.values(), ids=REFUSALS.keys())
def test_invalid_transition_is_rejected(snapshot: Snapshot, transition: Transition, reason: str) -> None:
    assert_rejected(snapshot, transition, reason)


def test_first_of_two_conflicting_transitions_wins() -> None:
    outcome = apply(FREE, [claim(CAT), claim(BOB), checkpoint(12, CAT, 4)])
    assert outcome.accepted == (claim(CAT), checkpoint(12, CAT, 4))
    assert [refused.transition for refused in outcome.rejected] == [claim(BOB)]
    assert (outcome.after.leases["0"].owner, outcome.after.leases["0"].checkpoint) == ("cat", Position(12, "12"))


# --- effects on a lease: state, transitions, changed fields ----------------------------------------------------------

TAKEN_AGAIN = {"epoch": 4, "renewal": 8, "renewed_at_ms": AT, "handover": None}
TAKEN = {**TAKEN_AGAIN, "owned_since_ms": AT}
BOBS = {**TAKEN, "owner": "bob"}
ALIVE = {"renewal": 8, "renewed_at_ms": AT}
NOT_OWNED = {"owner": None, "handover": None, "renewed_at_ms": AT}
STALLED = {"owner": None, "epoch": 4, "renewed_at_ms": AT, "owned_since_ms": 0, "stall_count": 1, "handover": None}
STALLED_AND_TAKEN = {**BOBS, "epoch": 5, "stall_count": 1}
SOUGHT = {"epoch": 4, "seek_epoch": 4, "checkpoint": Position(2)}
PINNED_TO_BOB = {"pin": replace(PINNED, to="bob")}
MOVED_TO_BOB = {"pin": replace(TRANSFERRED, to="bob")}
ORDERED = {"handover": Handover("bob", 9_000, AT)}
ELEVEN = Position(11, "11")
LOAD, UNREAD = Load(5.0, 7.0), Lag(11, 15, 900, AT)

EFFECTS: dict[str, tuple[Snapshot, list[Transition], dict[str, Any]]] = {
    "stall: handover pending": (group(owned_since_ms=7, handover=TO_BOB), [stall(since_ms=7)], STALLED),
    "stall: released meanwhile": (group(), [release(), stall()], STALLED),
    "stall: sought meanwhile": (
        group(owned_since_ms=7, stall_count=5),
        [seek(2, force=True), stall(since_ms=7)],
        {**STALLED, "epoch": 5, "seek_epoch": 4, "checkpoint": Position(2)},
    ),
    "stall: given back before is no claim without a break": (
        group(owned_since_ms=7),
        [stall(since_ms=7), claim(ANN, epoch=4, owned_since_ms=7)],
        {**STALLED_AND_TAKEN, "owner": "ann"},
    ),
    "stall: a renewal and a checkpoint that does not move are no progress": (
        STALLED_ONCE,
        [claim(epoch=4), renew(BOB, 5), checkpoint(10, BOB, 5), stall("bob", 5)],
        {**STALLED, "epoch": 6, "renewal": 10, "checkpoint": Position(10, "10"), "stall_count": 2},
    ),
    "stall: progress": (
        STALLED_ONCE,
        [claim(epoch=4), checkpoint(11, BOB, 5)],
        {**STALLED_AND_TAKEN, "renewal": 9, "checkpoint": ELEVEN, "stall_count": 0},
    ),
    "stall: progress that is reported late": (
        group(owner=None, stall_count=1),
        [checkpoint(11)],
        {"checkpoint": ELEVEN, "stall_count": 0},
    ),
    "stall: a seek": (group(owner=None, stall_count=1), [seek(2)], {**SOUGHT, "stall_count": 0}),
    "reset": (
        group(stall_count=1),
        [about_lease(Reset, ANN, 3, position=Position(4))],
        {**ALIVE, "checkpoint": Position(4), "stall_count": 0},
    ),
    "restore": (NEVER_READ, [restore(FIRST)], {"checkpoint": FIRST}),
    "claim: free": (FREE, [claim(starting_position=FIRST)], BOBS),
    "claim: own, from an earlier process": (group(), [claim(ANN)], TAKEN_AGAIN),
    "claim: given back by an earlier process": (
        group(owner=None, owned_since_ms=7),
        [claim(ANN, owned_since_ms=7)],
        {**TAKEN_AGAIN, "owner": "ann"},
    ),
    "claim: given back, and another has had it": (
        group(owner=None, owned_since_ms=8),
        [claim(ANN, owned_since_ms=7)],
        {**TAKEN, "owner": "ann"},
    ),
    "claim: given back, by a faster clock": (
        group(owner=None, owned_since_ms=7),
        [claim(ANN, owned_since_ms=8)],
        {**TAKEN, "owner": "ann"},
    ),
    "claim: expired and pinned": (group(pin=PINNED), [claim(unchanged_counter=EXPIRED)], BOBS),
    "claim: a request is no sign of life": (
        group(),
        [request(to="cat", by=CAT), claim(BOB, unchanged_counter=EXPIRED)],
        BOBS,
    ),
    "claim: deadline passed although the owner renews": (
        REQUESTED,
        [renew(), claim(BOB, overdue_handover=replace(TO_BOB))],
        {**BOBS, "renewal": 9},
    ),
    "claim: a member that left": (group(), [Leave(by=ANN, at_ms=AT), claim(unchanged_counter=EXPIRED)], BOBS),
    "claim: first": (
        NEVER_READ,
        [claim(epoch=0, starting_position=FIRST)],
        {**BOBS, "epoch": 1, "renewal": 1, "checkpoint": FIRST},
    ),
    "claim: its own over its limit, to release it": (
        with_member(group(), "ann", max_owned=0),
        [claim(ANN), release(ANN, epoch=4)],
        {**TAKEN_AGAIN, **NOT_OWNED},
    ),
    "steal: keeps the checkpoint": (group(handover=TO_CAT), [steal(starting_position=FIRST)], BOBS),
    "steal: from an owner without a checkpoint": (
        group(checkpoint=None),
        [steal(starting_position=FIRST)],
        {**BOBS, "checkpoint": FIRST},
    ),
    "steal: pinned to a member that leaves": (
        group(pin=PINNED),
        [drain("ann"), steal()],
        BOBS,
    ),
    "request: pinned to another than its owner": (
        group(pin=replace(PINNED, to="cat")),
        [request()],
        {"handover": TO_BOB},
    ),
    "renew": (REQUESTED, [renew(load=LOAD, lag=UNREAD), renew()], {**ALIVE, "renewal": 9, "load": LOAD, "lag": UNREAD}),
    "checkpoint": (
        group(),
        [checkpoint(11, load=LOAD, lag=UNREAD), checkpoint(11)],
        {**ALIVE, "renewal": 9, "checkpoint": ELEVEN, "load": LOAD, "lag": UNREAD},
    ),
    "checkpoint: after release": (group(), [release(), checkpoint(11)], {**NOT_OWNED, "checkpoint": ELEVEN}),
    "defend": (group(), [about_lease(Defend, ANN, 3)], {**ALIVE, "defences": 1}),
    "release": (REQUESTED, [release()], NOT_OWNED),
    "hand over after the last checkpoint": (
        REQUESTED,
        [checkpoint(11), HAND_OVER],
        {**BOBS, "renewal": 9, "checkpoint": ELEVEN},
    ),
    "cancel": (REQUESTED, [CANCEL], {"handover": None}),
    "transfer": (group(), [transfer()], MOVED_TO_BOB | ORDERED),
    "transfer: outlives the move": (group(), [transfer(), HAND_OVER], BOBS | MOVED_TO_BOB),
    "transfer: no owner": (FREE, [transfer()], MOVED_TO_BOB),
    "transfer: replaces a member's request": (group(handover=TO_CAT), [transfer()], MOVED_TO_BOB | ORDERED),
    "transfer: replaces a transfer": (group(pin=TRANSFERRED), [transfer()], MOVED_TO_BOB | ORDERED),
    "pin": (group(), [pin()], PINNED_TO_BOB | ORDERED),
    "pin: no owner": (FREE, [pin()], PINNED_TO_BOB),
    "pin: to its owner cancels a request": (group(handover=TO_CAT), [pin("ann")], {"pin": PINNED, "handover": None}),
    "pin: keeps the deadline of the same request": (group(handover=Handover("bob", 1)), [pin()], PINNED_TO_BOB),
    "pin: to a leaving member waits": (BOB_LEAVING, [pin()], PINNED_TO_BOB),
    "pin: to a full member waits": (BOB_FULL, [pin()], PINNED_TO_BOB),
    "pin: replaces a transfer": (group(pin=TRANSFERRED), [pin("ann")], {"pin": PINNED}),
    "pin: replaces a pin": (group(pin=PINNED), [pin()], PINNED_TO_BOB | ORDERED),
    "unpin": (group(pin=PINNED, handover=TO_BOB), [unpin()], {"pin": None}),
    "end transfer": (group(pin=TRANSFERRED), [END_TRANSFER], {"pin": None}),
    "seek: back": (FREE, [seek(2)], SOUGHT),
    "seek: never read": (group(owner=None, checkpoint=None), [seek(2)], SOUGHT),
    "seek: owned and forced": (
        group(handover=TO_BOB, pin=PINNED),
        [seek(2, force=True)],
        {**SOUGHT, "handover": None},
    ),
    "seek: what was begun before counts no longer": (
        group(owner=None, owned_since_ms=7, seek_epoch=3),
        [seek(2), claim(ANN, epoch=4, owned_since_ms=7)],
        {**TAKEN, **SOUGHT, "owner": "ann", "epoch": 5},
    ),
    "seek: the owner continues in the new epoch": (
        group(),
        [seek(2, force=True), checkpoint(11, epoch=4)],
        {**ALIVE, **SOUGHT, "checkpoint": ELEVEN},
    ),
}


@pytest.mark.parametrize(("snapshot", "transitions", "changes"), EFFECTS.values(), ids=EFFECTS.keys())
def test_transition_changes_only_the_expected_fields(
    snapshot: Snapshot, transitions: list[Transition], changes: dict[str, Any]
) -> None:
    """Transitions on partition 0; an expected value equal to the old one means that the field must not change."""
    expected = replace(snapshot.leases["0"], **changes)
    assert after(snapshot, *transitions).leases["0"] == expected


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
        ([stall(), claim(ANN, epoch=4)], False),
        ([seek(2, force=True), claim(ANN, epoch=4)], False),
        ([steal()], False),
        ([seek(2, force=True), steal(epoch=4)], False),
        ([steal(), seek(2, force=True)], False),
    ],
    ids=lambda value: "-".join(type(one).__name__ for one in value) if isinstance(value, list) else "",
)
def test_owner_keeps_a_started_range_only_after_a_seek(transitions: list[Transition], still: bool) -> None:
    lease = after(group(owned_since_ms=7), *transitions).leases["0"]
    assert lease.still_owned(3, since_ms=7) is still
    assert lease.still_owned(3, since_ms=0) is (lease.epoch == 3), "where it is not known since when"


# --- effects on members and on the set of partitions -----------------------------------------------------------------


def test_joining_member_becomes_the_youngest_and_keeps_its_leases() -> None:
    joined = after(group(), Join(by=STRANGER, at_ms=AT, host="host", max_owned=2), Join(by=NEW_ANN, at_ms=AT))
    assert joined.members["eve"] == Member("eve", "eve-1", 3, 0, AT, AT, "host", MemberState.ACTIVE, max_owned=2)
    assert joined.leases == group().leases
    assert (joined.members["ann"].joined, joined.leader) == (4, "bob")


@pytest.mark.parametrize("by", [ANN, OPERATOR])
def test_member_drained_by_itself_or_an_operator_does_not_lead(by: Author) -> None:
    drained = after(group(), drain("ann", by))
    assert drained == with_member(group(), "ann", state=MemberState.LEAVING)
    assert drained.leader == "bob"
    assert after(replace(drained, table=TableIdentity("t1")), lead(BOB)).lease_duration_ms == 60_000
    assert after(drained, drain("ann", by, undo=True)) == group()


def test_heartbeat_renews_only_the_member_and_keeps_its_last_load() -> None:
    values: dict[str, Any] = {
        "load": MemberLoad(120.0, 7.0, 1.5),
        "lease_duration_ms": 40_000,
        "commit_ms": 5.0,
        "asked_ms": AT,
        "left_out": {"0": "limit"},
    }
    renewed = after(group(), Heartbeat(by=ANN, at_ms=AT, **values), Heartbeat(by=ANN, at_ms=AT))
    assert renewed == with_member(group(), "ann", renewal=2, renewed_at_ms=AT, **values)
    longer = after(renewed, Heartbeat(by=ANN, at_ms=AT, lease_duration_ms=50_000, commit_ms=6.0)).members["ann"]
    assert (longer.lease_duration_ms, longer.commit_ms) == (50_000, 6.0)
    assert renewed.members["ann"].counter != group().members["ann"].counter


@pytest.mark.parametrize("end", [Leave(by=ANN, at_ms=AT), forget()], ids=["leave", "forget"])
def test_leases_of_a_departed_member_stay_until_they_expire(end: Transition) -> None:
    gone = after(group(), end)
    assert gone.members.keys() == {"bob", "cat"}
    assert gone.leases == group().leases


def test_added_partitions_are_unowned_and_in_order() -> None:
    added = after(group(), add("10", "2", "0", "blue"), add("0", "1", checkpoint=FIRST))
    assert list(added.leases) == ["0", "1", "2", "10", "blue"]
    assert after(added, restore(FIRST, "7")).leases == added.leases | {"7": Lease("7", checkpoint=FIRST)}
    assert added.leases["0"] == group().leases["0"], "a known partition does not change"
    assert (added.leases["10"], added.leases["1"]) == (Lease("10"), Lease("1", checkpoint=FIRST))


# --- queries, keyed by the lineage of their checkpoint ---------------------------------------------------------------


def run_of(author: Author, lineage: str = "l", batch: int = 0, **more: Any) -> Join:
    return Join(by=author, at_ms=AT, lineage=lineage, batch=batch, host="here", **more)


def test_query_is_recorded_and_its_runs_are_counted() -> None:
    first = after(group(), run_of(STRANGER, batch=3, begun=4, planner="eve-0"))
    assert first.queries == {"l": QueryRecord("l", "eve-1", "eve", 1, 3, 4, "eve-0", AT, "here")}
    assert_rejected(first, run_of(STRANGER, begun=4), "eve has already joined")
    ended = Advance(by=STRANGER, at_ms=AT + 1, lineage="l", batch=7, begun=8, planner="eve-1")
    again = after(first, ended, Leave(by=STRANGER, at_ms=AT + 2))
    record = QueryRecord("l", "", "eve", 1, 7, 8, "eve-1", AT + 2, "here")
    replanned, earlier = replace(ended, planner="eve-2"), replace(ended, begun=7)
    begun = after(first, ended, replanned, earlier).queries["l"]
    assert (begun.begun, begun.planner) == (8, "eve-2"), "a batch may be planned again, and no earlier one counts"
    assert again.queries["l"] == record, "the record stays, with the end of the process"
    dan, fay = Author("dan", "dan-1"), Author("fay", "fay-1")
    others = after(first, run_of(dan, "d"), run_of(fay, "f"), Leave(by=STRANGER, at_ms=AT)).queries
    assert [others[lineage].run for lineage in "dfl"] == ["dan-1", "fay-1", ""]
    for run in ("eve-0", "eve-2"):  # of the same query under another name
        taken = replace(first, queries={"l": replace(first.queries["l"], run=run)})
        assert_rejected(taken, ended, "the table has no record of this run")
        assert after(taken, run_of(STRANGER, begun=4, planner="eve-0")).queries["l"].run == "eve-1"
    later = after(again, run_of(Author("eve", "eve-2"), batch=6, begun=8, planner="eve-1")).queries["l"]
    assert (later.run, later.start, later.batch, later.begun, later.planner) == ("eve-2", 2, 7, 8, "eve-1")
    behind = run_of(Author("eve", "eve-2"), begun=7)
    assert_rejected(again, behind, "another process of the query has begun batch 8")
    assert after(again, replace(behind, lineage="another")).queries["l"] == record
    assert after(first, ended, replace(ended, batch=6)).queries["l"].batch == 7, "a finished batch stays finished"
    ahead = after(again, run_of(Author("eve", "eve-2"), begun=9, planner="eve-1b")).queries["l"]
    assert (ahead.begun, ahead.planner) == (9, "eve-1b"), "the table had not learned of that batch"
    assert_rejected(again, run_of(Author("eve", "eve-2"), begun=8, planner="eve-1b"), "has begun batch 8")
    running = run_of(STRANGER, begun=5, planner="eve-0")
    assert after(replace(first, members={}), running).queries["l"].begun == 5, "a running process joins again"
    forgotten = after(first, Forget(by=ANN, at_ms=AT, member="eve", counter=first.members["eve"].counter))
    assert forgotten.queries == first.queries, "which is not to leave"


def test_query_does_not_inherit_the_tenure_of_a_namesake() -> None:
    left = with_lease(group(), Lease("0", owner="eve", epoch=3, owned_since_ms=7))
    others = {p: Lease(p, owner, 3, owned_since_ms=7) for p, owner in (("1", "ann"), ("2", "zoe"), ("3", None))}
    left = replace(left, leases={**left.leases, **others})
    running = after(left, run_of(STRANGER))
    assert running.leases == left.leases | {"0": replace(left.leases["0"], epoch=4, owned_since_ms=AT)}
    assert running.queries["l"].batch == 0
    for name in ("abe", "zoe"):
        renamed = after(left, run_of(Author(name, "1")), run_of(STRANGER))
        assert renamed.leases["0"].owned_since_ms == AT, "the query had another name"
    later = replace(run_of(Author("eve", "eve-2")), at_ms=AT + 1)
    assert after(running, later).leases["0"].owned_since_ms == AT, "its own leases stay its own"
    taken = after(running, replace(later, lineage="other"))
    assert (taken.leases["0"].owner, taken.leases["0"].owned_since_ms) == ("eve", AT + 1)
    assert_rejected(taken, renew(STRANGER), "a later process joined as eve")


def test_oldest_stopped_query_is_forgotten_when_there_are_too_many() -> None:
    state = after(group(), replace(run_of(STRANGER, "running"), at_ms=AT - 9))
    for number in range(1000):
        author = Author(f"job-{number}", "1")
        # A fast clock alone must not cause a query to be forgotten.
        job = Join(by=author, at_ms=AT + number * 10**9, lineage=f"l{number}")
        state = after(state, replace(job, begun=1), Leave(by=author, at_ms=job.at_ms))
        assert len(state.queries) == min(number + 2, 1000)
    assert {*state.queries} == {"running", *(f"l{number}" for number in range(1, 1000))}
    for lineage in ("a", "z"):
        slow = after(state, Join(by=Author("slow", "1"), at_ms=0, lineage=lineage))
        assert slow.queries.keys() == state.queries.keys() - {"l1"} | {lineage}, "nor does a slow clock"
    idle = {"l4": replace(state.queries["l4"], begun=0, run="job-4.1"), "l5": replace(state.queries["l5"], begun=0)}
    later = after(replace(state, queries=state.queries | idle), Join(by=Author("slow", "1"), at_ms=0, lineage="a"))
    assert state.queries.keys() - later.queries.keys() == {"l5"}, "l4 was killed, perhaps in its first batch"
    later = after(later, Join(by=Author("slower", "1"), at_ms=0, lineage="b"))
    assert state.queries.keys() - later.queries.keys() == {"l5", "l4"}, "the others have begun batches"


def test_recent_query_is_kept_when_there_are_too_many() -> None:
    """Neither a query that was idle before it stopped is forgotten, nor one because many others had one name."""
    state = after(group(), run_of(STRANGER, "idle", begun=1), run_of(ANN, "also idle", begun=1))
    for number in range(998):
        state = after(state, Join(by=Author("job", f"{number}"), at_ms=AT + 1 + number, lineage=f"l{number}", begun=1))
    stopped = after(state, Leave(by=STRANGER, at_ms=AT + 1000), Leave(by=ANN, at_ms=AT + 1001))
    more = after(stopped, Join(by=Author("dan", "1"), at_ms=AT + 1002, lineage="dan"))
    assert stopped.queries.keys() - more.queries.keys() == {"l0"}


# --- the hub ----------------------------------------------------------------------------------------------------


def test_hub_of_a_table_is_recorded_once() -> None:
    first = RecordHub(by=ANN, at_ms=AT, created_ms=7)
    leases = {"5": Lease("5", lag=Lag(3, 9, None, 1))}
    known = after(replace(group(), leases=leases, table=TableIdentity("t1")), first)
    assert (known.table, known.leases) == (TableIdentity("t1", 7), leases)
    assert after(known, first) is known
    other = replace(first, created_ms=9)
    assert_rejected(known, other, "the table contains positions of another event hub")
    moved = after(known, replace(other, moved=True))
    assert (moved.table, moved.leases["5"].lag) == (TableIdentity("t1", 9), None)
    assert after(known, replace(first, moved=True)).leases == leases


def test_latest_is_the_same_moment_for_the_whole_group() -> None:
    read, ends = Lease("4", checkpoint=READ_TO_TEN), dict.fromkeys("456", Position(70))
    table = replace(group(), leases={"4": read, "5": Lease("5"), "7": Lease("7")}, table=TableIdentity("t1"))
    first = RecordLatest(by=ANN, at_ms=AT, latest_ms=70, ends=ends)
    started = after(table, first)
    assert started.table == TableIdentity("t1", latest_ms=70)
    assert started.leases == {"4": read, "5": Lease("5", checkpoint=Position(70)), "7": Lease("7")}
    assert_rejected(started, replace(first, latest_ms=90), "the group has already started")
    claim = Claim(by=ANN, at_ms=AT, partition="7", epoch=0, starting_position=Position(3), latest_ms=70)
    for latest_ms in (50, 90):
        assert_rejected(started, replace(claim, latest_ms=latest_ms), "was not resolved with the group's `latest`")
    assert after(started, claim).leases["7"].checkpoint == Position(3)
