"""Everything that can happen to a group, as data, and `apply`, which decides whether it may.

A transition is written by one member against a snapshot that it has seen, and may reach the table after others have
changed it. So it carries the evidence it was based on (an epoch, a counter that stood still), and `apply` checks the
evidence against the state as it is now. No clock is read: an expiry or a deadline is the observer's statement, and
it stands exactly as long as the lease shows no sign of life that the observer has not seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from spark_ehbalance.leases.model import (
    Author,
    Change,
    Handover,
    Lease,
    Load,
    Member,
    MemberLoad,
    MemberState,
    Pin,
    TableIdentity,
)
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.values.position import Position, partition_order


@dataclass(frozen=True, slots=True)
class Refused:
    """A transition that was not valid any more, and why."""

    transition: Transition
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What some transitions made of a snapshot: `after` is `before` itself where nothing changed."""

    before: Snapshot
    after: Snapshot
    accepted: tuple[Transition, ...] = ()
    refused: tuple[Refused, ...] = ()


def apply(snapshot: Snapshot, transitions: Iterable[Transition]) -> Outcome:
    """Carry out `transitions` in their order; of two that contradict each other the first valid one wins.

    The new snapshot has the `version` of the old one: a store increments it when it writes the snapshot.
    """
    state = _State(_Rows(snapshot.leases), _Rows(snapshot.members), snapshot.table)
    accepted, refused = [], []
    for transition in transitions:
        reason = transition.refusal(state)
        if reason is None:
            transition.carry_out(state)
            accepted.append(transition)
        else:
            refused.append(Refused(transition, reason))
    return Outcome(snapshot, _changed(snapshot, state), tuple(accepted), tuple(refused))


def _changed(snapshot: Snapshot, state: _State) -> Snapshot:
    """`snapshot` with the rows of `state`."""
    leases_before, members_before = state.leases.before(), state.members.before()
    if not leases_before and not members_before and state.table == snapshot.table:
        return snapshot
    leases = state.leases.all()
    if len(leases) != len(snapshot.leases):
        leases = {partition: leases[partition] for partition in sorted(leases, key=partition_order)}
    members = MappingProxyType(state.members.all()) if members_before else snapshot.members
    return snapshot.after(Change(MappingProxyType(leases), leases_before, members, members_before, state.table))


_Row = TypeVar("_Row")


class _Rows(MutableMapping[str, _Row]):
    """Rows that may be set and deleted, on top of others that stay as they are."""

    def __init__(self, rows: Mapping[str, _Row]) -> None:
        self._rows = rows
        self._set: dict[str, _Row] = {}
        self._deleted: set[str] = set()

    def __getitem__(self, key: str) -> _Row:
        if key in self._set:
            return self._set[key]
        if key in self._deleted:
            raise KeyError(key)
        return self._rows[key]

    def __setitem__(self, key: str, row: _Row) -> None:
        self._set[key] = row
        self._deleted.discard(key)

    def __delitem__(self, key: str) -> None:
        self._set.pop(key, None)
        self._deleted.add(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self.all())

    def __bool__(self) -> bool:
        return bool(self._set) or len(self._rows) > len(self._deleted)

    def __contains__(self, key: object) -> bool:
        return key in self._set or (key in self._rows and key not in self._deleted)

    def before(self) -> dict[str, _Row | None]:
        """The rows that are others now, as they were; None where there was none."""
        rows = self._rows
        changed = {key: before for key, row in self._set.items() if (before := rows.get(key)) != row}
        return changed | {key: rows[key] for key in self._deleted if key in rows}

    def all(self) -> dict[str, _Row]:
        """All rows as they are now."""
        # A proxy copies its dictionary at once, but is itself copied key by key.
        rows = self._rows.copy() if isinstance(self._rows, MappingProxyType) else dict(self._rows)
        rows.update(self._set)
        for key in self._deleted:
            rows.pop(key, None)
        return rows


