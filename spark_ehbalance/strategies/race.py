"""The lease race: who holds least is quickest to grab, as everybody waits for a time that grows with what it holds.

Source: the lease race with delays. A lease is contested once per normal lease time: its owner waits (own - 1/2) delays,
anybody else (own + 1/2), and whoever is first sets the grab, if nobody else has. Here:

- The grab of a challenger is a handover asked for, of which only one can be pending; its deadline is the maximum
  shutdown time, after which the challenger starts anyway. The grab of an owner that has stood its ground is `Defend`.
  What is free or expired is raced for in the same way and claimed.
- Loads are in the table, so whoever would not win does not set out: equal loads leave a lease where it is, and a node
  that is slow to look loses nothing by that. An owner does not defend what somebody else alive should win.
- The wait of whoever has least is taken off everybody's: the order is the same, but who owns hundreds of leases does
  not wait minutes.
- A member counts what it has grabbed already, and grabs from others only until it has its fair share, so that several
  grabs in one decision do not overshoot.
- A grab is over, and its lease can be challenged again, when an observer has watched it for the minimum grab time. One
  that has not watched, because it has just come, waits as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_ehbalance.leases.transitions import Transition
from spark_ehbalance.strategies.base import Decision, View
from spark_ehbalance.strategies.parameters import Parameters, parameter
from spark_ehbalance.strategies.plan import held
from spark_ehbalance.strategies.shares import level
from spark_ehbalance.strategies.weights import BAND, shared_weights
from spark_ehbalance.values.parsing import one_of, parse_duration

#: Loads are sums, which are not exact: less than this is no difference.
_ROUNDING = 1e-9

#: Contests that a lease outlives without a sign of its owner: with one, a single late owner would count as dead.
_CONTESTS = 2

#: Seconds until the next decision at the least, so that a race is no busy loop.
_SHORTEST_WAIT = 0.05


@dataclass(frozen=True)
class RaceParameters(Parameters):
    """Those of `race`. Times are in seconds; None: follows from the lease duration."""

    strategy = "race"

    #: A lease is contested once in this time. Half the lease duration, as a death is to be noticed after one; the
    #: source has 60 s, with a maximum lease much longer than that.
    normal_lease: float | None = parameter(None, parse_duration)
    #: A lease whose owner has shown no sign of life for so long is free. One lease duration, and never less.
    maximum_lease: float | None = parameter(None, parse_duration)
    #: How long a loser may take to finish what it is at. None: `handoverTimeout`, as for any handover.
    maximum_shutdown: float | None = parameter(None, parse_duration)
    #: For so long a grab keeps others from the next one. A quarter of the normal lease: a member that has just come has
    #: to wait for it, and is to have its share within one normal lease.
    minimum_grab: float | None = parameter(None, parse_duration)
    #: The wait for each lease held. The source has 0.1 to 1 s; a commit to a storage account takes up to 0.2 s, and a
    #: difference of one lease should show.
    delay_per_lease: float = parameter(0.2, parse_duration)
    #: What is held: a number of leases, or their load where that is skewed.
    weight: str = parameter("count", one_of("count", "load"))

    def contested_every(self, lease_duration: float) -> float:
        """The normal lease time."""
        return lease_duration / 2 if self.normal_lease is None else self.normal_lease

    def grabbed_for(self, lease_duration: float) -> float:
        """The minimum grab time."""
        return self.contested_every(lease_duration) / 4 if self.minimum_grab is None else self.minimum_grab

    def free_after(self, lease_duration: float) -> float:
        """The maximum lease time."""
        return lease_duration if self.maximum_lease is None else self.maximum_lease

    def problem(self, lease_duration: float) -> str | None:
        normal, grab = self.contested_every(lease_duration), self.grabbed_for(lease_duration)
        maximum = self.free_after(lease_duration)
        if grab >= normal:
            return f"race.minimumGrab ({grab:g} s) must be shorter than race.normalLease ({normal:g} s)"
        if maximum < lease_duration:
            return f"race.maximumLease ({maximum:g} s) must not be shorter than leaseDuration ({lease_duration:g} s)"
        if maximum < _CONTESTS * normal:
            return (
                f"race.maximumLease ({maximum:g} s) must be at least twice race.normalLease ({normal:g} s): a lease "
                "is to be contested twice before its owner is taken for dead"
            )
        return None


def race(view: View, parameters: RaceParameters) -> Decision:
    """Grab what is free, challenge who has more, defend what is one's own."""
    standing = view.shared("race", lambda: _standing(view, parameters.weight), parameters.weight)
    contest = _Contest(view, parameters, standing)
    contest.race_for_the_free()
    contest.challenge()
    contest.defend()
    return contest.decision()


@dataclass(frozen=True, slots=True)
class _Standing:
    """What everybody can see: each active member's load and number of leases, pending handovers counting as done."""

    weights: Mapping[str, float]
    loads: Mapping[str, float]
    counts: Mapping[str, int]
    #: Members from the one with most to the one with least.
    ranking: tuple[str, ...]
    #: What everybody would have if all were shared out as far as members' limits and pins allow.
    fair: float
    #: In a skewed group nothing is challenged that is not over the fair share by this part; the weights wobble.
    band: float
    lightest: float


