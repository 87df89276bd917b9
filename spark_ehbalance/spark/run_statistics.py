"""Statistics of a running query, from its progress reports and its planner's answers."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

from spark_ehbalance.spark.offset_log import end_offsets

#: Seconds over which the rate of events is averaged.
_RATE_OVER = 30.0

#: The Java class name of this source in Spark's status messages.
_JAVA_SOURCE = re.compile(r"\S*PythonMicroBatchStream\S*")


class RunStatistics:
    """The statistics of a query since this object was created. Uses neither a clock nor I/O."""

    def __init__(self, now: float) -> None:
        """`now` is a monotonic time in seconds, here and in the other methods."""
        self.events = 0
        self.batches = 0
        self._since = now
        self._recent = deque[tuple[float, int]]()
        self._newest: int | None = None
        self._reported = False
        self._status = ""
        self._partitions: tuple[int, int] | None = None
        self._owners: list[str] = []
        self._behind: int | None = None
        self._batch_seconds = 0.0

    @property
    def newest_batch(self) -> int | None:
        """The number of the last added batch; None before the first one."""
        return self._newest

    def add(self, progress: dict[str, Any], now: float) -> None:
        """Add a progress report. Each batch counts once. Reports without a batch do not count: they repeat the last
        batch's end under the next batch's number."""
        self._reported = True
        no_batch = "addBatch" not in progress["durationMs"]
        if no_batch or (self._newest is not None and progress["batchId"] <= self._newest):
            return
        self._newest = progress["batchId"]
        ends = end_offsets(progress)
        events = sum(range_.end - range_.start for end in ends for range_ in end.ranges.values())
        self.events += events
        self.batches += 1
        self._recent.append((now, events))
        self._batch_seconds = progress["durationMs"].get("triggerExecution", 0) / 1000

    def update(self, status: str, planners: list[dict[str, Any]]) -> None:
        """Set Spark's status message and the answers of the planners (`Planner.handle`)."""
        self._status = status
        if planners:
            self._partitions = (
                sum(planner["owned"] for planner in planners),
                sum(planner["all"] for planner in planners),
            )
            self._behind = sum(planner["behind"] for planner in planners)
            self._owners = [owner for planner in planners for owner in planner["owners"]]

    def line(self, now: float) -> str:
        """The state, the event rate and the last batch's duration, in fewer than 80 columns unless numbers are huge."""
        while self._recent and self._recent[0][0] < now - _RATE_OVER:
            self._recent.popleft()
        if not self._reported:
            return f"{self.state()} · {now - self._since:.0f} s"
        a_second = sum(events for _, events in self._recent) / max(1.0, min(_RATE_OVER, now - self._since))
        return f"{self.state()} · {a_second:,.0f} events/s · last batch {self._batch_seconds:.1f} s"

    def state(self) -> str:
        """The part of the line that does not change merely because time passes."""
        if not self._reported:
            status = _JAVA_SOURCE.sub("the event hub", self._status)
            return f"starting: {status}" if status else "starting the query"
        of_all = [] if self._partitions is None else [f"{self._partitions[0]} of {self._partitions[1]} partitions"]
        if self._owners and self._partitions is not None and not self._partitions[0]:
            others = f" and {len(self._owners) - 1} more" if len(self._owners) > 1 else ""
            of_all.append(f"waiting for {self._owners[0]}{others}")
        behind = [] if self._behind is None else [f"{self._behind:,} behind"]
        return " · ".join([*of_all, f"{self.events:,} events", *behind])
