"""The planner of one streaming query: which events are the next batch, and what a restarted one may read again.

It runs in the query's planner process, answers Spark's calls from memory, and leaves the waiting to two threads: the
lease keeper and the hub watcher.
"""

from __future__ import annotations

import logging
import random
import re
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from spark_ehbalance.errors import EhBalanceError, StoreUnavailableError
from spark_ehbalance.hub.watcher import HubWatcher
from spark_ehbalance.leases.model import Author, Lease
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.member.keeper import Keeper
from spark_ehbalance.member.load_meter import LoadMeter, MemberMeter
from spark_ehbalance.member.membership import Holding, Membership, Progress, Settings
from spark_ehbalance.source.continuity import LoggedBatch, Memory
from spark_ehbalance.source.control_socket import PlannerControl
from spark_ehbalance.source.host import cpu_time
from spark_ehbalance.source.joining import check_alone, check_hub, join_table
from spark_ehbalance.source.offsets import HeldPosition, LeaseTable, StreamOffset, group_name
from spark_ehbalance.source.options import Options
from spark_ehbalance.source.ranges import Range, limit_by_backlog, retained_start
from spark_ehbalance.source.tasks import WORTH_A_TASK
from spark_ehbalance.stores import opening
from spark_ehbalance.stores.base import REQUEST_TIMEOUT, LeaseStore
from spark_ehbalance.stores.memory import MemoryStore
from spark_ehbalance.strategies import REACTIVE, strategy
from spark_ehbalance.values.position import Position

_LOG = logging.getLogger(__name__)

#: Seconds within which the group must have been joined; a contended store on another continent takes a few.
_JOIN_TIMEOUT = 60.0

#: Seconds between two measurements of loads while nothing happens: they are told with renewals, every 10 s by default.
_LOADS_INTERVAL = 5.0

#: Seconds that a batch is put off for the hub's answer: some round trips, also to another continent.
_PATIENCE = 0.5

#: Of the answers that there is nothing to read, every so many waits so many seconds for something: Spark asks again
#: 10 ms after each, which is what a query costs that waits. Most of them at once, as `latestOffset` is to be quick.
_NAP_EVERY, _NAP = 3, 0.05


def mint_owner_id() -> str:
    """A new owner id: who and where, for people, and something that is unique."""
    host = re.sub(r"[^\w.-]", "-", socket.gethostname(), flags=re.ASCII)[:100]
    return f"{host}-{uuid.uuid4().hex[:12]}"


class _Idle(NamedTuple):
    """There was nothing to read from `start`, and will be nothing until there are news; `until`: that is looked into
    again then in any case."""

    start: StreamOffset | None = None
    until: float = 0.0


