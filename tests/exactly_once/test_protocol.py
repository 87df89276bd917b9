"""The transaction with all orders of the writers' steps: no event is duplicated or missing."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_ehbalance.errors import TargetError
from spark_ehbalance.exactly_once.marks import SequenceRange
from spark_ehbalance.exactly_once.protocol import (
    MAX_FAILED_COMMITS,
    Begin,
    Commit,
    Confirm,
    Conflict,
    FailedCommit,
    Write,
    WriteResult,
    write_exactly_once,
)
from tests.exactly_once.model import Entry, Group, Writer
from tests.raising import raises


def schedules(make: Callable[[], Sequence[Writer]]) -> Iterator[Sequence[Writer]]:
    """The writers created by `make`, after every possible order of their steps."""
    todo: list[list[int]] = [[]]
    while todo:
        choices = todo.pop()
        writers = make()
        for chosen in choices:
            writers[chosen].step()
        while running := [number for number, writer in enumerate(writers) if not writer.ended]:
            todo.extend([*choices, other] for other in running[1:])
            choices = [*choices, running[0]]
            writers[running[0]].step()
        yield writers


def writers_of(group: Group, *ranges: dict[str, SequenceRange]) -> list[Writer]:
    """Writers for these ranges; a later writer has claimed the partitions of the earlier ones."""
    return [Writer(group, range_, {partition: group.claim(partition) for partition in range_}) for range_ in ranges]


OVERLAPS = {
    "the same": ({"0": SequenceRange(0, 4)}, {"0": SequenceRange(0, 4)}),
    "one ends earlier": ({"0": SequenceRange(0, 4)}, {"0": SequenceRange(0, 2)}),
    "one ends later": ({"0": SequenceRange(0, 2)}, {"0": SequenceRange(0, 4)}),
    "two partitions": (
        {"0": SequenceRange(0, 3), "1": SequenceRange(0, 2)},
        {"1": SequenceRange(0, 4), "2": SequenceRange(0, 1)},
    ),
}


@pytest.mark.parametrize("ranges", OVERLAPS.values(), ids=OVERLAPS)
def test_two_writers_write_every_event_once_in_any_order_of_steps(
    ranges: Sequence[dict[str, SequenceRange]],
) -> None:
    group, orders = Group(0), 0

    def make() -> list[Writer]:
        nonlocal group
        group = Group(3)
        return writers_of(group, *ranges)

    for _ in schedules(make):
        orders += 1
        written = group.target.events()
        for partition, lease in group.leases.items():
            numbers = sorted(number for p, number in written.elements() if p == partition)
            assert numbers == list(range(len(numbers))), "each once, without a gap"
            assert len(numbers) >= lease.checkpoint, "the lease table is never ahead"
        last = ranges[-1]
        assert all(written[p, n] == 1 for p, range_ in last.items() for n in range(range_.start, range_.end))
    assert orders > 60


# --- truncated ranges ------------------------------------------------------------------------------------------


def prefix(partition: str, planned: SequenceRange) -> set[int]:
    """A range that ended halfway."""
    return set(range(planned.start, (planned.start + planned.end) // 2))


def pieces(partition: str, planned: SequenceRange) -> set[int]:
    """A range in two pieces, of which the first ended early; the range's last event was read."""
    middle = (planned.start + planned.end) // 2
    return set(range(planned.start, middle - 1)) | set(range(middle, planned.end))


@pytest.mark.parametrize("reads", [prefix, pieces])
def test_range_that_ended_early_loses_no_event(reads: Callable[[str, SequenceRange], set[int]]) -> None:
    group = Group(2)
    batch = {"0": SequenceRange(0, 10), "1": SequenceRange(0, 4)}
    zombie = Writer(group, batch, {partition: group.claim(partition) for partition in batch}, reads)
    group.claim("0")
    zombie.run()
    assert group.leases["0"].checkpoint == 0, "its checkpoint is refused"
    Writer(group, {"0": SequenceRange(0, 12)}, {"0": group.leases["0"].epoch}).run()
    expected = Counter([*(("0", number) for number in range(12)), *(("1", number) for number in range(4))])
    assert group.target.events() == expected


def test_writer_gives_up_when_all_partitions_are_lost_one_by_one() -> None:
    batch = {str(partition): SequenceRange(0, 1) for partition in range(3 * MAX_FAILED_COMMITS)}
    group = Group(len(batch))
    writer = Writer(group, batch, {partition: group.claim(partition) for partition in batch})
    for partition in batch:
        group.claim(partition)
        for _ in (Begin, Write, Confirm):
            writer.step()
    writer.run()
    assert writer.result == WriteResult({}, frozenset(batch))
    assert not group.target.log