def _standing(view: View, weight: str) -> _Standing:
    snapshot, has = view.snapshot, held(view)
    weighs, skewed = shared_weights(snapshot) if weight == "load" else (dict.fromkeys(snapshot.leases, 1.0), False)
    loads = {id: sum(weighs[p] for p in partitions) for id, partitions in has.items()}
    counts = {id: len(partitions) for id, partitions in has.items()}
    ranking = tuple(sorted(loads, key=lambda id: (-loads[id], id)))
    pinned = {id: sum(weighs[p] for p in partitions if p in view.pinned) for id, partitions in has.items()}
    # What is pinned and nobody's is nobody's to race for.
    total = sum(weighs.values()) - sum(weighs[p] for p in view.pinned.difference(*has.values()))
    fair = _fair(total, [(pinned[id], snapshot.members[id].max_owned) for id in has])
    band, lightest = BAND if skewed else 0.0, min(weighs.values(), default=0.0)
    return _Standing(weighs, loads, counts, ranking, fair, band, lightest)


def _fair(total: float, bounds: list[tuple[float, int | None]]) -> float:
    """The level up to which everybody is to be filled, each between what is pinned to it and its limit, to take
    `total`."""
    able = [(float("inf") if limit is None else limit, pinned) for pinned, limit in bounds]
    fair = level(total, (limit for limit, _ in able))
    while over := [each for each in able if each[1] > fair]:
        able = [each for each in able if each[1] <= fair]
        total -= sum(pinned for _, pinned in over)
        fair = level(total, (limit for limit, _ in able))
    return fair


@dataclass(frozen=True, slots=True)
class _Memory:
    """What one member remembers of its races, by its own clock."""

    #: Since when a lease is seen to be free.
    free: Mapping[str, float] = field(default_factory=dict)
    #: Since when there is something to win from others.
    challenging: float | None = None
    #: (epoch, contest) of leases that are worth a challenge, and since when they are seen with it.
    watched: Mapping[str, tuple[int, int, float]] = field(default_factory=dict)
    #: When a lease was challenged last.
    challenged: Mapping[str, float] = field(default_factory=dict)
    #: The epoch of leases of one's own, and when they were last contested.
    contested: Mapping[str, tuple[int, float]] = field(default_factory=dict)


