"""The rows of a group's state as plain values: a `Lease` per partition and a `Member` per running source.

A *group* is one (namespace, event hub, consumer group). All values are immutable; nothing here reads a clock or does
I/O.

Times ending in `_ms` are milliseconds since 1970 by the writer's wall clock. People read them, and they shorten the
wait of a cold start; they are never compared between machines to decide who is alive (see `expiry`).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum

from spark_ehbalance.values.position import Position


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
    defences: int = 0

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
            self.defences,
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
