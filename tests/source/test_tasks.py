"""Which ranges share a task."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.source.ranges import Range, split
from spark_ehbalance.source.tasks import EVENTS_PER_TASK, MAX_RANGES, plan_tasks


@st.composite
def some_ranges(draw: st.DrawFn) -> list[Range]:
    lengths = draw(st.lists(st.integers(1, 500) | st.integers(1, 3 * EVENTS_PER_TASK), max_size=100))
    return [
        Range(str(partition), draw(st.integers(0, 9)), start := draw(st.integers(0, 10**12)), start + length)
        for partition, length in enumerate(lengths)
    ]


@given(some_ranges())
def test_every_range_is_in_one_task_and_in_order(ranges: list[Range]) -> None:
    assert [each for task in plan_tasks(ranges, None) for each in task] == ranges


@given(some_ranges())
def test_no_task_is_too_large(ranges: list[Range]) -> None:
    for task in plan_tasks(ranges, None):
        assert 1 <= len(task) <= MAX_RANGES
        assert len(task) == 1 or sum(map(len, task)) < EVENTS_PER_TASK


@given(some_ranges())
def test_there_are_as_few_tasks_as_consecutive_ranges_allow(ranges: list[Range]) -> None:
    tasks = plan_tasks(ranges, None)
    for one, next_one in itertools.pairwise(tasks):
        assert len(one) == MAX_RANGES or sum(map(len, one)) + len(next_one[0]) >= EVENTS_PER_TASK


@given(some_ranges(), st.integers(1, 200))
def test_with_a_minimum_number_of_tasks_nothing_is_packed(ranges: list[Range], least: int) -> None:
    assert plan_tasks(ranges, least) == [(piece,) for piece in split(ranges, least)]


@pytest.mark.parametrize(
    ("lengths", "tasks"),
    [
        ([], []),
        ([1] * 256, [32] * 8),
        ([EVENTS_PER_TASK] * 4, [1] * 4),
        ([10, EVENTS_PER_TASK, 10], [1, 1, 1]),
        ([EVENTS_PER_TASK // 2 - 1] * 4, [2, 2]),
        ([10] * 8, [8]),
    ],
)
def test_tasks_by_hand(lengths: list[int], tasks: list[int]) -> None:
    ranges = [Range(str(partition), 1, 0, length) for partition, length in enumerate(lengths)]
    assert list(map(len, plan_tasks(ranges, None))) == tasks