# --- conflicts -------------------------------------------------------------------------------------------------


def write(*refusals: FailedCommit | None) -> None:
    """Write a batch whose commits get these responses."""
    steps, waiting, answer = write_exactly_once({"0": SequenceRange(0, 3)}), list(refusals), None
    others = {Begin: {}, Write: None, Confirm: frozenset()}
    with contextlib.suppress(StopIteration):
        while True:
            step = steps.send(answer)
            answer = waiting.pop(0) if isinstance(step, Commit) else others[type(step)]


@pytest.mark.parametrize("conflict", Conflict)
def test_rejected_commit_is_retried_a_limited_number_of_times(conflict: Conflict) -> None:
    refusal = FailedCommit(conflict, "No space left on device", OSError())
    write(*[refusal] * (MAX_FAILED_COMMITS - 1), None)
    reason = re.compile(f"{conflict.value} .No space left on device")
    with raises(TargetError, "EHB_TARGET_CONTENDED", count=MAX_FAILED_COMMITS, reason=reason) as raised:
        write(*[refusal] * MAX_FAILED_COMMITS)
    assert raised.value.__cause__ is refusal.error


# --- random histories ------------------------------------------------------------------------------------------


class Life(RuleBasedStateMachine):
    """Events arrive; queries steal partitions from one another, crash and restart from the checkpoint; commits fail or
    lose their responses; others append to the table and change it."""

    @initialize(partitions=st.integers(1, 2), writers=st.integers(2, 3))
    def begin(self, partitions: int, writers: int) -> None:
        self.group = Group(partitions)
        self.ends = dict.fromkeys(self.group.leases, 0)
        self.writers: list[Writer | None] = [None] * writers

    @rule(data=st.data(), count=st.integers(1, 4))
    def events_arrive(self, data: st.DataObject, count: int) -> None:
        self.ends[data.draw(st.sampled_from(sorted(self.ends)))] += count

    @rule(data=st.data(), number=st.integers(0, 2), reads=st.sampled_from([prefix, pieces]))
    def query_starts_a_batch(
        self, data: st.DataObject, number: int, reads: Callable[[str, SequenceRange], set[int]]
    ) -> None:
        """Its previous batch has ended or is abandoned, as in a crash."""
        taken = data.draw(st.sets(st.sampled_from(sorted(self.ends)), min_size=1))
        epochs = {partition: self.group.claim(partition) for partition in taken}
        batch = {p: self._range(p, data.draw(st.integers(0, 6))) for p in taken}
        self.writers[number % len(self.writers)] = Writer(self.group, batch, epochs, reads)

    def _range(self, partition: str, count: int) -> SequenceRange:
        start = self.group.leases[partition].checkpoint
        return SequenceRange(start, min(start + count, self.ends[partition]))

    @rule(data=st.data(), loses_answer=st.booleans(), fails=st.booleans())
    def query_continues(self, data: st.DataObject, loses_answer: bool, fails: bool) -> None:
        if running := [writer for writer in self.writers if writer and not writer.ended]:
            with contextlib.suppress(TargetError):  # the batch fails and is restarted
                data.draw(st.sampled_from(running)).step(loses_answer=loses_answer, fails=fails)

    @rule(partition=st.sampled_from("01"))
    def lease_is_stolen(self, partition: str) -> None:
        if partition in self.group.leases:
            self.group.claim(partition)

    @rule(changes=st.booleans())
    def somebody_else_commits(self, changes: bool) -> None:
        self.group.target.log.append(Entry(changes_table=changes))

    @invariant()
    def no_event_is_duplicated(self) -> None:
        if hasattr(self, "group"):
            assert set(self.group.target.events().values()) <= {1}

    def teardown(self) -> None:
        if not hasattr(self, "group"):
            return
        for writer in self.writers:
            if writer:
                with contextlib.suppress(TargetError):
                    writer.run()
        for partition, end in self.ends.items():
            start = self.group.leases[partition].checkpoint
            Writer(self.group, {partition: SequenceRange(start, end)}, {partition: self.group.claim(partition)}).run()
        everything = Counter((partition, n) for partition, end in self.ends.items() for n in range(end))
        assert self.group.target.events() == everything


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
