"""Lease keepers with real threads and real clocks on one store, with what can be seen and broken from outside."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from spark_ehbalance.errors import HubUnavailableError, StoreUnavailableError
from spark_ehbalance.group.changes import Transition
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.model import Author, Lease
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import STRATEGIES, Strategy
from spark_ehbalance.lease_table.contract import LeaseStore, commit
from spark_ehbalance.query.engine import QueryEngine
from spark_ehbalance.query.keeper import Keeper
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.query.progress_policy import AloneProgress
from tests.lease_table.store_conformance import GROUP
from tests.waiting import wait_until

#: Seconds. Short, and still long enough for two busy cores.
LEASE, INTERVAL = 1.5, 0.3

OPERATOR = Author("operator", "")


class FakeHub:
    """A hub whose partitions begin at their first event. While it is `away` it does not answer."""

    def __init__(self, count: int) -> None:
        self.partitions = tuple(str(number) for number in range(count))
        self.away = False

    def partition_ids(self) -> tuple[str, ...]:
        return self.partitions

    def created_ms(self) -> int | None:
        return None

    def starting_positions(self, partitions: Sequence[str], latest_ms: int = 0) -> dict[str, Position]:
        if self.away:
            raise HubUnavailableError("the event hub does not answer")
        return dict.fromkeys(partitions, Position(-1))


class Watched(LeaseStore):
    """A handle of one member on the store: notes what is done with it, and can be made to fail or to stand still.

    `all_written` has every version that anybody has written, in their order.
    """

    def __init__(self, store: LeaseStore, all_written: list[Snapshot]) -> None:
        self._store = store
        self._all_written = all_written
        self.away = False
        self.read_only = False
        self.stuck: threading.Event | None = None
        self.delay = 0.0  # seconds that a write takes
        self.failures = 0
        self.tidied: list[float] = []
        self.recorded: list[OwnershipChange] = []
        #: Held while a version is written, so that the list has them in order.
        self.lock: AbstractContextManager[object] = nullcontext()

    def _pass(self) -> None:
        if self.stuck is not None:
            self.stuck.wait(30)
        if self.away:
            self.failures += 1
            raise StoreUnavailableError("the lease table is away")

    def exists(self) -> bool:
        self._pass()
        return self._store.exists()

    def create(self, group: Group, content: Snapshot | None = None) -> None:
        self._store.create(group, content)

    def read(self) -> Snapshot:
        self._pass()
        return self._store.read()

    def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
        self._pass()
        time.sleep(self.delay)
        if self.read_only:
            self.failures += 1
            raise StoreUnavailableError("the lease table could not be written: permission denied")
        with self.lock:
            written = self._store.write(base, new)
            self._all_written.append(written)
        return written

    def record(self, changes: Sequence[OwnershipChange]) -> None:
        self._pass()
        self._store.record(changes)
        self.recorded += changes

    def tidy(self) -> None:
        self._pass()
        self.tidied.append(time.monotonic())
        self._store.tidy()

    def close(self) -> None:
        self._store.close()


class Keepers:
    """A group of keepers. `open_store` opens another handle on the group's store; `common` are settings of all."""

    def __init__(self, open_store: Callable[[], LeaseStore], partitions: int = 4, **common: Any) -> None:
        self._open_store = open_store
        defaults = {"lease_duration": LEASE, "balance_interval": INTERVAL, "reactive": True, "host": "here"}
        self._common: dict[str, Any] = defaults | common
        self._lock = threading.Lock()
        self.hub = FakeHub(partitions)
        self.written: list[Snapshot] = []
        self.stores: dict[Keeper, Watched] = {}
        self.changed: dict[Keeper, threading.Event] = {}
        self.operator = self._watched()
        self.operator.create(GROUP)

    def start(self, name: str, **settings: Any) -> Keeper:
        """A keeper that has joined and balanced once."""
        keeper = self.begin(name, **settings)
        assert keeper.wait_balanced(60)
        return keeper

    def begin(self, name: str, strategy: Strategy = STRATEGIES["cooperative"], **settings: Any) -> Keeper:
        """A keeper that has been started; `settings` as in `Settings`."""
        author = Author(name, f"{name}-{len(self.stores)}")
        store, changed = self._watched(), threading.Event()
        engine = MemberEngine(author, Settings(strategy, **(self._common | settings)), random.Random())
        query = QueryEngine(engine, AloneProgress(StreamOffset(name)))
        keeper = Keeper(query, lambda: store, self.hub, changed=changed)
        self.stores[keeper], self.changed[keeper] = store, changed
        keeper.start()
        return keeper

    def write(self, *transitions: Transition) -> Snapshot:
        """Written by hand; all of it must be valid."""
        outcome = commit(self.operator, self.operator.read(), transitions)
        assert not outcome.refused
        return outcome.after

    def write_if_valid(self, *transitions: Transition) -> None:
        commit(self.operator, self.operator.read(), transitions)

    @property
    def snapshot(self) -> Snapshot:
        return self.operator.read()

    @property
    def leases(self) -> Mapping[str, Lease]:
        return self.snapshot.leases

    def owned(self, name: str) -> set[str]:
        return {lease.partition for lease in self.snapshot.owned_by(name)}

    def layout(self) -> dict[str, tuple[str | None, int]]:
        return {partition: (lease.owner, lease.epoch) for partition, lease in self.leases.items()}

    def counters(self) -> dict[str, tuple[int, int]]:
        return {partition: lease.counter for partition, lease in self.leases.items()}

    def wait_owned(self, **counts: int) -> None:
        wait_until(lambda: {name: len(self.owned(name)) for name in counts} == counts, f"{counts} partitions are owned")

    def history(self) -> list[OwnershipChange]:
        return [change for store in self.stores.values() for change in store.recorded]

    def close(self) -> None:
        for keeper, store in self.stores.items():
            store.away = store.read_only = False
            if store.stuck is not None:
                store.stuck.set()
            keeper.stop()

    def _watched(self) -> Watched:
        store = Watched(self._open_store(), self.written)
        store.lock = self._lock
        return store


def begin_batch(keeper: Keeper) -> dict[str, int]:
    """Begin a batch with all that may be planned with; its partitions and their epochs."""
    epochs = {partition: holding.epoch for partition, holding in keeper.holdings().items()}
    with keeper.engine() as engine:
        assert engine.begin_batch(epochs, time.monotonic()) == epochs.keys()
    return epochs


def end_batch(keeper: Keeper, epochs: Mapping[str, int], sequence_number: int) -> None:
    """The sink has finished the batch up to `sequence_number` of each partition."""
    with keeper.engine() as engine:
        engine.finish_batch(
            {partition: Progress(epoch, Position(sequence_number)) for partition, epoch in epochs.items()}
        )
