"""The assignment of ranges to tasks."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.eventhub.ranges import OffsetRange, split
from spark_ehbalance.query.tasks import EVENTS_PER_TASK, MAX_RANGES, plan_tasks


@st.composite
def some_ranges(draw: st.DrawFn) -> list[OffsetRange]:
    lengths = draw(st.lists(st.integers(0, 500) | st.integers(1, 3 * EVENTS_PER_TASK), max_size=30))
    return [
        OffsetRange(str(partition), draw(st.integers(0, 9)), start := draw(st.integers(0, 10**12)), start + length)
        for partition, length in enumerate(lengths)
    ]


@given(some_ranges())
def test_ranges_are_packed_into_as_few_tasks_as_their_sizes_allow(ranges: list[OffsetRange]) -> None:
    tasks = plan_tasks(ranges, None)
    assert [range_ for task in tasks for range_ in task] == ranges
    for task in tasks:
        assert 1 <= len(task) <= MAX_RANGES
        assert len(task) == 1 or sum(map(len, task)) < EVENTS_PER_TASK
    for one, next_one in itertools.pairwise(tasks):
        assert len(one) == MAX_RANGES or sum(map(len, one)) + len(next_one[0]) >= EVENTS_PER_TASK


@given(some_ranges(), st.integers(1, 200))
def test_ranges_are_not_packed_if_there_is_a_minimum_number_of_tasks(ranges: list[OffsetRange], least: int) -> None:
    assert plan_tasks(ranges, least) == [(piece,) for piece in split(ranges, least)]


@given(some_ranges(), st.integers(1, 20))
def test_cores_share_the_events_evenly_with_few_tasks(ranges: list[OffsetRange], cores: int) -> None:
    tasks, small = plan_tasks(ranges, None, cores), plan_tasks(ranges, None)
    assert [range_ for task in tasks for range_ in task] == ranges
    assert len(tasks) <= cores + len(ranges) // MAX_RANGES
    assert len(small) > cores or tasks == small, "small tasks stay together"
    total, largest = sum(map(len, ranges)), max(map(len, ranges), default=0)
    for task in tasks:
        assert 1 <= len(task) <= MAX_RANGES
        assert sum(map(len, task)) <= max(total / cores + largest, EVENTS_PER_TASK)


def test_partition_stays_in_its_task_while_backlogs_change_little() -> None:
    def tasks(lengths: list[int]) -> list[list[str]]:
        ranges = [OffsetRange(str(partition), 1, 0, length) for partition, length in enumerate(lengths)]
        return [[range_.partition for range_ in task] for task in plan_tasks(ranges, None, cores=2)]

    halves = [["0", "1", "2", "3"], ["4", "5", "6", "7"]]
    assert tasks([30_000] * 8) == tasks([31_000, 28_000, 30_000, 33_000] * 2) == halves
    assert tasks([90_000, 1_000, 1_000, 88_000]) == [["0"], ["1", "2", "3"]]
