"""The brokers' transfer shedder: one leader moves load from those who have most to those who have least.

Source: Pulsar's extensible load manager with its `TransferShedder`. Only the leader, the oldest active member that is
alive, decides moves, and names their destination. What is free is taken without it: everybody computes who should have
it, in the same way, and takes its own part.

How loaded a member is: the busy part of its host's cores, if every member tells it; else the events per second of its
partitions (a backlog spread over a minute included) as a multiple of the members' mean, as there is no telling what
would be full. A partition has its part of its member's load by events per second. Where no loads are known, or they
are but noise, partitions are counted, and a difference of two is unbalanced.

A standard deviation does not show one among many: in a large group a single member that is overloaded, or that has next
to nothing, is unbalanced as well. What is too much can only be said of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from statistics import pstdev

from spark_ehbalance.leases.transitions import Transition
from spark_ehbalance.strategies.base import Decision, View
from spark_ehbalance.strategies.parameters import Parameters, parameter
from spark_ehbalance.strategies.plan import held, initial_plan
from spark_ehbalance.strategies.weights import demands
from spark_ehbalance.values.parsing import flag, number, parse_duration, whole
from spark_ehbalance.values.position import partition_order

#: Loads are sums, which are not exact: less than this is no difference.
_ROUNDING = 1e-9

#: Lease durations between two of the leader's cycles after which it has been away: nobody's balancing interval is as
#: long, with its jitter.
_AWAY = 2

#: The busy part of its cores above which a member may be overloaded: the source's threshold of 85 %.
_FULL = 0.85


@dataclass(frozen=True)
class TransferParameters(Parameters):
    """Those of `transfer`, with the defaults of the source. Times are in seconds."""

    strategy = "transfer"

    #: The standard deviation of the members' loads beyond which load is moved.
    target: float = parameter(0.25, number(0, 10))
    #: Cycles in a row that are unbalanced before it is, so that a burst moves nothing.
    hit_count: int = parameter(3, whole(0))
    #: Partitions of a member, by load, that come into question.
    top_partitions: int = parameter(10, whole(1))
    #: Members from which load is moved in one cycle.
    maximum_sources: int = parameter(3, whole(1))
    #: Wait after a cycle with moves: until then the loads show what they have come to.
    cool_down: float = parameter(180.0, parse_duration)
    #: Loads that were told longer ago count as missing: such a member is neither source nor destination.
    load_time_to_live: float = parameter(1800.0, parse_duration)
    #: A move that takes longer is the destination's to force and, after twice that, the leader's to call off.
    stuck_after: float = parameter(30.0, parse_duration)
    #: Load is not moved: the leader's decisions only tell what they would move.
    dry_run: bool = parameter(False, flag)


@dataclass(frozen=True, slots=True)
class _Memory:
    """The leader's, by its own clock."""

    looked: float
    #: Whoever has not been heard of since then has not reported yet.
    since: float
    hits: int = 0
    cool_until: float = float("-inf")
    #: What it has moved within the minimum tenure.
    moved: frozenset[str] = frozenset()


def transfer(view: View, parameters: TransferParameters) -> Decision:
    """Take one's part of what is free and, as the leader, move load from the most to the least loaded members."""
    claims = _claims(view)
    if view.active[:1] != (view.me.id,):
        what = f"claim {len(claims)}" if claims else "nothing"
        return Decision(f"{what}, because all else is for the leader, {''.join(view.active[:1])}", tuple(claims))
    decision = _lead(view, parameters)
    stuck = _too_late(view, parameters)
    reason = decision.reason
    if stuck:
        reason += f"; call {len(stuck)} stuck moves off"
    if claims:
        reason += f"; claim {len(claims)} that are free"
    return replace(decision, reason=reason, transitions=(*claims, *stuck, *decision.transitions))


def _claims(view: View) -> list[Transition]:
    return [view.claim(partition) for partition, owner in _taken(view).items() if owner == view.me.id]


