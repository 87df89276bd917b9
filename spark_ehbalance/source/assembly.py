"""Puts the planner of one query together and starts it: hub watcher, lease keeper, control socket, load meters."""

from __future__ import annotations

import random
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.hub.watcher import REMEMBERED_OFFSETS, HubWatcher
from spark_ehbalance.leases.model import Author
from spark_ehbalance.member.keeper import Keeper
from spark_ehbalance.member.membership import Resumed
from spark_ehbalance.member.settings import Settings
from spark_ehbalance.member.turn import Participant
from spark_ehbalance.source.batch_planning import progress_of
from spark_ehbalance.source.continuity import LoggedBatch, RecordedProgress
from spark_ehbalance.source.control_socket import PlannerControl
from spark_ehbalance.source.joining import check_alone, check_hub, check_start, join_table
from spark_ehbalance.source.load_reporter import LoadReporter
from spark_ehbalance.source.news import NewsListener
from spark_ehbalance.source.offsets import StreamOffset, group_name
from spark_ehbalance.source.options import Options
from spark_ehbalance.source.planner import Planner, PlannerTimings
from spark_ehbalance.source.progress_policy import AloneProgress, ProgressPolicy, SharedProgress
from spark_ehbalance.stores.base import REQUEST_TIMEOUT, SHARED_LEVEL, LeaseStore
from spark_ehbalance.stores.memory import MemoryStore
from spark_ehbalance.stores.opening import open_store
from spark_ehbalance.strategies import REACTIVE, strategy

OpenStore = Callable[[], LeaseStore]


class _Logged(NamedTuple):
    """What Spark's checkpoint tells a planner that starts: the end of the last batch that the sink has finished, and
    the end of a batch that was logged but not finished. Both are initial offsets where there is none."""

    finished: StreamOffset
    unfinished: StreamOffset

    @property
    def last(self) -> StreamOffset:
        return self.finished if self.unfinished.is_initial else self.unfinished

    def recorded(self) -> RecordedProgress:
        log = (LoggedBatch(self.finished, finished=True), LoggedBatch(self.unfinished, finished=False))
        return RecordedProgress.from_log(*(batch for batch in log if not batch.end.is_initial))


def start_planner(
    options: Options,
    owner: str,
    finished: StreamOffset | None = None,
    unfinished: StreamOffset | None = None,
    timings: PlannerTimings | None = None,
) -> Planner:
    """The planner of a query that reads as `owner`, once it has joined its group. `Planner.stop` ends it.

    `finished` is the end of the last batch that the sink has finished in an earlier process of the query, `unfinished`
    the end of a batch that was logged but not finished; Spark's checkpoint has both.

    Raises before anything is created if hub or store cannot be reached or do not fit: `HubUnavailableError`,
    `OptionError`, `DataLossError`, `StoreError`.
    """
    timings = timings or PlannerTimings()
    logged = _Logged(finished or StreamOffset(owner), unfinished or StreamOffset(owner))
    author, changed = Author(owner, uuid.uuid4().hex), threading.Event()
    hub = HubWatcher(
        options.connection,
        options.consumer_group,
        options.starting_position,
        options.receiver_timeout,
        changed,
        patience=options.lease_duration / 3,  # no lease is renewed meanwhile
        remembered_offsets=0 if options.offers.sequence_numbers else REMEMBERED_OFFSETS,
    )
    query = StreamOffset(owner, group=group_name(options.lease_table), hub=options.connection.hub.lower())
    policy: ProgressPolicy = SharedProgress(query, options.lease_table) if options.lease_table else AloneProgress(query)
    opener = _store_opener(options, logged, policy)
    keeper = _keeper(options, author, logged, opener, hub, changed)
    control = PlannerControl(query.planner_name)
    planner = Planner(
        keeper,
        hub,
        policy,
        LoadReporter(keeper.measure),
        changed=changed,
        control=control,
        finished=finished,
        fail_on_data_loss=options.fail_on_data_loss,
        hub_name=options.connection.hub_name,
        news=NewsListener(hub.told, hub.round_time, options.connection.namespace.partition(":")[0]),
        owner_level=partial(_owner_level, options),
        timings=timings,
    )
    try:
        hub.start()
        _join(options, logged, opener, hub, author)
        keeper.start()
        if not joined(keeper, timings.join_timeout):
            raise StoreUnavailableError(
                f"the group could not be joined within {timings.join_timeout:g} s: the lease table at "
                f"{options.lease_table} does not answer, or is contended"
            )
        control.start(planner.handle)
    except BaseException:
        planner.stop()
        raise
    return planner


def joined(keeper: Keeper, patience: float) -> bool:
    """Wait until the query has its share, as long as more partitions come within `patience` seconds: each of many that
    were never read has to be asked about. Returns whether it has it."""
    owned = 0
    while not keeper.wait_balanced(patience):
        if len(keeper.holdings()) <= owned:
            return False
        owned = len(keeper.holdings())
    return True


def _owner_level(options: Options, epoch: int) -> int | None:
    """That of the query's readers of a partition whose lease has this epoch."""
    if options.lease_table is None:
        return options.owner_level
    return epoch if options.offers.epochs else SHARED_LEVEL


def _keeper(
    options: Options,
    author: Author,
    logged: _Logged,
    opener: OpenStore,
    hub: HubWatcher,
    changed: threading.Event,
) -> Keeper:
    shared = options.lease_table is not None
    name = options.strategy if shared else "greedy"  # a query alone has nobody to share with or to wait for
    settings = Settings(
        strategy=strategy(name, options.strategy_parameters if shared else None),
        strategy_name=name,
        lease_duration=options.lease_duration,
        handover_timeout=options.handover_timeout,
        max_owned=options.max_partitions_owned,
        host=socket.gethostname(),
        balance_interval=options.balance_interval,
        reactive=name in REACTIVE,
        max_stall=options.max_stall,
    )
    if not options.offers.atomic:
        settings = replace(settings, per_lease=True, look_interval=options.balance_interval)
    participant = Participant(
        author,
        settings,
        random.Random(),
        progress=progress_of(logged.finished.ranges),
        resume={p: Resumed(each.start, each.since_ms) for p, each in logged.unfinished.ranges.items()},
    )
    return Keeper(participant, opener, hub, changed=changed)


def _join(options: Options, logged: _Logged, opener: OpenStore, hub: HubWatcher, author: Author) -> None:
    """Check that hub and lease table fit what the query has read; creates the table at a first start."""
    check_hub(logged.last, options)
    if options.lease_table is None:
        if logged.last.is_initial:
            check_start(options, hub.states())
        check_alone(logged.last, options)
        return
    with opener() as store:
        if not options.offers.epochs:
            logged = _Logged(*(each.without_epochs() for each in logged))
        join_table(store, options, logged.last, logged.recorded(), hub, author)


def _store_opener(options: Options, logged: _Logged, policy: ProgressPolicy) -> OpenStore:
    if isinstance(policy, AloneProgress):
        group = options.group
        private = MemoryStore(policy.snapshot(group, logged.finished, logged.unfinished))
        return lambda: private
    # A commit that the storage does not answer takes two or three requests: they end before the lease does.
    patience = min(REQUEST_TIMEOUT, options.lease_duration / 6)
    return partial(open_store, policy.location, options.storage_options, patience, options.group)
