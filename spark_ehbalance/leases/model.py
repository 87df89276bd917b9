"""The state of a group as plain values.

A *group* is one (namespace, event hub, consumer group). Its whole state is one `Snapshot`: a `Lease` per
partition and a `Member` per running source. Nothing here has a clock, does I/O or can be changed in place.

Times ending in `_ms` are wall-clock milliseconds since 1970 of whoever wrote them. They are for people and for
sparing a cold start its wait; they are never compared between machines to decide who is alive (see `expiry`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from types import MappingProxyType
from typing import Any

from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import Position, partition_order


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """Which lease table it is, wherever it lies: `id` was minted when its first partition was added, so that a table
    which was emptied is another one afterwards; it `replaces` others whose positions it was given."""

    id: str
    replaces: frozenset[str] = frozenset()

    def covers(self, ids: Set[str]) -> bool:
        """Whether the positions of all tables with these ids are in it."""
        return ids <= self.replaces | {self.id}


@dataclass(frozen=True, slots=True)
class Handover:
    """A planned move that is under way: the owner is asked to pass the lease on to `to`.

    `timeout_ms` is a length of time: whoever waits for it measures it on its own clock, from the moment at which
    it first saw the request. `requested_at_ms` tells one request from another.
    """

    to: str
    timeout_ms: int
    requested_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """What a partition brings in: `rate` in events per second and `backlog` in events, both as moving averages."""

    rate: float
    backlog: float


@dataclass(frozen=True, slots=True)
class MemberLoad:
    """What a member carries, measured by its planner, each as a moving average.

    `rate` in events per second and `backlog` in events over all its partitions, `batch_seconds` the time that a
    micro-batch takes, `cpu` the part of its host's cores that is busy, from 0 to 1 (None where the host does not tell).
    """

    rate: float
    backlog: float
    batch_seconds: float
    cpu: float | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """An operator's word that the partition belongs to the member `to`, as long as that is there and active.

    `by` and `why` are for people. `transfer`: only for a move and the minimum tenure after it, so that no strategy
    undoes it at once; then the mark is taken away.
    """

    to: str
    by: str
    why: str = ""
    transfer: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """One partition's row.

    `epoch` rises by one at every change of owner and never falls; it fences the store and, as the AMQP owner
    level, the hub. `renewal` rises at every sign of life of the owner. `checkpoint` is None until the first claim
    has resolved the starting position. `contest` rises when its owner stands its ground in a race.
    """

    partition: str
    owner: str | None = None
    epoch: int = 0
    renewal: int = 0
    renewed_at_ms: int = 0
    owned_since_ms: int = 0
    checkpoint: Position | None = None
    handover: Handover | None = None
    load: Load | None = None
    pin: Pin | None = None
    contest: int = 0

    @property
    def counter(self) -> tuple[int, int]:
        """Changes with every sign of life; an observer who sees it stand still knows that the owner is gone."""
        return self.epoch, self.renewal

    def renewed(self, at_ms: int, checkpoint: Position | None, load: Load | None) -> Lease:
        """The lease after a sign of life of its owner. Written out, as `replace` takes three times as long and there is
        nothing that a group does more often."""
        return Lease(
            self.partition,
            self.owner,
            self.epoch,
            self.renewal + 1,
            at_ms,
            self.owned_since_ms,
            checkpoint,
            self.handover,
            load,
            self.pin,
            self.contest,
        )


class MemberState(str, Enum):
    """`LEAVING`: still finishing what it has, and to be given nothing more."""

    ACTIVE = "active"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Member:
    """One running source's row.

    `incarnation` is minted at each start: of two processes with the same id the one that joined last is the member,
    and whatever the other writes is refused. `joined` orders members by age without comparing clocks. `max_owned` is
    the most partitions that it may own; None: no limit. `strategy` is the name of the strategy that it decides by.
    """

    id: str
    incarnation: str
    joined: int
    renewal: int = 0
    renewed_at_ms: int = 0
    started_at_ms: int = 0
    host: str = ""
    state: MemberState = MemberState.ACTIVE
    max_owned: int | None = None
    strategy: str = ""
    load: MemberLoad | None = None

    @property
    def counter(self) -> tuple[str, int]:
        """Changes with every heartbeat."""
        return self.incarnation, self.renewal


@dataclass(frozen=True, slots=True)
class Author:
    """Who asks for a transition: a member id and the incarnation that it joined with."""

    id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Change:
    """All rows as they are now, and those that have changed as they were before; None: there was none."""

    leases: Mapping[str, Lease]
    leases_before: Mapping[str, Lease | None]
    members: Mapping[str, Member]
    members_before: Mapping[str, Member | None]
    table: TableIdentity | None = None


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who is there, who owns what and what operators have decided about, without signs of life.

    `owned` has each owner's partitions, live or expired, in their order, and under None those that are nobody's;
    `pending` the handovers under way and `pins` the operators' orders, by partition, `members` each member's id,
    incarnation and state. From version to version it stays the same object until any of this changes, so what is
    derived from it may be kept in `memo`.
    """

    owned: Mapping[str | None, tuple[str, ...]]
    pending: Mapping[str, Handover]
    pins: Mapping[str, Pin]
    members: frozenset[tuple[str, str, MemberState]]
    memo: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def partitions(self) -> frozenset[str]:
        """All of them."""
        if "partitions" not in self.memo:
            self.memo["partitions"] = frozenset(chain.from_iterable(self.owned.values()))
        partitions: frozenset[str] = self.memo["partitions"]
        return partitions

    def covers(self, partitions: tuple[str, ...]) -> bool:
        """Whether all of `partitions` are among them."""
        if self.memo.get("covered") is not partitions:
            if not self.partitions.issuperset(partitions):
                return False
            self.memo["covered"] = partitions
        return True

    @property
    def ids(self) -> frozenset[str]:
        """All members' ids."""
        if "ids" not in self.memo:
            self.memo["ids"] = frozenset(id for id, _, _ in self.members)
        ids: frozenset[str] = self.memo["ids"]
        return ids

    @classmethod
    def of(cls, leases: Mapping[str, Lease], members: Mapping[str, Member]) -> Ownership:
        """That of a state, in one pass over it."""
        owned: dict[str | None, list[str]] = {}
        for partition, lease in leases.items():
            owned.setdefault(lease.owner, []).append(partition)
        return cls(
            {owner: tuple(partitions) for owner, partitions in owned.items()},
            {partition: lease.handover for partition, lease in leases.items() if lease.handover},
            {partition: lease.pin for partition, lease in leases.items() if lease.pin},
            _there(members),
        )

    def after(self, change: Change) -> Ownership:
        """That of the state after `change`."""
        gone: dict[str | None, set[str]] = {}
        come: dict[str | None, list[str]] = {}
        promised: dict[str, Handover | None] = {}
        ordered: dict[str, Pin | None] = {}
        for partition, old in change.leases_before.items():
            new = change.leases[partition]
            if old is None or old.owner != new.owner:
                come.setdefault(new.owner, []).append(partition)
                if old is not None:
                    gone.setdefault(old.owner, set()).add(partition)
            if new.handover != (old and old.handover):
                promised[partition] = new.handover
            if new.pin != (old and old.pin):
                ordered[partition] = new.pin
        there = self.members
        if any(_stands(change.members.get(id)) != _stands(was) for id, was in change.members_before.items()):
            there = _there(change.members)
        if not come and not promised and not ordered and there is self.members:
            return self
        owned = dict(self.owned)
        for owner, lost in gone.items():
            owned[owner] = tuple(partition for partition in owned[owner] if partition not in lost)
        for owner, won in come.items():
            owned[owner] = tuple(sorted((*owned.get(owner, ()), *won), key=partition_order))
        pending, pins = {**self.pending, **promised}, {**self.pins, **ordered}
        return Ownership(
            {owner: partitions for owner, partitions in owned.items() if partitions},
            {partition: handover for partition, handover in pending.items() if handover},
            {partition: pin for partition, pin in pins.items() if pin},
            there,
        )


