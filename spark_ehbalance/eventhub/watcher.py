"""Polls the states of a hub's partitions in the background, according to a `PollSchedule`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TypeVar

from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.eventhub.arrivals import Arrivals
from spark_ehbalance.eventhub.client_errors import MissingHubCheck
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.metadata import HubMetadata, PartitionState
from spark_ehbalance.eventhub.poll_schedule import PollSchedule
from spark_ehbalance.eventhub.receiver import PartitionAddress, check_group, disconnect_readers
from spark_ehbalance.eventhub.resolve import (
    find_offset,
    has_event,
    latest_ends,
    probe_end,
    resolve_all,
    resolve_start,
)
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.position import START_OFFSET, Position, names_event
from spark_ehbalance.group.starting_positions import StartingPositions
from spark_ehbalance.text import logger

_LOG = logger(__name__)

_T = TypeVar("_T")

#: Number of newest events per partition whose offsets are kept, because a batch may end at any of them minutes later.
REMEMBERED_OFFSETS = 1000


@dataclass(frozen=True, slots=True)
class _Known:
    """The hub's state as of its last responses. Times are monotonic: `answered_at` is the time of the last response,
    `listed_at` the time of the request that returned the last list of partitions, and `connected_at` the time of
    connecting. `error` is the failure of the last request, and `silent_since` the time of the first request that failed
    since the last response. `is_gone` means that the hub no longer exists."""

    partitions: tuple[str, ...] = ()
    states: Mapping[str, PartitionState] = field(default_factory=dict)
    created_ms: int | None = None
    answered_at: float = 0.0
    listed_at: float = 0.0
    connected_at: float = 0.0
    error: HubUnavailableError | None = None
    silent_since: float = 0.0
    is_gone: bool = False


class HubWatcher:
    """The current states of a hub's partitions. Thread-safe. Polls in its own thread from `start` to `stop`. Sets the
    event `changed` when the result of `states` has changed or `states` may raise an error."""

    def __init__(
        self,
        connection: Connection,
        consumer_group: str,
        starting_positions: StartingPositions,
        timeout: float,
        changed: threading.Event | None = None,
        *,
        patience: float | None = None,
        schedule: PollSchedule | None = None,
        remembered_offsets: int = 0,
    ) -> None:
        """All times are in seconds. A hub that is silent for `timeout` counts as unavailable. `starting_positions`,
        `offsets`, `has_events` and `probe_ends` may take `patience`, by default `timeout`. `remembered_offsets` is the
        number of newest events per partition whose offsets are kept for `offsets`; in a geo-replicated hub, offsets are
        always kept."""
        self._connection = connection
        self._consumer_group = consumer_group
        self._starting_positions = starting_positions
        self._timeout = timeout
        self._patience = timeout if patience is None else min(patience, timeout)
        self._condition = threading.Condition()
        self._known = _Known()  # immutable, replaced under the lock
        self._latest_ms, self._latest_at = 0, 0.0  # `_latest_at` is monotonic, in seconds
        self._latest_ends: dict[str, Position] = {}
        self._arrivals = Arrivals()
        self._offsets: dict[str, dict[int, str]] = {}  # by partition, then by sequence number, oldest first
        self._remembered_offsets = remembered_offsets
        self._schedule = schedule or PollSchedule()  # immutable, replaced under the lock
        self._list_since = 0.0  # `refresh` waits for a list requested after this time
        self._missing = MissingHubCheck()
        self._changed = changed or threading.Event()
        self._stopping = False

    @property
    def name(self) -> str:
        """Namespace and name of the hub."""
        return self._connection.hub_name

    @property
    def available(self) -> bool:
        """Whether the hub answered the last request."""
        return self._known.error is None

    def start(self) -> None:
        """Request the states of at most `MAX_NEW` partitions, then start the thread. Raises `HubUnavailableError`,
        `MissingError` if the hub or the consumer group does not exist, or `OptionError` if the starting positions do
        not match the partitions."""
        with ExitStack() as stack:
            metadata = stack.enter_context(HubMetadata(self._connection, self._consumer_group))
            with ThreadPoolExecutor(1) as pool:
                group = pool.submit(check_group, self._address("0"))
                self._poll(metadata, listing=True)
                group.result()
            assert metadata.first_answer_ms is not None, "every hub has partitions"
            self._latest_ms, self._latest_at = metadata.first_answer_ms, time.monotonic()
            self._starting_positions.check(self._known.partitions)
            states = self._known.states
            self._latest_ends = latest_ends(self._starting_positions, states, lambda _: states)
            thread = threading.Thread(target=self._run, args=(metadata,), name="ehbalance-hub-watcher", daemon=True)
            thread.start()
            stack.pop_all()  # the thread closes the connection from now on

    def stop(self) -> None:
        """Signal the thread to end; does not wait for it."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def watch(self, partitions: Iterable[str], members: int = 1) -> None:
        """Poll `partitions` for events; the group's `members` share the rate limit."""
        with self._condition:
            self._schedule, at_once = self._schedule.watch(partitions, members)
            if at_once:
                self._condition.notify_all()

    def rest(self) -> None:
        """Poll rarely, during a batch, until the next `watch`."""
        with self._condition:
            self._schedule = self._schedule.rest()

    def catch_up(self, patience: float) -> None:
        """Request the states of as many watched partitions as the rate limit allows, and wait at most `patience`
        seconds for the response. Returns at once if the limit allows no request in that time."""
        with self._condition:
            since = time.monotonic()
            self._schedule = replace(self._schedule, is_urgent=True)
            if self._schedule.due() <= since + patience:
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._schedule.requested_at > since or self._stopping, patience)

    def states(self) -> Mapping[str, PartitionState]:
        """Last known states by partition; the same object until a state changes. Raises `HubUnavailableError` if the
        hub has been silent for the timeout, and `MissingError` if it no longer exists."""
        known = self._known
        if known.error is not None and (known.is_gone or time.monotonic() - known.silent_since > self._timeout):
            raise known.error
        return known.states

    def request_states(self, partitions: Iterable[str]) -> Mapping[str, PartitionState]:
        """Like `states`, but first requests the states of those `partitions` that are unknown. Raises the same errors
        as `refresh`."""
        if unknown := [partition for partition in partitions if partition not in self.states()]:
            self.refresh(unknown)
        return self.states()

    def latest_ends(self, partitions: Iterable[str]) -> Mapping[str, Position]:
        """The ends of partitions when this watcher started, including at least those `partitions` that start at
        `latest`. Requests the states that `start` did not request. Raises the same errors as `refresh`."""
        unknown = [partition for partition in partitions if partition not in self._latest_ends]
        self._latest_ends |= latest_ends(self._starting_positions, unknown, self.request_states)
        return self._latest_ends

    def lag(self, partition: str, next: int) -> Lag | None:
        """Lag of a reader at sequence number `next`, as of the last response; None before the first response."""
        with self._condition:
            state, known_at = self._known.states.get(partition), self._schedule.known_at.get(partition, 0.0)
            age = time.monotonic() - known_at
        if state is None:
            return None
        enqueued_ms = self._arrivals.enqueued_ms(partition, next) if next < state.end else None
        return Lag(next, max(next, state.end), enqueued_ms, round(1000 * (time.time() - age)))

    def created_ms(self) -> int | None:
        """When the hub was created (ms since 1970); None in the same cases as in `HubMetadata`."""
        return self._known.created_ms

    def latest_ms(self) -> int:
        """The time at which `start` was called, by the hub's clock, in milliseconds since 1970."""
        return self._latest_ms

    def connected_at(self) -> float:
        """The monotonic time at which the last connection to the hub was opened; it identifies the connection."""
        return self._known.connected_at

    def refresh(self, partitions: Iterable[str] | None = None) -> None:
        """Request the list of partitions and the states of `partitions` (None: all) again, and wait for the responses.
        For many partitions this takes a while because of the rate limit.

        Raises `HubUnavailableError` if the hub is silent for the timeout, and `MissingError` if it no longer exists.
        """
        requested = self._known.partitions if partitions is None else tuple(partitions)
        since = self._refresh(requested)
        if set(self._refreshed(requested, since)) != set(requested).intersection(self._known.partitions):
            raise self._known.error or self._no_answer(self._timeout)

    def _no_answer(self, seconds: float) -> HubUnavailableError:
        reason = f"no answer within {seconds:g} s"
        return HubUnavailableError("EHB_HUB_UNREACHABLE", what=f"Event hub {self.name}", reason=reason)

    def _refresh(self, requested: Sequence[str], patience: float = float("inf")) -> float:
        """Request the states of the `requested` partitions. Wait at most `patience` seconds until the hub has answered
        for every requested partition that exists; stop if the hub is silent for the timeout or no longer exists.
        Returns the time of the call."""
        with self._condition:
            since = self._list_since = time.monotonic()
            self._schedule = self._schedule.refresh(requested, since)
            self._condition.notify_all()
            while (left := since + patience - time.monotonic()) > 0 and not self._known.is_gone:
                if len(self._refreshed(requested, since)) == len(set(requested).intersection(self._known.partitions)):
                    break
                previous = self._known.answered_at

                def answered(previous: float = previous) -> bool:
                    return self._known.answered_at > previous or self._known.is_gone

                if not self._condition.wait_for(answered, min(left, self._timeout)):
                    break
            return since

    def _refreshed(self, requested: Sequence[str], since: float) -> list[str]:
        """The `requested` partitions that are no longer stale; empty until the partitions have been listed after
        `since`."""
        with self._condition:
            listed = self._known.listed_at > since
            known = [p for p in self._known.partitions if p not in self._schedule.stale] if listed else []
            return [partition for partition in requested if partition in known]

    # --- for the lease keeper -----------------------------------------------------------------------------------

    def partition_ids(self) -> tuple[str, ...]:
        """The hub's partitions as last listed."""
        return self._known.partitions

    def starting_positions(self, partitions: Sequence[str], latest_ms: int) -> dict[str, Position]:
        """The starting positions of those `partitions` that could be resolved in time. `latest` means the time
        `latest_ms` by the hub's clock; if that is when `start` was called, the positions are from `latest_ends`. Raises
        `HubUnavailableError` if no position was resolved."""
        deadline = time.monotonic() + self._patience
        latest = datetime.fromtimestamp(latest_ms / 1000, timezone.utc)
        states = self._known.states
        known = [partition for partition in partitions if partition in states]
        if not known:
            since = self._refresh(partitions, self._patience)
            known = self._refreshed(partitions, since)
            if not known:
                raise self._known.error or self._no_answer(self._patience)

        now = datetime.fromtimestamp(self._latest_ms / 1000 + time.monotonic() - self._latest_at, timezone.utc)

        def resolved(address: PartitionAddress, left: float) -> Position:
            position, state = self._starting_positions.position(address.partition), self._state(address.partition)
            if latest_ms == self._latest_ms and address.partition in self._latest_ends:
                return self._latest_ends[address.partition]
            return resolve_start(position, latest, now, address, state, left)

        # The next call resolves the remaining partitions.
        return resolve_all(map(self._address, known), deadline, resolved, needed=True)

    def offsets(self, positions: Mapping[str, int], owner_level: int | Mapping[str, int | None]) -> dict[str, str]:
        """The offsets of the events with these sequence numbers, by partition. Offsets that are not found in time are
        omitted.

        If an event's offset was not kept, reads it with a receiver that has `owner_level`, which can be a mapping by
        partition.
        """

        def offset(address: PartitionAddress, left: float) -> str | None:
            partition, sequence_number = address.partition, positions[address.partition]
            with self._condition:
                state = self._known.states.get(partition)
                known = self._offsets.get(partition, {}).get(sequence_number)
            if state is not None and sequence_number < state.begin:
                return START_OFFSET
            if known is not None:
                return known
            level = owner_level if isinstance(owner_level, int) else owner_level[partition]
            return find_offset(address, sequence_number, level, left)

        return resolve_all(map(self._address, positions), time.monotonic() + self._patience, offset)

    def has_events(self, positions: Mapping[str, Position], owner_levels: Mapping[str, int | None]) -> dict[str, bool]:
        """The results of `resolve.has_event` by partition, using receivers with these levels. Partitions without a
        result in time are omitted."""

        def found(address: PartitionAddress, left: float) -> bool | None:
            return has_event(positions[address.partition], address, left, owner_levels[address.partition])

        return resolve_all(map(self._address, positions), time.monotonic() + self._patience, found)

    def probe_ends(self, positions: Mapping[str, int], owner_levels: Mapping[str, int | None]) -> dict[str, int]:
        """The results of `resolve.probe_end` by partition, using receivers with these levels. Partitions in which no
        event arrives in time are omitted."""

        def end(address: PartitionAddress, left: float) -> int | None:
            return probe_end(positions[address.partition], address, left, owner_levels[address.partition])

        return resolve_all(map(self._address, positions), time.monotonic() + self._patience, end)

    def _address(self, partition: str) -> PartitionAddress:
        return PartitionAddress(self._connection, self._consumer_group, partition)

    def disconnect_readers(self, owner_levels: Mapping[str, int]) -> None:
        """Disconnect readers of these partitions with the same or a lower owner level."""
        disconnect_readers({self._address(partition): level for partition, level in owner_levels.items()})

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self, metadata: HubMetadata) -> None:
        with metadata:
            while self._wait():
                age = time.monotonic() - self._known.listed_at
                listing = self._known.listed_at <= self._list_since or age > self._schedule.intervals.listing
                began = time.monotonic()
                try:
                    self._poll(metadata, listing=listing)
                except BaseException as error:  # any error, because the query would idle silently if the thread ended
                    self._failed(error, began)

    def _failed(self, error: BaseException, began: float) -> None:
        if not isinstance(error, HubUnavailableError):
            error = HubUnavailableError("EHB_HUB_UNREACHABLE", what=f"Event hub {self.name}", reason=repr(error))
        if self._known.error is None:
            _LOG.warning("Event hub unavailable, retrying: every=%g s error=%s", self._schedule.intervals.retry, error)
        with self._condition:
            since = self._known.silent_since if self._known.error else began
            is_gone = self._missing.record_error(error)
            self._known = replace(self._known, error=error, silent_since=since, is_gone=is_gone)
            self._changed.set()
            self._condition.notify_all()

    def _wait(self) -> bool:
        """Wait for the next request to be due; False if the thread must end."""
        with self._condition:
            if self._known.error:
                self._condition.wait_for(lambda: self._stopping, self._schedule.intervals.retry)
                return not self._stopping
            while not self._stopping and (left := self._due() - time.monotonic()) > 0:
                self._condition.wait(left)
            return not self._stopping

    def _due(self) -> float:
        """When the next request is due. A request made by `refresh` is due as soon as the limit allows."""
        return self._schedule.not_before if self._known.listed_at <= self._list_since else self._schedule.due()

    def _poll(self, metadata: HubMetadata, *, listing: bool) -> None:
        before, began, requested_ms = self._known, time.monotonic(), round(1000 * time.time())
        partitions = metadata.partition_ids() if listing else before.partitions
        with self._condition:
            self._schedule, requested = self._schedule.choose(partitions, also_others=listing)
            watched = self._schedule.watched
        states = metadata.partition_states(requested)
        doubtful = frozenset[str]()
        if metadata.opened_at != before.connected_at:
            # A geo-replicated hub may have been promoted, so the sequence numbers may belong to other events now.
            doubtful = frozenset(p for p, state in before.states.items() if names_event(state.last_offset))
            if again := doubtful & watched - states.keys():
                requested += again
                states = metadata.partition_states(requested)
        ended, kept = None if before.partitions else time.monotonic(), before.states
        with self._condition:
            if doubtful:
                kept = {p: state for p, state in before.states.items() if p not in doubtful}
                for partition in doubtful:
                    self._offsets.pop(partition, None)
            for partition, state in states.items():
                at = state.last_enqueued
                enqueued_ms = None if at is None else round(1000 * at.timestamp())
                self._arrivals.record(partition, state.end, enqueued_ms, requested_ms)
            self._remember_offsets(states)
            created_ms = metadata.created_ms or before.created_ms
            now_known = {**kept, **states}
            changed = (partitions, created_ms, now_known) != (before.partitions, before.created_ms, before.states)
            self._schedule = self._schedule.answered(requested, began, changed=changed, others=listing, ended=ended)
            self._missing.record_answer()
            self._known = _Known(
                partitions,
                now_known if changed else before.states,
                created_ms,
                time.monotonic(),
                began if listing else before.listed_at,
                metadata.opened_at,
            )
            if changed or before.error:
                self._changed.set()  # done last, because waiting threads read the new states without the lock
            self._condition.notify_all()

    def _remember_offsets(self, states: Mapping[str, PartitionState]) -> None:
        for partition, state in states.items():
            most = self._remembered_offsets or (REMEMBERED_OFFSETS if names_event(state.last_offset) else 0)
            if state.last_offset is not None and most:
                known = self._offsets.setdefault(partition, {})
                if known and state.end <= next(reversed(known)):
                    known.clear()  # the hub was recreated and has other offsets
                known[state.end - 1] = state.last_offset
                if len(known) > most:
                    del known[next(iter(known))]

    def _state(self, partition: str) -> PartitionState:
        if (state := self._known.states.get(partition)) is None:
            what, reason = f"Partition {partition} of event hub {self.name}", "its state is not known yet"
            raise HubUnavailableError("EHB_HUB_UNREACHABLE", what=what, reason=reason)
        return state
