"""Inputs and outputs of a `MemberEngine`. `repr` omits fields that repeat an input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.group.changes import Outcome, Transition
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies.base import Decision, View

# --- inputs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """The next turn is due (`MemberEngine.due`), or the query reported something."""


@dataclass(frozen=True, slots=True)
class GroupRead:
    """The lease table contains `snapshot`. The hub has these `partitions` and this creation time (None: unknown)."""

    snapshot: Snapshot
    partitions: tuple[str, ...]
    hub_created_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PositionsResolved:
    """The resolved starting `positions`, without the partitions for which the hub did not respond; None if the hub did
    not respond at all."""

    positions: Mapping[str, Position] | None


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit ended with this `outcome` after `seconds`, including lost races."""

    outcome: Outcome
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RacesLost:
    """The commit failed after too many lost races."""


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The lease table could not be read or, if `writing`, written."""

    writing: bool


@dataclass(frozen=True, slots=True)
class ReadRequested:
    """The next turn is due now."""


@dataclass(frozen=True, slots=True)
class RebalancingBegan:
    """Balance now, and repeat as long as there are partitions to take, until `RebalancingEnded`."""


@dataclass(frozen=True, slots=True)
class RebalancingEnded:
    """Balance at the usual intervals again."""


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """Take no more partitions, and release all partitions that are not in flight. The next turn is due now."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The next turn is due now and is the last one: it commits the progress, releases all leases and leaves the
    group."""


Request = ReadRequested | RebalancingBegan | RebalancingEnded | LeaveRequested | StopRequested
Input = Tick | GroupRead | PositionsResolved | Committed | RacesLost | StoreFailed | Request


# --- outputs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadGroup:
    """Read the lease table."""


@dataclass(frozen=True, slots=True)
class ResolvePositions:
    """Resolve the starting positions of `partitions`; `latest` means the time `latest_ms` by the hub's clock."""

    partitions: Sequence[str]
    latest_ms: int


@dataclass(frozen=True, slots=True)
class CommitChanges:
    """Commit `changes` to the lease table, which contained `base` when it was read."""

    base: Snapshot = field(repr=False)
    changes: Sequence[Transition]


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """Log the `decision` of a balancing cycle. `view` is the strategy's input; None if the strategy did not run."""

    decision: Decision
    view: View | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class CommitEnded:
    """Record the history of a commit. If `tidies` is true, run the store's maintenance too."""

    outcome: Outcome = field(repr=False)
    tidies: bool


@dataclass(frozen=True, slots=True)
class Left:
    """The member has left the group."""


@dataclass(frozen=True, slots=True)
class Fail:
    """End the query with this `FencedError` or `DataLossError`."""

    error: EhBalanceError


Output = ReadGroup | ResolvePositions | CommitChanges | DecisionMade | CommitEnded | Left | Fail
