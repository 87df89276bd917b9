"""The lease keeper: turns with real threads and real clocks, and what ends or disturbs them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.group.changes import Join, Release, RequestHandover, Restore
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.orders import PinTo
from spark_ehbalance.group.strategies import Decision, View
from spark_ehbalance.lease_table.contract import LeaseStore
from spark_ehbalance.lease_table.memory import MemoryStore
from spark_ehbalance.query.keeper import Keeper
from tests.group.member.keepers import INTERVAL, LEASE, OPERATOR, Keepers, begin_batch, end_batch
from tests.waiting import wait_until

Make = Callable[..., Keepers]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes a group on a store in memory, or on another one; `settings` are those of all members. Looks follow each
    other faster than by default."""
    made: list[Keepers] = []

    def make_one(partitions: int = 4, open_store: Callable[[], LeaseStore] | None = None, **settings: Any) -> Keepers:
        memory = MemoryStore()
        quick = {"look_interval": 0.1, "handover_look_interval": 0.05}
        made.append(Keepers(open_store or (lambda: memory), partitions, **(quick | settings)))
        return made[-1]

    yield make_one
    for group in made:
        group.close()


def claim_what_is_free(view: View) -> Decision:
    """A strategy that leaves handovers to the test."""
    free = [p for p, lease in view.snapshot.leases.items() if lease.owner is None or p in view.expired]
    return Decision("claim what is free" if free else "nothing, because all is owned", tuple(map(view.claim, free)))


def let_pass(seconds: float) -> None:
    """What must not happen cannot be waited for."""
    time.sleep(seconds)


# --- handover --------------------------------------------------------------------------------------------------


def test_a_partition_is_never_given_away_while_a_batch_reads_it(make: Make) -> None:
    """The planner reserves and finishes as fast as it can while handovers are requested all the time."""
    group = make(8)
    ann = group.start("ann", lease_duration=30.0, strategy=claim_what_is_free)
    group.stores[ann].delay = 0.01
    bob = Author("bob", "by hand")
    group.write(Join(by=bob, at_ms=0))
    over = threading.Event()
    batches: list[int] = []
    broken: list[str] = []

    def plan() -> None:
        number = 0
        while not over.is_set():
            epochs = {partition: holding.epoch for partition, holding in ann.holdings().items()}
            if number % 3 == 2:
                time.sleep(0.002)  # time enough to be given away between planning and reserving
            with ann.engine() as engine:
                reserved = engine.begin_batch(epochs, time.monotonic())
            time.sleep(0.003)
            now = group.leases
            broken.extend(p for p in reserved if (now[p].owner, now[p].epoch) != ("ann", epochs[p]))
            number += 1
            batches.append(len(reserved))
            end_batch(ann, {p: epochs[p] for p in reserved}, number)

    planner = threading.Thread(target=plan)
    planner.start()

    def given() -> int:
        return sum(change.event == "HandOver" for change in group.history())

    try:
        least, most = time.monotonic() + 2, time.monotonic() + 60
        while time.monotonic() < least or (time.monotonic() < most and (given() <= 20 or sum(batches) <= 20)):
            snapshot = group.snapshot
            for lease in snapshot.leases.values():
                change: RequestHandover | Release
                by_hand = {"by": bob, "at_ms": 0, "partition": lease.partition, "epoch": lease.epoch}
                if lease.owner == "bob":
                    change = Release(**by_hand)  # type: ignore[arg-type]
                elif lease.owner == "ann" and lease.handover is None:
                    change = RequestHandover(**by_hand, to="bob", timeout_ms=60_000)  # type: ignore[arg-type]
                else:
                    continue
                group.write_if_valid(change)
    finally:
        over.set()
        planner.join()
    assert given() > 20
    assert sum(batches) > 20
    assert not broken


# --- a keeper that fails -----------------------------------------------------------------------------------------


class PanicException(BaseException):
    """As a panic in a Rust library shows in Python: `pyo3_runtime.PanicException` is no `Exception` either."""


