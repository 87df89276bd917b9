"""What goes into a `MemberEngine`, and what comes out of it. Fields that repeat an input have no place in `repr`."""

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
    """Time has passed: `MemberEngine.due`, or something was reported."""


@dataclass(frozen=True, slots=True)
class GroupRead:
    """The lease table contains `snapshot`. The hub has these `partitions`, and was created then, if that is known."""

    snapshot: Snapshot
    partitions: tuple[str, ...]
    hub_created_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PositionsResolved:
    """Reading starts at these `positions`, without those of partitions for which the hub gave no answer. None: it gave
    none at all."""

    positions: Mapping[str, Position] | None


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit has this `outcome`, after so many seconds, in which it may have lost races."""

    outcome: Outcome
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RacesLost:
    """The commit has lost too many races and was given up."""


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The lease table could not be read or, if that was what was tried, not be written."""

    writing: bool


@dataclass(frozen=True, slots=True)
class ReadRequested:
    """The next turn is due at once."""


@dataclass(frozen=True, slots=True)
class RebalancingBegan:
    """Balance at once, and again as long as there is something to take, until `RebalancingEnded`."""


@dataclass(frozen=True, slots=True)
class RebalancingEnded:
    """Balance at the usual intervals again."""


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """Take nothing more, and give back everything that is not in flight, from the next turn on, which is now."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The next turn is the last one, and due at once: it commits the progress, gives all leases back and leaves."""


Request = ReadRequested | RebalancingBegan | RebalancingEnded | LeaveRequested | StopRequested
Input = Tick | GroupRead | PositionsResolved | Committed | RacesLost | StoreFailed | Request


# --- outputs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadGroup:
    """Read the lease table."""


@dataclass(frozen=True, slots=True)
class ResolvePositions:
    """Ask the hub where reading starts in `partitions`, if `latest` means that moment of the hub's clock."""

    partitions: Sequence[str]
    latest_ms: int


@dataclass(frozen=True, slots=True)
class Write:
    """Commit `changes` to the lease table, which contained `base`."""

    base: Snapshot = field(repr=False)
    changes: Sequence[Transition]


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """A balancing cycle has come to `decision`, on `view`; without it the strategy was not asked. To be logged."""

    decision: Decision
    view: View | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class CommitEnded:
    """A commit has had this `outcome`: record what it did. With `tidies` tidy the store up as well."""

    outcome: Outcome = field(repr=False)
    tidies: bool


@dataclass(frozen=True, slots=True)
class Left:
    """The last turn has ended: the member has left the group."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The query ends with this error: `FencedError` or `DataLossError`."""

    error: EhBalanceError


Output = ReadGroup | ResolvePositions | Write | DecisionMade | CommitEnded | Left | Fail
