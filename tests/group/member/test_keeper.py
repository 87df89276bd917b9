"""The lease keeper with its threads: fatal errors, and an unreachable store or hub."""

from __future__ import annotations

import logging
import random
import re
import threading
from collections.abc import Iterator, Sequence

import pytest

from spark_ehbalance.errors import EhBalanceError, HubUnavailableError, StoreUnavailableError
from spark_ehbalance.group.changes import Restore
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import STRATEGIES
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.memory import MemoryStore
from spark_ehbalance.query.engine import QueryEngine
from spark_ehbalance.query.keeper import Keeper
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.query.progress_policy import OffsetProgress
from tests.lease_table.store_conformance import GROUP
from tests.raising import raises
from tests.waiting import wait_until


class FakeHub:
    """A hub whose partitions begin at their first event. It does not answer while `away` is set."""

    def __init__(self) -> None:
        self.partitions = ("0", "1", "2", "3")
        self.away = False

    def partition_ids(self) -> tuple[str, ...]:
        return self.partitions

    def created_ms(self) -> int | None:
        return None

    def starting_positions(self, partitions: Sequence[str], latest_ms: int = 0) -> dict[str, Position]:
        if self.away:
            raise HubUnavailableError("EHB_HUB_UNREACHABLE", what="The event hub does not answer", reason="timeout")
        return dict.fromkeys(partitions, Position(-1))


class WatchedStore(MemoryStore):
    """A store that records its history and is unreachable while `away` is set."""

    away = False
    reads = 0

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[OwnershipChange] = []

    def read(self) -> Snapshot:
        self.reads += 1
        if self.away:
            raise StoreUnavailableError("EHB_LEASE_TABLE_MISSING", location="leases")
        return super().read()

    def record(self, changes: Sequence[OwnershipChange]) -> None:
        self.recorded += changes


class Keepers:
    """The keepers of a group."""

    def __init__(self) -> None:
        self.hub, self.store, self.keepers = FakeHub(), WatchedStore(), list[Keeper]()
        self.store.create(GROUP)

    def start(self, name: str, **settings: float) -> Keeper:
        """Start a keeper; returns it after it has joined and balanced once."""
        quick = {"lease_duration": 1.5, "balance_interval": 0.3, "read_interval": 0.1} | settings
        engine = MemberEngine(Author(name, "1"), Settings(STRATEGIES["cooperative"], **quick), random.Random())
        query = QueryEngine(engine, OffsetProgress(StreamOffset(name)))
        self.keepers.append(Keeper(query, lambda: self.store, self.hub))
        self.keepers[-1].start()
        assert self.keepers[-1].wait_balanced(60)
        return self.keepers[-1]

    def owned(self, name: str) -> set[str]:
        return {lease.partition for lease in self.store.read().owned_by(name)}


@pytest.fixture
def group() -> Iterator[Keepers]:
    made = Keepers()
    yield made
    made.store.away = False
    for keeper in made.keepers:
        keeper.stop()


class PanicException(BaseException):
    """Like a panic in a Rust library: `pyo3_runtime.PanicException` is not an `Exception` either."""


def panic(*_: object) -> None:
    raise PanicException("called `Option::unwrap()` on a `None` value")


def has_failed(keeper: Keeper) -> bool:
    try:
        keeper.readable()
    except EhBalanceError:
        return True
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # assertions cover it
@pytest.mark.parametrize("method", ["read", "write", "record", "close"])
def test_keeper_failure_is_raised_in_its_query_and_others_take_over(
    group: Keepers, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    ann = group.start("ann")
    ann.changed.clear()
    with monkeypatch.context() as patch:
        if method == "close":  # the keeper fails, and then closing the store fails too
            patch.setattr(group.store, "read", panic)
        patch.setattr(group.store, method, panic, raising=False)
        group.hub.partitions += ("4",)
        wait_until(lambda: has_failed(ann), "the keeper notices")
    assert ann.changed.is_set(), "the planner gets the error"
    for call in (ann.readable, lambda: ann.wait_balanced(20), ann.readable):
        with raises(EhBalanceError, "EHB_PLANNER_FAILED", reason=re.compile("PanicException.*Option::unwrap")):
            call()
    bob = group.start("bob")
    wait_until(lambda: bob.readable().keys() == {*group.hub.partitions}, "nothing is held for ever")


def test_store_outage_moves_no_partitions_and_is_logged_once(group: Keepers, caplog: pytest.LogCaptureFixture) -> None:
    keepers = [group.start(name) for name in ("ann", "bob")]
    wait_until(lambda: [len(keeper.readable()) for keeper in keepers] == [2, 2], "all is shared")
    reads, owned = group.store.reads, {p: (lease.owner, lease.epoch) for p, lease in group.store.read().leases.items()}
    group.store.away = True
    wait_until(lambda: group.store.reads > reads + 12, "both have tried several times")
    assert [keeper.is_store_unavailable for keeper in keepers] == [True, True]
    assert [len(keeper.readable()) for keeper in keepers] == [2, 2]
    group.store.away = False
    wait_until(lambda: caplog.text.count("the lease table is reachable again") == 2, "it is back")
    assert {p: (lease.owner, lease.epoch) for p, lease in group.store.read().leases.items()} == owned
    warnings = [
        record
        for record in caplog.records
        if record.levelno == logging.WARNING and "EHB_LEASE_TABLE_MISSING" in record.getMessage()
    ]
    assert len(warnings) == 2


def test_unreachable_hub_prevents_claims_but_not_renewals(group: Keepers) -> None:
    group.start("ann")
    group.hub.away = True
    group.hub.partitions += ("4",)
    unread = Restore(by=Author("operator", ""), at_ms=0, partition="4", checkpoint=None)
    assert commit(group.store, group.store.read(), [unread]).accepted
    before = {p: lease.renewal for p, lease in group.store.read().leases.items()}
    wait_until(
        lambda: all(group.store.read().leases[p].renewal > before[p] + 1 for p in "0123"),
        "owned partitions are renewed",
    )
    assert group.owned("ann") == {*"0123"}, "where reading starts is not known"
    group.hub.away = False
    wait_until(lambda: group.owned("ann") == {*"01234"}, "the rest is taken")


def test_history_is_recorded_during_maintenance(group: Keepers, monkeypatch: pytest.MonkeyPatch) -> None:
    tidying, over = threading.Event(), threading.Event()

    def tidy() -> None:
        tidying.set()
        over.wait()

    monkeypatch.setattr(group.store, "tidy", tidy)
    try:
        group.start("ann", tidy_interval=0.1)
        wait_until(tidying.is_set, "ann tidies up")
        group.hub.partitions += ("4",)
        wait_until(lambda: any(change.partition == "4" for change in group.store.recorded), "a claim is recorded")
    finally:
        over.set()


def test_limits_that_leave_partitions_unowned_are_warned_about_once(
    group: Keepers, caplog: pytest.LogCaptureFixture
) -> None:
    ann = group.start("ann", max_owned=1)
    wait_until(lambda: "unowned=3 partitions=4" in caplog.text, "it is warned of")
    assert ann.wait_balanced(20, settled=True)
    assert caplog.text.count("unowned=") == 1
