"""The state of a group as plain values.

A *group* is one (namespace, event hub, consumer group). Its whole state is one `Snapshot`: a `Lease` per
partition and a `Member` per running source. Nothing here has a clock, does I/O or can be changed in place.

Times ending in `_ms` are wall-clock milliseconds since 1970 of whoever wrote them. They are for people and for
sparing a cold start its wait; they are never compared between machines to decide who is alive (see `expiry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Group:
    """One (namespace, event hub, consumer group).

    Event Hubs compares the three without regard to case, so they are kept in lower case.
    """

    namespace: str
    hub: str
    consumer_group: str

    def __post_init__(self) -> None:
        for name in ("namespace", "hub", "consumer_group"):
            object.__setattr__(self, name, getattr(self, name).lower())

    def __str__(self) -> str:
        return f"{self.namespace}/{self.hub}/{self.consumer_group}"


@dataclass(frozen=True, slots=True)
class Position:
    """The last event that is done with: reading goes on at `next`.

    `sequence_number` is -1 before the first event of a partition. `offset` is Event Hubs' own opaque string for
    the same event, kept where it is known for readers other than this one, and never parsed.
    """

    sequence_number: int
    offset: str | None = None

    @property
    def next(self) -> int:
        """Sequence number of the first event that is not done."""
        return self.sequence_number + 1

    @classmethod
    def before(cls, sequence_number: int) -> Position:
        """The position from which reading goes on at `sequence_number`."""
        return cls(sequence_number - 1)


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
    has resolved the starting position.
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

    @property
    def counter(self) -> tuple[int, int]:
        """Changes with every sign of life; an observer who sees it stand still knows that the owner is gone."""
        return self.epoch, self.renewal


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
class Snapshot:
    """A group's whole state at `version` of its store. Partition ids and member ids are the keys."""

    group: Group
    version: int = 0
    leases: Mapping[str, Lease] = field(default_factory=lambda: MappingProxyType({}))
    members: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))

    def owned_by(self, member: str) -> list[Lease]:
        """The leases of `member`, live or expired, in the order of the partitions."""
        return [lease for lease in self.leases.values() if lease.owner == member]

    @property
    def leader(self) -> str | None:
        """The member that has been in the group longest; it does the group's housekeeping. No election: every
        write is a compare-and-swap, so two who both take themselves for the leader do no harm."""
        active = [member for member in self.members.values() if member.state is MemberState.ACTIVE]
        return min(active, key=lambda member: (member.joined, member.id)).id if active else None


def partition_order(partition: str) -> tuple[int, int, str]:
    """Sort key: numeric partition ids by number, then any others by text."""
    return (0, int(partition), "") if partition.isdecimal() else (1, 0, partition)