def _stands(member: Member | None) -> tuple[str, str, MemberState] | None:
    return None if member is None else (member.id, member.incarnation, member.state)


def _there(members: Mapping[str, Member]) -> frozenset[tuple[str, str, MemberState]]:
    return frozenset((member.id, member.incarnation, member.state) for member in members.values())


class LoadVersion:
    """Stands for all that is weighed: loads of the leases; CPU, limits and strategies of the members.

    From version to version it stays the same object until any of this changes. `memo` keeps what is derived from it.
    """

    __slots__ = ("memo",)

    def __init__(self) -> None:
        self.memo: dict[str, Any] = {}

    def after(self, change: Change) -> LoadVersion:
        """That of the state after `change`."""
        for partition, old in change.leases_before.items():
            new = change.leases[partition]
            if old is None or old.load != new.load:
                return LoadVersion()
        for id, was in change.members_before.items():
            now = change.members.get(id)
            if was is None or now is None or _weighs(was) != _weighs(now):
                return LoadVersion()
        return self


def _weighs(member: Member) -> tuple[object, ...]:
    # Of what a member tells about itself only that is shared out by (`transfer`), and heartbeats change the rest.
    return member.load and member.load.cpu, member.max_owned, member.strategy


class LastChanged:
    """In which version of a chain of snapshots each row has last shown a sign of life (`leases`, `members`), changed
    hands (`epochs`) or been promised (`handovers`). What has stood still for longest comes first.

    It is worked out when it is first asked for, with one copy for all changes since the last one that was: most
    snapshots are never asked, being drafts or the losers of races.
    """

    __slots__ = ("_before", "_change", "_stamps", "version")

    def __init__(
        self, version: int = 0, leases: dict[str, int] | None = None, epochs: dict[str, int] | None = None
    ) -> None:
        self.version = version
        self._before: LastChanged | None = None
        self._change: Change | None = None
        self._stamps: tuple[dict[str, int], ...] = (leases or {}, {}, epochs or {}, {})

    @property
    def leases(self) -> Mapping[str, int]:
        """Of each lease's counter."""
        return self._worked_out()[0]

    @property
    def members(self) -> Mapping[str, int]:
        """Of each member's heartbeat."""
        return self._worked_out()[1]

    @property
    def epochs(self) -> Mapping[str, int]:
        """Of each lease's epoch."""
        return self._worked_out()[2]

    @property
    def handovers(self) -> Mapping[str, int]:
        """Of each pending handover."""
        return self._worked_out()[3]

    def after(self, change: Change) -> LastChanged:
        """The trail one version later, after `change`."""
        after = LastChanged(self.version + 1)
        after._before, after._change = self, change
        return after

    def _worked_out(self) -> tuple[dict[str, int], ...]:
        if self._before is None:
            return self._stamps
        later, first = [self], self._before
        while first._before is not None:
            later.append(first)
            first = first._before
        stamps = list(first._stamps)
        for each in reversed(later):
            assert each._change is not None
            for kind, (changed, gone) in enumerate(_marks(each._change)):
                if changed and stamps[kind] is first._stamps[kind]:
                    stamps[kind] = dict(stamps[kind])
                for key in changed:
                    stamps[kind].pop(key, None)
                    stamps[kind][key] = each.version
                for key in gone:
                    del stamps[kind][key]
        self._stamps, self._before, self._change = tuple(stamps), None, None
        return self._stamps