@dataclass(slots=True)
class _State:
    """The working copy that one `apply` changes."""

    leases: _Rows[Lease]
    members: _Rows[Member]
    table: TableIdentity | None = None

    def add(self, lease: Lease, by: Author, table: TableIdentity | None = None) -> None:
        """Set a lease; the first one makes the table `table`, or a new one that is known by its author's process."""
        if not self.leases:
            self.table = table or TableIdentity(by.incarnation)
        self.leases[lease.partition] = lease

    def full(self, id: str, partition: str) -> str | None:
        """Why the member `id` may not have `partition` as well; what is promised to it counts."""
        limit = self.members[id].max_owned
        if limit is None:
            return None
        others = (lease for lease in self.leases.all().values() if lease.partition != partition)
        taken = sum(id in (lease.owner, lease.handover and lease.handover.to) for lease in others)
        return f"{id} has {taken} partitions, and maxPartitionsOwned={limit}" if taken >= limit else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition(ABC):
    """One change of the group's state. `at_ms` is the author's wall clock, recorded and never compared."""

    by: Author
    at_ms: int

    @abstractmethod
    def refusal(self, state: _State) -> str | None:
        """Why this is not valid now; None where it is."""

    @abstractmethod
    def carry_out(self, state: _State) -> None:
        """Change `state`; only called where `refusal` is None."""

    def _fenced(self, state: _State) -> str | None:
        member = state.members.get(self.by.id)
        if member is None:
            return f"{self.by.id} is not a member"
        if member.incarnation != self.by.incarnation:
            return f"a later process has joined as {self.by.id}"
        return None


# --- members ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Transition):
    """Become a member, or take over the membership of an earlier process with the same id, which this fences."""

    host: str = ""
    max_owned: int | None = None
    strategy: str = ""

    def refusal(self, state: _State) -> str | None:
        present = state.members.get(self.by.id)
        if present is not None and present.incarnation == self.by.incarnation:
            return f"{self.by.id} has joined already"
        return None

    def carry_out(self, state: _State) -> None:
        state.members[self.by.id] = Member(
            id=self.by.id,
            incarnation=self.by.incarnation,
            joined=1 + max((member.joined for member in state.members.values()), default=0),
            renewed_at_ms=self.at_ms,
            started_at_ms=self.at_ms,
            host=self.host,
            max_owned=self.max_owned,
            strategy=self.strategy,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Transition):
    """A sign of life of the member itself. A `load` that is known replaces the one before."""

    load: MemberLoad | None = None

    def refusal(self, state: _State) -> str | None:
        return self._fenced(state)

    def carry_out(self, state: _State) -> None:
        member = state.members[self.by.id]
        renewal, load = member.renewal + 1, self.load or member.load
        state.members[self.by.id] = replace(member, renewal=renewal, renewed_at_ms=self.at_ms, load=load)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(Transition):
    """Tell everybody that `member` is to be given nothing more and gives back what it has; or, with
    `undo`, that this is over. Asked for by the member itself or by an operator, who need not be a member. `why` is for
    people."""

    member: str
    undo: bool = False
    why: str = ""

    def refusal(self, state: _State) -> str | None:
        if self.member not in state.members:
            return _no_member(self.member, state)
        wanted = MemberState.ACTIVE if self.undo else MemberState.LEAVING
        return f"{self.member} is {wanted.value} already" if state.members[self.member].state is wanted else None

    def carry_out(self, state: _State) -> None:
        wanted = MemberState.ACTIVE if self.undo else MemberState.LEAVING
        state.members[self.member] = replace(state.members[self.member], state=wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Transition):
    """Cease to be a member. Leases that it still holds are left to expire: release them first."""

    def refusal(self, state: _State) -> str | None:
        return self._fenced(state)

    def carry_out(self, state: _State) -> None:
        del state.members[self.by.id]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget(Transition):
    """Remove the row of another member, whose heartbeat `counter` has stood still for too long."""

    member: str
    counter: tuple[str, int]

    def refusal(self, state: _State) -> str | None:
        if fenced := self._fenced(state):
            return fenced
        member = state.members.get(self.member)
        if member is None or member.counter != self.counter:
            return f"{self.member} has shown a sign of life or is gone"
        return None

    def carry_out(self, state: _State) -> None:
        del state.members[self.member]


