"""The planner of one streaming query: passes Spark's calls and control messages to the `QueryEngine`, and the engine's
requests to the hub. `assembly.start_planner` assembles it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from spark_ehbalance.clock import monotonic
from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.member.membership import OwnedLease
from spark_ehbalance.group.position import Position, partition_order
from spark_ehbalance.query import lag_report, protocol
from spark_ehbalance.query.batch_in_flight import BatchInFlight
from spark_ehbalance.query.control_socket import PlannerAddress, PlannerControl
from spark_ehbalance.query.engine import QueryEngine
from spark_ehbalance.query.housekeeping import Housekeeping
from spark_ehbalance.query.keeper import Keeper
from spark_ehbalance.query.lag_report import LagReport, lag_answer
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.query.two_sources import two_sources
from spark_ehbalance.text import logger

_LOG = logger(__name__)


#: Seconds to wait until the query has joined the group, and until the group has settled; with a contended store on
#: another continent, this takes a few seconds.
JOIN_TIMEOUT = 60.0

#: Seconds to wait for the newest events after a batch: enough for some round trips, even to another continent.
_CATCH_UP_TIMEOUT = 0.5

#: Seconds to wait for a read of the lease table that the sink needs; the sink repeats its request.
_READ_TIMEOUT = 1.0

#: Seconds to wait, when a query ends, for the driver's listener to report the last batch, which Spark itself may not
#: report. Partitions are released afterwards.
_REPORT_TIMEOUT = 5.0

#: Seconds between two plans while some partitions for `Trigger.AvailableNow` cannot be planned yet.
_UNREAD_WAIT = 0.5

#: Every third request to an idle query waits this many seconds for events, because Spark repeats its request 10 ms
#: after each answer, which costs CPU. The other requests are answered at once, to keep `latestOffset` fast.
_IDLE_WAIT, _IDLE_WAIT_EVERY = 0.05, 3


class PlannerHub(lag_report.LagHub, Protocol):
    """The part of `HubWatcher` that the planner uses."""

    @property
    def name(self) -> str: ...
    @property
    def available(self) -> bool: ...
    def watch(self, partitions: Iterable[str], members: int = 1) -> None: ...
    def rest(self) -> None: ...
    def catch_up(self, patience: float) -> None: ...
    def refresh(self, partitions: Iterable[str] | None = None) -> None: ...
    def request_states(self, partitions: Iterable[str]) -> Mapping[str, PartitionState]: ...
    def connected_at(self) -> float: ...
    def created_ms(self) -> int | None: ...
    def partition_ids(self) -> tuple[str, ...]: ...
    def stop(self) -> None: ...
    def offsets(self, positions: Mapping[str, int], owner_level: Mapping[str, int | None]) -> Mapping[str, str]: ...
    def has_events(
        self, positions: Mapping[str, Position], owner_levels: Mapping[str, int | None]
    ) -> Mapping[str, bool]: ...
    def probe_ends(self, positions: Mapping[str, int], owner_levels: Mapping[str, int | None]) -> Mapping[str, int]: ...


class Planner:
    """Plans the batches of one query. The constructor starts nothing.

    All methods are called by Spark's thread, except for `handle`, which the control socket's thread calls.
    """

    def __init__(
        self,
        engine: QueryEngine,
        keeper: Keeper,
        hub: PlannerHub,
        owner_level: Callable[[int], int | None],
        control: PlannerControl | None = None,
    ) -> None:
        """`keeper` drives the engine's member. `keeper` and `hub` set `keeper.changed` when their results may have
        changed. `owner_level` returns the owner level of the query's receivers in an epoch."""
        self._engine = engine
        self._keeper = keeper
        self._hub = hub
        self._owner_level = owner_level
        self._control = control
        #: For Spark's thread only.
        self.lag = LagReport(hub)
        self._changed = keeper.changed
        self._probing = Housekeeping()
        self._planned: protocol.BatchPlanned | None = None
        self._idle_answers = 0
        #: The query's id, reported by its tasks; None before the first report.
        self.query: str | None = None
        #: The driver reported a second source using the same lease table.
        self.has_second_source = False
        #: Number of concurrent tasks, reported by the driver.
        self.cores: int | None = None
        #: Whether the driver handles signals and ends the query itself.
        self.attended = False

    @property
    def owner(self) -> str:
        """The query's id as a member of its group."""
        return self._engine.policy.query.owner

    @property
    def parts(self) -> tuple[Keeper, PlannerHub, QueryEngine]:
        """The planner's parts, for read-only use by metrics."""
        return self._keeper, self._hub, self._engine

    @property
    def address(self) -> PlannerAddress | None:
        """The address of its control socket; None without one."""
        return self._control.planner if self._control else None

    @property
    def in_batch(self) -> bool:
        """Whether a batch is known to be in flight."""
        return self._engine.in_batch

    def await_report(self) -> None:
        """Wait briefly for the driver's report of the batch in flight."""
        with contextlib.suppress(EhBalanceError):  # that error has already ended the query
            self._keeper.wait_until(lambda: not self._engine.in_batch, _REPORT_TIMEOUT)

    def stop(self) -> None:
        """Release the leases and leave the group; takes a few seconds at most."""
        if self._control:
            self._control.close()
        self._hub.stop()
        self._probing.finish(0.0)
        self._keeper.stop()

    # --- Spark's thread ----------------------------------------------------------------------------------------

    def latest_offset(self, start: StreamOffset, limit: int | None, *, available_now: bool = False) -> StreamOffset:
        """The end of the next batch, which has at most `limit` events and begins at `start` (where the last finished
        batch ended); `start` itself if there is nothing to read. With `available_now`, `fix_ends` is called first.

        Raises the errors of `next_batch`, and `OptionError` if the query has another source with this lease table.
        """
        if self.is_idle(start):
            return start
        self.finish(start)
        if self.has_second_source:
            raise two_sources(self._engine.policy.location)
        if available_now:
            self.fix_ends()
        end = self.next_batch(start, limit)
        return self.empty_end(start) if end is start else end

    def finish(self, end: StreamOffset) -> None:
        """Record that the sink has finished the batch that ends at `end`; idempotent. Raises the error that ended the
        lease keeper."""
        self._keeper.handle(protocol.BatchFinished(end))

    def is_idle(self, start: StreamOffset) -> bool:
        """Whether `next_batch(start)` would return `start` again. This is so in nearly all calls while the query is
        idle, so it must be cheap. May wait a moment for a change, and returns False as soon as there is one."""
        planned = self._planned
        if planned is None or start is not planned.end or monotonic() >= planned.until or self._changed.is_set():
            return False
        self._idle_answers += 1
        return self._idle_answers % _IDLE_WAIT_EVERY > 0 or not self._changed.wait(_IDLE_WAIT)

    def next_batch(self, start: StreamOffset, limit: int | None) -> StreamOffset:
        """The end of the next batch of at most `limit` events, or `start` itself if there is nothing to read.

        Raises `DataLossError`, `HubUnavailableError`, and the error that ended the lease keeper (`FencedError`, ...).
        """
        give_up_at = monotonic() + JOIN_TIMEOUT
        while True:
            self._changed.clear()
            if self._engine.fixed_ends is not None:
                self.fix_ends()  # includes partitions that other members have released in the meantime
            self._hub.watch(self._keeper.readable(), self._engine.member.members)
            planned = self._answer(protocol.BatchRequested(start, limit, self._report()))
            assert isinstance(planned, protocol.BatchPlanned)
            if planned.end is not start or not planned.unread:
                break
            # Returning `start` would end the run of Trigger.AvailableNow.
            if monotonic() >= give_up_at:
                unread = ", ".join(sorted(planned.unread, key=partition_order))
                _LOG.warning(
                    "the run ends before all partitions have been read; the next run reads the rest: partitions=%s",
                    unread,
                )
                break
            self._changed.wait(_UNREAD_WAIT)
        self.lag.planned(planned.ranges)
        self._planned = planned
        if planned.end is not start:
            self._hub.rest()
        return planned.end

    def empty_end(self, start: StreamOffset) -> StreamOffset:
        """The end of a batch without events: `start`, or an offset that records the lease table in Spark's checkpoint
        before the first read."""
        return self._engine.policy.empty_end(start, self._engine.member.table)

    def fix_ends(self) -> None:
        """For `Trigger.AvailableNow`, limit reading of each owned partition to its end soon after this process started,
        and of each other partition to its end when it is first owned. The first call waits until the group has settled.
        """
        first = self._engine.fixed_ends is None
        if first and not self._keeper.wait_balanced(JOIN_TIMEOUT, settled=True):
            _LOG.warning(
                "the group did not settle in time; reading the partitions owned so far: timeout=%g", JOIN_TIMEOUT
            )
        if (partitions := self._engine.without_fixed_end) or first:
            if first:
                self._hub.request_states(partitions)  # those read since this process started are new enough
            else:
                self._hub.refresh(partitions)
            self._keeper.handle(protocol.EndsFixed(self._report()))

    def ranges(self, end: StreamOffset) -> list[OffsetRange]:
        """The ranges to read in the batch that ends at `end`: all if this process planned it, else the result of
        `plan_replay`."""
        answer = self._answer(protocol.RangesRequested(end), lambda: self._engine.knows_owners(end, monotonic()))
        assert isinstance(answer, protocol.RangesPlanned)
        return list(answer.ranges)

    def latest(self) -> dict[str, int]:
        """The last known end of each partition: the sequence number after its newest event."""
        return {partition: state.end for partition, state in self._hub.states().items()}

    def readable(self) -> Mapping[str, OwnedLease]:
        """The partitions that a batch may read now; see `Keeper.readable`."""
        return self._keeper.readable()

    # --- the control socket's thread: messages of the query's driver, sink and tasks ------------------------------

    def handle(self, message: dict[str, Any]) -> bool | dict[str, Any]:
        """Carry out a control message and return the answer. The keys of messages:

        `finished`: the end of a batch that the sink has finished.
        `leave`: leave the group; the answer is False until the batch in flight has ended.
        `twice`: the query has another source with this lease table.
        `cores`: Spark's number of concurrent tasks.
        `lag`: request the lags, see `lag_answer`.
        `batch`: request details of the batch in flight, see `batch_details`.
        `query`: the report of a task, see `is_second_source`.
        `state`: sent by `spark_ehbalance.run`; request the numbers of owned and of all partitions, and the backlog.

        Raises `EhBalanceError` for a malformed message.
        """
        if not isinstance(message, dict) or not isinstance(leave := message.get("leave", False), bool):
            raise _invalid_message("`finished` must be an offset, and `leave` true or false")
        if "batch" in message:
            try:
                end = StreamOffset.from_json(message["batch"])
                return self.batch_details(end, lost=bool(message.get("lost")), event=_event(message.get("event")))
            except EhBalanceError as error:
                parameters = json.loads(json.dumps(error.parameters, default=str))
                return {"error": error.reason, "condition": error.condition, "parameters": parameters}
        if message.get("state") is True:
            self.attended = True
            batch = self._engine.batch
            in_batch = batch.read.keys() if batch and not batch.finished else ()
            owned, lags = self._keeper.readable().keys() | in_batch, self._keeper.lags().values()
            unread = sum(lag.events for lag in lags)
            owners = {lease.owner for lease in self._engine.member.leases.values()}
            state = {"owned": len(owned), "all": len(self._hub.partition_ids()), "behind": unread}
            return state | {"owners": sorted(id for id in owners if id not in (None, self._engine.member.author.id))}
        if "query" in message:
            return self.is_second_source(str(message["query"]), message.get("planner"), message.get("group"))
        if message.get("twice") is True:
            self.has_second_source = True
            self._changed.set()
        if type(cores := message.get("cores")) is int and cores > 0:
            self.cores = cores
        requests_lag = message.get("lag") is True
        if "finished" in message or not (requests_lag or leave):
            end = StreamOffset.from_json(message.get("finished", {}))
            with self._keeper.engine():  # Spark may begin the next batch at any moment
                if (batch := self._engine.batch) is not None and end == batch.end:
                    self.finish(end)
        if requests_lag:
            return lag_answer(self._keeper.lags(), round(1000 * time.time()))
        if leave:
            self._keeper.leave()
            return self._keeper.idle
        return True

    def is_second_source(self, query: str, planner: object, group: object) -> bool:
        """Whether a task's report of its `query`, `planner` and `group` shows that this planner is another source of
        the same query with the same lease table. Remembers the query's id if the report comes from this planner's own
        task."""
        if self._control is not None and planner == list(self._control.planner):
            self.query = query
            return False
        return query == self.query and group == self._engine.policy.query.group

    def _find_offset(self, partition: str, number: int, read: Mapping[str, OffsetRange]) -> str | None:
        """An event's offset, as returned by `batch_details`."""
        if number >= self.latest().get(partition, 0):  # the known end may be older than the event
            self._hub.refresh([partition])
        if number >= self.latest()[partition]:
            return ""
        return self._hub.offsets({partition: number}, self._levels({partition: read[partition].epoch})).get(partition)

    def batch_details(
        self, end: StreamOffset, *, lost: bool = False, event: tuple[str, int] | None = None
    ) -> dict[str, Any]:
        """Details for the sink of the batch that ends at `end`: the `hub`, when it was `created` (milliseconds since
        1970), and the `ranges` read, which in a replay differ from the offset's.

        With `lost`, also the partitions whose lease was lost, from a read of the lease table that starts after this
        call; None if that takes too long, with the `reason` if the last read or write failed. Reading of a range stops
        early only after its lease was taken or its partition stalled, and then its checkpoint is rejected. So if the
        rows were read before this call, all other ranges were read to their ends.

        For a geo-replicated hub, also the `offsets` of the events before the ranges' bounds, and the `offset` of an
        `event`, given by partition and sequence number (None if unknown, empty if the hub never had that number).

        Raises `EhBalanceError` if it is not the batch in flight, the error that ended the lease keeper, and
        `HubUnavailableError` if the hub does not report whether it has that event.
        """
        batch = self._engine.batch
        if batch is None and end.is_initial:  # Spark runs batch 0 even without data, and requests no ranges for it
            batch = BatchInFlight(end, {}, planned=True)
        if batch is None or batch.end != end:
            raise _invalid_message("its batch is not the one in flight")
        read = batch.read
        bounds = {p: [range_.start, range_.end] for p, range_ in read.items()}
        answer: dict[str, Any] = {"hub": self._hub.name, "created": self._hub.created_ms(), "ranges": bounds}
        if any(range_.end_offset is not None for range_ in read.values()):
            answer["offsets"] = {p: [range_.start_offset, range_.end_offset] for p, range_ in read.items()}
        if event is not None:
            partition, number = event
            answer["offset"] = self._find_offset(partition, number, read) if partition in read else None
        if lost:
            leases = self._keeper.read_leases(_READ_TIMEOUT)
            answer["lost"], warnings = (None, []) if leases is None else batch.lost(leases)
            if leases is None and (error := self._keeper.store_error):
                answer["reason"] = error.reason
            for warning in warnings:
                _LOG.warning(warning)
        return answer

    # --- the engine's requests ---------------------------------------------------------------------------------

    def _answer(self, request: protocol.Input, ready: Callable[[], bool] | None = None) -> protocol.Output:
        """The engine's answer to Spark's `request`, after the engine's requests to the hub. Each step first waits for
        `ready`, if given."""
        while True:
            if ready is not None:
                self._keeper.wait_until(ready, JOIN_TIMEOUT)
            for output in self._keeper.handle(request):
                match output:
                    case protocol.Probe():
                        if not output.waits:
                            self._probing.do(partial(self._probe, output))
                            continue
                        self._probe(output)
                        request = protocol.HubReported(self._report())
                    case protocol.BatchPlanned() | protocol.RangesPlanned():
                        return output
                    case _:
                        request = self._query_hub(output)

    def _query_hub(self, request: protocol.Output) -> protocol.Input:
        match request:
            case protocol.Refresh(partitions):
                self._hub.refresh(partitions)
            case protocol.CatchUp():
                self._hub.catch_up(_CATCH_UP_TIMEOUT)
            case protocol.FindEvents(positions, epochs):
                found = [self._find_events(before, epochs) for before in positions]
                return protocol.EventsFound(found, self._report())
            case protocol.FindOffsets(numbers, epochs):
                offsets = self._hub.offsets(numbers, self._levels(epochs))
                self._hub.refresh([next(iter(numbers))])  # over a new connection if the hub was promoted
                return protocol.OffsetsFound(offsets, self._report())
        return protocol.HubReported(self._report())

    def _find_events(self, positions: Mapping[str, Position], epochs: Mapping[str, int]) -> Mapping[str, bool]:
        """Whether the hub has the event before each position. Refreshes the states of partitions without an answer."""
        if not positions:
            return {}
        found = self._hub.has_events(positions, self._levels(epochs))
        if silent := positions.keys() - found.keys():
            self._hub.refresh(silent)
        return found

    def _probe(self, probe: protocol.Probe) -> None:
        ends: Mapping[str, int] = {}
        try:
            ends = self._hub.probe_ends(probe.positions, self._levels(probe.epochs))
        finally:
            self._keeper.handle(protocol.Probed(probe.positions, ends))
            self._changed.set()

    def _report(self) -> protocol.HubReport:
        return protocol.HubReport(self._hub.states(), self._hub.created_ms(), self._hub.connected_at())

    def _levels(self, epochs: Mapping[str, int]) -> dict[str, int | None]:
        return {partition: self._owner_level(epoch) for partition, epoch in epochs.items()}


def _invalid_message(problem: str) -> EhBalanceError:
    return EhBalanceError("EHB_CONTROL_MESSAGE_INVALID", problem=problem)


def _event(value: Any) -> tuple[str, int] | None:
    """The partition and sequence number of the event in a control message."""
    if value is None:
        return None
    if not isinstance(value, list) or [type(item) for item in value] != [str, int]:
        raise _invalid_message("`event` must be a partition and a sequence number")
    return value[0], value[1]
