"""When a member reads and writes if its store needs one request per lease and per checkpoint."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from spark_ehbalance.group.capabilities import Capabilities
from spark_ehbalance.group.changes import Checkpoint, Heartbeat, Release, Renew, Transition, apply
from spark_ehbalance.group.member.protocol import (
    CommitChanges,
    Committed,
    GroupRead,
    LeaveRequested,
    ReadGroup,
    StopRequested,
    Tick,
)
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.position import Position
from tests.group.member.one import One, Turn
from tests.group.strategies.members import LEASE

#: Seconds between two reads, as in the Azure SDKs.
INTERVAL = LEASE / 6

_PER_LEASE = Capabilities(atomic=False)

#: (time of a turn, its transitions)
Written = list[tuple[float, list[Transition]]]


class PerLease(One):
    """A member whose store does not count checkpoints as renewals."""

    def __init__(self, **settings: float) -> None:
        super().__init__(2, capabilities=_PER_LEASE, balance_interval=INTERVAL, read_interval=INTERVAL, **settings)

    def begin(self, **how: Any) -> Turn:
        self.ann.handle(Tick(), self.clocks)
        return super().begin(**how)

    def end(self, turn: Turn, *, seconds: float = 0.0) -> list[Transition]:
        if not turn.writes:
            return []
        outcome = apply(self.table, turn.transitions)
        assert not outcome.rejected
        if outcome.after is not outcome.before:
            checkpoints = Counter(
                transition.partition for transition in turn.transitions if isinstance(transition, Checkpoint)
            )
            leases = {
                p: replace(lease, renewal=lease.renewal - checkpoints[p]) for p, lease in outcome.after.leases.items()
            }
            self.replace_table(replace(outcome.after, leases=leases))
            outcome = replace(outcome, after=self.table, seconds=seconds)
        self.ann.handle(Committed(outcome, seconds), self.clocks)
        return turn.transitions


def run(one: PerLease, seconds: float, batch: float | None = None) -> Written:
    """Run all turns within `seconds`. Every `batch` seconds, both partitions advance by an event."""
    end, batch_ends, turns = one.now + seconds, one.now + (batch or seconds), list[tuple[float, list[Transition]]]()
    while min(one.ann.due(), batch_ends) < end:
        if batch_ends < one.ann.due():
            one.now, batch_ends = batch_ends, batch_ends + (batch or seconds)
            one.finish(round(one.now * 1000), "0", "1")
            continue
        one.now = max(one.now, one.ann.due())
        turn = one.begin()
        assert turn.balances
        turns.append((one.now, one.end(turn)))
    return turns


def gaps(times: Iterable[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


def test_per_lease_store_is_read_once_an_interval() -> None:
    for batch in (None, INTERVAL / 10, 3 * INTERVAL):
        one = PerLease()
        found = gaps(now for now, _ in run(one, 60 * INTERVAL, batch))
        assert min(found) >= 0.8 * INTERVAL
        assert max(found) <= 1.2 * INTERVAL + 1e-6


def test_leases_are_renewed_at_every_third_read_despite_checkpoints() -> None:
    for batch in (None, INTERVAL / 10):
        turns = run(PerLease(), 60 * INTERVAL, batch)
        renewed = [now for now, written in turns if any(isinstance(transition, Renew) for transition in written)]
        assert min(gaps(renewed)) >= 0.4 * LEASE
        assert max(gaps(renewed)) <= 0.6 * LEASE, "which leaves time for another try"


def test_checkpoint_is_written_once_an_interval_if_there_is_progress() -> None:
    one = PerLease()
    turns = run(one, 20 * INTERVAL, INTERVAL / 10)
    for _, written in turns[1:]:
        checkpoints = [transition for transition in written if isinstance(transition, Checkpoint)]
        assert [checkpoint.partition for checkpoint in checkpoints] == ["0", "1"]
    last = one.table.leases["0"].checkpoint
    assert last
    assert turns[-1][0] - last.sequence_number / 1000 <= INTERVAL / 10 + 1e-3, "what was finished last is written"
    assert not [
        transition
        for _, written in run(one, 3 * INTERVAL)[1:]
        for transition in written
        if isinstance(transition, Checkpoint)
    ]


def test_batch_finished_during_a_read_is_checkpointed_after_the_next_read() -> None:
    """It may have ended early because another member took the partition during the read."""
    one = PerLease()
    run(one, INTERVAL)
    one.finish(5, "0")
    one.now = one.ann.due()
    assert one.ann.handle(Tick(), one.clocks) == [ReadGroup()]
    one.finish(7, "0", "1")

    def checkpoints() -> dict[str, int]:
        written = one.end(One.begin(one))
        return {x.partition: x.position.sequence_number for x in written if isinstance(x, Checkpoint)}

    assert checkpoints() == {"0": 5}
    one.now = one.ann.due()
    one.ann.handle(Tick(), one.clocks)
    one.ann.reset({"0": Progress(1, Position(3))})
    one.finish(4, "0")
    assert checkpoints() == {"1": 7}


@pytest.mark.parametrize("stops", [False, True])
def test_progress_is_written_before_partitions_are_released(stops: bool) -> None:
    one = PerLease()
    run(one, INTERVAL)
    one.finish(5, "0")
    if not stops:
        one.ann.handle(LeaveRequested(), one.clocks)
        assert one.ann.due() <= one.now, "at once"
    written = [output for output in (one.stop() if stops else one.turn()) if not isinstance(output, (Heartbeat, Renew))]
    assert [type(transition) for transition in written[:2]] == [Checkpoint, Release]
    assert {lease.owner for lease in one.table.leases.values()} == {None}


def test_release_waits_until_the_last_batch_is_checkpointed() -> None:
    one = PerLease()
    run(one, INTERVAL)
    one.reserve("0", "1")
    one.ann.handle(LeaveRequested(), one.clocks)
    one.ann.handle(Tick(), one.clocks)  # a read begins
    one.finish(7, "0", "1")
    kinds = [[type(x) for x in one.end(One.begin(one)) if isinstance(x, Checkpoint | Release)]]
    one.now = one.ann.due()
    kinds.append([type(x) for x in One.end(one, one.begin()) if isinstance(x, Checkpoint | Release)])
    assert kinds == [[], [Checkpoint, Checkpoint, Release, Release]]


def test_last_commit_contains_the_progress_of_a_batch_that_finished_during_a_read() -> None:
    one = PerLease()
    run(one, INTERVAL)
    one.ann.handle(Tick(), one.clocks)
    one.finish(7, "0", "1")
    one.ann.handle(StopRequested(), one.clocks)
    read = GroupRead(one.table, tuple(one.table.leases), None)
    assert one.ann.handle(read, one.clocks) == [ReadGroup()]
    (commit,) = one.ann.handle(read, one.clocks)
    assert isinstance(commit, CommitChanges)
    assert {x.partition for x in commit.changes if isinstance(x, Checkpoint)} == {"0", "1"}
    assert {x.partition for x in commit.changes if isinstance(x, Release)} == {"0", "1"}
