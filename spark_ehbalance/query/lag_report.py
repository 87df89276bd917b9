"""How far a query is behind: for Spark's progress reports and for `spark_ehbalance.lag`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.lag import Lag


class LagHub(Protocol):
    """The part of `HubWatcher` that the lag report uses."""

    def states(self) -> Mapping[str, PartitionState]: ...


class LagReport:
    """How far the batches of one query are behind the hub. Not thread-safe."""

    def __init__(self, hub: LagHub) -> None:
        self._hub = hub
        self._planned: Mapping[str, OffsetRange] = {}
        self._reported: tuple[object, object, dict[str, Any]] | None = None

    def planned(self, ranges: Mapping[str, OffsetRange]) -> None:
        """Set the newest plan: one range for each owned partition, with or without events."""
        self._planned = ranges

    def newest(self) -> dict[str, Any]:
        """For progress reports: the sequence number after the newest event of each partition, and `behind`."""
        states, planned = self._hub.states(), self._planned
        if self._reported is None or self._reported[0] is not states or self._reported[1] is not planned:
            newest = {"partitions": {partition: state.end for partition, state in states.items()}}
            self._reported = states, planned, newest | self.behind()
        return self._reported[2]  # Spark requests this about 90 times a second

    def behind(self) -> dict[str, Any]:
        """The backlog of the owned partitions after the newest batch, with the metric names of Spark's Kafka source;
        empty if no partition is owned."""
        behind = self._unread()
        if not behind:
            return {}
        return {
            "minOffsetsBehindLatest": min(behind),
            "maxOffsetsBehindLatest": max(behind),
            "avgOffsetsBehindLatest": round(sum(behind) / len(behind), 1),
        }

    def left(self) -> int:
        """Events left in all owned partitions after the newest batch."""
        return sum(self._unread())

    def _unread(self) -> list[int]:
        states = self._hub.states()
        return [max(0, states[p].end - range_.end) for p, range_ in self._planned.items() if p in states]


def lag_answer(lags: Mapping[str, Lag], now_ms: int) -> dict[str, Any]:
    """The planner's answer to the driver: each partition's `next`, `end` and lag in seconds."""
    return {"lag": {partition: [lag.next, lag.end, lag.seconds(now_ms)] for partition, lag in lags.items()}}
