"""The transfer shedder of message brokers: a leader moves load from the most loaded members to the least loaded.

Source: Pulsar's extensible load manager with its `TransferShedder`. Only the leader (the oldest active live member)
decides moves and their destinations. Unowned partitions do not need the leader: every member computes the same
assignment and claims its own partitions.

    load(member) = sum of its partitions' demands / mean of the members' sums
                   else its number of partitions, if no loads are known or the loads are only noise
    demand       = events per second + backlog / 60 s

    unbalanced   = most - fewest > 1, if partitions are counted; else
                   standard deviation of the loads > target
                   or a member is idle and another has two partitions or more

After more than hitCount consecutive unbalanced cycles, the leader moves partitions from the most loaded source to the
least loaded destination until the group is balanced. It moves the heaviest partitions with

    sum of loads ≤ min((load(source) - load(destination)) / 2, mean load - load(destination))

or, if no partition fits, the lightest with load(partition) < load(source) - load(destination).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import pstdev

from spark_ehbalance.group.changes import Transition
from spark_ehbalance.group.position import partition_order
from spark_ehbalance.group.strategies.base import Decision, View
from spark_ehbalance.group.strategies.declaration import Declaration, Parameters
from spark_ehbalance.group.strategies.plan import initial_plan, projected
from spark_ehbalance.group.strategies.weights import ROUNDING, demands
from spark_ehbalance.settings.option_specs import option_field
from spark_ehbalance.settings.parsing import number, parse_duration, whole_number

#: The leader's memory is obsolete if more than this many lease durations have passed since its last cycle. That is
#: longer than any balance interval with jitter.
_MAX_CYCLE_GAP = 2

#: The number of a member's heaviest partitions that may move in one cycle, and the number of members that may shed load
#: in one cycle.
_TOP_PARTITIONS, _MAXIMUM_SOURCES = 10, 3

#: Seconds after which a reported load is obsolete. Its member is then neither a source nor a destination.
_LOAD_TIME_TO_LIVE = 1800.0


@dataclass(frozen=True)
class TransferParameters(Parameters):
    """The defaults are Pulsar's. Times are in seconds."""

    target: float = option_field(
        0.25,
        number(0, 10),
        "standard deviation of the members' loads above which load is moved "
        "([all conditions](sharing.md#which-strategy)), as a fraction of their mean load",
    )
    #: Prevents moves after a short burst.
    hit_count: int = option_field(
        3, whole_number(0), "number of consecutive uneven cycles to tolerate before load is moved"
    )
    #: After this time, the loads reflect the moves.
    cool_down: float = option_field(180.0, parse_duration, "wait after a cycle in which load was moved")


@dataclass(frozen=True, slots=True)
class _Memory:
    """The leader's memory. Times are by its own clock."""

    cycle_at: float
    #: When this member became the leader. A member without a later heartbeat has not reported yet.
    since: float
    hits: int = 0
    cool_until: float = float("-inf")
    #: The partitions moved within the minimum tenure.
    moved: frozenset[str] = frozenset()


def transfer(view: View, parameters: TransferParameters) -> Decision:
    """Claim the unowned partitions that the assignment gives to this member. The leader also moves load."""
    claims = _claims(view)
    if view.active[:1] != (view.me.id,):
        what = f"claim {len(claims)}" if claims else "nothing"
        return Decision(f"{what}, because only the leader, {''.join(view.active[:1])}, moves load", tuple(claims))
    decision = _lead(view, parameters)
    reason = decision.reason
    if claims:
        reason += f"; claim {len(claims)} free partitions"
    return replace(decision, reason=reason, transitions=(*claims, *decision.transitions))


def _claims(view: View) -> list[Transition]:
    return [view.claim(partition) for partition, owner in _takers(view).items() if owner == view.me.id]


def _takers(view: View) -> Mapping[str, str]:
    """Free partition → the member that should claim it. A partition for which no member has room has no entry."""
    free = view.expired.union(view.snapshot.ownership.owned.get(None, ())) - view.pinned
    owners = _target(view) if free else {}
    return {partition: owners[partition] for partition in sorted(free) if partition in owners}


