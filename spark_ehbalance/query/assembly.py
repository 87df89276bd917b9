"""Assemble and start the planner of one query, with its hub watcher, lease keeper and control socket."""

from __future__ import annotations

import random
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.eventhub.watcher import REMEMBERED_OFFSETS, HubWatcher
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.member_settings import Settings
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import REACTIVE, NamedStrategy
from spark_ehbalance.lease_table.backends import open_store
from spark_ehbalance.lease_table.contract import REQUEST_TIMEOUT, LeaseStore
from spark_ehbalance.lease_table.memory import MemoryStore
from spark_ehbalance.query import processes
from spark_ehbalance.query.control_socket import PlannerAddress, PlannerControl
from spark_ehbalance.query.engine import QueryEngine
from spark_ehbalance.query.keeper import Keeper
from spark_ehbalance.query.offsets import FirstStart, HubReference, StreamOffset, group_name
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.planner import JOIN_TIMEOUT, Planner
from spark_ehbalance.query.progress_policy import LeaseTableProgress, OffsetProgress, ProgressPolicy
from spark_ehbalance.query.replay import EarlierBatches, LoggedBatches, recover
from spark_ehbalance.query.start_checks import check_consistency, check_start, join_table, states_at_start
from spark_ehbalance.query.steps import SeededRandom
from spark_ehbalance.text import logger

_LOG = logger(__name__)

OpenStore = Callable[[], LeaseStore]


class _RecoveredState(NamedTuple):
    """Progress of the sink that the table may lack, the batches of earlier processes, and `JoinedTable.latest_ends`."""

    progress: Mapping[str, Progress]
    earlier: EarlierBatches
    latest_ends: Mapping[str, Position]
    table: Snapshot | None = None


def start_planner(
    options: Options,
    owner: str,
    finished: StreamOffset | None = None,
    unfinished: StreamOffset | None = None,
    *,
    full_share: bool = True,
) -> Planner:
    """Start the planner of a query whose member id is `owner`, and join the query's group. `Planner.stop` ends it.

    `finished` is the end of the last batch that the sink has finished, and `unfinished` the end of a batch that was
    logged but not finished; both come from Spark's checkpoint. Without `full_share`, the first batch may start before
    the query owns its whole share, because reading the states of 1,000 partitions takes 40 s. At a first start with
    `latest`, all states are read in any case.

    Raises `HubUnavailableError`, `OptionError`, `DataLossError` or `StoreError`, before anything is created, if the hub
    or the store is unreachable, or if they do not belong together.
    """
    logged = LoggedBatches(finished or StreamOffset(owner), unfinished or StreamOffset(owner))
    changed, run = threading.Event(), uuid.uuid4().hex
    hub = HubWatcher(
        options.connection,
        options.consumer_group,
        options.starting_position,
        options.receiver_timeout,
        changed,
        patience=options.lease_duration / 3,  # no lease is renewed during a request
        remembered_offsets=0 if options.capabilities.epochs else REMEMBERED_OFFSETS,
    )
    # Even an initial offset needs a lineage: writers find the planner by it if the offset is logged as an empty batch.
    lineage = logged.unfinished.lineage or logged.finished.lineage or uuid.uuid4().hex
    group = group_name(options.lease_table)
    query = StreamOffset(logged.last.owner, group=group, lineage=lineage, run=run)
    try:
        hub.start()
        partitions = len(hub.partition_ids()) if logged.last.is_initial else 0
        first = logged.last.first_start or FirstStart(hub.latest_ms(), partitions)
        query = replace(query, hub=HubReference.from_group(options.group, hub.created_ms()), first_start=first)
        place = _join(options, logged, query, hub)
    except BaseException:
        hub.stop()
        raise
    policy: ProgressPolicy = (
        LeaseTableProgress(query, options.lease_table) if options.lease_table else OffsetProgress(query)
    )
    opener = _store_opener(options, logged, policy, hub)
    engine = QueryEngine(
        _member(options, query, place, logged),
        policy,
        fail_on_data_loss=options.fail_on_data_loss,
        earlier=place.earlier,
        probe_again=options.receiver_timeout,
    )
    keeper = Keeper(engine, opener, hub, changed=changed, find_lag=hub.lag)
    control = PlannerControl(PlannerAddress(query.lineage, processes.jvm_pid()))
    planner = Planner(engine, keeper, hub, options.level, control)
    try:
        keeper.start()
        if not wait_until_joined(keeper, JOIN_TIMEOUT, full_share=full_share):
            raise StoreUnavailableError("EHB_LEASE_TABLE_CONTENDED", timeout=JOIN_TIMEOUT, location=options.lease_table)
        control.start(planner.handle)
    except BaseException:
        planner.stop()
        raise
    return planner


