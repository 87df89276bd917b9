"""The lag of the last hour, as far as it was looked at. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_ehbalance.text import plain
from spark_ehbalance.values.lag import Lag

#: Milliseconds that are shown of what has been.
HOUR_MS = 3_600_000

#: Milliseconds from one point of the whole group's lag to the next, and from one of a partition's.
_STEP_MS, _MINUTE_MS = 10_000, 60_000

#: Unread events, and seconds for which the oldest of them has waited; None where that is not known.
_Point = tuple[int, float | None]


def point(lag: Lag, now_ms: int) -> _Point:
    """The lag as of `now_ms`."""
    seconds = lag.seconds(now_ms)
    return lag.events, None if seconds is None else round(seconds, 1)


class LagHour:
    """The last value in each step for the whole group, the highest in each minute for each partition."""

    def __init__(self) -> None:
        self._steps: dict[int, _Point] = {}
        self._minutes: dict[int, dict[str, _Point]] = {}
        self._by_partition: dict[str, Any] | None = None
        self._until_minute = 0

    def add(self, lags: Mapping[str, Lag], now_ms: int) -> None:
        """Add what was found at `now_ms`."""
        if lags:
            points = {partition: point(lag, now_ms) for partition, lag in lags.items()}
            self._steps[now_ms // _STEP_MS] = (sum(events for events, _ in points.values()), longest(points.values()))
            minute = self._minutes.setdefault(now_ms // _MINUTE_MS, {})
            for partition, each in points.items():
                minute[partition] = _highest(minute.get(partition, each), each)
        for kept, step in ((self._steps, _STEP_MS), (self._minutes, _MINUTE_MS)):
            for old in [at for at in kept if at <= (now_ms - HOUR_MS) // step]:
                del kept[old]

    def whole(self) -> dict[str, Any]:
        """The points of the whole group: [time, events, seconds]."""
        return {"step": _STEP_MS, "points": [[at * _STEP_MS, *each] for at, each in self._steps.items()]}

    def by_partition(self, now_ms: int) -> dict[str, Any]:
        """The points of each partition, but for the minute that has not ended: pairs of a partition and its points. The
        same object until the next minute."""
        if self._by_partition is None or self._until_minute != now_ms // _MINUTE_MS:
            self._until_minute = now_ms // _MINUTE_MS
            partitions: dict[str, list[list[Any]]] = {}
            for minute, points in self._minutes.items():
                if minute < self._until_minute:
                    for partition, each in points.items():
                        partitions.setdefault(plain(partition), []).append([minute * _MINUTE_MS, *each])
            self._by_partition = {"step": _MINUTE_MS, "partitions": [*partitions.items()]}
        return self._by_partition


def longest(points: Any) -> float | None:
    """The longest wait of `points`; None where none is known."""
    return max((seconds for _, seconds in points if seconds is not None), default=None)


def _highest(one: _Point, other: _Point) -> _Point:
    return max(one[0], other[0]), longest((one, other))