def _marks(change: Change) -> tuple[tuple[list[str], list[str]], ...]:
    """What a trail notes of `change`, as (changed, and of these gone): leases, members, epochs, handovers."""
    signs, owners, promises = [], [], []
    for partition, old in change.leases_before.items():
        new = change.leases[partition]
        if old is None or old.counter != new.counter:
            signs.append(partition)
        if old is None or old.epoch != new.epoch:
            owners.append(partition)
        if new.handover != (old and old.handover):
            promises.append(partition)
    beats = []
    for id, was in change.members_before.items():
        now = change.members.get(id)
        if not (was and now and was.counter == now.counter):
            beats.append(id)
    left = [id for id in beats if id not in change.members]
    over = [partition for partition in promises if change.leases[partition].handover is None]
    return (signs, []), (beats, left), (owners, []), (promises, over)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A group's whole state at `version` of its store. Partition ids and member ids are the keys. `table` is None where
    no partition was ever added, and in tables of earlier versions.

    A `trail`, where there is one, is followed by `apply`: for those with many observers of one chain of snapshots.
    """

    group: Group
    version: int = 0
    leases: Mapping[str, Lease] = field(default_factory=lambda: MappingProxyType({}))
    members: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))
    table: TableIdentity | None = None
    last_changed: LastChanged | None = field(default=None, compare=False, repr=False)
    _ownership: Ownership | None = field(default=None, init=False, compare=False, repr=False)
    _load_version: LoadVersion | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def ownership(self) -> Ownership:
        """Who owns what."""
        ownership = self._ownership
        if ownership is None:
            ownership = Ownership.of(self.leases, self.members)
            object.__setattr__(self, "_ownership", ownership)
        return ownership

    @property
    def load_version(self) -> LoadVersion:
        """What that weighs."""
        load_version = self._load_version
        if load_version is None:
            load_version = LoadVersion()
            object.__setattr__(self, "_load_version", load_version)
        return load_version

    def after(self, change: Change) -> Snapshot:
        """The state after `change`. It has the same version: a store counts it up when it has written it."""
        last_changed = self.last_changed and self.last_changed.after(change)
        after = Snapshot(self.group, self.version, change.leases, change.members, change.table, last_changed)
        return after._derived(self.ownership.after(change), self.load_version.after(change))

    def written_as(self, version: int) -> Snapshot:
        """The same state under another version."""
        same = Snapshot(self.group, version, self.leases, self.members, self.table, self.last_changed)
        return same._derived(self._ownership, self._load_version)

    def _derived(self, ownership: Ownership | None, load_version: LoadVersion | None) -> Snapshot:
        object.__setattr__(self, "_ownership", ownership)
        object.__setattr__(self, "_load_version", load_version)
        return self

    def owned_by(self, member: str) -> list[Lease]:
        """The leases of `member`, live or expired, in the order of the partitions."""
        return [self.leases[partition] for partition in self.ownership.owned.get(member, ())]

    @property
    def leader(self) -> str | None:
        """The member that has been in the group longest; it does the group's housekeeping. No election: every
        write is a compare-and-swap, so two who both take themselves for the leader do no harm."""
        memo = self.ownership.memo
        if "leader" not in memo:
            active = [member for member in self.members.values() if member.state is MemberState.ACTIVE]
            memo["leader"] = min(active, key=lambda member: (member.joined, member.id)).id if active else None
        leader: str | None = memo["leader"]
        return leader
