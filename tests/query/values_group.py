"""Planners of one group without emulator and Delta: real keepers on a store in memory, and a hub of values."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.group.changes import Join, Stall, Steal, Transition
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.membership import Resumed
from spark_ehbalance.group.member.query_state import QueryState
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import REACTIVE, NamedStrategy
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.memory import MemoryStore
from spark_ehbalance.query.batch_planning import progress_of
from spark_ehbalance.query.engine import QueryEngine
from spark_ehbalance.query.keeper import Keeper
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.query.planner import Planner
from spark_ehbalance.query.progress_policy import AloneProgress, SharedProgress
from spark_ehbalance.query.replay import EarlierBatches
from spark_ehbalance.query.steps import Seeded
from tests.query.queries import Event, Queries, Query

GROUP = Group("namespace", "hub", "$default")


class ValueHub:
    """A hub of which only the partitions' states exist."""

    def __init__(self, partitions: int) -> None:
        self.states: Mapping[str, PartitionState] = {}
        self.watchers: list[ValueWatcher] = []
        self.silent: set[str] = set()
        self.set({str(partition): (0, 0) for partition in range(partitions)})

    def set(self, events: Mapping[str, tuple[int, int]]) -> None:
        """From now on these partitions have these first sequence numbers and ends."""
        self.states = {**self.states, **{p: PartitionState(*each, None, None) for p, each in events.items()}}
        for watcher in self.watchers:
            watcher.notice()

    def append(self, count: int, partitions: Iterable[str] | None = None) -> None:
        states = self.states
        self.set({p: (states[p].begin, states[p].end + count) for p in partitions or states})

    def everything(self) -> Counter[Event]:
        """All events, once each."""
        return Counter((p, number) for p, state in self.states.items() for number in range(state.begin, state.end))


class ValueWatcher:
    """What one planner knows of the hub: everything, as soon as it happens; or, unless it `follows`, what it has asked
    for. `asked` is what it was asked for."""

    name = "namespace/hub"
    available = True

    def __init__(self, hub: ValueHub, changed: threading.Event, *, follows: bool = True) -> None:
        self._hub = hub
        self.changed = changed
        self._follows = follows
        self._known = hub.states
        self.asked: list[str] = []
        hub.watchers.append(self)

    def notice(self) -> None:
        if self._follows:
            self._known = self._hub.states
            self.changed.set()

    def states(self) -> Mapping[str, PartitionState]:
        return self._known

    def refresh(self, partitions: Iterable[str] | None = None) -> None:
        self.asked.append("refresh")
        self._known = self._hub.states

    def catch_up(self, patience: float) -> None:
        self.asked.append("catch up")
        self._known = self._hub.states

    def connected_at(self) -> float:
        return 0.0

    def offsets(self, positions: Mapping[str, int], owner_level: int | Mapping[str, int | None]) -> Mapping[str, str]:
        raise AssertionError("it has no offsets")

    def has_events(
        self, positions: Mapping[str, Position], owner_levels: Mapping[str, int | None]
    ) -> Mapping[str, bool]:
        raise AssertionError("it has no offsets")

    def received(self, positions: Mapping[str, int], owner_levels: Mapping[str, int | None]) -> Mapping[str, int]:
        self.asked.append("probe")
        states = self._hub.states
        return {p: states[p].end for p, each in positions.items() if p not in self._hub.silent and each < states[p].end}

    def created_ms(self) -> int | None:
        return 1

    def watch(self, partitions: Iterable[str], members: int = 1) -> None:
        pass

    def rest(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def partition_ids(self) -> tuple[str, ...]:
        return tuple(self._known)

    def starting_positions(self, partitions: Sequence[str], latest_ms: int = 0) -> dict[str, Position]:
        return {partition: Position.before(0) for partition in partitions}


class ValueGroup(Queries):
    """Queries that share a `ValueHub` through a store in memory. What is made of `keeper` and `changed` is part of each
    query."""

    def __init__(self, partitions: int = 8) -> None:
        super().__init__()
        self.hub = ValueHub(partitions)
        self.keeper: type[Keeper] = Keeper
        self.changed: type[threading.Event] = threading.Event
        self.watcher: ValueWatcher  # of the query that was started last
        self.store = MemoryStore(Snapshot(GROUP))

    def query(
        self,
        owner: str = "a",
        finished: StreamOffset | None = None,
        unfinished: StreamOffset | None = None,
        *,
        shared: bool = True,
        follows: bool = True,
        fail_on_data_loss: bool = True,
        **settings: Any,
    ) -> Query:
        """A query that has joined the group; `settings` as in `Settings`."""
        self.watcher = watcher = ValueWatcher(self.hub, self.changed(), follows=follows)
        read, replay = finished or StreamOffset(owner), unfinished or StreamOffset(owner)
        alone, name = AloneProgress(StreamOffset(owner)), settings.get("strategy_name", "cooperative")
        usual = {"lease_duration": 3.0, "balance_interval": 0.1, "strategy_name": name, "reactive": name in REACTIVE}
        author = Author(owner, f"{owner}-{len(self.queries)}")
        resume = {partition: Resumed(each.start, each.since_ms) for partition, each in replay.ranges.items()}
        store = self.store if shared else MemoryStore(alone.snapshot(GROUP, read, replay))
        member = MemberEngine(
            author,
            Settings(NamedStrategy(name), **usual | settings),
            Seeded(random.getrandbits(64)),
            query=QueryState(progress_of(read.ranges)),
            resume=resume,
        )
        engine = QueryEngine(
            member,
            SharedProgress(StreamOffset(owner), "/leases") if shared else alone,
            fail_on_data_loss=fail_on_data_loss,
            earlier=EarlierBatches(finished),
            probe_again=0.2,
        )
        keeper = self.keeper(engine, lambda: store, watcher, changed=watcher.changed)
        planner = Planner(engine, keeper, watcher, lambda epoch: epoch)
        self.queries.append(Query(planner, owner, finished, unfinished))
        keeper.start()
        assert keeper.wait_balanced(60)
        return self.queries[-1]

    def order(self, *orders: Transition) -> None:
        """Have somebody else write these into the table."""
        assert not commit(self.store, self.store.read(), orders).refused

    def steal(self, partition: str) -> None:
        """A member that is no query takes the partition from its owner."""
        thief, epoch = Author("thief", "1"), self.leases()[partition].epoch
        join = Join(by=thief, at_ms=0, host="", max_owned=None, strategy="cooperative", lease_duration_ms=3000)
        self.order(join, Steal(by=thief, at_ms=0, partition=partition, epoch=epoch))

    def stall(self, partition: str) -> None:
        """A task of its owner records that the partition stalls."""
        lease = self.leases()[partition]
        self.order(Stall(by=Author(str(lease.owner), ""), at_ms=0, partition=partition, epoch=lease.epoch))

    def snapshot(self) -> Snapshot:
        return self.store.read()

    def checkpoints(self) -> set[int]:
        """The sequence numbers at which reading of the partitions goes on, by the store."""
        return {lease.checkpoint.next if lease.checkpoint else -1 for lease in self.leases().values()}
