"""Which ranges a task reads. Pure: small ranges share a task, because a task costs as much as thousands of events."""

from __future__ import annotations

from spark_ehbalance.source.ranges import Range, split

#: Events worth a task of their own: they take a core 20 to 50 ms, and a task takes as long (`docs/performance.md`).
WORTH_A_TASK = 10_000

#: Ranges of one task: each takes a thread while it is read.
MOST_RANGES = 32


def plan_tasks(ranges: list[Range], least: int | None) -> list[tuple[Range, ...]]:
    """The ranges of each task, every event once.

    With `least` (`minPartitions`) large ranges are cut until there are so many tasks, and nothing is packed. Without,
    neighbours share a task while they hold less than `WORTH_A_TASK` events together.
    """
    if least is not None:
        return [(piece,) for piece in split(ranges, least)]
    tasks: list[list[Range]] = []
    events = 0
    for each in ranges:
        if tasks and events + len(each) < WORTH_A_TASK and len(tasks[-1]) < MOST_RANGES:
            tasks[-1].append(each)
            events += len(each)
        else:
            tasks.append([each])
            events = len(each)
    return [tuple(task) for task in tasks]