def _no_member(id: str, state: _State) -> str:
    return f"{id} is not a member: members are {', '.join(sorted(state.members)) or 'none'}"


def _is_active(id: str, state: _State) -> bool:
    return id in state.members and state.members[id].state is MemberState.ACTIVE


# --- partitions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions(Transition):
    """Add rows for partitions that the hub has and the table does not know yet.

    `checkpoint` is where their reading begins; None leaves it to the first claim.
    """

    partitions: tuple[str, ...]
    checkpoint: Position | None = None

    def refusal(self, state: _State) -> str | None:
        if fenced := self._fenced(state):
            return fenced
        return None if set(self.partitions) - state.leases.keys() else "the partitions are known already"

    def carry_out(self, state: _State) -> None:
        for partition in self.partitions:
            if partition not in state.leases:
                state.add(Lease(partition, checkpoint=self.checkpoint), self.by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Transition):
    """Put back what the table does not know any more of a partition, from a query's own memory of it: where reading
    goes on (None: the first claim decides) and the last epoch that is known, below which the next one must not fall.
    The table has no row of it, no position, or an older epoch. The author need not be a member; its incarnation is a
    new table's id. `why` is for people."""

    partition: str
    epoch: int
    checkpoint: Position | None
    why: str = ""

    def refusal(self, state: _State) -> str | None:
        lease = state.leases.get(self.partition)
        if lease is None or (lease.checkpoint is None and self.checkpoint is not None) or lease.epoch < self.epoch:
            return None
        return f"partition {self.partition} is known already"

    def carry_out(self, state: _State) -> None:
        lease = state.leases.get(self.partition, Lease(self.partition))
        epoch = max(lease.epoch, self.epoch)
        state.add(replace(lease, epoch=epoch, checkpoint=self.checkpoint, handover=None), self.by)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakePlace(Transition):
    """Note that the table takes the place of others, whose positions it has. The author need not be a member."""

    tables: frozenset[str]

    def refusal(self, state: _State) -> str | None:
        return "it is known already" if state.table and state.table.covers(self.tables) else None

    def carry_out(self, state: _State) -> None:
        table = state.table or TableIdentity(self.by.incarnation)
        state.table = replace(table, replaces=table.replaces | self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack(Transition):
    """Put a lease back as its author last saw it: the table does not know it any more, or has one with an older epoch.
    As no partition is ever taken out and no epoch falls, somebody else has written the table."""

    lease: Lease
    table: TableIdentity | None = None

    @property
    def partition(self) -> str:
        return self.lease.partition

    def refusal(self, state: _State) -> str | None:
        if fenced := self._fenced(state):
            return fenced
        found = state.leases.get(self.partition)
        newer = found is not None and found.epoch >= self.lease.epoch
        return f"partition {self.partition} is there" if newer else None

    def carry_out(self, state: _State) -> None:
        state.add(self.lease, self.by, self.table)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTransition(Transition):
    """A change of one lease. `epoch` is the lease's epoch as the author saw it: any change of owner since then
    makes this invalid."""

    partition: str
    epoch: int

    def refusal(self, state: _State) -> str | None:
        if fenced := self._fenced(state):
            return fenced
        lease = state.leases.get(self.partition)
        if lease is None:
            return f"partition {self.partition} is unknown"
        if lease.epoch != self.epoch:
            return f"epoch is {lease.epoch}, not {self.epoch}"
        return self.invalid(lease)

    def carry_out(self, state: _State) -> None:
        state.leases[self.partition] = self.after(state.leases[self.partition])

    @abstractmethod
    def invalid(self, lease: Lease) -> str | None:
        """Why this is not valid for `lease`, whose epoch and author are right; None where it is."""

    @abstractmethod
    def after(self, lease: Lease) -> Lease:
        """The lease as this leaves it."""

    def _owned_by_author(self, lease: Lease) -> str | None:
        return None if lease.owner == self.by.id else f"owned by {lease.owner}"

    def _given_to(self, lease: Lease, owner: str) -> Lease:
        return replace(
            lease,
            owner=owner,
            epoch=lease.epoch + 1,
            renewal=lease.renewal + 1,
            renewed_at_ms=self.at_ms,
            owned_since_ms=self.at_ms,
            handover=None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(LeaseTransition):
    """Take a lease that is free for the author: nobody's, its own from an earlier life, expired, or promised to it
    by a handover whose deadline has passed. Beyond its limit it may only claim what is its own already.

    `still` is the lease's counter of which the author says that it has stood still for the lease duration, `overdue`
    the handover to it of which it says that the deadline has passed (the owner's renewals do not save it then).
    `start` is where reading begins if nothing was ever read.
    """

    still: tuple[int, int] | None = None
    overdue: Handover | None = None
    start: Position | None = None

    def refusal(self, state: _State) -> str | None:
        if refused := LeaseTransition.refusal(self, state):
            return refused
        own = state.leases[self.partition].owner == self.by.id
        return None if own else state.full(self.by.id, self.partition)

    def invalid(self, lease: Lease) -> str | None:
        if lease.checkpoint is None and self.start is None:
            return "its starting position is not known"
        if lease.owner in (None, self.by.id) or lease.counter == self.still:
            return None
        if self.overdue is not None and self.overdue.to == self.by.id and self.overdue == lease.handover:
            return None
        return f"owned by {lease.owner}"

    def after(self, lease: Lease) -> Lease:
        return replace(self._given_to(lease, self.by.id), checkpoint=lease.checkpoint or self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steal(LeaseTransition):
    """Take a live lease from its owner without its help, as the Event Processor's strategies do."""

    def refusal(self, state: _State) -> str | None:
        return (
            LeaseTransition.refusal(self, state)
            or _pinned_to_owner(state.leases[self.partition], state)
            or state.full(self.by.id, self.partition)
        )

    def invalid(self, lease: Lease) -> str | None:
        if lease.owner in (None, self.by.id):
            return "there is nobody to take it from"
        return "its starting position is not known" if lease.checkpoint is None else None

    def after(self, lease: Lease) -> Lease:
        return self._given_to(lease, self.by.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew(LeaseTransition):
    """A sign of life of the owner. A `load` that is known replaces the one before."""

    load: Load | None = None

    def invalid(self, lease: Lease) -> str | None:
        return self._owned_by_author(lease)

    def after(self, lease: Lease) -> Lease:
        return lease.renewed(self.at_ms, lease.checkpoint, self.load or lease.load)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defend(LeaseTransition):
    """A sign of life of an owner that has won the race for its own lease: it is not to be challenged for a while."""

    def invalid(self, lease: Lease) -> str | None:
        pending = f"a handover to {lease.handover.to} is pending" if lease.handover else None
        return self._owned_by_author(lease) or pending

    def after(self, lease: Lease) -> Lease:
        return replace(lease, contest=lease.contest + 1, renewal=lease.renewal + 1, renewed_at_ms=self.at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(LeaseTransition):
    """Record that the sink has finished everything up to `position`.

    Also valid on a lease that its author has released meanwhile, as long as nobody has owned it since: a source that
    is restarted may learn late that its last batch was finished. The epoch alone tells: nobody else ever had it.
    """

    position: Position
    load: Load | None = None

    def invalid(self, lease: Lease) -> str | None:
        if lease.owner is not None and lease.owner != self.by.id:
            return f"owned by {lease.owner}"
        if lease.checkpoint is not None and self.position.sequence_number < lease.checkpoint.sequence_number:
            return f"moves back from {lease.checkpoint.sequence_number} to {self.position.sequence_number}"
        return None

    def after(self, lease: Lease) -> Lease:
        if lease.owner is None:
            return replace(lease, checkpoint=self.position)
        return lease.renewed(self.at_ms, self.position, self.load or lease.load)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(LeaseTransition):
    """Go on at `position`, also if that is further back: the events at the checkpoint are gone, or the hub was made
    anew, and its user has allowed that (`failOnDataLoss`)."""

    position: Position

    def invalid(self, lease: Lease) -> str | None:
        return self._owned_by_author(lease)

    def after(self, lease: Lease) -> Lease:
        return replace(lease, checkpoint=self.position, renewal=lease.renewal + 1, renewed_at_ms=self.at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(LeaseTransition):
    """Give a lease back; its checkpoint stays."""

    def invalid(self, lease: Lease) -> str | None:
        return self._owned_by_author(lease)

    def after(self, lease: Lease) -> Lease:
        return replace(lease, owner=None, handover=None, renewed_at_ms=self.at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHandover(LeaseTransition):
    """Ask the owner to pass the lease on to `to` within `timeout_ms`. That the owner has had it for the minimum
    tenure is the author's statement, made by its own clock."""

    to: str
    timeout_ms: int

    def refusal(self, state: _State) -> str | None:
        if not _is_active(self.to, state):
            return f"{self.to} is not an active member"
        return (
            LeaseTransition.refusal(self, state)
            or _pinned_to_owner(state.leases[self.partition], state)
            or state.full(self.to, self.partition)
        )

    def invalid(self, lease: Lease) -> str | None:
        if lease.owner in (None, self.to):
            return "there is nobody to hand it over"
        return f"a handover to {lease.handover.to} is pending" if lease.handover else None

    def after(self, lease: Lease) -> Lease:
        return replace(lease, handover=Handover(self.to, self.timeout_ms, self.at_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver(LeaseTransition):
    """Pass the lease on to the member that has asked for it; the final `Checkpoint` goes before it in the commit."""

    def refusal(self, state: _State) -> str | None:
        if refused := LeaseTransition.refusal(self, state):
            return refused
        handover = state.leases[self.partition].handover
        return None if handover and _is_active(handover.to, state) else "the next owner has left"

    def invalid(self, lease: Lease) -> str | None:
        return self._owned_by_author(lease) or (None if lease.handover else "no handover is pending")

    def after(self, lease: Lease) -> Lease:
        assert lease.handover is not None
        return self._given_to(lease, lease.handover.to)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelHandover(LeaseTransition):
    """Call off a handover, because the next owner is gone or should not have the lease any more."""

    def invalid(self, lease: Lease) -> str | None:
        return None if lease.handover else "no handover is pending"

    def after(self, lease: Lease) -> Lease:
        return replace(lease, handover=None)


def _pinned_to_owner(lease: Lease, state: _State) -> str | None:
    """Why others may not ask for `lease`: its owner is the one that an operator wants."""
    pin = lease.pin
    held = pin is not None and pin.to == lease.owner and _is_active(pin.to, state)
    return f"pinned to {lease.owner}" if held else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransfer(LeaseTransition):
    """Take the mark of an operator's transfer away, because its time is over or its destination is gone: from now on
    the strategy decides again. Both are the author's statement."""

    def invalid(self, lease: Lease) -> str | None:
        return None if lease.pin and lease.pin.transfer else "no transfer is marked"

    def after(self, lease: Lease) -> Lease:
        return replace(lease, pin=None)


# --- operators -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTransition(Transition):
    """What an operator orders about one partition, whatever its epoch is. The operator need not be a member; `why` is
    for people. Refusals say what is allowed."""

    partition: str
    why: str = ""

    def refusal(self, state: _State) -> str | None:
        lease = state.leases.get(self.partition)
        if lease is None:
            known = ", ".join(sorted(state.leases, key=partition_order)) or "none"
            return f"partition {self.partition} is unknown: there are {known}"
        return self.invalid(lease, state)

    def carry_out(self, state: _State) -> None:
        state.leases[self.partition] = self.after(state.leases[self.partition], state)

    @abstractmethod
    def invalid(self, lease: Lease, state: _State) -> str | None:
        """Why this is not valid for `lease`; None where it is."""

    @abstractmethod
    def after(self, lease: Lease, state: _State) -> Lease:
        """The lease as this leaves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTo(OperatorTransition):
    """What pinning and transferring have in common: the partition is to come to the member `to`. Another owner is
    asked to hand it over within `timeout_ms`; one that nobody owns is for `to` alone to take."""

    to: str
    timeout_ms: int

    def _marked(self, lease: Lease, state: _State, pin: Pin) -> Lease:
        pinned = replace(lease, pin=pin)
        if lease.owner == self.to:
            return replace(pinned, handover=None)
        pending = lease.handover is not None and lease.handover.to == self.to
        if lease.owner is None or pending or not _is_active(self.to, state) or state.full(self.to, self.partition):
            return pinned
        return replace(pinned, handover=Handover(self.to, self.timeout_ms, self.at_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class PinTo(MoveTo):
    """Say that the partition belongs to the member `to`, whatever the strategy thinks: from now on where `to` can take
    it, else as soon as it can."""

    def invalid(self, lease: Lease, state: _State) -> str | None:
        if self.to not in state.members:
            return _no_member(self.to, state)
        pinned = lease.pin is not None and lease.pin.to == self.to and not lease.pin.transfer
        return f"partition {self.partition} is pinned to {self.to} already" if pinned else None

    def after(self, lease: Lease, state: _State) -> Lease:
        return self._marked(lease, state, Pin(self.to, self.by.id, self.why))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(MoveTo):
    """Move the partition to the active member `to`, once. A mark keeps it there until the strategy may decide again
    (`EndTransfer`)."""

    def invalid(self, lease: Lease, state: _State) -> str | None:
        pin = lease.pin
        if not _is_active(self.to, state):
            active = ", ".join(id for id in sorted(state.members) if _is_active(id, state))
            return f"{self.to} is not an active member: active are {active or 'none'}"
        if lease.owner == self.to:
            return f"partition {self.partition} is owned by {self.to} already"
        if pin is not None and not pin.transfer:
            return f"partition {self.partition} is pinned to {pin.to}: unpin it first, or pin it to another member"
        return state.full(self.to, self.partition)

    def after(self, lease: Lease, state: _State) -> Lease:
        return self._marked(lease, state, Pin(self.to, self.by.id, self.why, transfer=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpin(OperatorTransition):
    """Let the strategy decide about the partition again. A handover that is pending goes on."""

    def invalid(self, lease: Lease, state: _State) -> str | None:
        if lease.pin is not None:
            return None
        pinned = ", ".join(each.partition for each in state.leases.values() if each.pin) or "none"
        return f"partition {self.partition} is not pinned: pinned are {pinned}"

    def after(self, lease: Lease, state: _State) -> Lease:
        return replace(lease, pin=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seek(OperatorTransition):
    """Go on at `position`, forward or back.

    The epoch rises, so that whatever is still to come from before is refused: a late checkpoint of the last owner, or
    with `force` those of the owner, who stays the owner and plans its next batch from `position`, under the new epoch.
    """

    position: Position
    force: bool = False

    def invalid(self, lease: Lease, state: _State) -> str | None:
        if lease.owner is None or self.force:
            return None
        return f"partition {self.partition} is owned by {lease.owner}: stop that query first, or use --force"

    def after(self, lease: Lease, state: _State) -> Lease:
        return replace(lease, checkpoint=self.position, epoch=lease.epoch + 1, handover=None)
