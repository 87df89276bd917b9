"""Runs a scenario with a strategy and measures the result."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from statistics import fmean
from types import MappingProxyType

from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.model import Lease, TableIdentity
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import REACTIVE, STRATEGIES
from spark_ehbalance.simulation.engine import Engine
from spark_ehbalance.simulation.hub import SimulatedHub
from spark_ehbalance.simulation.measures import Ledger, ScenarioResult
from spark_ehbalance.simulation.members import START_MS, Node, World
from spark_ehbalance.simulation.scenario import Scenario, ScenarioEvent
from spark_ehbalance.simulation.store import SimulatedStore


def simulate(scenario: Scenario, strategy: str, seed: int = 0) -> ScenarioResult:
    """Run `scenario` with the named strategy. The same seed gives the same result.

    Raises `LostEvents` or `TwoOwners` if the lease code has a bug.
    """
    return Simulation(scenario, strategy, seed).run()


#: Actions with a duration.
_WITH_DURATION = frozenset({"restart", "pause", "outage", "read-only", "burst", "slow", "slow-store"})


class Simulation:
    """One group in simulated time. It is deterministic: a member's random values depend only on the seed and the
    member's name, so all strategies run with the same members."""

    def __init__(self, scenario: Scenario, strategy: str, seed: int) -> None:
        self._scenario = scenario
        self._strategy = strategy
        self._seed = seed
        self._rng = random.Random(seed)  # for events
        self._engine = Engine()
        self.hub = hub = SimulatedHub.create(scenario.hub, scenario.partitions, random.Random(f"{seed} hub"))
        names = [f"member-{number}" for number in range(scenario.members)]
        self.store = store = SimulatedStore(
            scenario.store, _initial_snapshot(scenario, names), random.Random(f"{seed} store")
        )
        lease_duration = scenario.group.lease_duration
        self._ledger = Ledger(store.snapshot, lambda: self._engine.now, hub.rates, lease_duration)
        self._world = World(self._engine, store, hub, scenario.query, self._ledger.record_commit)
        self._nodes: dict[str, Node] = {}
        self._limits: dict[str, int | None] = {}
        self._joined = 0
        self._disturbances: list[tuple[str, float, float]] = []

    def run(self) -> ScenarioResult:
        """Run the whole scenario."""
        scenario, engine = self._scenario, self._engine
        self._start_initial_members()
        for event in scenario.events:
            if event.at < scenario.seconds:
                engine.at(event.at, partial(self._begin, event))
        for cycle in range(scenario.cycles):
            engine.run((cycle + 1) * scenario.group.balance_interval)
            self._ledger.sample()
        self._ledger.finish()
        return self._result()

    # --- events --------------------------------------------------------------------------------------------------

    def _start_initial_members(self) -> None:
        scenario = self._scenario
        for _ in range(scenario.members):
            node = self._new_node()
            # Members of a settled group started at random times; members of a new group start together.
            node.start(self._rng.uniform(0, scenario.group.balance_interval) if scenario.settled else 0.0)
        self._record_members()
        self._disturbances.append(("start", 0.0, 0.0))

    def _new_node(self) -> Node:
        name = f"member-{self._joined}"
        self._joined += 1
        self._limits[name] = self._scenario.group.max_owned
        return self._create_node(name)

    def _create_node(self, name: str) -> Node:
        group = self._scenario.group
        settings = Settings(
            STRATEGIES[self._strategy],
            group.lease_duration,
            group.handover_timeout,
            self._limits[name],
            host=name,
            strategy_name=self._strategy,
            balance_interval=group.balance_interval,
            reactive=self._strategy in REACTIVE,
        )
        before = self._nodes.get(name)
        number = 1 if before is None else before.number + 1
        node = Node(name, number, settings, self._world, random.Random(f"{self._seed} {name} {number}"))
        skew = random.Random(f"{self._seed} {name} clock").uniform(-1, 1) * group.clock_skew
        node.skew_ms = round(skew * 1000)
        self._nodes[name] = node
        return node

    def _begin(self, event: ScenarioEvent) -> None:
        """Schedule the actions of `event`."""
        now = self._engine.now
        action = getattr(self, "_" + event.do.replace("-", "_"))
        steps = event.count if event.every else 1
        duration = event.lasts if event.do in _WITH_DURATION else 0.0
        self._disturbances.append((event.do, now, now + (steps - 1) * event.every + duration))
        chosen = self._choose_targets(event)
        for step in range(steps):
            part = chosen[step : step + 1] if event.every else chosen
            self._engine.at(now + step * event.every, partial(self._run_action, event, action, part))

    def _choose_targets(self, event: ScenarioEvent) -> list[str]:
        """Choose random members or partitions for `event`."""
        if event.do == "burst":
            candidates = list(self.hub.ids)
        elif event.do in ("join", "add-partitions"):
            return [""] * event.count
        elif event.do in ("outage", "slow-store"):
            return [""]
        else:
            candidates = sorted(name for name, node in self._nodes.items() if node.running)
        return self._rng.sample(candidates, min(event.count, len(candidates)))

    def _run_action(
        self, event: ScenarioEvent, action: Callable[[ScenarioEvent, list[str]], None], chosen: list[str]
    ) -> None:
        action(event, chosen)
        self._record_members()

    def _record_members(self) -> None:
        """Report the running members to the ledger."""
        awake = {name: self._limits[name] for name, node in self._nodes.items() if node.is_awake}
        partitions = len(self.hub.ids)
        self._ledger.change(awake, partitions)
        # A pause that is shorter than a lease must not cause moves.
        lease = self._ledger.lease_duration
        present = {
            n: self._limits[n] for n, node in self._nodes.items() if node.running and node.remaining_pause <= lease
        }
        self._ledger.ideal.change(present, partitions)

    def _join(self, event: ScenarioEvent, chosen: list[str]) -> None:
        for _ in chosen:
            self._new_node().start()

    def _leave(self, event: ScenarioEvent, chosen: list[str]) -> None:
        for name in chosen:
            self._nodes[name].stop(self._record_members)

    def _crash(self, event: ScenarioEvent, chosen: list[str]) -> None:
        for name in chosen:
            self._nodes[name].crash()

    def _restart(self, event: ScenarioEvent, chosen: list[str]) -> None:
        for name in chosen:
            self._nodes[name].stop(self._record_members)
            self._engine.at(self._engine.now + event.lasts, partial(self._replace_process, name))

    def _replace_process(self, name: str) -> None:
        self._nodes[name].crash()  # in case it has not stopped yet
        self._create_node(name).start()
        self._record_members()

    def _pause(self, event: ScenarioEvent, chosen: list[str]) -> None:
        for name in chosen:
            self._nodes[name].pause(event.lasts)
        self._engine.at(self._engine.now + event.lasts, self._record_members)

    def _slow(self, event: ScenarioEvent, chosen: list[str]) -> None:
        for name in chosen:
            node = self._nodes[name]
            node.slowness = event.factor
            self._engine.at(self._engine.now + event.lasts, partial(setattr, node, "slowness", 1.0))

    def _skew_clock(self, event: ScenarioEvent, chosen: list[str]) -> None:
        for name in chosen:
            self._nodes[name].skew_ms += round(event.offset * 1000)

    def _burst(self, event: ScenarioEvent, chosen: list[str]) -> None:
        self.hub.multiply(chosen, event.factor, self._engine.now)
        self._engine.at(self._engine.now + event.lasts, partial(self._end_burst, event.factor, chosen))

    def _end_burst(self, factor: float, partitions: list[str]) -> None:
        self.hub.multiply(partitions, 1 / factor, self._engine.now)
        self._record_members()

    def _add_partitions(self, event: ScenarioEvent, chosen: list[str]) -> None:
        self.hub.add([self._scenario.hub.rate] * event.count, self._engine.now)

    def _outage(self, event: ScenarioEvent, chosen: list[str]) -> None:
        self.store.unreachable = True
        self._engine.at(self._engine.now + event.lasts, partial(setattr, self.store, "unreachable", False))

    def _read_only(self, event: ScenarioEvent, chosen: list[str]) -> None:
        for name in chosen:
            self._nodes[name].read_only_until = self._engine.now + event.lasts

    def _slow_store(self, event: ScenarioEvent, chosen: list[str]) -> None:
        self.store.slowness = event.factor
        self._engine.at(self._engine.now + event.lasts, partial(setattr, self.store, "slowness", 1.0))

    # --- the result -----------------------------------------------------------------------------------------

    def _result(self) -> ScenarioResult:
        scenario, ledger, store, hub = self._scenario, self._ledger, self.store, self.hub
        seconds = scenario.seconds
        ends = [began for _, began, _ in self._disturbances[1:]] + [seconds]
        spans = [(ended, until) for (_, _, ended), until in zip(self._disturbances, ends, strict=True)]
        times = [ledger.seconds_to_balance(ended, max(until, ended)) for ended, until in spans]
        longest = None if None in times else max(time for time in times if time is not None)
        return ScenarioResult(
            scenario=scenario.name,
            strategy=self._strategy,
            partitions=scenario.partitions,
            members=scenario.members,
            cycles=scenario.cycles,
            seconds=seconds,
            seed=self._seed,
            seconds_to_balance=longest,
            moves=len(ledger.moves),
            fewest_moves=ledger.ideal.moves,
            later_moves=sum(ledger.later_moves(ended, until) for ended, until in spans),
            unowned=ledger.unowned,
            lease_duration=ledger.lease_duration,
            longest_silence=ledger.longest_silence,
            events=hub.delivered,
            duplicates=hub.duplicates,
            commits=store.commits,
            conflicts=store.conflicts,
            spread=fmean(ledger.spreads),
            spread_worst=max(ledger.spreads),
            changes=tuple(ledger.changes),
        )


def _initial_snapshot(scenario: Scenario, names: list[str]) -> Snapshot:
    """The initial lease table. If the group has settled, it contains a balanced layout, which the members resume;
    otherwise it is empty."""
    group = Group("simulated", scenario.name, "$default")
    if not scenario.settled or not names:
        return Snapshot(group)
    leases = {}
    for number in range(scenario.partitions):
        partition = str(number)
        leases[partition] = Lease(
            partition,
            owner=names[number * len(names) // scenario.partitions],
            epoch=1,
            renewed_at_ms=START_MS,
            owned_since_ms=START_MS,
            checkpoint=Position(-1),
        )
    return Snapshot(group, 1, MappingProxyType(leases), table=TableIdentity("simulated"))