def _target(view: View) -> Mapping[str, str]:
    """Partition → member. Members keep their partitions, and free partitions go to the least loaded members."""
    known = demands(view.snapshot)
    mean = sum(known.values()) / len(known) if known else 1.0
    plan, unassigned = initial_plan(view, {partition: known.get(partition, mean) for partition in view.snapshot.leases})
    plan.give_to_least_loaded(unassigned)
    return plan.target


def _lead(view: View, parameters: TransferParameters) -> Decision:
    """The leader's moves and its next memory."""
    memory = view.memory
    if not isinstance(memory, _Memory) or view.now - memory.cycle_at > _MAX_CYCLE_GAP * view.lease_duration:
        memory = _Memory(view.now, view.now)  # a new leader, or an outage of the table
    recent = memory.moved & (view.recently_moved | view.snapshot.ownership.pending.keys())
    memory = replace(memory, cycle_at=view.now, moved=recent)
    observations = view.observations.members
    silent = [id for id in view.active if id != view.me.id and observations[id].since <= memory.since]
    if silent:
        reason = f"nothing, because {len(silent)} members have not reported since this member became the leader"
        return Decision(reason, memory=replace(memory, hits=0))
    if view.now < memory.cool_until:
        return Decision(f"nothing, because of a cool-down of {parameters.cool_down:g} s", memory=memory)
    if _takers(view):
        return Decision("nothing, because free partitions are being taken", memory=replace(memory, hits=0))
    loads = _loads(view)
    fresh = [
        id
        for id in view.active
        if id in loads.members and (id == view.me.id or view.now - observations[id].since <= _LOAD_TIME_TO_LIVE)
    ]
    balance = _Balance(view, parameters, loads, fresh, memory.moved)
    if not balance.unbalanced():
        return Decision(f"nothing, because {balance}", memory=replace(memory, hits=0))
    memory = replace(memory, hits=memory.hits + 1)
    if memory.hits <= parameters.hit_count:
        return Decision(f"nothing, because {balance}, but only for {memory.hits} consecutive cycles", memory=memory)
    before = str(balance)
    moves = balance.moves()
    if not moves:
        return Decision(f"nothing, because {before}, but nothing can be moved", memory=memory)
    memory = replace(memory, hits=0, cool_until=view.now + parameters.cool_down)
    transitions = tuple(view.request(p, to=to) for p, to in moves)
    memory = replace(memory, moved=memory.moved.union(partition for partition, _ in moves))
    return Decision(f"move {len(moves)}, because {before}", transitions, memory=memory)


@dataclass(frozen=True, slots=True)
class _Loads:
    """Known loads of members and partitions in the same unit; pending handovers count as done. If `counted`, the load
    of each partition is 1."""

    members: Mapping[str, float]
    partitions: Mapping[str, float]
    owned: Mapping[str, tuple[str, ...]]
    counted: bool = False


def _loads(view: View) -> _Loads:
    snapshot, owned = view.snapshot, projected(view)
    known = demands(snapshot)
    if not known:
        members = {id: float(len(partitions)) for id, partitions in owned.items()}
        return _Loads(members, dict.fromkeys(snapshot.leases, 1.0), owned, counted=True)
    mean = sum(known.values()) / len(known)
    weights = {partition: known.get(partition, mean) for partition in snapshot.leases}
    known_members = {id: ps for id, ps in owned.items() if not ps or any(p in known for p in ps)}
    sums = {id: sum(weights[p] for p in ps) for id, ps in known_members.items()}
    unit = sum(sums.values()) / len(sums) if any(sums.values()) else 1.0
    return _Loads({id: load / unit for id, load in sums.items()}, {p: w / unit for p, w in weights.items()}, owned)