class _Contest:
    """One decision: what the member grabs in it counts at once."""

    def __init__(self, view: View, parameters: RaceParameters, standing: _Standing) -> None:
        self._view = view
        self._memory = view.memory if isinstance(view.memory, _Memory) else _Memory()
        self._standing = standing
        self._normal = parameters.contested_every(view.lease_duration)
        self._grab = parameters.grabbed_for(view.lease_duration)
        self._maximum = parameters.free_after(view.lease_duration)
        self._delay = parameters.delay_per_lease
        shutdown = parameters.maximum_shutdown
        self._shutdown_ms = view.handover_timeout_ms if shutdown is None else round(shutdown * 1000)
        me = view.me.id
        self._own, self._count = standing.loads.get(me, 0.0), standing.counts.get(me, 0)
        # The load of the one with least among the others: from there this member's waits are measured.
        self._least = next((standing.loads[id] for id in reversed(standing.ranking) if id != me), 0.0)
        self._transitions: list[Transition] = []
        self._due: list[float] = []
        self._free: dict[str, float] = {}
        self._challenging: float | None = None
        self._watched: dict[str, tuple[int, int, float]] = {}
        self._challenged = {p: at for p, at in self._memory.challenged.items() if view.now - at < self._normal}
        self._contested: dict[str, tuple[int, float]] = {}
        self._said: list[str] = []

    def race_for_the_free(self) -> None:
        """Claim free leases whose wait is over; beyond the fair share one at a time, as it may be somebody else's."""
        view, claims = self._view, 0
        free = self._raced_for()
        if not free:
            return
        self._free = {partition: self._memory.free.get(partition, view.now) for partition in free}
        order = sorted(free, key=self._free.__getitem__) if len(set(self._free.values())) > 1 else free
        for partition in order:
            weight = self._standing.weights[partition]
            due = self._free[partition] + self._wait(weight)
            if not self._has_room() or (claims and self._own >= self._standing.fair):
                break
            if due > view.now:
                self._due.append(due)
                break
            self._transitions.append(view.claim(partition))
            self._grabbed(weight)
            claims += 1
        self._said.append(f"claim {claims} of {len(free)} that are free")

    def challenge(self) -> None:
        """Ask those for leases who hold so much more that this member wins the race for them."""
        view, standing = self._view, self._standing
        if not self._has_room() or self._own >= standing.fair - _ROUNDING:
            return
        loads, richer = dict(standing.loads), self._richer()
        # Shuffled, so that of several challengers not all take from the same one of those who have most.
        prizes = {owner: self._prizes(owner, loads[owner]) for owner in view.rng.sample(richer, len(richer))}
        if not any(prizes.values()):
            return
        began = self._challenging = view.now if self._memory.challenging is None else self._memory.challenging
        challenges = 0
        while self._has_room() and self._own < standing.fair - _ROUNDING and prizes:
            owner = max(prizes, key=loads.__getitem__)
            fits = [p for p in prizes[owner] if self._wins(standing.weights[p], loads[owner])]
            open_now = [p for p in fits if self._open_at(p) <= view.now]
            if not open_now:
                self._due += [self._open_at(p) for p in fits]
                del prizes[owner]
                continue
            partition = view.rng.choice(open_now)
            weight = standing.weights[partition]
            due = began + self._wait(weight)
            if due > view.now:
                self._due.append(due)
                break
            self._transitions.append(view.request(partition, timeout_ms=self._shutdown_ms))
            self._challenged[partition] = view.now
            self._grabbed(weight)
            prizes[owner].remove(partition)
            loads[owner] -= weight
            challenges += 1
        self._said.append(f"challenge {challenges}, because it has {standing.loads[view.me.id]:g} of {standing.fair:g}")

    def defend(self) -> None:
        """Say once in a normal lease time that a lease stays here, where nobody else should win it."""
        view, standing, defended = self._view, self._standing, 0
        if len(standing.ranking) < 2:
            return
        ownership, me = view.snapshot.ownership, view.me.id
        load = standing.loads.get(me, 0.0)
        for partition in ownership.owned.get(me, ()):
            if partition in view.pinned or partition in ownership.pending:
                continue
            epoch, weight = view.snapshot.leases[partition].epoch, standing.weights[partition]
            known = self._memory.contested.get(partition)
            since = known[1] if known and known[0] == epoch else view.now
            due = since + self._normal + self._delay * max(0.0, load - min(self._least, load) - weight / 2)
            if due <= view.now and self._least + weight >= load - _ROUNDING:
                self._transitions.append(view.defend(partition))
                since = view.now
                defended += 1
            self._contested[partition] = (epoch, since)
        if defended:
            self._said.append(f"defend {defended}")

    def decision(self) -> Decision:
        """What has come of it."""
        view, standing = self._view, self._standing
        has = f"{standing.counts.get(view.me.id, 0)} of {len(standing.weights)} are this owner's"
        reason = f"{', '.join(self._said)}; {has}" if self._said else f"nothing, because {has} and there is none to win"
        after = max(_SHORTEST_WAIT, min(self._due) - view.now) if self._due else None
        memory = _Memory(self._free, self._challenging, self._watched, self._challenged, self._contested)
        return Decision(reason, tuple(self._transitions), rebalance_after=after, memory=memory)

    # --- inside ------------------------------------------------------------------------------------------------

    def _raced_for(self) -> list[str]:
        view = self._view
        free = [p for p in view.snapshot.ownership.owned.get(None, ()) if p not in view.pinned]
        longer, since = self._maximum > view.lease_duration, view.observations.leases
        expired = sorted(view.expired - view.pinned)  # for the same order wherever the same seed is
        free += [p for p in expired if not longer or view.now - since[p].since >= self._maximum]
        view.rng.shuffle(free)
        return free

    def _wait(self, weight: float) -> float:
        """How long this member waits for one more lease of that weight, in seconds."""
        return (self._own - min(self._least, self._own) + weight / 2) * self._delay

    def _wins(self, weight: float, load: float) -> bool:
        """Whether this member waits less than an owner with that load for a lease of that weight."""
        return self._own + (1 + self._standing.band) * weight < load - _ROUNDING

    def _has_room(self) -> bool:
        return self._view.max_owned is None or self._count < self._view.max_owned

    def _grabbed(self, weight: float) -> None:
        self._own += weight
        self._count += 1

    def _richer(self) -> list[str]:
        """The members that have more than their fair share, and from whom this one wins something, most first."""
        standing, richer = self._standing, []
        for id in standing.ranking:
            load = standing.loads[id]
            if load <= (1 + standing.band) * standing.fair or not self._wins(standing.lightest, load):
                break
            richer.append(id)
        return richer

    def _prizes(self, owner: str, load: float) -> list[str]:
        """What this member would win from `owner`; from now on its grabs are watched."""
        view, prizes = self._view, []
        for partition in view.snapshot.ownership.owned.get(owner, ()):
            promised = partition in view.snapshot.ownership.pending
            if promised or partition in view.pinned or partition in view.expired:
                continue
            if self._wins(self._standing.weights[partition], load):
                lease, known = view.snapshot.leases[partition], self._memory.watched.get(partition)
                same = known is not None and known[:2] == (lease.epoch, lease.defences)
                since = known[2] if same and known is not None else view.now
                self._watched[partition] = (lease.epoch, lease.defences, since)
                prizes.append(partition)
        return prizes

    def _open_at(self, partition: str) -> float:
        """When this member may challenge the partition."""
        grab_over = self._watched[partition][2] + self._grab
        again = self._challenged.get(partition, float("-inf")) + self._normal
        return max(grab_over, again)