def _taken(view: View) -> Mapping[str, str]:
    """Who takes what of that which is free; without an entry where nobody has room."""
    free = view.expired.union(view.snapshot.ownership.owned.get(None, ())) - view.pinned
    owners = view.shared("placed", lambda: _placed(view)) if free else {}
    return {partition: owners[partition] for partition in sorted(free) if partition in owners}


def _placed(view: View) -> Mapping[str, str]:
    """Who is to have what: everybody what it has, and the rest whoever has least by then."""
    known = demands(view.snapshot)
    mean = sum(known.values()) / len(known) if known else 1.0
    plan, unassigned = initial_plan(view, {partition: known.get(partition, mean) for partition in view.snapshot.leases})
    plan.settle(unassigned)
    return plan.target


def _too_late(view: View, parameters: TransferParameters) -> list[Transition]:
    """Call off what has been under way for so long that its destination does not take it by force either."""
    pending = view.snapshot.ownership.pending.keys() - view.pinned
    handovers = view.observations.handovers
    limit = view.now - 2 * parameters.stuck_after
    return [view.cancel(p) for p in sorted(pending) if handovers[p].since <= limit]


def _lead(view: View, parameters: TransferParameters) -> Decision:
    """What the leader moves, and what it remembers."""
    memory = view.memory
    if not isinstance(memory, _Memory) or view.now - memory.looked > _AWAY * view.lease_duration:
        memory = _Memory(view.now, view.now)  # a new leader, or one after an outage of the table
    recent = memory.moved & (view.snapshot.leases.keys() - view.tenured | view.snapshot.ownership.pending.keys())
    memory = replace(memory, looked=view.now, moved=recent)
    observations = view.observations.members
    silent = [id for id in view.active if id != view.me.id and observations[id].since <= memory.since]
    if silent:
        reason = f"nothing, because {len(silent)} members have not reported since this one began to lead"
        return Decision(reason, memory=replace(memory, hits=0))
    if view.now < memory.cool_until:
        return Decision(f"nothing, because of a cool-down of {parameters.cool_down:g} s", memory=memory)
    if _taken(view):
        return Decision("nothing, because free partitions are being taken", memory=replace(memory, hits=0))
    loads = view.shared("loads", lambda: _loads(view))
    fresh = [
        id
        for id in view.active
        if id in loads.members
        and (id == view.me.id or view.now - observations[id].since <= parameters.load_time_to_live)
    ]
    balance = _Balance(view, parameters, loads, fresh, memory.moved)
    if not balance.unbalanced():
        return Decision(f"nothing, because {balance}", memory=replace(memory, hits=0))
    memory = replace(memory, hits=memory.hits + 1)
    if memory.hits <= parameters.hit_count:
        return Decision(f"nothing, because {balance}, but only {memory.hits} times in a row", memory=memory)
    before = str(balance)
    moves = balance.moves()
    if not moves:
        return Decision(f"nothing, because {before}, but nothing can be moved", memory=memory)
    memory = replace(memory, hits=0, cool_until=view.now + parameters.cool_down)
    if parameters.dry_run:
        return Decision(
            f"would move {len(moves)} but for transfer.dryRun, because {before}", would=moves, memory=memory
        )
    transitions = tuple(view.request(p, to=to, timeout_ms=round(parameters.stuck_after * 1000)) for p, to in moves)
    memory = replace(memory, moved=memory.moved.union(partition for partition, _ in moves))
    return Decision(f"move {len(moves)}, because {before}", transitions, memory=memory)


@dataclass(frozen=True, slots=True)
class _Loads:
    """What members and partitions weigh, in the same unit, a pending handover counting as done; without an entry where
    it is not known. `counted`: each partition weighs 1; `cores`: 1 is a full host. `demands` are the partitions' events
    per second."""

    members: Mapping[str, float]
    partitions: Mapping[str, float]
    owned: Mapping[str, tuple[str, ...]]
    demands: Mapping[str, float]
    counted: bool = False
    cores: bool = False