class _Balance:
    """The members' loads, on which moves are simulated."""

    def __init__(
        self, view: View, parameters: TransferParameters, loads: _Loads, fresh: Iterable[str], moved: frozenset[str]
    ) -> None:
        self._view = view
        self._fixed = view.pinned | moved | view.snapshot.ownership.pending.keys()
        self._parameters = parameters
        self._partitions = loads.partitions
        self._counted = loads.counted
        self._loads = {id: loads.members[id] for id in fresh}
        self._owned = {id: loads.owned[id] for id in fresh}
        self._mean = sum(self._loads.values()) / max(1, len(self._loads))  # moves do not change it

    def __str__(self) -> str:
        if self._counted:
            return f"members own from {self._bound(min):g} to {self._bound(max):g} partitions"
        idle = sum(not owned for owned in self._owned.values())
        return (
            f"the standard deviation of {len(self._loads)} members' loads is {self._deviation():.2f}, the target is "
            f"{self._parameters.target:g}, and {idle} members are idle"
        )

    def unbalanced(self) -> bool:
        """Whether there is a reason to move load."""
        if self._counted:
            return self._bound(max) - self._bound(min) > 1
        idle = any(not owned for owned in self._owned.values()) and any(
            len(owned) > 1 for owned in self._owned.values()
        )
        return idle or self._deviation() > self._parameters.target

    def moves(self) -> tuple[tuple[str, str], ...]:
        """Moves, as (partition, destination), that balance the group as far as possible. Partitions move from a few
        members to the least loaded ones."""
        moves: dict[str, str] = {}
        heaviest: dict[str, list[str]] = {}
        while self.unbalanced() and (to := self._least_loaded()) is not None:
            # A source may shed more load to another destination.
            full = len(heaviest) >= _MAXIMUM_SOURCES
            for source in sorted(heaviest if full else self._loads, key=lambda id: (-self._loads[id], id)):
                known = heaviest.get(source) or self._heaviest(source)
                if picked := self._picked([p for p in known if p not in moves], source, to):
                    break
            else:
                break
            heaviest[source] = known
            for partition in picked:
                self._simulate(partition, source, to)
                moves[partition] = to
        return tuple(moves.items())

    # --- inside ------------------------------------------------------------------------------------------------

    def _bound(self, which: Callable[..., float]) -> float:
        return which(self._loads.values(), default=0.0)

    def _deviation(self) -> float:
        return pstdev(self._loads.values()) if self._loads else 0.0

    def _room(self, id: str) -> float:
        limit = self._view.snapshot.members[id].max_owned
        return float("inf") if limit is None else limit - len(self._owned[id])

    def _least_loaded(self) -> str | None:
        able = [id for id in self._loads if self._room(id) > 0]
        return min(able, key=lambda id: (self._loads[id], bool(self._owned[id]), id), default=None)

    def _heaviest(self, source: str) -> list[str]:
        """The movable partitions of `source` with known loads, the heaviest first."""
        weights = self._partitions
        movable = [p for p in self._owned[source] if weights.get(p, 0) > 0 and p not in self._fixed]
        top = None if self._counted else _TOP_PARTITIONS
        return sorted(movable, key=lambda p: (-weights[p], partition_order(p)))[:top]

    def _picked(self, heaviest: list[str], source: str, to: str) -> list[str]:
        """The partitions of `heaviest` whose loads add up to at most half the difference between `source` and `to` and
        do not lift `to` above the mean. If no partition fits, a single one that reduces the difference."""
        weights, gap = self._partitions, self._loads[source] - self._loads[to]
        rest = min(gap / 2, self._mean - self._loads[to])
        most = min(len(self._owned[source]) - 1, self._room(to))
        picked: list[str] = []
        for partition in heaviest:
            if len(picked) < most and weights[partition] <= rest + ROUNDING:
                picked.append(partition)
                rest -= weights[partition]
        if not picked and most > 0:
            picked = [p for p in heaviest if weights[p] < gap - ROUNDING][-1:]
        return picked

    def _simulate(self, partition: str, source: str, to: str) -> None:
        self._loads[source] -= self._partitions[partition]
        self._loads[to] += self._partitions[partition]
        self._owned[source] = tuple(p for p in self._owned[source] if p != partition)
        self._owned[to] = (*self._owned[to], partition)


STRATEGY = Declaration(
    transfer,
    origin="Apache Pulsar's `TransferShedder`",
    rule="when load has been uneven for several cycles, the leader moves partitions from the most to the least loaded "
    "members, by handover",
    parameters=TransferParameters,
    tolerates_uneven_loads=True,
)
