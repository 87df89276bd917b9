"""The lease race: the more leases a member owns, the longer it waits, so the member with the fewest leases wins.

The original rule is the lease race with delays. A lease is contested once per normal lease time. Let `own` be this
member's number of leases, `least` the smallest number of the other members, and w the weight of the lease (1, or its
load):

    wait = (max(0, own - least) + w/2) × delayPerLease       to take a lease
    wait = max(0, own - least - w/2) × delayPerLease         to defend an owned lease

The first member to write wins, and nobody else may challenge that lease for the minimum grab time. The original does
not subtract `least`; subtracting it keeps the order, but spares a member with hundreds of leases a wait of minutes.
Other differences:

- A challenger that wins requests a handover; a lease has at most one pending handover. The request's timeout is the
  original's maximum shutdown time, after which the challenger starts reading anyway. An owner that wins writes
  `Defend`. Unowned and expired leases are contested in the same way, but the winner claims them.
- The table contains all loads, so a member issues a challenge only if it would win: own + (1 + tolerance) × w <
  load(owner). If loads are equal, a lease stays with its owner, even if the owner is slow to read. An owner defends a
  lease only if no live member should win it: least + w ≥ own.
- A member takes leases from others until it has its fair share. Each lease that it wins counts at once, so that several
  wins in one decision do not exceed the share.
- A member may challenge a lease after observing it for the minimum grab time without a win. So a member that has just
  joined waits for that time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ehbalance.group.changes import Transition
from spark_ehbalance.group.strategies.base import Decision, View
from spark_ehbalance.group.strategies.declaration import Declaration, Parameters
from spark_ehbalance.group.strategies.plan import projected
from spark_ehbalance.group.strategies.shares import fair_share
from spark_ehbalance.group.strategies.weights import ROUNDING, TOLERANCE, weights
from spark_ehbalance.settings.option_specs import option_field
from spark_ehbalance.settings.parsing import one_of, parse_duration

#: The normal lease time as a fraction of the lease duration, because a death should be detected within one lease
#: duration; and the minimum grab time as a fraction of the normal lease time, because a member that has just joined
#: waits for it and should have its share within one normal lease time. The original normal lease time is 60 s, with a
#: much longer maximum lease.
_NORMAL_LEASE, _MINIMUM_GRAB = 1 / 2, 1 / 4

#: Minimum time until the next decision in seconds, so that a race is not a busy loop.
_SHORTEST_WAIT = 0.05


@dataclass(frozen=True)
class RaceParameters(Parameters):
    """All times in seconds."""

    #: The original uses 0.1 to 1 s. A commit to a storage account takes up to 0.2 s, and each additional lease should
    #: delay a member by at least the duration of one commit.
    delay_per_lease: float = option_field(
        0.2, parse_duration, "wait before taking a partition, per owned partition; must be longer than a commit takes"
    )
    weight: str = option_field(
        "count",
        one_of("count", "load"),
        "what to balance: `count`, the number of owned partitions, or `load`, their load (used only if it is skewed)",
    )


def race(view: View, parameters: RaceParameters) -> Decision:
    """Claim unowned leases, challenge members that have more leases, and defend this member's own leases."""
    contest = _Contest(view, parameters, _group_load(view, parameters.weight))
    contest.claim()
    contest.challenge()
    contest.defend()
    return contest.decision()


@dataclass(frozen=True, slots=True)
class _GroupLoad:
    """Each active member's load and number of leases; pending handovers count as done."""

    weights: Mapping[str, float]
    loads: Mapping[str, float]
    counts: Mapping[str, int]
    #: Members, the most loaded first.
    ranking: tuple[str, ...]
    #: The load of every member if all leases were shared as evenly as limits and pins allow.
    fair_share: float
    #: In a skewed group, only members that exceed the fair share by more than this fraction are challenged, because
    #: weights fluctuate.
    tolerance: float
    smallest_weight: float


def _group_load(view: View, weight: str) -> _GroupLoad:
    snapshot, owned = view.snapshot, projected(view)
    by_load = weights(snapshot) if weight == "load" else None
    weight_of = dict.fromkeys(snapshot.leases, 1.0) if by_load is None else by_load
    counts = {id: len(partitions) for id, partitions in owned.items()}
    loads: dict[str, float] = {**counts}
    if by_load is not None:
        loads = {id: sum(map(weight_of.__getitem__, partitions)) for id, partitions in owned.items()}
    ranking = tuple(sorted(loads, key=lambda id: (-loads[id], id)))
    pinned, total = dict.fromkeys(owned, 0.0), sum(weight_of.values())
    if view.pinned:
        pinned = {id: sum(weight_of[p] for p in partitions if p in view.pinned) for id, partitions in owned.items()}
        # Unowned pinned partitions are not contested.
        total -= sum(weight_of[p] for p in view.pinned.difference(*owned.values()))
    share = _fair_share(total, [(pinned[id], snapshot.members[id].max_owned) for id in owned])
    tolerance, smallest = 0.0 if by_load is None else TOLERANCE, min(weight_of.values(), default=0.0)
    return _GroupLoad(weight_of, loads, counts, ranking, share, tolerance, smallest)