def _loads(view: View) -> _Loads:
    snapshot, has = view.snapshot, held(view)
    known = demands(snapshot)
    if not known:
        members = {id: float(len(partitions)) for id, partitions in has.items()}
        ones = dict.fromkeys(snapshot.leases, 1.0)
        return _Loads(members, ones, has, ones, counted=True)
    mean = sum(known.values()) / len(known)
    weights = {partition: known.get(partition, mean) for partition in snapshot.leases}
    told = {id: ps for id, ps in has.items() if not ps or any(p in known for p in ps)}
    sums = {id: sum(weights[p] for p in ps) for id, ps in told.items()}
    busy = {id: load.cpu for id in told if (load := snapshot.members[id].load) and load.cpu is not None}
    if len(busy) == len(told):
        return _by_cpu(view, has, weights, busy)
    unit = sum(sums.values()) / len(sums) if any(sums.values()) else 1.0
    return _Loads(
        {id: each / unit for id, each in sums.items()}, {p: w / unit for p, w in weights.items()}, has, weights
    )


def _by_cpu(
    view: View, has: Mapping[str, tuple[str, ...]], weights: Mapping[str, float], busy: Mapping[str, float]
) -> _Loads:
    """Loads by cores, where each partition has its part of what its present owner has measured."""
    ownership = view.snapshot.ownership
    parts: dict[str, float] = {}
    for id, cpu in busy.items():
        partitions = ownership.owned.get(id, ())
        total = sum(weights[p] for p in partitions)
        parts |= {p: cpu * weights[p] / total for p in partitions if total}
    members = dict(busy)
    for partition, handover in ownership.pending.items():
        owner, part = view.snapshot.leases[partition].owner, parts.get(partition, 0.0)
        if owner in members and handover.to in has:
            members[owner] -= part
            members[handover.to] = members.get(handover.to, 0.0) + part
    return _Loads(members, parts, has, weights, cores=True)