def wait_until_joined(keeper: Keeper, patience: float, *, full_share: bool = True) -> bool:
    """Wait until the query owns its share (without `full_share`, a part of it), and return True. Return False if it
    gains no partition for `patience` seconds."""
    owned = 0
    while not keeper.wait_balanced(patience, full_share=full_share):
        if len(keeper.readable()) <= owned:
            return False
        owned = len(keeper.readable())
    return True


def _member(options: Options, query: StreamOffset, place: _RecoveredState, logged: LoggedBatches) -> MemberEngine:
    shared = options.lease_table is not None
    name = options.strategy if shared else "greedy"  # a single query has no one to share with
    settings = Settings(
        strategy=NamedStrategy(name, options.strategy_parameters if shared else None),
        strategy_name=name,
        lease_duration=options.lease_duration,
        alone=not shared,
        handover_timeout=options.handover_timeout,
        max_owned=options.max_partitions_owned,
        host=socket.gethostname(),
        balance_interval=options.balance_interval,
        reactive=name in REACTIVE,
        max_stall=options.max_stall,
        lineage=query.lineage if shared and options.capabilities.members else "",
        capabilities=options.capabilities,
    )
    if not options.capabilities.atomic:
        settings = replace(settings, read_interval=options.balance_interval)
    return MemberEngine(
        Author(query.owner, query.run),
        settings,
        SeededRandom(random.getrandbits(64)),
        query=logged.query_state(place.progress),
        resume=logged.resumed(),
        latest_ms=query.first_start.at_ms if query.first_start else 0,
        ends=place.latest_ends,
        checked=place.table,
    )


def _join(options: Options, logged: LoggedBatches, query: StreamOffset, hub: HubWatcher) -> _RecoveredState:
    """Check that checkpoint, hub and lease table belong together; create the table on a first start."""
    assert query.hub is not None, "the hub is connected"
    if options.lease_table is None:
        check_consistency(options, logged.last, None, query.hub)
        ends: Mapping[str, Position] = {}
        if logged.last.is_initial:
            check_start(options, states_at_start(options, hub))
            if logged.last.first_start is None:  # a restart must not begin at a later position
                ends = hub.latest_ends(hub.partition_ids())
        return _RecoveredState(logged.finished_progress(), EarlierBatches(logged.finished), ends)
    last = logged.last if options.capabilities.epochs else logged.last.without_epochs()
    with _open(options, options.lease_table, hub) as store:
        found, ends = join_table(store, options, last, query.hub, hub)
    return _RecoveredState(*recover(logged, found, query.lineage), ends, found)


def _store_opener(options: Options, logged: LoggedBatches, policy: ProgressPolicy, hub: HubWatcher) -> OpenStore:
    if isinstance(policy, OffsetProgress):
        group = options.group
        private = MemoryStore(policy.snapshot(group, logged.finished, logged.unfinished))
        return lambda: private
    return partial(_open, options, policy.location, hub)


def _open(options: Options, location: str, hub: HubWatcher) -> LeaseStore:
    # If the storage does not answer, a commit makes two or three requests; all must time out before the lease expires.
    patience = min(REQUEST_TIMEOUT, options.lease_duration / 6)
    store = open_store(location, options.storage_options, patience, options.group)
    store.find_offsets = partial(hub.offsets, owner_level=options.capabilities.owner_level(0))
    return store