def _fair_share(total: float, bounds: list[tuple[float, int | None]]) -> float:
    """The load x with sum(max(pinned, min(limit, x))) = `total`, over each member's (pinned, limit)."""
    able = [(float("inf") if limit is None else limit, pinned) for pinned, limit in bounds]
    share = fair_share(total, (limit for limit, _ in able))
    while over := [bound for bound in able if bound[1] > share]:
        able = [bound for bound in able if bound[1] <= share]
        total -= sum(pinned for _, pinned in over)
        share = fair_share(total, (limit for limit, _ in able))
    return share


@dataclass(frozen=True, slots=True)
class _Memory:
    """One member's memory of its races. Times are by its own clock."""

    #: Free lease → when it was first observed.
    free: Mapping[str, float] = field(default_factory=dict)
    #: When this member could first win a lease from another member.
    challenging: float | None = None
    #: Lease worth a challenge → its epoch, its number of defences, and when these values were first observed.
    watched: Mapping[str, tuple[int, int, float]] = field(default_factory=dict)
    #: Lease → when it was last challenged.
    challenged: Mapping[str, float] = field(default_factory=dict)
    #: Own lease → its epoch, and when it was last contested.
    contested: Mapping[str, tuple[int, float]] = field(default_factory=dict)


class _Contest:
    """One decision. Each lease that the member wins counts at once."""

    def __init__(self, view: View, parameters: RaceParameters, group: _GroupLoad) -> None:
        self._view = view
        self._memory = view.memory if isinstance(view.memory, _Memory) else _Memory()
        self._group = group
        self._normal = _NORMAL_LEASE * view.lease_duration
        self._grab = _MINIMUM_GRAB * self._normal
        self._delay = parameters.delay_per_lease
        me = view.me.id
        self._load, self._count = group.loads.get(me, 0.0), group.counts.get(me, 0)
        # The smallest load of the other members, which this member subtracts from its waits.
        self._least = next((group.loads[id] for id in reversed(group.ranking) if id != me), 0.0)
        self._transitions: list[Transition] = []
        self._due: list[float] = []
        self._free: dict[str, float] = {}
        self._challenging: float | None = None
        self._watched: dict[str, tuple[int, int, float]] = {}
        self._challenged = {p: at for p, at in self._memory.challenged.items() if view.now - at < self._normal}
        self._contested: dict[str, tuple[int, float]] = {}
        self._actions: list[str] = []

    def claim(self) -> None:
        """Claim unowned leases whose wait is over; beyond the fair share, only one at a time, because other members may
        claim them."""
        view, claims = self._view, 0
        free = self._claimable()
        if not free:
            return
        self._free = {partition: self._memory.free.get(partition, view.now) for partition in free}
        order = sorted(free, key=self._free.__getitem__) if len(set(self._free.values())) > 1 else free
        for partition in order:
            weight = self._group.weights[partition]
            due = self._free[partition] + self._wait(weight)
            if not self._has_room() or (claims and self._load >= self._group.fair_share):
                break
            if due > view.now:
                self._due.append(due)
                break
            self._transitions.append(view.claim(partition))
            self._grabbed(weight)
            claims += 1
        self._actions.append(f"claim {claims} of {len(free)} free partitions")

    def challenge(self) -> None:
        """Request leases from members whose load is so much higher that this member would win the race."""
        view, group = self._view, self._group
        if not self._has_room() or self._load >= group.fair_share - ROUNDING:
            return
        loads, richer = dict(group.loads), self._richer()
        # Shuffled, so that several challengers do not all choose the same of several equally loaded members.
        prizes = {owner: self._prizes(owner, loads[owner]) for owner in view.rng.sample(richer, len(richer))}
        if not any(prizes.values()):
            return
        began = self._challenging = view.now if self._memory.challenging is None else self._memory.challenging
        challenges = 0
        while self._has_room() and self._load < group.fair_share - ROUNDING and prizes:
            owner = max(prizes, key=loads.__getitem__)
            fits = [p for p in prizes[owner] if self._wins(group.weights[p], loads[owner])]
            open_now = [p for p in fits if self._open_at(p) <= view.now]
            if not open_now:
                self._due += [self._open_at(p) for p in fits]
                del prizes[owner]
                continue
            partition = view.rng.choice(open_now)
            weight = group.weights[partition]
            due = began + self._wait(weight)
            if due > view.now:
                self._due.append(due)
                break
            self._transitions.append(view.request(partition, timeout_ms=view.handover_timeout_ms))
            self._challenged[partition] = view.now
            self._grabbed(weight)
            prizes[owner].remove(partition)
            loads[owner] -= weight
            challenges += 1
        what = f"this member has a load of {group.loads[view.me.id]:g} and its fair share is {group.fair_share:g}"
        self._actions.append(f"challenge {challenges} leases, because {what}")

    def defend(self) -> None:
        """Defend each lease that no other member should win, once per normal lease time."""
        view, group, defended = self._view, self._group, 0
        if len(group.ranking) < 2:
            return
        ownership, me = view.snapshot.ownership, view.me.id
        load = group.loads.get(me, 0.0)
        for partition in ownership.owned.get(me, ()):
            if partition in view.pinned or partition in ownership.pending:
                continue
            epoch, weight = view.snapshot.leases[partition].epoch, group.weights[partition]
            known = self._memory.contested.get(partition)
            since = known[1] if known and known[0] == epoch else view.now
            due = since + self._normal + self._delay * max(0.0, load - min(self._least, load) - weight / 2)
            if due <= view.now and self._least + weight >= load - ROUNDING:
                self._transitions.append(view.defend(partition))
                since = view.now
                defended += 1
            self._contested[partition] = (epoch, since)
        if defended:
            self._actions.append(f"defend {defended} leases")

    def decision(self) -> Decision:
        """The decision of this contest."""
        view, group = self._view, self._group
        has = f"this member owns {group.counts.get(view.me.id, 0)} of {len(group.weights)} partitions"
        actions = ", ".join(self._actions)
        reason = f"{actions}; {has}" if actions else f"nothing, because {has} and no lease can be won"
        after = max(_SHORTEST_WAIT, min(self._due) - view.now) if self._due else None
        memory = _Memory(self._free, self._challenging, self._watched, self._challenged, self._contested)
        return Decision(reason, tuple(self._transitions), rebalance_after=after, memory=memory)

    # --- inside ------------------------------------------------------------------------------------------------

    def _claimable(self) -> list[str]:
        view = self._view
        free = [p for p in view.snapshot.ownership.owned.get(None, ()) if p not in view.pinned]
        free += sorted(view.expired - view.pinned)  # sorted, because a set's order differs between processes
        view.rng.shuffle(free)
        return free

    def _wait(self, weight: float) -> float:
        """Seconds that this member waits before it takes one more lease of that weight."""
        return (self._load - min(self._least, self._load) + weight / 2) * self._delay

    def _wins(self, weight: float, load: float) -> bool:
        """Whether this member wins a lease of that weight from an owner with that load."""
        return self._load + (1 + self._group.tolerance) * weight < load - ROUNDING

    def _has_room(self) -> bool:
        return self._view.max_owned is None or self._count < self._view.max_owned

    def _grabbed(self, weight: float) -> None:
        self._load += weight
        self._count += 1

    def _richer(self) -> list[str]:
        """The members over the fair share from which this member would win a lease, the most loaded first."""
        group, richer = self._group, []
        for id in group.ranking:
            load = group.loads[id]
            if load <= (1 + group.tolerance) * group.fair_share or not self._wins(group.smallest_weight, load):
                break
            richer.append(id)
        return richer

    def _prizes(self, owner: str, load: float) -> list[str]:
        """The leases that this member would win from `owner`; records when they were first observed."""
        view, weights, prizes = self._view, self._group.weights, list[str]()
        pending, leases, watched = view.snapshot.ownership.pending, view.snapshot.leases, self._memory.watched
        for partition in view.snapshot.ownership.owned.get(owner, ()):
            if partition in pending or partition in view.pinned or partition in view.expired:
                continue
            if self._wins(weights[partition], load):
                lease, known = leases[partition], watched.get(partition)
                if known is None or known[0] != lease.epoch or known[1] != lease.defences:
                    known = (lease.epoch, lease.defences, view.now)
                self._watched[partition] = known
                prizes.append(partition)
        return prizes

    def _open_at(self, partition: str) -> float:
        """When this member may challenge the partition."""
        grab_over = self._watched[partition][2] + self._grab
        again = self._challenged.get(partition, float("-inf")) + self._normal
        return max(grab_over, again)


STRATEGY = Declaration(
    race,
    origin="a race for leases, with a delay per owned lease",
    rule="the member with the fewest partitions is the first to request one; its owner hands it over, and the new "
    "owner keeps it for a minimum time",
    parameters=RaceParameters,
    reactive=True,
)
