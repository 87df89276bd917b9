"""The decisions of one streaming query, as a function of its inputs. No clock, no I/O, no thread.

The caller passes inputs to `QueryEngine.handle` and acts on the outputs that it returns. The answer to a request to the
hub is the next input:

    Refresh, CatchUp  →  HubReported
    FindEvents        →  EventsFound
    FindOffsets       →  OffsetsFound
    Probe             →  Probed, and HubReported if Spark waits for it

These steps lead from a request from Spark to the answer: from `BatchRequested` to `BatchPlanned`, and from
`RangesRequested` to `RangesPlanned`. The `MemberEngine` decides which partitions the query owns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace

from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.load_meter import LoadMeter
from spark_ehbalance.group.member.membership import Clocks, OwnedLease
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.position import Position, names_event, partition_order
from spark_ehbalance.query import event_check, protocol, stalls
from spark_ehbalance.query.batch_in_flight import BatchInFlight
from spark_ehbalance.query.batch_planning import (
    BatchPlan,
    PlanInputs,
    Request,
    omitted_partitions,
    plan_batch,
    position_in_epoch,
    positions_of,
)
from spark_ehbalance.query.consistency import changed_hub
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.query.progress_policy import LeaseTableProgress, ProgressPolicy, TableState
from spark_ehbalance.query.replay import EarlierBatches, unclaimed, was_moved_by_seek
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Seconds between two load measurements of an idle query: loads are written with renewals, every 10 s by default.
_LOAD_INTERVAL = 5.0


@dataclass(slots=True)
class _Planning:
    """A batch that is being planned. `request` was made at monotonic time `since`. `plan` is set only while its offsets
    are being looked up."""

    request: protocol.BatchRequested
    since: float
    hub: protocol.HubReport
    inputs: PlanInputs
    #: The last request to the hub.
    requested: Request | None = None
    #: The positions whose events were looked up; None before the lookup.
    looked_for: Mapping[str, Position] | None = None
    plan: BatchPlan | None = None


@dataclass(frozen=True, slots=True)
class _Replay:
    """The logged batch of an earlier process, and the ranges to read again if the hub still has their events."""

    end: StreamOffset
    ranges: Mapping[str, OffsetRange]
    owned: Mapping[str, OwnedLease]

    def sought(self, partition: str) -> bool:
        return was_moved_by_seek(self.end.ranges[partition], self.owned[partition])


@dataclass(eq=False)
class QueryEngine:
    """The decisions of one query. Not thread-safe: a multithreaded driver must call all methods under one lock.

    `earlier` are the batches of earlier processes. A stalled partition is probed again after `probe_again` seconds.
    """

    member: MemberEngine
    policy: ProgressPolicy
    _: KW_ONLY
    fail_on_data_loss: bool = True
    earlier: EarlierBatches = field(default_factory=EarlierBatches)
    probe_again: float = 60.0

    def __post_init__(self) -> None:
        #: The last batch passed to Spark.
        self.batch: BatchInFlight | None = None
        #: Final ends by partition (`Trigger.AvailableNow`): the partition's end when the run began, or when the query
        #: first owned the partition. None for other triggers.
        self.fixed_ends: Mapping[str, int] | None = None
        self.loads = LoadMeter()
        self._finished = self.earlier.finished
        self._planned_after: StreamOffset | None = None
        self._verified: event_check.Verified = {}
        self._probes: Mapping[str, stalls.StallProbe] = {}
        self._pending: _Planning | _Replay | None = None

    @property
    def without_fixed_end(self) -> frozenset[str]:
        """The owned partitions without a fixed end, including those whose lease is unverified after a suspension."""
        return frozenset(self.member.plannable().keys() - (self.fixed_ends or {}).keys())

    @property
    def in_batch(self) -> bool:
        """Whether a batch is known to be in flight."""
        return self.batch is not None and not self.batch.finished

    def handle(self, input: protocol.Input, now: Clocks) -> list[protocol.Output]:
        """The outputs for `input`, received at `now`. Inputs for the `MemberEngine` are forwarded to it. If this raises
        an error, Spark's request fails.

        Raises `DataLossError` and `StoreUnavailableError`.
        """
        match input:
            case protocol.HubReported(hub) | protocol.EventsFound(_, hub) | protocol.OffsetsFound(_, hub) if isinstance(
                self._pending, _Planning
            ) and self._doubts(self._pending, hub):
                return self._batch_requested(replace(self._pending.request, hub=hub), now)
            case protocol.BatchFinished(end):
                return self._batch_finished(end, now)
            case protocol.BatchRequested():
                return self._batch_requested(input, now)
            case protocol.RangesRequested(end):
                return self._ranges_requested(end, now)
            case protocol.EndsFixed(hub):
                return self._ends_fixed(hub, now)
            case protocol.HubReported(hub):
                return self._hub_reported(hub, now)
            case protocol.EventsFound():
                return self._events_found(input, now)
            case protocol.OffsetsFound(offsets):
                return self._offsets_found(offsets, now)
            case protocol.Probed():
                return self._probed(input, now)
            case _:
                return [*self.member.handle(input, now)]

    # --- a batch ends ------------------------------------------------------------------------------------------

    def _batch_finished(self, end: StreamOffset, now: Clocks) -> list[protocol.Output]:
        if end == self._finished:
            return []
        self._finished, batch, progress, events = end, self.batch, dict[str, Progress](), 0
        if batch is not None:
            self.batch = replace(batch, finished=True)
            if batch.end == end:
                progress, events = batch.progress(), sum(map(len, batch.read.values()))
        self.loads = self.loads.batch_ended(now.monotonic, events)
        self.member.finish_batch(progress, end.batch)
        return []

    # --- the next batch ----------------------------------------------------------------------------------------

    def _ends_fixed(self, hub: protocol.HubReport, now: Clocks) -> list[protocol.Output]:
        newly = {
            partition: hub.states[partition].end for partition in self.without_fixed_end if partition in hub.states
        }
        self.fixed_ends = {**(self.fixed_ends or {}), **newly}
        return []

    def _batch_requested(self, request: protocol.BatchRequested, now: Clocks) -> list[protocol.Output]:
        query = self.member.query
        inputs = PlanInputs(
            self.member.readable(now.monotonic),
            request.hub.states,
            {**query.resets, **query.progress},
            self.fixed_ends,
            request.limit,
            self.fail_on_data_loss,
            batch_ended=request.start != self._planned_after,
        )
        self._pending = planning = _Planning(request, now.monotonic, request.hub, inputs)
        self._check_hub(request.hub)
        return self._probe_stalled(planning, now)

    def _check_hub(self, hub: protocol.HubReport) -> None:
        """Raise `DataLossError` if the hub was recreated since the query started."""
        read = self.policy.query.hub
        if read is not None and (wrong := changed_hub("query", read, replace(read, created_ms=hub.created_ms))):
            raise wrong

    def _probe_stalled(self, planning: _Planning, now: Clocks) -> list[protocol.Output]:
        """Probe the stalled partitions whose probes are due, without delaying others."""
        owned, before, positions = planning.inputs.owned, self._probes, positions_of(planning.inputs)
        # Wait for the probes where there may be no later batch: with Trigger.AvailableNow, and in the first batch,
        # which is then the only one in Spark 4.0 and 4.1.
        waits = self._planned_after is None or self.fixed_ends is not None
        self._probes = stalls.update_probes(before, owned, positions, now.monotonic, at_once=waits)
        for line in stalls.warnings(before, self._probes):
            _LOG.warning("%s", line)
        due = {
            p: probe for p, probe in stalls.pending_probes(self._probes, owned).items() if probe.due <= now.monotonic
        }
        if not due:
            return self._plan(planning, now)
        probed = {partition: probe.position for partition, probe in due.items()}
        self._probes = stalls.with_probe_results(self._probes, probed, {}, float("inf"))
        probe: list[protocol.Output] = [protocol.Probe(probed, _epochs(owned), waits)]
        return probe if waits else probe + self._plan(planning, now)

    def _probed(self, answer: protocol.Probed, now: Clocks) -> list[protocol.Output]:
        again = now.monotonic + self.probe_again
        self._probes = stalls.with_probe_results(self._probes, answer.positions, answer.ends, again)
        for partition, end in answer.ends.items():
            _LOG.info("a stalled partition delivers events again: partition=%s next_batch_to=%d", partition, end - 1)
        return []

    def _hub_reported(self, hub: protocol.HubReport, now: Clocks) -> list[protocol.Output]:
        planning = self._planning
        planning.hub = hub
        if planning.requested is None:
            planning.inputs = replace(planning.inputs, states=hub.states)
        else:
            if planning.requested is Request.REFRESH:
                self._check_hub(hub)  # if the hub was recreated, positions may be beyond its end
            planning.inputs = planning.inputs.after(planning.requested, hub.states)
        return self._plan(planning, now)

    @staticmethod
    def _doubts(planning: _Planning, hub: protocol.HubReport) -> bool:
        """Whether a geo-replicated hub may have been promoted since the batch was requested. A promotion ends all
        connections, and the planned sequence numbers may then belong to other events."""
        positions = positions_of(planning.inputs).values()
        return hub.connection != planning.hub.connection and any(names_event(position.offset) for position in positions)

    def _plan(self, planning: _Planning, now: Clocks) -> list[protocol.Output]:
        """The batch, or a request to send to the hub first."""
        inputs, owned = planning.inputs, planning.inputs.owned
        if planning.looked_for is None:
            # A probe result that arrives after this point waits for the next batch: its event has not been looked up.
            readable = {p: probe.readable_to for p, probe in self._probes.items() if p in owned}
            inputs = planning.inputs = replace(inputs, readable=readable)
            positions = {
                p: position for p, position in positions_of(inputs).items() if readable.get(p) != position.next
            }
            hub = planning.hub
            doubtful = event_check.unverified_positions(positions, owned, hub.states, hub.connection, self._verified)
            planning.looked_for = doubtful
            if doubtful:
                return [protocol.FindEvents([doubtful], _epochs(owned))]
        plan = plan_batch(inputs)
        if isinstance(plan, Request):
            planning.requested = plan
            return [protocol.Refresh(tuple(owned)) if plan is Request.REFRESH else protocol.CatchUp()]
        if ends := event_check.ends_without_offset(plan, inputs.states):
            planning.plan = plan
            return [protocol.FindOffsets(ends, _epochs(owned))]
        return self._begin(planning, plan, now)

    def _events_found(self, answer: protocol.EventsFound, now: Clocks) -> list[protocol.Output]:
        if isinstance(self._pending, _Replay):
            replay = self._pending
            ranges = event_check.replayable(replay.ranges, answer.found, answer.hub.states, replay.sought)
            return self._read_again(replace(replay, ranges=ranges), now)
        planning = self._planning
        wanted = planning.looked_for or {}
        known = event_check.known_events(wanted, answer.found[0], answer.hub.states)
        event_check.check_events_exist(wanted, known)
        found = {p: (planning.inputs.owned[p].epoch, planning.hub.connection) for p in known}
        self._verified = {**self._verified, **found}
        planning.inputs = replace(planning.inputs, unverified=wanted.keys() - known.keys())
        return self._plan(planning, now)

    def _offsets_found(self, offsets: Mapping[str, str], now: Clocks) -> list[protocol.Output]:
        planning = self._planning
        assert planning.plan is not None, "offsets are looked up for a plan"
        plan = event_check.with_end_offsets(planning.plan, planning.inputs.states, offsets)
        return self._begin(planning, plan, now)

    def _begin(self, planning: _Planning, plan: BatchPlan, now: Clocks) -> list[protocol.Output]:
        """Begin the batch, unless it would read nothing."""
        self._pending, inputs, start = None, planning.inputs, planning.request.start
        self._planned_after = start
        for warning in plan.warnings:
            _LOG.warning(warning)
        if plan.resets:
            self.member.reset(plan.resets)  # so that each reset is reported only once
        owned, ranges = inputs.owned, plan.ranges
        # Stalled partitions are not noted as omitted, because the lease table already records them.
        sound = [partition for partition, holding in owned.items() if not holding.stall_count]
        omitted = omitted_partitions(ranges, sound, inputs.states, available_now=self.fixed_ends is not None)
        self.member.note_request(now.wall_ms, omitted)
        if self.loads.is_due(now.monotonic):
            self._measure(ranges, planning, now)
        if named := self.policy.named(start, ranges):
            end = self._batch_end(start, named, ranges, owned, now)
            if end is None:
                return [protocol.BatchPlanned(start, ranges, unread=self._unread(inputs))]
            return [protocol.BatchPlanned(end, ranges)]
        probes = (probe.due for probe in stalls.pending_probes(self._probes, owned).values())
        lease_ends = (holding.ends for holding in owned.values())
        until = min((planning.since + _LOAD_INTERVAL, *probes, *lease_ends))
        return [protocol.BatchPlanned(start, ranges, until, self._unread(inputs))]

    def _unread(self, inputs: PlanInputs) -> frozenset[str]:
        """Partitions that this member owns or may take, that are not stalled, and that have not been read to their
        fixed ends. Empty once the member is leaving, because it plans no more batches."""
        if self.fixed_ends is None or self.member.is_leaving:
            return frozenset()
        query, unread, me = self.member.query, set(self.without_fixed_end), self.member.author.id
        most = self.member.settings.max_owned
        may_take = most is None or len(self.member.owned) < most
        progress = {**query.resets, **query.progress}
        for partition, lease in self.member.leases.items():
            is_free = lease.owner is None and may_take and (lease.pin is None or lease.pin.to == me)
            if lease.stall_count or not (is_free or lease.owner == me):
                continue
            position = position_in_epoch(lease.epoch, progress.get(partition), lease.checkpoint)
            fixed, state = self.fixed_ends.get(partition), inputs.states.get(partition)
            ends = [fixed] if fixed is not None else []
            ends += [state.end] if state is not None else []  # a promotion may have lost events before the fixed end
            if position is None or not ends or position.next < min(ends):
                unread.add(partition)
        return frozenset(unread)

    def _measure(self, ranges: Mapping[str, OffsetRange], planning: _Planning, now: Clocks) -> None:
        ends = {partition: state.end for partition, state in planning.inputs.states.items()}
        positions = {partition: range_.start for partition, range_ in ranges.items()}
        self.loads = self.loads.measured(now.monotonic, ends, positions)
        self.member.measure(self.loads.loads(), self.loads.member_load())

    def _batch_end(
        self,
        start: StreamOffset,
        named: Mapping[str, OffsetRange],
        ranges: Mapping[str, OffsetRange],
        owned: Mapping[str, OwnedLease],
        now: Clocks,
    ) -> StreamOffset | None:
        """Begin the batch and return its end; None if none of its partitions is still owned."""
        reserved = self.member.begin_batch(_epochs(named), now.monotonic)
        table = TableState(self.member.table, self.member.recorded_batch)
        seen = {p: holding.checkpoint.next for p, holding in owned.items()}
        leases, progress = self.member.leases, self.member.query.progress
        lapsed = {p: x for p, x in progress.items() if p not in owned and p in leases and leases[p].epoch == x.epoch}
        seen |= {p: known.next for p in lapsed if (known := leases[p].checkpoint) is not None}
        end = self.policy.batch_end(start, named, ranges, reserved, table, seen, lapsed)
        if not end.ranges:
            return None
        # Without a lease table, `end` repeats the ranges of partitions whose state is unknown, perhaps with old epochs.
        self.batch = BatchInFlight(end, {p: x for p, x in end.ranges.items() if p in ranges}, planned=True)
        self.loads = self.loads.batch_begun(now.monotonic)
        return end

    @property
    def _planning(self) -> _Planning:
        assert isinstance(self._pending, _Planning), "a batch is being planned"
        return self._pending

    # --- a logged batch ----------------------------------------------------------------------------------------

    def knows_owners(self, end: StreamOffset, now: float) -> bool:
        """Whether the owners of the partitions in the batch that ends at `end` are known. They always are if this
        process planned the batch. Otherwise, after a suspension of a lease duration or more, they are known only once
        the lease table has been read, and they are not known while partitions are `unclaimed`."""
        owned = self.member.readable(now, replay=True)
        unknown = self.member.unclaimed | (self.member.plannable(replay=True).keys() - owned.keys())
        return self._planned(end) is not None or (
            unknown.isdisjoint(end.ranges)
            and not unclaimed(end.ranges, self.earlier.replay(end, owned), self.member.leases)
        )

    def _require_owners(self, end: StreamOffset, now: Clocks) -> None:
        """Raise `StoreUnavailableError` if this query may still own partitions that the replay would omit."""
        if not self.knows_owners(end, now.monotonic):
            raise StoreUnavailableError(
                "EHB_LEASE_TABLE_UNAVAILABLE",
                what="The lease table",
                action="read",
                reason="the owners of the partitions of a batch that must be run again are unknown",
            )

    def _planned(self, end: StreamOffset) -> BatchInFlight | None:
        batch = self.batch
        return batch if batch is not None and batch.planned and batch.end == end else None

    def _ranges_requested(self, end: StreamOffset, now: Clocks) -> list[protocol.Output]:
        """Read the batch that ends at `end`. If this process planned it, read all partitions that no other member has
        taken since; otherwise, read the ranges of `plan_replay`."""
        self.member.record_batch(end.batch, end.run)
        if (batch := self._planned(end)) is not None:
            self.batch = batch = replace(batch, ranges={p: r for p, r in batch.ranges.items() if not self._is_taken(r)})
            return [protocol.RangesPlanned(list(batch.read.values()))]
        self._require_owners(end, now)
        owned = self.member.readable(now.monotonic, replay=True)
        self._pending = replay = _Replay(end, self.earlier.replay(end, owned), owned)
        if any(bounds := event_check.bounds(replay.ranges)):
            return [protocol.FindEvents(bounds, _epochs(replay.ranges))]
        return self._read_again(replay, now)

    def _is_taken(self, planned: OffsetRange) -> bool:
        """Whether another member has taken the partition since it was planned, for example while this process was
        suspended. Without epochs, the range's task detects this."""
        shared = self.member.settings.capabilities.epochs and isinstance(self.policy, LeaseTableProgress)
        return shared and not self.member.leases[planned.partition].still_owned(planned.epoch, planned.since_ms)

    def _read_again(self, replay: _Replay, now: Clocks) -> list[protocol.Output]:
        end, self._pending = replay.end, None
        self._require_owners(end, now)
        reserved = self.member.begin_batch(_epochs(replay.ranges), now.monotonic)
        # Spark's log keeps the old epochs; once the batch has ended, the ranges are checkpointed with the new epochs.
        ranges = {partition: range_ for partition, range_ in replay.ranges.items() if partition in reserved}
        self.batch = BatchInFlight(end, ranges, planned=False, sought=frozenset(filter(replay.sought, ranges)))
        self.loads = self.loads.batch_begun(now.monotonic)
        if others := sorted(end.ranges.keys() - ranges.keys(), key=partition_order):
            _LOG.info(
                "replaying a batch; some of its partitions are not read again: partitions=%s",
                ", ".join(others),
            )
        return [protocol.RangesPlanned(list(self.batch.read.values()))]


def _epochs(owned: Mapping[str, OffsetRange | OwnedLease]) -> dict[str, int]:
    return {partition: holding.epoch for partition, holding in owned.items()}