class Planner:
    """Plans the batches of one query that reads as `owner`.

    `finished` is the end of the last batch that the sink has finished in an earlier life of the query, and `replayed`
    the end of a batch that was logged but not finished; Spark's checkpoint has kept both. The constructor joins the
    group and raises before anything is created if hub or store cannot be reached or do not fit.
    """

    def __init__(
        self,
        options: Options,
        owner: str,
        finished: StreamOffset | None = None,
        replayed: StreamOffset | None = None,
    ) -> None:
        self.owner = owner
        self._group = group_name(options.lease_table)
        self._options = options
        self._shared = options.lease_table is not None
        self._progress: dict[str, Progress] = {}
        self._last_finished = finished
        self._planned: StreamOffset | None = None
        self._asked_after: StreamOffset | None = None
        self._idle = _Idle()
        self._answers = 0  # that there is still nothing
        self._changed = threading.Event()
        self._replayed: dict[str, Range] = {}
        self._ends: dict[str, int] | None = None
        self._watcher = HubWatcher(
            options.connection,
            options.consumer_group,
            options.starting_position,
            options.receiver_timeout,
            self._changed,
            patience=options.lease_duration / 3,  # in which no lease is renewed
        )
        self._meter, self._member_meter = LoadMeter(), MemberMeter()
        self._lock = threading.Lock()
        self._watcher.start()
        try:
            self._keeper = self._start_keeper(finished or StreamOffset(owner), replayed or StreamOffset(owner))
        except BaseException:
            self._watcher.stop()
            raise
        reader = StreamOffset(owner, group=self._group).reader
        self._notices = PlannerControl(reader, self._take_notice) if self._shared else None

    def stop(self) -> None:
        """Give the leases back and leave the group."""
        if self._notices:
            self._notices.close()
        self._watcher.stop()
        self._keeper.stop()

    def noted(self, start: StreamOffset) -> StreamOffset:
        """What a batch without events has as its end after `start`: that itself, or another one if Spark's checkpoint
        is to know which lease table is read with before anything is."""
        now = self._offset({}, {})
        return now if self._shared and now.table != start.table else start

    def _offset(self, ranges: Mapping[str, Range], held: Mapping[str, HeldPosition]) -> StreamOffset:
        identity, location = self._keeper.table if self._shared else None, self._options.lease_table
        table = LeaseTable(identity.id, str(location)) if identity else None
        return StreamOffset(self.owner, ranges, self._group, table, self._options.connection.hub.lower(), held)

    # --- what Spark asks ---------------------------------------------------------------------------------------

    def finish(self, end: StreamOffset) -> None:
        """The sink has finished the batch that ends at `end`; may be said any number of times."""
        with self._lock:
            if end == self._last_finished:
                return
            self._last_finished = end
            self._member_meter.batch_ends(time.monotonic())
            ranges = end.ranges if end == self._planned else self._replayed
            finished = {p: Progress(each.epoch, Position.before(each.end)) for p, each in ranges.items()}
            self._progress.update(finished)
            self._keeper.finish(finished)

    def still_idle(self, start: StreamOffset) -> bool:
        """Whether `next_batch` would find nothing as it did the last time, as for nearly all calls of a query that
        waits, so that it must cost little. May wait for news a moment, and then tells at once."""
        idle = self._idle
        if start is not idle.start or self._changed.is_set() or time.monotonic() >= idle.until:
            return False
        self._answers += 1
        return self._answers % _NAP_EVERY > 0 or not self._changed.wait(_NAP)

    def next_batch(self, start: StreamOffset, limit: int | None) -> StreamOffset:
        """The end of the next batch of at most `limit` events, or `start` if there is nothing to read."""
        now = time.monotonic()
        self._changed.clear()
        holdings = self._keeper.holdings()
        self._watcher.watch(holdings, self._keeper.members)
        positions = self._retained(holdings)
        if start != self._asked_after:
            # A batch has ended. Unless there is much to do anyway, what came meanwhile is to be in the next one, which
            # with a long trigger is not soon.
            self._asked_after = start
            enough = WORTH_A_TASK if limit is None else min(limit, WORTH_A_TASK)
            if self._ends is None and sum(self._backlogs(positions).values()) < enough:
                self._watcher.catch_up(_PATIENCE)
                positions = self._retained(holdings)
        states = self._watcher.states()
        self._measure({p: state.end for p, state in states.items()}, positions)
        counts = limit_by_backlog(self._backlogs(positions), limit)
        ranges = {
            partition: Range(partition, holdings[partition].epoch, position, position + counts.get(partition, 0))
            for partition, position in positions.items()
        }
        moved = {partition: each for partition, each in ranges.items() if len(each)}
        if self._shared:
            wanted: Mapping[str, Range] = moved
        else:
            # The offset is the only memory of the query, so it always names every partition; the first one is worth
            # a batch even if there is nothing to read, because it says where reading starts.
            unmoved = {p: Range(p, each.epoch, each.end, each.end) for p, each in start.ranges.items()}
            wanted = unmoved | ranges if moved or ranges.keys() - unmoved.keys() else {}
        if not wanted:
            renewed = min((each.renewed for each in holdings.values()), default=now)
            until = min(renewed + self._options.lease_duration, now + _LOADS_INTERVAL)
            self._idle = _Idle(start, until)
            return start
        reserved = self._keeper.reserve({partition: each.epoch for partition, each in wanted.items()})
        if self._shared:
            wanted = {partition: each for partition, each in wanted.items() if partition in reserved}
        self._planned = self._offset(wanted, self._held(holdings, positions, wanted))
        if wanted:
            self._watcher.rest()
            self._member_meter.batch_begins(time.monotonic())
        return self._planned if wanted else start

    def fix_ends(self) -> None:
        """From now on read only what this query owns now, up to what is there now: `Trigger.AvailableNow`."""
        if self._ends is None:
            if not self._keeper.wait_balanced(_JOIN_TIMEOUT, settled=True):
                _LOG.warning("the group has not come to rest within %g s: reading what is owned now", _JOIN_TIMEOUT)
            self._watcher.refresh()
            states = self._watcher.states()
            self._ends = {partition: states[partition].end for partition in self._keeper.holdings()}

    def ranges(self, end: StreamOffset) -> list[Range]:
        """What to read of the batch that ends at `end`.

        Of a batch that this process has planned: all. Of one that an earlier life of the query has logged: the
        partitions that are this query's again and still where that batch began; whoever owns the others, or has owned
        them since, reads or has read them.
        """
        if end != self._planned:
            holdings = self._keeper.holdings()
            again = {
                partition: Range(partition, holdings[partition].epoch, each.start, each.end)
                for partition, each in end.ranges.items()
                if partition in holdings and holdings[partition].checkpoint.next == each.start
            }
            reserved = self._keeper.reserve({partition: each.epoch for partition, each in again.items()})
            self._replayed = {partition: each for partition, each in again.items() if partition in reserved}
            if left_out := sorted(end.ranges.keys() - self._replayed.keys()):
                _LOG.info("replaying a batch without partitions %s: others have them", ", ".join(left_out))
            return list(self._replayed.values())
        return [each for each in end.ranges.values() if len(each)]

    def latest(self) -> dict[str, int]:
        """The sequence number after the last event of each partition, as far as known."""
        return {partition: state.end for partition, state in self._watcher.states().items()}

    # --- inside ------------------------------------------------------------------------------------------------

    def _take_notice(self, notice: dict[str, Any]) -> bool:
        """From the query's driver: a batch has ended, and maybe that the query is to leave. Whether that is done."""
        leave = notice.get("leave", False) if isinstance(notice, dict) else None
        if not isinstance(leave, bool):
            raise EhBalanceError("a notice says where a batch has ended, and true or false for leave")
        end = StreamOffset.from_json(notice.get("finished", {}))
        if end == self._planned:
            self.finish(end)
        if leave:
            self._keeper.leave()
            return self._keeper.idle
        return True

    def _start_keeper(self, finished: StreamOffset, replayed: StreamOffset) -> Keeper:
        options, rng = self._options, random.Random()
        done, again = finished.ranges, replayed.ranges
        author = Author(self.owner, uuid.uuid4().hex)
        known = finished if replayed.first else replayed  # the later one
        check_hub(known, options)
        # Alone, a query has nobody to share with or to wait for.
        name = options.strategy if self._shared else "greedy"
        membership = Membership(
            author,
            Settings(
                strategy=strategy(name, options.strategy_parameters if self._shared else None),
                strategy_name=name,
                lease_duration=options.lease_duration,
                handover_timeout=options.handover_timeout,
                max_owned=options.max_partitions_owned,
                host=socket.gethostname(),
            ),
            rng,
            finished={p: Progress(each.epoch, Position.before(each.end)) for p, each in done.items()},
            resume={p: each.start for p, each in again.items()},
        )
        if self._shared:
            memory = Memory.of(*(LoggedBatch(end, end is finished) for end in (finished, replayed) if not end.first))
            with self._open_table() as store:
                join_table(store, options, known, memory, self._watcher.partition_ids(), author)
            open_store = self._open_table
        else:
            check_alone(known, options)
            private = MemoryStore(self._own_state(done, again))

            def open_store() -> LeaseStore:
                return private

        keeper = Keeper(
            membership,
            open_store,
            self._watcher,
            balance_interval=options.balance_interval,
            reactive=name in REACTIVE,
            max_stall=options.max_stall,
            rng=rng,
            changed=self._changed,
        )
        keeper.start()
        try:
            if not keeper.wait_balanced(_JOIN_TIMEOUT):
                raise StoreUnavailableError(
                    f"the group could not be joined within {_JOIN_TIMEOUT:g} s: the lease table at "
                    f"{options.lease_table} does not answer, or is contended"
                )
        except BaseException:
            keeper.stop()
            raise
        return keeper

    def _open_table(self) -> LeaseStore:
        options = self._options
        assert options.lease_table is not None
        # A commit that the storage does not answer takes two or three requests: they end before the lease does.
        patience = min(REQUEST_TIMEOUT, options.lease_duration / 6)
        return opening.open_store(options.lease_table, options.storage_options, patience)

    def _own_state(self, done: Mapping[str, Range], again: Mapping[str, Range]) -> Snapshot:
        """A group of this query alone, as its offset has kept it."""
        places = {p: (each.epoch, each.end) for p, each in done.items()}
        places |= {p: (each.epoch, each.start) for p, each in again.items()}
        leases = {
            p: Lease(p, owner=self.owner, epoch=epoch, checkpoint=Position.before(place))
            for p, (epoch, place) in places.items()
        }
        return Snapshot(self._options.connection.group(self._options.consumer_group), leases=leases)

    def _measure(self, ends: Mapping[str, int], positions: Mapping[str, int]) -> None:
        """Pass on what the partitions bring in and what that makes this member carry, if it is time to."""
        now = time.monotonic()
        loads = self._meter.update(now, ends, positions)
        if loads is not None:
            with self._lock:  # notices of batches' ends come in another thread
                self._member_meter.host(now, cpu_time())
                load = self._member_meter.load(self._meter.total())
            self._keeper.measure(loads, load)

    def _position(self, partition: str, holding: Holding) -> int:
        progress = self._progress.get(partition)
        known = progress is not None and progress.epoch == holding.epoch
        return progress.position.next if known and progress is not None else holding.checkpoint.next

    def _held(
        self, holdings: Mapping[str, Holding], positions: Mapping[str, int], ranges: Mapping[str, Range]
    ) -> dict[str, HeldPosition]:
        """Where the partitions stand that are held and not among `ranges`, which without leases are all."""
        others = positions.keys() - ranges.keys() if self._shared else ()
        return {partition: HeldPosition(holdings[partition].epoch, positions[partition]) for partition in others}

    def _retained(self, holdings: Mapping[str, Holding]) -> dict[str, int]:
        """The positions in `holdings`, moved to where there still are events if that is allowed."""
        positions = {partition: self._position(partition, each) for partition, each in holdings.items()}
        states = self._watcher.states()
        if any(p in states and not states[p].begin <= position <= states[p].end for p, position in positions.items()):
            # What is known may be older than the position, which another member may have set just now.
            self._watcher.refresh()
            states = self._watcher.states()
        retained = {}
        for partition, position in positions.items():
            if partition in states:
                retained[partition], warning = retained_start(
                    partition, position, states[partition], self._options.fail_on_data_loss
                )
                if warning:
                    _LOG.warning(warning)
                    # Said once, and not found out anew at every trigger until there are events.
                    moved = Progress(holdings[partition].epoch, Position.before(retained[partition]))
                    self._progress[partition] = moved
                    self._keeper.reset({partition: moved})
        return retained

    def _backlogs(self, positions: Mapping[str, int]) -> dict[str, int]:
        states = self._watcher.states()
        ends = {partition: states[partition].end for partition in positions}
        if self._ends is not None:
            ends = {partition: min(end, self._ends.get(partition, 0)) for partition, end in ends.items()}
        return {p: ends[p] - position for p, position in positions.items() if ends[p] > position}