def has_failed(keeper: Keeper) -> bool:
    try:
        keeper.holdings()
    except EhBalanceError:
        return True
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # which is what must not happen
@pytest.mark.parametrize("method", ["read", "write", "record", "close"])
def test_whatever_ends_a_keeper_is_raised_in_its_query_and_others_take_over(
    make: Make, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def panic(*_: object) -> None:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    group = make()
    ann = group.start("ann")
    begin_batch(ann)
    changed = group.changed[ann]
    changed.clear()
    store = group.stores[ann]
    if method == "close":  # the keeper ends by an error of its own, and then the store cannot even be closed
        monkeypatch.setattr(store, "read", lambda: panic())
    monkeypatch.setattr(store, method, panic)
    if method == "record":
        group.hub.partitions += ("4",)
    wait_until(changed.is_set, "the planner is told that something has changed")
    if method == "record":  # which is done after the commit, in another thread
        wait_until(lambda: has_failed(ann), "the keeper notices")
    for ask in (ann.holdings, lambda: ann.wait_balanced(20), ann.holdings):
        with pytest.raises(EhBalanceError, match=r"lease keeper has failed.*PanicException.*Option::unwrap") as error:
            ask()
        assert "\n" not in str(error.value)
    bob = group.start("bob")
    wait_until(lambda: bob.holdings().keys() == set(group.hub.partitions), "nothing is held for ever")
    ann.stop()


# --- a store that is away --------------------------------------------------------------------------------------


def test_while_the_store_is_away_everything_stays_and_its_return_causes_no_stampede(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    group = make(12)
    keepers = [group.start(name) for name in ("ann", "bob", "cat")]
    group.wait_owned(ann=4, bob=4, cat=4)
    wait_until(lambda: all(len(keeper.holdings()) == 4 for keeper in keepers), "all know")
    held = [keeper.holdings().keys() for keeper in keepers]
    layout, counters = group.layout(), group.counters()

    for keeper in keepers:
        group.stores[keeper].away = True
    until = time.monotonic() + 2 * LEASE
    while time.monotonic() < until:
        assert [keeper.holdings().keys() for keeper in keepers] == held, "what is held stays"
        time.sleep(0.05)
    assert group.counters().keys() == counters.keys()
    for keeper in keepers:
        assert 5 < group.stores[keeper].failures < 60, "tries are spaced"
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING and "is away" in r.getMessage()]
    assert len(warnings) == len(keepers), "each logs it once"

    counters, before = group.counters(), len(group.written)
    for keeper in keepers:
        group.stores[keeper].away = False
    back = time.monotonic()
    wait_until(lambda: all(group.counters()[p] != counters[p] for p in counters), "all are renewed")
    assert time.monotonic() - back < 1.2 * INTERVAL + 0.5, "within an interval"
    let_pass(2 * LEASE)
    assert group.layout() == layout, "nothing was stolen, and nothing moves"
    assert [keeper.holdings().keys() for keeper in keepers] == held
    assert len(group.written) - before < 3 * (3 * 2 * LEASE / (LEASE / 6)), "no flood of commits"
    assert caplog.text.count("the lease table is back") == len(keepers)


def test_a_suspended_member_plans_nothing_until_it_has_looked(make: Make) -> None:
    group = make()
    ann = group.start("ann")
    stuck = group.stores[ann].stuck = threading.Event()
    assert len(ann.holdings()) == 4
    wait_until(lambda: not ann.holdings(), "the lease duration has passed")
    group.start("bob")
    group.wait_owned(ann=0, bob=4)
    assert not ann.holdings()
    stuck.set()
    group.wait_owned(ann=2, bob=2)
    assert {change.event for change in group.stores[ann].recorded} == {"Claim"}
    handovers = "two moves by handover, not by force"
    wait_until(lambda: sum(change.event == "HandOver" for change in group.history()) == 2, handovers)


# --- a hub that is away ----------------------------------------------------------------------------------------


def test_while_the_hub_does_not_answer_nothing_unread_is_taken_and_what_is_owned_is_renewed(make: Make) -> None:
    group = make()
    ann = group.start("ann")
    group.wait_owned(ann=4)
    mine = group.owned("ann")
    group.hub.away = True
    group.hub.partitions += ("4",)
    group.write(Restore(by=OPERATOR, at_ms=0, partition="4", checkpoint=None))
    before = group.counters()
    let_pass(1.5 * LEASE)
    assert group.owned("ann") == mine, "where reading starts is not known"
    assert all(group.counters()[p] > before[p] for p in mine), "what is held is renewed"
    assert ann.holdings().keys() == mine
    end_batch(ann, begin_batch(ann), 9)
    wait_until(lambda: {group.leases[p].checkpoint.next for p in mine} == {10}, "and checkpointed")  # type: ignore[union-attr]
    group.hub.away = False
    group.wait_owned(ann=5)


# --- housekeeping ----------------------------------------------------------------------------------------------


def test_a_member_that_tidies_up_for_long_records_history_meanwhile(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make(tidy_interval=0.1)
    ann = group.start("ann")
    tidying, over = threading.Event(), threading.Event()

    def tidy() -> None:
        tidying.set()
        over.wait()

    monkeypatch.setattr(group.stores[ann], "tidy", tidy)
    try:
        wait_until(tidying.is_set, "ann tidies up")
        group.hub.partitions += ("4",)
        wait_until(lambda: any(change.partition == "4" for change in group.stores[ann].recorded), "a claim is recorded")
    finally:
        over.set()


# --- operators, and what is logged --------------------------------------------------------------------------------


def test_an_operator_s_order_is_carried_out_at_once_and_recorded(make: Make) -> None:
    group = make()
    ann, bob = (
        group.start("ann", balance_interval=60.0, lease_duration=100.0),
        group.start("bob", balance_interval=60.0, lease_duration=100.0),
    )
    group.wait_owned(ann=2, bob=2)
    partition = min(group.owned("ann"))
    wait_until(lambda: partition in ann.holdings(), "ann knows")
    group.write(PinTo(by=OPERATOR, at_ms=0, partition=partition, to="bob", timeout_ms=60_000, why="nearer"))
    wait_until(lambda: partition in bob.holdings(), "bob has it")

    def moves() -> list[OwnershipChange]:
        return [each for each in group.history() if each.event == "HandOver" and each.partition == partition]

    wait_until(moves, "the move is recorded")
    (move,) = moves()
    assert (move.owner_before, move.owner, move.why) == ("ann", "bob", "ordered by operator: nearer")


def test_a_group_whose_limits_leave_partitions_unread_is_warned_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        return [line for line in lines if "maxPartitionsOwned" in line]

    group = make(4)
    group.start("ann", max_owned=1)
    bob = group.start("bob", max_owned=2)
    wait_until(lambda: len(warnings()) == 2, "each of the two has logged it")
    assert all("nobody reads 1 of 4 partitions" in line for line in warnings())
    group.wait_owned(ann=1, bob=2)
    assert bob.wait_balanced(20, settled=True)
    group.start("cat")
    group.wait_owned(ann=1, bob=2, cat=1)
    assert len(warnings()) == 2
