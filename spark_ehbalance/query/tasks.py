"""Which ranges a task reads: small ones share a task, because a task costs as much as thousands of events. Pure."""

from __future__ import annotations

from spark_ehbalance.eventhub.ranges import OffsetRange, split

#: Minimum number of events per Spark task: reading them takes a core 20 to 50 ms, as long as Spark's work for a task.
EVENTS_PER_TASK = 10_000

#: Ranges of one task: each takes a thread while it is read.
MAX_RANGES = 32


def plan_tasks(
    ranges: list[OffsetRange], min_tasks: int | None, cores: int | None = None
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task; every event is in exactly one.

    With `min_tasks` (`minPartitions`) large ranges are split into at least that many tasks, one for each piece.
    Without, consecutive ranges share a task while they have fewer than `EVENTS_PER_TASK` events together. If these are
    more tasks than the `cores` that read at the same time, there are as many as cores, with about as many events each.
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
    """Consecutive ranges in `count` tasks, or more where these would have too many ranges. A range belongs to the task
    in whose share of all events its middle lies: so a partition stays in its task while backlogs change little, and
    the worker that has its receiver may read it again."""
    total, before = max(1, sum(map(len, ranges))), 0
    tasks: list[list[OffsetRange]] = [[] for _ in range(count)]
    for range_ in ranges:
        share = int((before + len(range_) / 2) / total * count)
        tasks[min(share, count - 1)].append(range_)  # an empty range at the end lies behind all shares
        before += len(range_)
    return [task[i : i + MAX_RANGES] for task in tasks for i in range(0, len(task), MAX_RANGES)]