class _Balance:
    """The members' loads, on which moves are played through."""

    def __init__(
        self, view: View, parameters: TransferParameters, loads: _Loads, fresh: Iterable[str], moved: frozenset[str]
    ) -> None:
        self._view = view
        self._fixed = view.pinned | moved | view.snapshot.ownership.pending.keys()
        self._parameters = parameters
        self._partitions = loads.partitions
        self._demands = loads.demands
        self._counted = loads.counted
        self._cores = loads.cores
        self._loads = {id: loads.members[id] for id in fresh}
        self._owned = {id: loads.owned[id] for id in fresh}
        self._rates = {id: sum(loads.demands[p] for p in owned) for id, owned in self._owned.items()}
        self._mean = sum(self._loads.values()) / max(1, len(self._loads))  # moves leave it as it is

    def __str__(self) -> str:
        if self._counted:
            return f"partitions per member are from {self._bound(min):g} to {self._bound(max):g}"
        idle = sum(not owned for owned in self._owned.values())
        said = (
            f"the standard deviation of {len(self._loads)} members' loads is {self._deviation():.2f} with a target of "
            f"{self._parameters.target:g}, and {idle} are idle"
        )
        if self._loads and (to := self._least()) is not None and self._underloaded(to, self._most()):
            said += f", and the least loaded has but {self._loads[to]:.2f} and {self._rates[to]:.1f} events/s"
        if self._loads and self._overloaded(self._most()):
            said += f", and the most loaded has {self._loads[self._most()]:.2f}"
        return said

    def unbalanced(self) -> bool:
        """Whether there is reason to move something."""
        return len(self._loads) > 1 and (self._uneven() or self._outlying(self._most(), self._least()))

    def moves(self) -> tuple[tuple[str, str], ...]:
        """(partition, destination) from a few members to whoever has least, until the group is balanced."""
        moves: dict[str, str] = {}
        heaviest: dict[str, list[str]] = {}
        while (to := self._least()) is not None:
            # Who sheds already may do so again, for another destination.
            full, uneven = len(heaviest) >= self._parameters.maximum_sources, self._uneven()
            changed = {*heaviest, *moves.values()}
            for source in sorted(heaviest if full else self._loads, key=lambda id: (-self._loads[id], id)):
                if not (uneven or self._outlying(source, to, changed)):
                    continue
                known = heaviest.get(source) or self._heaviest(source)
                if picked := self._picked([p for p in known if p not in moves], source, to):
                    break
            else:
                break
            heaviest[source] = known
            for partition in picked:
                self._play(partition, source, to)
                moves[partition] = to
        return tuple(moves.items())

    # --- inside ------------------------------------------------------------------------------------------------

    def _uneven(self) -> bool:
        """Whether the group as a whole is unbalanced, whoever gives and takes."""
        if self._counted:
            return self._bound(max) - self._bound(min) > 1
        idle = any(not owned for owned in self._owned.values()) and any(len(each) > 1 for each in self._owned.values())
        return idle or self._deviation() > self._parameters.target

    def _outlying(self, source: str, to: str | None, changed: Set[str] = frozenset()) -> bool:
        """Whether a move from `source` to `to`, None if nobody has room, is due to one of them alone.

        Beside one that is overloaded all others read next to nothing, so that who is in `changed` is not helped again.
        """
        if self._counted or to is None:
            return False
        unchanged = source not in changed and to not in changed
        return self._overloaded(source) or (unchanged and self._underloaded(to, source))

    def _overloaded(self, id: str) -> bool:
        load = self._loads[id]
        return self._cores and load > _FULL and load > self._mean + self._parameters.target

    def _underloaded(self, id: str, source: str) -> bool:
        """Whether a member has next to nothing beside the mean, or reads next to nothing beside `source`."""
        part = min(1.0, self._parameters.target) / 2  # the source's
        return self._loads[id] < part * self._mean or self._rates[id] < part * self._rates[source]

    def _most(self) -> str:
        return max(self._loads, key=lambda id: self._loads[id])

    def _bound(self, which: Callable[..., float]) -> float:
        return which(self._loads.values(), default=0.0)

    def _deviation(self) -> float:
        return pstdev(self._loads.values()) if self._loads else 0.0

    def _room(self, id: str) -> float:
        limit = self._view.snapshot.members[id].max_owned
        return float("inf") if limit is None else limit - len(self._owned[id])

    def _least(self) -> str | None:
        able = [id for id in self._loads if self._room(id) > 0]
        return min(able, key=lambda id: (self._loads[id], bool(self._owned[id]), id), default=None)

    def _heaviest(self, source: str) -> list[str]:
        """What may be moved of the partitions of `source` whose loads are told, the heaviest first."""
        weights = self._partitions
        movable = [p for p in self._owned[source] if weights.get(p, 0) > 0 and p not in self._fixed]
        top = None if self._counted else self._parameters.top_partitions
        return sorted(movable, key=lambda p: (-weights[p], partition_order(p)))[:top]

    def _picked(self, heaviest: list[str], source: str, to: str) -> list[str]:
        """Of `heaviest` what makes half the difference of `source` and `to`, without lifting that over the mean; else
        a single one that makes it smaller."""
        weights, gap = self._partitions, self._loads[source] - self._loads[to]
        rest = min(gap / 2, self._mean - self._loads[to])
        most = min(len(self._owned[source]) - 1, self._room(to))
        picked: list[str] = []
        for partition in heaviest:
            if len(picked) < most and weights[partition] <= rest + _ROUNDING:
                picked.append(partition)
                rest -= weights[partition]
        if not picked and most > 0:
            picked = [p for p in heaviest if weights[p] < gap - _ROUNDING][-1:]
        return picked

    def _play(self, partition: str, source: str, to: str) -> None:
        self._loads[source] -= self._partitions[partition]
        self._loads[to] += self._partitions[partition]
        self._rates[source] -= self._demands[partition]
        self._rates[to] += self._demands[partition]
        self._owned[source] = tuple(p for p in self._owned[source] if p != partition)
        self._owned[to] = (*self._owned[to], partition)
