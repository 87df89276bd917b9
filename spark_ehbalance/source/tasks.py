"""Which ranges a task reads: small ones share a task, because a task costs as much as thousands of events. Pure."""

from __future__ import annotations

from spark_ehbalance.source.ranges import Range, split

#: So many events are worth a task: reading them takes a core 20 to 50 ms, as long as a task takes in Spark
#: (`docs/performance.md`).
EVENTS_PER_TASK = 10_000

#: Ranges of one task: each takes a thread while it is read.
MAX_RANGES = 32


def plan_tasks(ranges: list[Range], min_tasks: int | None) -> list[tuple[Range, ...]]:
    """The ranges of each task; every event is in exactly one.

    With `min_tasks` (`minPartitions`) large ranges are cut until there are so many tasks, and each piece is a task.
    Without, consecutive ranges share a task while they have fewer than `EVENTS_PER_TASK` events together.
    """
    if min_tasks is not None:
        return [(piece,) for piece in split(ranges, min_tasks)]
    tasks: list[list[Range]] = []
    events = 0
    for each in ranges:
        if tasks and events + len(each) < EVENTS_PER_TASK and len(tasks[-1]) < MAX_RANGES:
            tasks[-1].append(each)
            events += len(each)
        else:
            tasks.append([each])
            events = len(each)
    return [tuple(task) for task in tasks]
