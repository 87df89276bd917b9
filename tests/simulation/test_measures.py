"""The measures, in cases that can be counted by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from spark_ehbalance.group.changes import (
    AddPartitions,
    Claim,
    HandOver,
    Join,
    Release,
    RequestHandover,
    Steal,
    Transition,
    apply,
)
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.simulation.hub import LostEvents, SimulatedHub
from spark_ehbalance.simulation.measures import Ideal, Ledger, TwoOwners, fair_counts, fewest_moves
from spark_ehbalance.simulation.scenario import HubSettings

ANN, BOB = Author("ann", "1"), Author("bob", "1")
GROUP = Group("namespace", "hub", "$default")


@dataclass
class Table:
    """Four partitions that ann and bob share, a ledger, and a clock that the test sets."""

    now: float = 0.0
    rates: dict[str, float] = field(default_factory=lambda: dict.fromkeys("0123", 1.0))

    def __post_init__(self) -> None:
        empty = Snapshot(GROUP)
        transitions = [Join(by=ANN, at_ms=0), Join(by=BOB, at_ms=0)]
        add = AddPartitions(by=ANN, at_ms=0, partitions=tuple("0123"), checkpoint=Position(-1))
        self.snapshot = apply(empty, [*transitions, add]).after
        self.ledger = Ledger(self.snapshot, lambda: self.now, lambda: self.rates, lease_duration=10.0)
        self.ledger.change({"ann": None, "bob": None}, 4)

    def write(self, kind: type[Transition], by: Author, *partitions: str, **more: object) -> None:
        leases = self.snapshot.leases
        transitions = [
            kind(by=by, at_ms=0, partition=p, epoch=leases[p].epoch, **more)  # type: ignore[call-arg]
            for p in partitions
        ]
        outcome = apply(self.snapshot, transitions)
        assert not outcome.rejected
        self.ledger.record_commit(by.id, outcome)
        self.snapshot = outcome.after


def test_seconds_without_a_running_owner_are_summed_over_partitions() -> None:
    table = Table()
    table.now = 2.0
    table.write(Claim, ANN, "0", "1")
    table.now = 5.0
    table.write(Claim, BOB, "2", "3")
    table.now = 10.0
    table.ledger.change({"bob": None}, 4)
    table.now = 13.0
    table.write(Steal, BOB, "0", "1")
    table.now = 20.0
    table.ledger.finish()
    assert table.ledger.unowned == 4 * 2 + 2 * 3 + 2 * 3
    assert len(table.ledger.moves) == 4 + 2


def test_a_partition_that_returns_to_its_last_owner_has_not_moved() -> None:
    table = Table()
    table.write(Claim, ANN, "0")
    table.write(Release, ANN, "0")
    table.write(Claim, ANN, "0")
    assert len(table.ledger.moves) == 1
    table.write(Release, ANN, "0")
    table.write(Claim, BOB, "0")
    assert len(table.ledger.moves) == 2
    table.write(RequestHandover, ANN, "0", to="ann", timeout_ms=1000)
    assert len(table.ledger.moves) == 2
    table.write(HandOver, BOB, "0")
    assert len(table.ledger.moves) == 3
    assert [change.event for change in table.ledger.changes] == [
        "Claim", "Release", "Claim", "Release", "Claim", "HandOver",
    ]  # fmt: skip


def test_the_time_to_balance_begins_at_the_end_of_the_disturbance() -> None:
    table = Table()
    table.now = 3.0
    table.write(Claim, ANN, "0", "1", "2", "3")
    assert table.ledger.seconds_to_balance(0.0, 4.0) is None
    table.now = 7.0
    table.write(Steal, BOB, "0", "1")
    assert table.ledger.seconds_to_balance(0.0, 100.0) == 7.0
    assert table.ledger.seconds_to_balance(0.0, 4.0) == 7.0, "even if another disturbance has begun before"
    assert table.ledger.seconds_to_balance(8.0, 100.0) == 0.0
    table.now = 50.0
    table.write(Steal, BOB, "2")
    assert table.ledger.seconds_to_balance(8.0, 100.0) is None


def test_moves_in_a_balanced_group_are_counted_until_the_next_disturbance() -> None:
    table = Table()
    table.write(Claim, ANN, "0", "1", "2")
    table.now = 7.0
    table.write(Claim, BOB, "3")
    table.write(Steal, BOB, "2")
    assert table.ledger.later_moves(0.0, 100.0) == 0, "none of these moves is needless"
    for table.now, by in ((20.0, BOB), (30.0, ANN)):
        table.write(Steal, by, "0")
    assert table.ledger.later_moves(0.0, 100.0) == table.ledger.later_moves(8.0, 100.0) == 2
    assert table.ledger.later_moves(0.0, 25.0) == 1
    assert table.ledger.later_moves(25.0, 100.0) == 0, "the second move balanced the group again"


def test_longest_silence_counts_running_members_in_lease_durations() -> None:
    table = Table()
    table.now = 100.0
    table.write(Claim, ANN, "0")
    assert table.ledger.longest_silence == 0, "this is ann's first commit"
    table.now = 104.0
    table.write(Claim, ANN, "1")
    table.write(Claim, BOB, "2")
    assert table.ledger.longest_silence == 0.4
    table.now = 105.0
    table.ledger.change({"ann": None}, 4)
    table.now = 113.0
    table.ledger.finish()
    assert table.ledger.longest_silence == 0.9, "bob is not running"


def test_a_skewed_group_is_balanced_when_no_single_move_would_improve_it() -> None:
    table = Table(rates={"0": 6.0, "1": 2.0, "2": 2.0, "3": 2.0})
    table.write(Claim, ANN, "0")
    table.write(Claim, BOB, "1", "2", "3")
    assert table.ledger.balanced[-1] == (0.0, True)
    table.write(Steal, ANN, "1")
    assert table.ledger.balanced[-1] == (0.0, True), "two each"
    table.write(Steal, ANN, "2")
    assert table.ledger.balanced[-1] == (0.0, False)


def test_two_owners_with_the_same_epoch_are_reported() -> None:
    table = Table()
    table.write(Claim, ANN, "0")
    other = apply(Table().snapshot, [Claim(by=BOB, at_ms=0, partition="0", epoch=0)])
    with pytest.raises(TwoOwners, match="partition 0: ann has epoch 1"):
        table.ledger.record_commit("bob", other)


# --- the ideal group -------------------------------------------------------------------------------------


def test_the_nearest_balanced_layout() -> None:
    assert fair_counts({"ann": 8, "bob": 0, "cat": 0}, 8) == [3, 3, 2]
    assert fair_counts({"ann": 0, "bob": 8, "cat": 0}, 8) == [3, 3, 2]
    assert fair_counts({"ann": 4, "bob": 4}, 9, {"ann": 2}) == [2, 7]
    assert fair_counts({"ann": 1, "bob": 1}, 9, {"ann": 2, "bob": 3}) == [2, 3]
    assert fewest_moves({"ann": 8, "bob": 0, "cat": 0}, 8) == 5
    assert fewest_moves({}, 8) == 0


def test_the_ideal_group_moves_as_little_as_possible_after_each_change() -> None:
    ideal = Ideal({"ann": 4, "bob": 4})
    ideal.change({"ann": None, "bob": None}, 8)
    assert ideal.moves == 0
    ideal.change({"ann": None, "bob": None, "cat": None}, 8)
    assert ideal.moves == 2
    ideal.change({"bob": None, "cat": None}, 8)
    assert ideal.moves == 2 + 3, "ann had three"
    ideal.change({"bob": None, "cat": None}, 10)
    assert ideal.moves == 2 + 3 + 2


# --- the hub -----------------------------------------------------------------------------------------------------


def test_events_arrive_at_their_rate_and_faster_during_a_burst() -> None:
    hub = SimulatedHub.create(HubSettings(rate=10.0), 2, random.Random(0))
    assert hub.end("0", 10.0) == 100
    hub.multiply(["0"], 3.0, 10.0)
    assert hub.end("0", 12.0) == 100 + 60
    hub.multiply(["0"], 1 / 3.0, 12.0)
    assert hub.end("0", 13.0) == 100 + 60 + 10
    assert hub.end("1", 13.0) == 130


def test_events_read_again_count_as_duplicates_each_time() -> None:
    hub = SimulatedHub.create(HubSettings(rate=10.0), 1, random.Random(0))
    old, _ = hub.plan({"0": (1, 0)}, 1000, 10.0)
    assert old == {"0": (1, 0, 100)}
    new, _ = hub.plan({"0": (2, 0)}, 30, 15.0)
    assert new == {"0": (2, 0, 30)}
    # The old owner's batch lasts from 10 to 20. Half of it had been read when the new owner disconnected its receiver.
    assert hub.deliver(old, lambda time: (time - 10) / 10) == {"0": (1, 50)}
    assert (hub.delivered, hub.duplicates) == (50, 0)
    assert hub.deliver(new, lambda time: 1.0) == {"0": (2, 30)}
    assert (hub.delivered, hub.duplicates) == (80, 30)
    last, _ = hub.plan({"0": (2, 30)}, 1000, 15.0)
    hub.deliver(last, lambda time: 1.0)
    assert (hub.delivered, hub.duplicates) == (80 + 120, 30 + 20)


def test_gap_is_reported() -> None:
    hub = SimulatedHub.create(HubSettings(rate=10.0), 1, random.Random(0))
    ranges, _ = hub.plan({"0": (1, 7)}, 1000, 10.0)
    with pytest.raises(LostEvents, match="partition 0: events 0 to 6 were skipped"):
        hub.deliver(ranges, lambda time: 1.0)
