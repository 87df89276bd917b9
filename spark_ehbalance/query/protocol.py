"""Inputs and outputs of a `QueryEngine`, in addition to those of its `MemberEngine`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.member import protocol
from spark_ehbalance.group.position import Position
from spark_ehbalance.query.offsets import StreamOffset


@dataclass(frozen=True, slots=True)
class HubReport:
    """State of the event hub: its partitions, and its creation time (ms since 1970; None if not reported). `connection`
    identifies the connection of this report by the time at which it was opened."""

    states: Mapping[str, PartitionState]
    created_ms: int | None
    connection: float


# --- inputs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """The sink has finished the batch that ends at `end`. Repeated with every request for a batch."""

    end: StreamOffset


@dataclass(frozen=True, slots=True)
class BatchRequested:
    """Spark requests a batch of at most `limit` events after `start`."""

    start: StreamOffset
    limit: int | None
    hub: HubReport


@dataclass(frozen=True, slots=True)
class RangesRequested:
    """Spark has logged the batch that ends at `end`, and requests its ranges."""

    end: StreamOffset


@dataclass(frozen=True, slots=True)
class EndsFixed:
    """The query ends once it has read all events that the hub has now (`Trigger.AvailableNow`). Repeated when the query
    acquires partitions."""

    hub: HubReport


@dataclass(frozen=True, slots=True)
class HubReported:
    """A new report of the hub."""

    hub: HubReport


@dataclass(frozen=True, slots=True)
class EventsFound:
    """For each mapping of `FindEvents`, whether the hub has the events. Partitions without a timely answer are missing;
    their states in `hub` were requested afterwards."""

    found: Sequence[Mapping[str, bool]]
    hub: HubReport


@dataclass(frozen=True, slots=True)
class OffsetsFound:
    """The offsets of events by partition; those not found in time are missing. `hub` was requested afterwards."""

    offsets: Mapping[str, str]
    hub: HubReport


@dataclass(frozen=True, slots=True)
class Probed:
    """Result of probing `positions`. `ends` maps each partition that delivered events to the end of those events."""

    positions: Mapping[str, int]
    ends: Mapping[str, int]


Report = HubReported | EventsFound | OffsetsFound | Probed
Input = BatchFinished | BatchRequested | RangesRequested | EndsFixed | Report | protocol.Input


# --- outputs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refresh:
    """Request the states of `partitions`; the answer is `HubReported`."""

    partitions: Sequence[str]


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Request the newest events, within a short timeout; the answer is `HubReported`."""


@dataclass(frozen=True, slots=True)
class FindEvents:
    """Look up the events before `positions`, with the owner levels of these `epochs` (which may list more partitions);
    the answer is `EventsFound`."""

    positions: Sequence[Mapping[str, Position]]
    epochs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FindOffsets:
    """Look up the offsets of the events with these `numbers`, with `epochs` as in `FindEvents`; the answer is
    `OffsetsFound`."""

    numbers: Mapping[str, int]
    epochs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Probe:
    """Try to receive events of stalled partitions at `positions`, with `epochs` as in `FindEvents`; the answer is
    `Probed`. If Spark's request `waits` for it, `HubReported` follows."""

    positions: Mapping[str, int]
    epochs: Mapping[str, int]
    waits: bool


@dataclass(frozen=True, slots=True)
class BatchPlanned:
    """The answer to `BatchRequested`: the `end` of the next batch, or the start if there is nothing to read. In the
    latter case, the answer remains valid until something changes, but not beyond the monotonic time `until`.

    `ranges` contains every readable partition, with or without events. With `Trigger.AvailableNow`, `unread` contains
    the partitions that the query owns or may take and has not read to the end, because they cannot be planned yet.
    """

    end: StreamOffset
    ranges: Mapping[str, OffsetRange]
    until: float = 0.0
    unread: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RangesPlanned:
    """The answer to `RangesRequested`."""

    ranges: Sequence[OffsetRange]


Request = Refresh | CatchUp | FindEvents | FindOffsets
Output = Request | Probe | BatchPlanned | RangesPlanned | protocol.Output
