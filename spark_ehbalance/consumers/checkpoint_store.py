"""azure-eventhub's `CheckpointStore` over a lease table in Delta."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime, timezone
from types import TracebackType
from typing import Any, TypeVar

from azure.eventhub import CheckpointStore
from azure.eventhub.exceptions import OwnershipLostError

from spark_ehbalance.clock import monotonic, now_ms
from spark_ehbalance.errors import (
    DataLossError,
    EhBalanceError,
    HubUnavailableError,
    OptionError,
    StoreReplacedError,
    StoreUnavailableError,
)
from spark_ehbalance.eventhub.metadata import HubMetadata, PartitionState
from spark_ehbalance.eventhub.ranges import retained_start
from spark_ehbalance.eventhub.receiver import PartitionAddress, disconnect_readers
from spark_ehbalance.eventhub.resolve import has_event, latest_ends, resolve_all, resolve_start
from spark_ehbalance.group import changes as t
from spark_ehbalance.group.durations import STORE_SHARE, Durations
from spark_ehbalance.group.expiry import Observations, expired_leases, overdue_handovers
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Author, Lease, MemberState
from spark_ehbalance.group.position import START_OFFSET, Position, names_event
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.backends import open_store
from spark_ehbalance.lease_table.contract import REQUEST_TIMEOUT, LeaseStore, commit_and_record
from spark_ehbalance.query.consistency import hub_mismatch
from spark_ehbalance.query.offsets import HubReference
from spark_ehbalance.query.options import stream_options
from spark_ehbalance.settings.option_texts import invalid_option
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: The default load-balancing interval of azure-eventhub's client in seconds; and the factor by which the client's
#: jitter may lengthen an interval.
_INTERVAL, _LONGEST_INTERVAL = 30.0, 1.2

#: Maximum time that `claim_ownership` waits for requested handovers, and the time between its reads, in seconds.
_PATIENCE, _READ_INTERVAL = 5.0, 0.2

#: Seconds between two requests for the hub's partitions, and timeout in seconds for resolving one starting position.
_HUB_INTERVAL, _RESOLVE_TIMEOUT = 60.0, 10.0

#: Maximum number of never-read partitions that one commit claims. It is small because no lease is renewed while their
#: starting positions are resolved.
_MAX_STARTS = 32

#: Number of table versions between two maintenance runs, if this consumer leads the group.
_TIDY_VERSIONS = 100

_T = TypeVar("_T", bound=t.Transition)


class DeltaCheckpointStore(CheckpointStore):
    """Lets an unmodified `EventHubConsumerClient(..., checkpoint_store=store)` share an event hub with Spark queries
    through their lease table.

    `options` are the options of `readStream`; `load_balancing_interval` must match the client's setting, in seconds.
    Use each store with only one client, and only in the process that created the store.

    Raises `OptionError` for invalid options. Methods also raise it if the store is closed, or used by a second client
    or a client of another group. They raise `StoreError` if the table is unavailable, and `DataLossError` if the event
    hub was recreated.
    """

    def __init__(self, options: Mapping[str, str], *, load_balancing_interval: float = _INTERVAL) -> None:
        """Create the store object. Nothing is read or created in the storage yet."""
        self._options = stream_options(options)
        if self._options.lease_table is None or not self._options.capabilities.members:
            raise invalid_option("leaseTable", str(self._options.lease_table), "the queries' lease table in Delta")
        if not 0 < load_balancing_interval < float("inf"):
            raise invalid_option("load_balancing_interval", str(load_balancing_interval), "a number above 0")
        self._interval = float(load_balancing_interval)
        self._lock = threading.RLock()  # guards everything but `_waiting`
        self._store: LeaseStore | None = None
        self._closed = False
        self._incarnation = uuid.uuid4().hex
        self._owner = ""  # the client's id while it is a member
        self._epochs: dict[str, int] = {}  # of granted partitions
        self._pending_receivers: set[str] = set()  # granted partitions whose receivers are not open yet
        self._returned: Set[str] | None = frozenset()  # by the last claim; None if it reported lost events
        self._requested: set[str] = set()  # owned partitions with a pending handover, as of the last claim
        self._observations, self._read_at = Observations(), float("-inf")
        self._tidied = 0
        self._partitions: tuple[str, ...] = ()
        self._hub_created_ms: int | None = None
        self._hub_ms: int | None = None  # the hub's clock at `_hub_at`
        self._hub_at = float("-inf")
        self._latest_ends: Mapping[str, Position] | None = None  # for the group's first start
        self._checkpointing = threading.Lock()
        self._waiting: dict[str, Position] = {}  # the highest checkpoint of each partition, for the next commit
        self._adding = threading.Lock()  # guards `_waiting`
        self._lost: set[str] = set()  # partitions whose last checkpoint was rejected
        self._next_checkpoint_at = 0.0

    # --- the interface -----------------------------------------------------------------------------------------

    def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """The partitions that have ever had an owner. The ETag is the epoch.

        Expired partitions have no owner. For all others, `last_modified_time` is the current time, because the group
        decides which members are dead.
        """
        named = _named(fully_qualified_namespace, eventhub_name, consumer_group)
        with self._lock:
            snapshot = self._read(named)
            expired, entries = self._expired(snapshot), []
            for lease in snapshot.leases.values():
                owner = None if lease.partition in expired else lease.owner
                if owner and lease.handover and owner != self._owner:
                    owner = lease.handover.to  # counts as done
                if lease.epoch:
                    entries.append(named | _ownership(lease, owner))
            return entries

    def claim_ownership(self, ownership_list: Iterable[dict[str, Any]], **kwargs: Any) -> list[dict[str, Any]]:
        """Renew the client's partitions, and claim the others in `ownership_list`. Returns the partitions that the
        client may read.

        If another member owns a partition, this call requests a handover. It waits for a few seconds, and returns the
        partition if the handover completes in this time; otherwise, a later call returns the partition. An entry with
        the owner "" releases its partition.

        If partitions have lost events, every second call raises `DataLossError`; the calls in between return all other
        partitions.
        """
        entries = [dict(entry) for entry in ownership_list]
        released = [entry for entry in entries if not entry["owner_id"]]
        wanted = {entry["partition_id"]: entry for entry in entries if entry["owner_id"]}
        if released:
            self._release(released)
        if not wanted:
            return released
        owner, patience = entries[-1]["owner_id"], min(_PATIENCE, self._options.lease_duration / 3)
        deadline = monotonic() + patience
        with self._lock:
            after = self._claim(owner, wanted)
        while any(handover.to == owner for handover in after.ownership.pending.values()) and monotonic() < deadline:
            time.sleep(_READ_INTERVAL)
            with self._lock:
                after = self._read(entries[-1])
        with self._lock:
            return self._grant(wanted, after)

    def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: Any) -> None:
        """Commit `checkpoint`: all events up to it have been processed. Concurrent calls share a commit.

        If another member is waiting for the partition, the same commit hands the partition over, so that no event is
        processed twice. Checkpoints never move back: one that is earlier than the last checkpoint is ignored.

        Raises `OwnershipLostError` if the client no longer owns the partition, for example because this call handed it
        over. If your code does not catch the error, the client closes its receiver. Raises `StoreUnavailableError` or
        `ConflictError` if the commit fails.
        """
        self._add(checkpoint)
        self._write(checkpoint)

    def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """The group's checkpoints, and the starting positions of claimed partitions that have no checkpoint."""
        named = _named(fully_qualified_namespace, eventhub_name, consumer_group)
        with self._lock:
            snapshot = self._read(named)
            self._pending_receivers.clear()
        return [named | checkpoint_entry(lease) for lease in snapshot.leases.values() if lease.checkpoint is not None]

    def close(self) -> None:
        """Release the client's partitions and leave the group. Call this method after the client's `close`."""
        with self._lock:
            store, self._store, self._closed = self._store, None, True
            if store is not None:
                with store, contextlib.suppress(StoreReplacedError):  # the group to leave no longer exists
                    self._leave(store)

    def __enter__(self) -> DeltaCheckpointStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- reading -----------------------------------------------------------------------------------------------

    def _open(self, named: Mapping[str, Any]) -> LeaseStore:
        """The lease table. Raises `OptionError` if the client belongs to another group."""
        if self._closed:
            raise invalid_option("checkpoint_store", "a closed store", "an open one")
        group, own = Group.from_names(*(named[name] for name in _named("", "", ""))), self._options.group
        if group != own:
            options = f"A client of {group} and options of {own}"
            raise OptionError("EHB_OPTIONS_CONFLICT", options=options, reason="they name different groups")
        if self._store is None:
            patience = min(REQUEST_TIMEOUT, self._options.lease_duration / 6)
            store = open_store(str(self._options.lease_table), self._options.storage_options, patience, group)
            store.create(group)
            self._store = store
        return self._store

    def _read(self, named: Mapping[str, Any]) -> Snapshot:
        store, now = self._open(named), monotonic()
        try:
            snapshot = store.read()
        except StoreUnavailableError:
            self._observations = self._observations.restarted()  # other members could not renew either
            raise
        if now - self._read_at > 1.5 * max(self._interval, self._options.lease_duration / 3):  # it was suspended
            self._observations = self._observations.restarted()
        self._observations, self._read_at = self._observations.updated(snapshot, now), now
        return snapshot

    def _durations(self, snapshot: Snapshot) -> Durations:
        group_ms = snapshot.lease_duration_ms
        return Durations.from_snapshot(snapshot, self._options.lease_duration if group_ms is None else group_ms / 1000)

    def _expired(self, snapshot: Snapshot) -> frozenset[str]:
        durations, now, wall_ms = self._durations(snapshot), monotonic(), now_ms()
        return expired_leases(self._observations, snapshot, durations, now, wall_ms).difference(self._epochs)

    def _check_hub(self, snapshot: Snapshot) -> None:
        if monotonic() - self._hub_at > _HUB_INTERVAL:
            try:
                with HubMetadata(self._options.connection, self._options.consumer_group) as hub:
                    partitions, positions = hub.partition_ids(), self._options.starting_position
                    hub.partition_states(partitions[:1])  # to get the hub's time
                    positions.check(partitions)
                    if self._latest_ends is None and snapshot.latest_ms is None:
                        self._latest_ends = latest_ends(positions, partitions, hub.partition_states)
                self._partitions, self._hub_created_ms = partitions, hub.created_ms
                self._hub_ms = hub.first_answer_ms
                self._hub_at = monotonic()
            except HubUnavailableError as error:  # leases must be renewed nevertheless
                _LOG.warning("Could not check for new partitions, retrying later: %s", error.reason)
        if mismatch := hub_mismatch(snapshot, HubReference.from_group(self._options.group, self._hub_created_ms)):
            raise mismatch

    def _states(self, partitions: Sequence[str]) -> Mapping[str, PartitionState]:
        try:
            with HubMetadata(self._options.connection, self._options.consumer_group) as hub:
                return hub.partition_states(partitions) if partitions else {}
        except HubUnavailableError as error:
            _LOG.warning("Claiming no new partitions: %s", error)
            return {}

    def _address(self, partition: str) -> PartitionAddress:
        return PartitionAddress(self._options.connection, self._options.consumer_group, partition)

    # --- claiming ----------------------------------------------------------------------------------------------

    def _claim(self, owner: str, wanted: dict[str, dict[str, Any]]) -> Snapshot:
        """Write the client's heartbeat, renewals and claims. Adds to `wanted` the other partitions that the client must
        take."""
        named = next(iter(wanted.values()))
        snapshot = self._read(named)
        self._check_hub(snapshot)
        if owner != self._owner and self._owner:
            raise invalid_option("checkpoint_store", f"the store of client {self._owner}", "a store for each client")
        self._owner = owner
        seconds = max(self._durations(snapshot).default, 3 * _LONGEST_INTERVAL * self._interval)
        changes: list[t.Transition] = [self._new(t.Heartbeat, lease_duration_ms=round(1000 * seconds))]
        if owner not in snapshot.members:
            changes = [self._new(t.Join, host=socket.gethostname(), lease_duration_ms=round(1000 * seconds))]
        changes += (added := self._new_partitions(snapshot))
        if snapshot.latest_ms is None and self._hub_ms is not None and (snapshot.table or added):
            changes.append(self._new(t.RecordLatest, latest_ms=self._hub_ms, ends=self._latest_ends or {}))
        draft = t.apply(snapshot, changes).after
        leaving = draft.members[owner].state is MemberState.LEAVING
        handed_over = {x.partition for x in draft.owned_by(owner) if leaving or x.handover}
        requested, self._requested = self._requested, handed_over
        for lease in draft.owned_by(owner):
            if lease.partition in requested and (leaving or self._is_handover_due(lease)):
                self._epochs.pop(lease.partition, None)
                changes += self._release_changes(lease)
            else:
                changes.append(self._transition(t.Renew, lease))
        if not leaving:
            for lease in self._orphaned_leases(draft):
                entry = {**named, "partition_id": lease.partition, "owner_id": owner, "etag": str(lease.epoch)}
                wanted.setdefault(lease.partition, entry)
            changes += self._take_changes(draft, wanted)
        after = self._commit(snapshot, changes)
        if after.leader == owner and after.version - self._tidied >= _TIDY_VERSIONS:
            self._tidied = after.version
            try:
                self._open(named).tidy()
            except StoreUnavailableError as error:
                _LOG.warning("Maintenance of the lease table failed: %s", error)
        return after

    def _new_partitions(self, snapshot: Snapshot) -> list[t.Transition]:
        """Transitions that add the hub's new partitions to the table. If the table already has partitions, the new ones
        are read from their first event."""
        new = tuple(partition for partition in self._partitions if partition not in snapshot.leases)
        if snapshot.leases:
            return [
                self._new(t.AddPartitions, partitions=(partition,), checkpoint=Position.before(0)) for partition in new
            ]
        noted = self._hub_created_ms is not None
        hub = [self._new(t.RecordHub, created_ms=self._hub_created_ms)] if noted else []
        return [self._new(t.AddPartitions, partitions=new), *hub] if new else []

    def _is_handover_due(self, lease: Lease) -> bool:
        """Whether the handover has been pending for half of its timeout without a checkpoint."""
        if lease.handover is None:
            return False
        waited = monotonic() - self._observations.handovers[lease.partition].since
        return waited > lease.handover.timeout_ms / 2000

    def _orphaned_leases(self, snapshot: Snapshot) -> list[Lease]:
        """Leases to claim although the client did not request them: they are pinned to the client, or have long had no
        live owner. The latter happens because the client does not know other members' limits."""
        durations, expired, seen = self._durations(snapshot), self._expired(snapshot), self._observations.leases
        before = monotonic() - 2 * max(durations.longest, durations.needs)
        return [
            lease
            for p, lease in snapshot.leases.items()
            if (lease.pin is not None and lease.pin.to == self._owner)
            or ((lease.owner is None or p in expired) and p in seen and seen[p].since < before)
        ]

    def _take_changes(self, snapshot: Snapshot, wanted: Mapping[str, Mapping[str, Any]]) -> list[t.Transition]:
        """Claims for the partitions without a live owner, and handover requests for the others."""
        expired, overdue = self._expired(snapshot), overdue_handovers(self._observations, snapshot, monotonic())
        timeout_ms = round(1000 * (self._options.handover_timeout + self._durations(snapshot).needs))
        claims, requests = list[Lease](), list[t.Transition]()
        for partition, entry in wanted.items():
            lease = snapshot.leases.get(partition)
            if lease is None or lease.owner == self._owner or int(entry.get("etag") or 0) != lease.epoch:
                continue
            if lease.pin is not None and lease.pin.to != self._owner and lease.pin.to in snapshot.members:
                continue
            comes = lease.handover is not None and lease.handover.to == self._owner
            if lease.owner is None or partition in expired or (comes and partition in overdue):
                claims.append(lease)
            elif not lease.handover:
                requests.append(self._transition(t.RequestHandover, lease, to=self._owner, timeout_ms=timeout_ms))
        unread = [lease.partition for lease in claims if lease.checkpoint is None]
        starts = (
            {} if snapshot.latest_ms is None else self._starting_positions(unread[:_MAX_STARTS], snapshot.latest_ms)
        )
        return requests + [
            self._transition(
                t.Claim,
                lease,
                unchanged_counter=lease.counter if lease.partition in expired else None,
                overdue_handover=lease.handover if lease.partition in overdue else None,
                starting_position=starts.get(lease.partition),
                latest_ms=snapshot.latest_ms,
            )
            for lease in claims
        ]

    def _starting_positions(self, partitions: Sequence[str], latest_ms: int) -> Mapping[str, Position]:
        """Partition → starting position. `latest` means the time `latest_ms` by the hub's clock."""
        states, configured = self._states(partitions), self._options.starting_position
        configured.check_ends({partition: state.end for partition, state in states.items()})
        now_ms = latest_ms if self._hub_ms is None else self._hub_ms + 1000 * (monotonic() - self._hub_at)
        latest, now = (datetime.fromtimestamp(ms / 1000, timezone.utc) for ms in (latest_ms, now_ms))
        return {
            partition: resolve_start(
                configured.position(partition), latest, now, self._address(partition), state, _RESOLVE_TIMEOUT
            )
            for partition, state in states.items()
        }

    def _grant(self, wanted: Mapping[str, dict[str, Any]], snapshot: Snapshot) -> list[dict[str, Any]]:
        """The entries of the partitions that the client may read. If a partition's epoch changed while the client was
        reading it, for example after a seek, the partition is omitted once, so that the client closes its receiver and
        opens a new one."""
        before, granted = self._epochs, dict[str, Lease]()
        for lease in snapshot.owned_by(self._owner):
            partition = lease.partition
            starts = partition not in before and partition not in self._requested
            if partition in wanted and (starts or before.get(partition) == lease.epoch):
                granted[partition] = lease
        new = granted.keys() - before.keys()
        readable, losses = self._skip_lost_events(snapshot, {p: granted[p] for p in new})
        for partition in new - readable:
            del granted[partition]
        self._epochs = {partition: lease.epoch for partition, lease in granted.items()}
        new = granted.keys() - before.keys()
        with self._adding:
            for partition in new:  # these checkpoints are from an earlier epoch
                self._waiting.pop(partition, None)
        self._lost -= new
        self._pending_receivers = (self._pending_receivers | new) & granted.keys()
        # Former owners' receivers with an owner level would disconnect the client, which has level 0.
        if levels := {self._address(p): granted[p].epoch for p in new if granted[p].epoch > 1}:
            disconnect_readers(levels)
        if losses and self._returned == granted.keys():
            self._returned = None  # so that the next claim returns: only then does the client reopen failed receivers
            raise next(iter(losses.values()))
        self._returned = granted.keys()
        return [wanted[partition] | _ownership(lease, self._owner) for partition, lease in granted.items()]

    def _skip_lost_events(
        self, snapshot: Snapshot, leases: Mapping[str, Lease]
    ) -> tuple[set[str], dict[str, DataLossError]]:
        """The readable partitions, and an error for each partition with lost events. With `failOnDataLoss` = `false`, a
        warning is logged instead of the error, and the checkpoint is reset to the first retained event. Partitions for
        which the hub does not answer are omitted from both."""
        readable, losses, resets = set[str](), dict[str, DataLossError](), list[t.Transition]()
        states = self._states([*leases]) if leases else {}
        checkpoints = {
            p: lease.checkpoint for p, lease in leases.items() if lease.checkpoint is not None and p in states
        }
        for partition, is_known in self._find_events(checkpoints, states, leases).items():
            state, position, fails = states[partition], checkpoints[partition].next, self._options.fail_on_data_loss
            try:
                start, lost = retained_start(partition, position, state, fails, is_known=is_known)
            except DataLossError as error:
                losses[partition] = error
                continue
            readable.add(partition)
            if lost:
                _LOG.warning("%s", lost)
                resets.append(self._transition(t.Reset, leases[partition], position=Position.before(start)))
        if resets:
            self._commit(snapshot, resets)
        return readable, losses

    def _find_events(
        self, positions: Mapping[str, Position], states: Mapping[str, PartitionState], leases: Mapping[str, Lease]
    ) -> dict[str, bool]:
        """Partition → whether a geo-replicated hub still has the event at the partition's position, which a promotion
        may have lost. Partitions for which the hub does not answer in time have no entry."""

        def found(address: PartitionAddress, left: float) -> bool:
            partition = address.partition
            position, state = positions[partition], states[partition]
            if not names_event(position.offset) or position.next <= state.begin:
                return True
            if position.next >= state.end:
                return position.offset == state.last_offset
            known = has_event(position, address, left, leases[partition].epoch)
            if known is None:
                number = position.sequence_number
                reason = f"no event arrived at sequence number {number}"
                raise HubUnavailableError("EHB_HUB_UNREACHABLE", what=f"Partition {partition}", reason=reason)
            return known

        return resolve_all(map(self._address, positions), monotonic() + _RESOLVE_TIMEOUT, found)

    # --- releasing ---------------------------------------------------------------------------------------------

    def _release(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Release partitions whose receivers the client closed. After releasing its last partition, the client leaves
        the group, because it does not report when it stops."""
        with self._lock:
            store = self._open(entries[0])
            self._write_waiting(entries[0])  # when it stops, the asynchronous client does not wait for its checkpoints
            closed = {p for entry in entries if str(self._epochs.get(p := entry["partition_id"])) == entry.get("etag")}
            self._epochs = {p: epoch for p, epoch in self._epochs.items() if p not in closed}
            if closed and not self._epochs:
                self._leave(store)
            elif closed:
                snapshot = store.read()
                leases = [lease for lease in snapshot.owned_by(self._owner) if lease.partition in closed]
                self._commit(snapshot, [change for lease in leases for change in self._release_changes(lease)])

    def _leave(self, store: LeaseStore) -> None:
        if self._owner:
            snapshot = store.read()
            given = [change for lease in snapshot.owned_by(self._owner) for change in self._release_changes(lease)]
            commit_and_record(store, snapshot, [*given, self._new(t.Leave)], _LOG.warning)
        self._owner, self._epochs = "", {}

    def _release_changes(self, lease: Lease) -> list[t.Transition]:
        """A handover if one is pending; and a release, which takes effect if none is pending or the next owner has
        left."""
        handover = [self._transition(t.HandOver, lease)] if lease.handover else []
        return [*handover, self._transition(t.Release, lease)]

    # --- checkpoints -------------------------------------------------------------------------------------------

    def _add(self, checkpoint: Mapping[str, Any]) -> None:
        """Include `checkpoint` in the next commit. Does not block."""
        offset = checkpoint.get("offset")
        position = Position(int(checkpoint["sequence_number"]), None if offset is None else str(offset))
        self._keep_waiting({str(checkpoint["partition_id"]): position})

    def _keep_waiting(self, positions: Mapping[str, Position]) -> None:
        with self._adding:
            for partition, position in positions.items():
                known = self._waiting.get(partition)
                if known is None or known.sequence_number < position.sequence_number:
                    self._waiting[partition] = position

    def _write(self, checkpoint: Mapping[str, Any]) -> None:
        """Commit the waiting checkpoints, unless another thread has done so. Raises the same errors as
        `update_checkpoint`."""
        partition = str(checkpoint["partition_id"])
        with self._checkpointing:
            with self._lock:  # wait for commits of other threads: they take the waiting checkpoints, but may fail
                is_waiting = partition in self._waiting
            if is_waiting:
                time.sleep(max(0.0, self._next_checkpoint_at - monotonic()))
                with self._lock:
                    self._write_waiting(checkpoint)
            is_lost = partition in self._lost
            self._lost.discard(partition)
        if is_lost:
            raise OwnershipLostError(f"this consumer no longer owns partition {partition}")

    def _write_waiting(self, named: Mapping[str, Any]) -> None:
        """Commit all waiting checkpoints. If the commit fails, they wait for the next one."""
        began = monotonic()
        with self._adding:
            batch, self._waiting = self._waiting, {}
        if not batch:
            return
        try:
            snapshot = self._read(named)
            after = self._commit(
                snapshot, [change for item in batch.items() for change in self._progress(snapshot, *item)]
            )
        except EhBalanceError:
            self._keep_waiting(batch)
            raise
        for partition in batch:
            lease = after.leases.get(partition)
            if lease is None or (lease.owner, lease.epoch) != (self._owner, self._epochs.get(partition)):
                self._epochs.pop(partition, None)
                self._lost.add(partition)
        self._lost |= self._pending_receivers & batch.keys()
        spacing = len(after.members) * (monotonic() - began) / STORE_SHARE
        self._next_checkpoint_at = monotonic() + min(spacing, self._interval)

    def _progress(self, snapshot: Snapshot, partition: str, position: Position) -> list[t.Transition]:
        lease, member = snapshot.leases.get(partition), snapshot.members.get(self._owner)
        if (
            lease is None
            or member is None
            or lease.epoch != self._epochs.get(partition)
            or partition in self._pending_receivers
        ):
            return []
        going = lease.handover is not None or member.state is MemberState.LEAVING
        if lease.checkpoint == position and not going:
            return []
        return [
            self._transition(t.Checkpoint, lease, position=position),
            *(self._release_changes(lease) if going else ()),
        ]

    # --- writing -----------------------------------------------------------------------------------------------

    def _new(self, kind: type[_T], **fields: Any) -> _T:
        return kind(by=Author(self._owner, self._incarnation), at_ms=now_ms(), **fields)

    def _transition(self, kind: type[_T], lease: Lease, **fields: Any) -> _T:
        return self._new(kind, partition=lease.partition, epoch=lease.epoch, **fields)

    def _commit(self, base: Snapshot, changes: Sequence[t.Transition]) -> Snapshot:
        assert self._store is not None
        after = commit_and_record(self._store, base, changes, _LOG.warning).after
        self._observations = self._observations.updated(after, monotonic())
        return after


class _SequenceNumber(int):
    """A sequence number that is true even if it is 0, because the client treats a false value as "no checkpoint"."""

    def __bool__(self) -> bool:
        return True


def checkpoint_entry(lease: Lease) -> dict[str, Any]:
    """The checkpoint of a lease that has one. `offset` is the position after which the client starts."""
    assert lease.checkpoint is not None
    number, offset = lease.checkpoint.sequence_number, lease.checkpoint.offset
    after = offset if offset is not None else START_OFFSET if number < 0 else _SequenceNumber(number)
    return {"partition_id": lease.partition, "sequence_number": number, "offset": after}


def _ownership(lease: Lease, owner: str | None) -> dict[str, Any]:
    known = {"partition_id": lease.partition, "owner_id": owner or "", "etag": str(lease.epoch)}
    return {**known, "last_modified_time": time.time()}


def _named(namespace: str, hub: str, consumer_group: str) -> dict[str, Any]:
    return {"fully_qualified_namespace": namespace, "eventhub_name": hub, "consumer_group": consumer_group}
