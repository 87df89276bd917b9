"""What goes into a `QueryEngine`, and what comes out of it, besides what concerns the `MemberEngine` in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.group.member import protocol
from spark_ehbalance.group.member.load_meter import CpuTime
from spark_ehbalance.group.position import Position
from spark_ehbalance.query.offsets import StreamOffset


@dataclass(frozen=True, slots=True)
class HubReport:
    """What is known of the event hub: the states of its partitions, and when it was created (ms since 1970; None if it
    does not say). `connection` identifies the connection that was asked, by the time at which it was opened."""

    states: Mapping[str, PartitionState]
    created_ms: int | None
    connection: float


# --- inputs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """The sink has finished the batch that ends at `end`. Comes again with every request for a batch."""

    end: StreamOffset


@dataclass(frozen=True, slots=True)
class BatchRequested:
    """Spark asks for a batch of at most `limit` events after `start`. If it `measures`, loads are measured, and `cpu`
    is a reading of the host's cores."""

    start: StreamOffset
    limit: int | None
    hub: HubReport
    cpu: CpuTime | None = None
    measures: bool = True


@dataclass(frozen=True, slots=True)
class RangesRequested:
    """Spark has logged the batch that ends at `end`, and asks what to read."""

    end: StreamOffset


@dataclass(frozen=True, slots=True)
class EndsFixed:
    """The query reads what the hub has now and ends (`Trigger.AvailableNow`). Comes again when it owns partitions that
    it did not own before."""

    hub: HubReport


@dataclass(frozen=True, slots=True)
class HubReported:
    """The hub was asked again."""

    hub: HubReport


@dataclass(frozen=True, slots=True)
class EventsFound:
    """For each mapping of `FindEvents`, whether the hub has the events, without those for which it did not answer in
    time: the states of their partitions in `hub` were requested later."""

    found: Sequence[Mapping[str, bool]]
    hub: HubReport


@dataclass(frozen=True, slots=True)
class OffsetsFound:
    """The offsets of events by partition, as far as they were found in time. `hub` was asked after that."""

    offsets: Mapping[str, str]
    hub: HubReport


@dataclass(frozen=True, slots=True)
class Probed:
    """Of the partitions probed at these `positions`, those in `ends` have delivered events up to there."""

    positions: Mapping[str, int]
    ends: Mapping[str, int]


Report = HubReported | EventsFound | OffsetsFound | Probed
Input = BatchFinished | BatchRequested | RangesRequested | EndsFixed | Report | protocol.Input


# --- outputs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refresh:
    """Ask for the states of `partitions`; the answer is `HubReported`."""

    partitions: Sequence[str]


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Ask for the newest events, if the hub answers soon; the answer is `HubReported`."""


@dataclass(frozen=True, slots=True)
class FindEvents:
    """Look for the events before `positions`, as the owner in these `epochs`, which may be of more partitions; the
    answer is `EventsFound`."""

    positions: Sequence[Mapping[str, Position]]
    epochs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FindOffsets:
    """Look for the offsets of the events with these `numbers`, with `epochs` as above; the answer is `OffsetsFound`."""

    numbers: Mapping[str, int]
    epochs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Probe:
    """Try to receive events of stalled partitions at `positions`, with `epochs` as above; the answer is `Probed`. If
    Spark's request `waits` for it, `HubReported` follows."""

    positions: Mapping[str, int]
    epochs: Mapping[str, int]
    waits: bool


@dataclass(frozen=True, slots=True)
class BatchPlanned:
    """The answer to `BatchRequested`: the `end` of the next batch, or the start, if there is nothing to read. That
    stays so until something changes, and need not be looked into until the monotonic time `until`.

    `ranges` are of every partition that a batch could be planned with, with or without events. `unread` are those that
    `Trigger.AvailableNow` has not read to their ends, though it owns or may take them: they cannot be planned yet.
    """

    end: StreamOffset
    ranges: Mapping[str, Range]
    until: float = 0.0
    unread: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RangesPlanned:
    """The answer to `RangesRequested`: what to read."""

    ranges: Sequence[Range]


Request = Refresh | CatchUp | FindEvents | FindOffsets
Output = Request | Probe | BatchPlanned | RangesPlanned | protocol.Output
