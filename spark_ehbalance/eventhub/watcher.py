"""Keeps the state of a hub's partitions up to date in the background, by a `PollSchedule`."""

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

#: Newest events of a partition whose offsets are remembered: a batch may end at any of them, some minutes later.
REMEMBERED_OFFSETS = 1000


@dataclass(frozen=True, slots=True)
class _Known:
    """What the hub has answered. Times are monotonic: of the last answer, of the request of the last list of partitions
    that was answered, and of the connection. `error`: why the last request was not answered, and `silent_since` when
    the first one was made that was not. `gone`: the hub does not exist any more."""

    partitions: tuple[str, ...] = ()
    states: Mapping[str, PartitionState] = field(default_factory=dict)
    created_ms: int | None = None
    answered_at: float = 0.0
    listed_at: float = 0.0
    connected_at: float = 0.0
    error: HubUnavailableError | None = None
    silent_since: float = 0.0
    gone: bool = False


class HubWatcher:
    """The current state of a hub's partitions, for several threads; a thread of its own requests it from `start` to
    `stop`. `changed` is set when `states` returns something else than before, or may raise an error."""

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
        """All times are seconds. `timeout` is how long the hub may be silent, and `patience` how long
        `starting_positions`, `offsets`, `has_events` and `received` may take, by default as long.
        `remembered_offsets`: of this many events that were a partition's newest, `offsets` need not ask the hub; of a
        geo-replicated hub some always are."""
        self._connection = connection
        self._consumer_group = consumer_group
        self._starting_positions = starting_positions
        self._timeout = timeout
        self._patience = timeout if patience is None else min(patience, timeout)
        self._condition = threading.Condition()
        self._known = _Known()  # replaced as a whole, under the lock
        self._latest_ms, self._latest_at = 0, 0.0  # the second is in monotonic seconds
        self._latest_ends: dict[str, Position] = {}
        self._arrivals = Arrivals()
        self._offsets: dict[str, dict[int, str]] = {}  # by partition and sequence number, the oldest first
        self._remembered_offsets = remembered_offsets
        self._schedule = schedule or PollSchedule()  # replaced as a whole, under the lock
        self._list_since = 0.0  # a caller of `refresh` waits for the list as of a request after this time
        self._missing = MissingHubCheck()
        self._changed = changed or threading.Event()
        self._stopping = False

    @property
    def name(self) -> str:
        """The hub's name with its namespace, which tells it from all others."""
        return self._connection.hub_name

    @property
    def available(self) -> bool:
        """Whether the hub has answered the last request."""
        return self._known.error is None

    def start(self) -> None:
        """Request the states of the partitions, of many only the first, then start the thread. Raises
        `HubUnavailableError`, `MissingError` if hub or consumer group do not exist, `OptionError` if the starting
        positions do not match the partitions."""
        with ExitStack() as stack:
            metadata = stack.enter_context(HubMetadata(self._connection, self._consumer_group))
            with ThreadPoolExecutor(1) as beside:
                group = beside.submit(check_group, self._address("0"))
                self._poll(metadata, listing=True)
                group.result()
            assert metadata.first_answer_ms is not None, "every hub has partitions"
            self._latest_ms, self._latest_at = metadata.first_answer_ms, time.monotonic()
            self._starting_positions.check(self._known.partitions)
            states = self._known.states
            self._latest_ends = latest_ends(self._starting_positions, states, lambda _: states)
            thread = threading.Thread(target=self._run, args=(metadata,), name="ehbalance-hub-watcher", daemon=True)
            thread.start()
            stack.pop_all()  # the thread closes the connection

    def stop(self) -> None:
        """Have the thread end soon; does not wait for it."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def watch(self, partitions: Iterable[str], members: int = 1) -> None:
        """The query waits for events of `partitions`; the group's `members` share the limit of requests."""
        with self._condition:
            self._schedule, at_once = self._schedule.watch(partitions, members)
            if at_once:
                self._condition.notify_all()

    def rest(self) -> None:
        """The query runs a batch, and needs little until it calls `watch` again."""
        with self._condition:
            self._schedule = self._schedule.rest()

    def catch_up(self, patience: float) -> None:
        """Wait for the response to a request made after this call, of as many watched partitions as the limit allows,
        for at most `patience` seconds, and not at all if the limit allows no request within them."""
        with self._condition:
            since = time.monotonic()
            self._schedule = replace(self._schedule, wanted=True)
            if self._schedule.due() <= since + patience:
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._schedule.requested_at > since or self._stopping, patience)

    def states(self) -> Mapping[str, PartitionState]:
        """The last known state of each partition: the same mapping until one has changed. Raises `HubUnavailableError`
        if the hub has been silent for the timeout, and `MissingError` if it is gone."""
        known = self._known
        if known.error is not None and (known.gone or time.monotonic() - known.silent_since > self._timeout):
            raise known.error
        return known.states

    def request_states(self, partitions: Iterable[str]) -> Mapping[str, PartitionState]:
        """As `states`, once those of `partitions` are known. Raises what `refresh` raises."""
        if unknown := [partition for partition in partitions if partition not in self.states()]:
            self.refresh(unknown)
        return self.states()

    def latest_ends(self, partitions: Iterable[str]) -> Mapping[str, Position]:
        """The ends at this watcher's start of at least those of `partitions` whose starting position is `latest`: the
        hub is asked about those that `start` left out. Raises what `refresh` raises."""
        unknown = [partition for partition in partitions if partition not in self._latest_ends]
        self._latest_ends |= latest_ends(self._starting_positions, unknown, self.request_states)
        return self._latest_ends

    def lag(self, partition: str, next: int) -> Lag | None:
        """What is unread of the partition from sequence number `next` on, as of the last answer; None before one."""
        with self._condition:
            state, known_at = self._known.states.get(partition), self._schedule.known_at.get(partition, 0.0)
            age = time.monotonic() - known_at
        if state is None:
            return None
        enqueued_ms = self._arrivals.enqueued(partition, next) if next < state.end else None
        return Lag(next, max(next, state.end), enqueued_ms, round(1000 * (time.time() - age)))

    def created_ms(self) -> int | None:
        """When the hub was created (ms since 1970), as last known; None as in `HubMetadata`."""
        return self._known.created_ms

    def latest_ms(self) -> int:
        """The moment of `start` by the hub's clock, in milliseconds since 1970."""
        return self._latest_ms

    def connected_at(self) -> float:
        """Identifies the connection by which the hub was asked last."""
        return self._known.connected_at

    def refresh(self, partitions: Iterable[str] | None = None) -> None:
        """Wait for the states of these partitions (all, if it is None) and the list of partitions, requested after this
        call. With many partitions that takes a while, because of the limit, in which others are served as well.

        Raises `HubUnavailableError` if the hub is silent for the timeout, `MissingError` if it is gone.
        """
        wanted = self._known.partitions if partitions is None else tuple(partitions)
        since = self._renew(wanted)
        if set(self._renewed(wanted, since)) != set(wanted).intersection(self._known.partitions):
            raise self._known.error or HubUnavailableError(f"the event hub has not answered for {self._timeout:g} s")

    def _renew(self, wanted: Sequence[str], patience: float = float("inf")) -> float:
        """Wait until the hub has answered for all that it has of `wanted` partitions, is silent for the timeout or is
        gone; `patience` seconds at most. Returns the time of the call."""
        with self._condition:
            since = self._list_since = time.monotonic()
            self._schedule = self._schedule.renew(wanted, since)
            self._condition.notify_all()
            while (left := since + patience - time.monotonic()) > 0 and not self._known.gone:
                if len(self._renewed(wanted, since)) == len(set(wanted).intersection(self._known.partitions)):
                    break
                heard = self._known.answered_at

                def answered(heard: float = heard) -> bool:
                    return self._known.answered_at > heard or self._known.gone

                if not self._condition.wait_for(answered, min(left, self._timeout)):
                    break
            return since

    def _renewed(self, wanted: Sequence[str], since: float) -> list[str]:
        """Those of `wanted` that were answered since they were to be renewed, once the partitions were listed after
        `since`."""
        with self._condition:
            listed = self._known.listed_at > since
            known = [p for p in self._known.partitions if p not in self._schedule.stale] if listed else []
            return [each for each in wanted if each in known]

    # --- for the lease keeper -----------------------------------------------------------------------------------

    def partition_ids(self) -> tuple[str, ...]:
        """The hub's partitions as last listed."""
        return self._known.partitions

    def starting_positions(self, partitions: Sequence[str], latest_ms: int) -> dict[str, Position]:
        """What `startingPosition` means in those of `partitions` where it can be resolved in time, if `latest` is the
        moment `latest_ms` of the hub's clock: in `latest_ends` exactly, if that is the moment of `start`. Raises
        `HubUnavailableError` if there is none."""
        deadline = time.monotonic() + self._patience
        latest = datetime.fromtimestamp(latest_ms / 1000, timezone.utc)
        states = self._known.states
        known = [partition for partition in partitions if partition in states]
        if not known:
            since = self._renew(partitions, self._patience)
            known = self._renewed(partitions, since)
            if not known:
                raise self._known.error or HubUnavailableError("the event hub has not answered in time")

        now = datetime.fromtimestamp(self._latest_ms / 1000 + time.monotonic() - self._latest_at, timezone.utc)

        def resolved(address: PartitionAddress, left: float) -> Position:
            position, state = self._starting_positions.position(address.partition), self._state(address.partition)
            if latest_ms == self._latest_ms and address.partition in self._latest_ends:
                return self._latest_ends[address.partition]
            return resolve_start(position, latest, now, address, state, left)

        # The others have their turn next.
        return resolve_all(map(self._address, known), deadline, resolved, needed=True)

    def offsets(self, positions: Mapping[str, int], owner_level: int | Mapping[str, int | None]) -> dict[str, str]:
        """The offsets of the events with these sequence numbers, by partition, as far as they can be found in time.

        That of an event which was never a partition's newest is looked up by a receiver with `owner_level`, or that of
        the partition.
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
        """`resolve.has_event` for each position, as far as that is known in time, by receivers with these levels."""

        def found(address: PartitionAddress, left: float) -> bool | None:
            return has_event(positions[address.partition], address, left, owner_levels[address.partition])

        return resolve_all(map(self._address, positions), time.monotonic() + self._patience, found)

    def received(self, positions: Mapping[str, int], owner_levels: Mapping[str, int | None]) -> dict[str, int]:
        """`resolve.probe_end` for each position, as far as an event comes in time, by receivers with these levels."""

        def end(address: PartitionAddress, left: float) -> int | None:
            return probe_end(positions[address.partition], address, left, owner_levels[address.partition])

        return resolve_all(map(self._address, positions), time.monotonic() + self._patience, end)

    def _address(self, partition: str) -> PartitionAddress:
        return PartitionAddress(self._connection, self._consumer_group, partition)

    def clear(self, owner_levels: Mapping[str, int]) -> None:
        """Disconnect whoever reads these partitions with the given owner level or a lower one."""
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
                except BaseException as error:  # a thread that ends would leave the query idle without a message
                    self._failed(error, began)

    def _failed(self, error: BaseException, began: float) -> None:
        if not isinstance(error, HubUnavailableError):
            error = HubUnavailableError(f"the event hub could not be asked: {error!r}")
        if self._known.error is None:
            _LOG.warning("%s. Trying again every %g s", error, self._schedule.intervals.retry)
        with self._condition:
            since = self._known.silent_since if self._known.error else began
            gone = self._missing.is_confirmed_by(error)
            self._known = replace(self._known, error=error, silent_since=since, gone=gone)
            self._changed.set()
            self._condition.notify_all()

    def _wait(self) -> bool:
        """Wait until the next request is due; False if the thread must end."""
        with self._condition:
            if self._known.error:
                self._condition.wait_for(lambda: self._stopping, self._schedule.intervals.retry)
                return not self._stopping
            while not self._stopping and (left := self._due() - time.monotonic()) > 0:
                self._condition.wait(left)
            return not self._stopping

    def _due(self) -> float:
        """When the next request is due: for a caller of `refresh` as soon as the limit allows."""
        return self._schedule.not_before if self._known.listed_at <= self._list_since else self._schedule.due()

    def _poll(self, metadata: HubMetadata, *, listing: bool) -> None:
        before, began, asked_ms = self._known, time.monotonic(), round(1000 * time.time())
        partitions = metadata.partition_ids() if listing else before.partitions
        with self._condition:
            self._schedule, requested = self._schedule.choose(partitions, also_others=listing)
            watched = self._schedule.watched
        states = metadata.partition_states(requested)
        doubtful = frozenset[str]()
        if metadata.opened_at != before.connected_at:
            # A geo-replicated hub may have been promoted: other events may have these numbers now.
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
                self._arrivals.answered(partition, state.end, enqueued_ms, asked_ms)
            self._remember_offsets(states)
            created_ms = metadata.created_ms or before.created_ms
            now_known = {**kept, **states}
            changed = (partitions, created_ms, now_known) != (before.partitions, before.created_ms, before.states)
            self._schedule = self._schedule.answered(requested, began, changed=changed, others=listing, ended=ended)
            self._missing.answered()
            self._known = _Known(
                partitions,
                now_known if changed else before.states,
                created_ms,
                time.monotonic(),
                began if listing else before.listed_at,
                metadata.opened_at,
            )
            if changed or before.error:
                self._changed.set()  # not before: who sees it reads the new states, without the lock
            self._condition.notify_all()

    def _remember_offsets(self, states: Mapping[str, PartitionState]) -> None:
        for partition, state in states.items():
            most = self._remembered_offsets or (REMEMBERED_OFFSETS if names_event(state.last_offset) else 0)
            if state.last_offset is not None and most:
                known = self._offsets.setdefault(partition, {})
                if known and state.end <= next(reversed(known)):
                    known.clear()  # a hub that was created again has other offsets
                known[state.end - 1] = state.last_offset
                if len(known) > most:
                    del known[next(iter(known))]

    def _state(self, partition: str) -> PartitionState:
        if (state := self._known.states.get(partition)) is None:
            raise HubUnavailableError(f"the state of partition {partition} is not known yet")
        return state
