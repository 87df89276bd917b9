"""The planner of one streaming query: answers Spark's calls from memory.

`batch_planning` decides what a batch reads and `progress_policy` what its offset names. The planner carries that out
with the hub watcher and the lease keeper. `assembly.start_planner` puts it together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.group.member.membership import Holding
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.position import partition_order
from spark_ehbalance.query import event_check, lag_report
from spark_ehbalance.query.batch_in_flight import BatchInFlight
from spark_ehbalance.query.batch_planning import BatchPlan, PlanInputs, Request, left_out, plan_batch, positions_of
from spark_ehbalance.query.control_socket import PlannerAddress, PlannerControl
from spark_ehbalance.query.event_check import EventCheck
from spark_ehbalance.query.keeper import Keeper
from spark_ehbalance.query.lag_report import LagReport, lag_answer
from spark_ehbalance.query.load_reporter import LoadReporter
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.query.past import changed_hub
from spark_ehbalance.query.progress_policy import ProgressPolicy, SeenTable
from spark_ehbalance.query.replay import EarlierBatches, sought_since
from spark_ehbalance.query.stall_probes import StallProbes
from spark_ehbalance.text import logger

_LOG = logger(__name__)


#: Seconds for the group to be joined, or to settle: a contended store on another continent takes a few.
JOIN_TIMEOUT = 60.0

#: Seconds between two load measurements of an idle query: loads are written with renewals, every 10 s by default.
_LOAD_INTERVAL = 5.0

#: Seconds for the newest events after a batch: some round trips, also to another continent.
_CATCH_UP_TIMEOUT = 0.5

#: Seconds for a look that the sink has asked for; it asks again.
_LOOK_TIMEOUT = 1.0

#: Seconds at the end of a query for the driver to say that the last batch is finished, where Spark does not: its
#: listener hears of that when the query ends, and others take the partitions only after this.
_REPORT_TIMEOUT = 5.0

#: Every third answer that there is nothing to read waits so many seconds for something to read. Spark asks again 10 ms
#: after each answer, which is what an idle query costs; the other answers keep `latestOffset` fast.
_IDLE_WAIT, _IDLE_WAIT_EVERY = 0.05, 3


class Hub(event_check.Hub, lag_report.Hub, Protocol):
    """What the planner asks the hub watcher; see `HubWatcher`."""

    @property
    def name(self) -> str: ...
    @property
    def available(self) -> bool: ...
    def watch(self, partitions: Iterable[str], members: int = 1) -> None: ...
    def rest(self) -> None: ...
    def catch_up(self, patience: float) -> None: ...
    def refresh(self, partitions: Iterable[str] | None = None) -> None: ...
    def created_ms(self) -> int | None: ...
    def partition_ids(self) -> tuple[str, ...]: ...
    def stop(self) -> None: ...


class _NothingToRead(NamedTuple):
    """There was nothing to read after `start`. That stays so until something changes; `until` (monotonic time) it need
    not be looked into again."""

    start: StreamOffset | None = None
    until: float = 0.0


class Planner:
    """Plans the batches of one query. The constructor starts nothing.

    One thread (Spark's) calls it, except for `handle`, which the control socket's thread calls.
    """

    def __init__(
        self,
        keeper: Keeper,
        hub: Hub,
        policy: ProgressPolicy,
        events: EventCheck,
        stalls: StallProbes,
        *,
        fail_on_data_loss: bool = True,
        earlier: EarlierBatches | None = None,
        control: PlannerControl | None = None,
    ) -> None:
        """`keeper` and `hub` set `keeper.changed` when what they return may have changed. `earlier` is what earlier
        processes of the query have left."""
        self._keeper = keeper
        self._hub = hub
        self._policy = policy
        self._events = events
        self._stalls = stalls
        self._fail_on_data_loss = fail_on_data_loss
        self._earlier = earlier or EarlierBatches()
        self._control = control
        self._loads = LoadReporter(keeper.measure)
        #: Of Spark's thread.
        self.lag = LagReport(hub)
        self._changed = keeper.changed
        self._progress: dict[str, Progress] = {}
        self._last_finished = self._earlier.finished
        self._last_start: StreamOffset | None = None
        #: Replaced as a whole: the control socket's thread reads it without the lock.
        self._in_flight: BatchInFlight | None = None
        self._fixed_ends: dict[str, int] | None = None
        self._idle = _NothingToRead()
        self._idle_answers = 0
        #: The query, as its tasks have told; None before the first one has.
        self.query: str | None = None
        #: Whether the driver has said that the query has another source with this lease table.
        self.is_one_of_two = False
        #: How many tasks the query's Spark runs at the same time, as the driver has said.
        self.cores: int | None = None
        #: Whether the driver receives signals, and says itself when the query is to leave.
        self.attended = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()

    @property
    def owner(self) -> str:
        """The name under which the query is a member of its group."""
        return self._policy.query.owner

    @property
    def parts(self) -> tuple[Keeper, Hub, LoadReporter]:
        """What the planner works with, for who measures it and changes nothing."""
        return self._keeper, self._hub, self._loads

    @property
    def address(self) -> PlannerAddress | None:
        """Where its control socket is."""
        return self._control.planner if self._control else None

    @property
    def in_batch(self) -> bool:
        """Whether a batch is in flight, as far as is known."""
        return not self._ended.is_set()

    def await_report(self) -> None:
        """Wait a moment for the driver to say that the batch in flight is finished, if it has not said so."""
        self._ended.wait(_REPORT_TIMEOUT)

    def stop(self) -> None:
        """Give the leases back and leave the group; takes a few seconds at most. Not guaranteed on SIGKILL."""
        if self._control:
            self._control.close()
        self._hub.stop()
        self._stalls.stop()
        self._keeper.stop()

    # --- Spark's thread ----------------------------------------------------------------------------------------

    def finish(self, end: StreamOffset) -> None:
        """The sink has finished the batch that ends at `end`; may be called again for the same batch."""
        with self._lock:
            if end == self._last_finished:
                return
            self._last_finished = end
            self._ended.set()
            batch = self._in_flight
            finished = batch.progress() if batch and batch.end == end else {}
            read = batch.read.values() if batch and finished else ()
            self._loads.batch_ends(sum(map(len, read)))
            self._progress.update(finished)
            self._keeper.finish(finished, end.batch)

    def still_idle(self, start: StreamOffset) -> bool:
        """Whether `next_batch(start)` would return `start` again, as for nearly all calls of an idle query, so that
        it must cost little. May wait a moment for a change, and returns False at once when there is one."""
        idle = self._idle
        if start is not idle.start or self._changed.is_set() or time.monotonic() >= idle.until:
            return False
        self._idle_answers += 1
        return self._idle_answers % _IDLE_WAIT_EVERY > 0 or not self._changed.wait(_IDLE_WAIT)

    def next_batch(self, start: StreamOffset, limit: int | None) -> StreamOffset:
        """The end of the next batch of at most `limit` events, or `start` itself if there is nothing to read.

        Raises `DataLossError`, `HubUnavailableError`, and what has ended the lease keeper (`FencedError`, ...).
        """
        now = time.monotonic()
        self._changed.clear()
        self._check_hub()
        holdings = self._keeper.holdings()
        self._hub.watch(holdings, self._keeper.members)
        plan = self._plan(holdings, limit, batch_ended=start != self._last_start)
        self._last_start = start
        self._move_to_retained(plan)
        self.lag.planned(plan.ranges)
        sound = [partition for partition, each in holdings.items() if not each.stalled]  # the table says the others
        out = left_out(plan.ranges, sound, self._hub.states(), self._fixed_ends)
        self._keeper.asked(time.time_ns() // 1_000_000, out)
        self._loads.update(self.latest(), {partition: each.start for partition, each in plan.ranges.items()})
        if named := self._policy.named(start, plan.ranges):
            return self._begin_batch(start, named, plan.ranges, holdings) or start
        due = self._stalls.due, *(each.ends for each in holdings.values())
        self._idle = _NothingToRead(start, min((now + _LOAD_INTERVAL, *due)))
        return start

    def empty_end(self, start: StreamOffset) -> StreamOffset:
        """The end of a batch without events: `start`, or an offset that records the lease table in Spark's checkpoint
        before anything is read with it."""
        return self._policy.empty_end(start, self._keeper.table)

    def fix_ends(self) -> None:
        """From now on read only the partitions owned now, up to their newest events now (`Trigger.AvailableNow`).

        Waits until the group has settled. May be called again; the ends stay the same.
        """
        if self._fixed_ends is None:
            if not self._keeper.wait_balanced(JOIN_TIMEOUT, settled=True):
                _LOG.warning("the group has not settled within %g s: reading what is owned now", JOIN_TIMEOUT)
            holdings = self._keeper.holdings()
            self._hub.refresh(holdings)
            ends = self.latest()
            self._fixed_ends = {partition: ends[partition] for partition in holdings if partition in ends}

    def ranges(self, end: StreamOffset) -> list[Range]:
        """What to read of the batch that ends at `end`: all of it if this process has planned it; else what
        `plan_replay` returns."""
        self._keeper.begin(end.batch, end.run)
        batch = self._in_flight
        if batch is not None and batch.planned and batch.end == end:
            return list(batch.read.values())
        holdings = self._keeper.holdings()
        replay = self._earlier.replay(end, holdings)
        replay = self._events.replayable(replay, lambda p: sought_since(end.ranges[p], holdings[p]))
        reserved = self._keeper.reserve({partition: each.epoch for partition, each in replay.items()})
        # Spark's log keeps the old epochs; these ranges, with the new ones, are checkpointed once the batch has ended.
        again = {partition: each for partition, each in replay.items() if partition in reserved}
        sought = frozenset(p for p in again if sought_since(end.ranges[p], holdings[p]))
        self._in_flight = BatchInFlight(end, again, planned=False, sought=sought)
        self._ended.clear()
        if left_out := sorted(end.ranges.keys() - again.keys(), key=partition_order):
            _LOG.info(
                "replaying a batch without partitions %s: they go on at the lease table's positions, with whoever owns "
                "them", ", ".join(left_out),
            )  # fmt: skip
        return list(self._in_flight.read.values())

    def latest(self) -> dict[str, int]:
        """The sequence number after the newest event of each partition, as last known."""
        return {partition: state.end for partition, state in self._hub.states().items()}

    def holdings(self) -> Mapping[str, Holding]:
        """The partitions that a batch may be planned with now; see `Keeper.holdings`."""
        return self._keeper.holdings()

    # --- the control socket's thread: what the query's driver, sink and tasks say --------------------------------

    def handle(self, message: dict[str, Any]) -> bool | dict[str, Any]:
        """Carry out a control message: `finished` is the end of a batch that the sink has finished, and with `leave`
        the query leaves its group. Returns whether that is done; leaving takes until the batch in flight has ended.
        With `twice` the query has another source with this lease table; `cores` is how many tasks Spark runs at the
        same time. Or it asks for the `lag`, or about the batch in flight, see `about_batch`, or comes from a task, see
        `is_of_query`, or from `spark_ehbalance.run`, which asks for the `state`: how many partitions of all are owned,
        and their unread events.

        Raises `EhBalanceError` for a malformed message.
        """
        if not isinstance(message, dict) or not isinstance(leave := message.get("leave", False), bool):
            raise EhBalanceError("a control message has an offset as finished, and true or false as leave")
        if "batch" in message:
            try:
                end = StreamOffset.from_json(message["batch"])
                return self.about_batch(end, look=bool(message.get("look")), event=_event(message.get("event")))
            except EhBalanceError as error:
                return {"error": str(error)}
        if message.get("state") is True:
            self.attended = True
            in_batch = self._in_flight.read.keys() if self._in_flight and self.in_batch else ()
            owned, lags = self._keeper.holdings().keys() | in_batch, self._keeper.lags().values()
            unread = sum(each.events for each in lags)
            return {"owned": len(owned), "all": len(self._hub.partition_ids()), "behind": unread}
        if "query" in message:
            return self.is_of_query(str(message["query"]), message.get("planner"), message.get("group"))
        if message.get("twice") is True:
            self.is_one_of_two = True
            self._changed.set()
        if type(cores := message.get("cores")) is int and cores > 0:
            self.cores = cores
        asks_lag = message.get("lag") is True
        if "finished" in message or not asks_lag:
            end = StreamOffset.from_json(message.get("finished", {}))
            if self._in_flight is not None and end == self._in_flight.end:
                self.finish(end)
        if asks_lag:
            return lag_answer(self._keeper.lags(), round(1000 * time.time()))
        if leave:
            self._keeper.leave()
            return self._keeper.idle
        return True

    def is_of_query(self, query: str, planner: object, group: object) -> bool:
        """A task of the planner with that address, and lease table, reads for `query`. Returns whether this is another
        planner of the same query, with the same lease table; keeps the query if it is this one's."""
        if self._control is not None and planner == list(self._control.planner):
            self.query = query
            return False
        return query == self.query and group == self._policy.query.group

    def _offset_of(self, partition: str, number: int, read: Mapping[str, Range]) -> str | None:
        """The offset of an event as `about_batch` answers it."""
        if number >= self.latest()[partition]:  # what is known may be older than the event
            self._hub.refresh([partition])
        return self._events.offset_of(partition, number, read) if number < self.latest()[partition] else ""

    def about_batch(
        self, end: StreamOffset, *, look: bool = False, event: tuple[str, int] | None = None
    ) -> dict[str, Any]:
        """What the sink has to know of the batch that ends at `end`: the `hub` and when it was `created` (milliseconds
        since 1970), and the `ranges` that are read, which in a replay are not those in the offset.

        With `look` also which partitions are `lost`, by a look at the lease table that has begun after this call; None
        if that takes too long. A range ends early only after its lease was taken or stalled, and then its
        checkpoint is refused. So whoever asks after the rows were read knows that all others were read to their ends.

        Of a geo-replicated hub also the `offsets` of the events before the ranges' ends, and that of an `event`, given
        by partition and sequence number (None if it is not known, empty if the hub has never had one of this number).

        Raises `EhBalanceError` if it is not the batch in flight, what has ended the lease keeper, and
        `HubUnavailableError` if the hub does not say whether it has that event.
        """
        with self._lock:
            batch = self._in_flight
            if batch is None and end.is_initial:  # Spark runs batch 0 also without data, and plans no ranges of it
                batch = BatchInFlight(end, {}, planned=True)
            if batch is None or batch.end != end:
                raise EhBalanceError("the batch that was asked about is not the one in flight")
        read = batch.read
        bounds = {p: [each.start, each.end] for p, each in read.items()}
        answer: dict[str, Any] = {"hub": self._hub.name, "created": self._hub.created_ms(), "ranges": bounds}
        if any(each.end_offset is not None for each in read.values()):
            answer["offsets"] = {p: [each.start_offset, each.end_offset] for p, each in read.items()}
        if event is not None:
            partition, number = event
            answer["offset"] = self._offset_of(partition, number, read) if partition in read else None
        if look:
            leases = self._keeper.look(_LOOK_TIMEOUT)
            answer["lost"], warnings = (None, []) if leases is None else batch.lost(leases)
            for warning in warnings:
                _LOG.warning(warning)
        return answer

    # --- inside, in Spark's thread -----------------------------------------------------------------------------

    def _check_hub(self) -> None:
        """Raise `DataLossError` if the hub is another one than when the query started."""
        read = self._policy.query.hub
        if read is not None and (wrong := changed_hub("query", read, replace(read, created_ms=self._hub.created_ms()))):
            raise wrong.error()

    def _plan(self, holdings: Mapping[str, Holding], limit: int | None, *, batch_ended: bool) -> BatchPlan:
        inputs = PlanInputs(
            holdings,
            self._hub.states(),
            self._progress,
            self._fixed_ends,
            limit,
            self._fail_on_data_loss,
            batch_ended=batch_ended,
        )
        first, positions = self._last_start is None, positions_of(inputs)
        # A query that ends by itself may have no later batch, and with Spark 4.0 and 4.1 no second one.
        wait = first or self._fixed_ends is not None
        readable = self._stalls.readable(holdings, positions, at_once=first, wait=wait)
        delivering = {p: each for p, each in positions.items() if readable.get(p) != each.next}
        inputs = replace(inputs, unverified=self._events.unverified(delivering, holdings), readable=readable)
        while isinstance(plan := plan_batch(inputs), Request):
            if plan is Request.REFRESH:
                self._hub.refresh(holdings)
                self._check_hub()  # a position beyond the hub's end is no surprise then
            else:
                self._hub.catch_up(_CATCH_UP_TIMEOUT)
            inputs = inputs.after(plan, self._hub.states())
        return self._events.with_end_offsets(plan, inputs.states)

    def _move_to_retained(self, plan: BatchPlan) -> None:
        """Remember positions that had to move, so that each is reported once and not at every trigger."""
        for warning in plan.warnings:
            _LOG.warning(warning)
        if plan.resets:
            self._progress.update(plan.resets)
            self._keeper.reset(plan.resets)

    def _begin_batch(
        self,
        start: StreamOffset,
        named: Mapping[str, Range],
        ranges: Mapping[str, Range],
        holdings: Mapping[str, Holding],
    ) -> StreamOffset | None:
        """The end of the batch; None if nothing of it is owned any more."""
        reserved = self._keeper.reserve({partition: each.epoch for partition, each in named.items()})
        table = SeenTable(self._keeper.table, self._keeper.known_begun)
        # While the table is away nobody takes a partition, however long that lasts.
        seen = {} if self._keeper.store_away else {p: each.checkpoint.next for p, each in holdings.items()}
        end = self._policy.batch_end(start, named, ranges, reserved, table, seen)
        if not end.ranges:
            return None
        self._in_flight = BatchInFlight(end, end.ranges, planned=True)
        self._ended.clear()
        self._hub.rest()
        self._loads.batch_begins()
        return end


def _event(asked: Any) -> tuple[str, int] | None:
    """The event that a control message asks about, by partition and sequence number."""
    if asked is None:
        return None
    if not isinstance(asked, list) or [type(each) for each in asked] != [str, int]:
        raise EhBalanceError("a control message has a partition and a sequence number as event")
    return asked[0], asked[1]
