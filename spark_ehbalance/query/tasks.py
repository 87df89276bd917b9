"""Assigns ranges to tasks: small ranges share a task, because a task costs as much as reading thousands of events."""

from __future__ import annotations

from spark_ehbalance.eventhub.ranges import OffsetRange, split

#: Minimum number of events per Spark task: reading them takes a core 20 to 50 ms, as long as Spark's overhead per task.
EVENTS_PER_TASK = 10_000

#: Maximum number of ranges per task: each takes a thread while it is read.
MAX_RANGES = 32


def plan_tasks(
    ranges: list[OffsetRange], min_tasks: int | None, cores: int | None = None
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task; every event is read by exactly one task.

    With `min_tasks` (`minPartitions`), large ranges are split into at least that many tasks, one per piece. Otherwise,
    consecutive ranges share a task as long as they have fewer than `EVENTS_PER_TASK` events in total. If there would
    be more tasks than `cores`, there is one task per core instead, each with about the same number of events.
    """
    if min_tasks is not None:
        return [(piece,) for piece in split(ranges, min_tasks)]
    tasks: list[list[OffsetRange]] = []
    events = 0
    for range_ in ranges:
        if tasks and events + len(range_) < EVENTS_PER_TASK and len(tasks[-1]) < MAX_RANGES:
            tasks[-1].append(range_)
            events += len(range_)
        else:
            tasks.append([range_])
            events = len(range_)
    if cores is not None and len(tasks) > cores:
        tasks = _shared_evenly(ranges, cores)
    return [tuple(task) for task in tasks]


def _shared_evenly(ranges: list[OffsetRange], count: int) -> list[list[OffsetRange]]:
    """Distribute consecutive ranges over `count` tasks, or more if a task would have too many ranges. Each task has an
    equal share of all events, and a range belongs to the task whose share contains its middle. So a partition stays in
    its task as long as backlogs change little, and the worker that kept its receiver may read it again."""
    total, before = max(1, sum(map(len, ranges))), 0
    tasks: list[list[OffsetRange]] = [[] for _ in range(count)]
    for range_ in ranges:
        share = int((before + len(range_) / 2) / total * count)
        tasks[min(share, count - 1)].append(range_)  # an empty range at the end would be beyond all shares
        before += len(range_)
    return [task[i : i + MAX_RANGES] for task in tasks for i in range(0, len(task), MAX_RANGES)]
