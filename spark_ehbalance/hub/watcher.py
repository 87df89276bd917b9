"""Watches a hub in the background, and no more often than somebody wants to know: see `schedule`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.metadata import HubMetadata, PartitionState
from spark_ehbalance.hub.poll_schedule import PollSchedule
from spark_ehbalance.hub.receiver import PartitionAddress
from spark_ehbalance.hub.resolve import resolve
from spark_ehbalance.values.position import Position
from spark_ehbalance.values.starting_positions import StartingPositions

_LOG = logging.getLogger(__name__)

#: Seconds between two looks at the list of partitions, which are added by hand, and rarely; those that are not watched
#: are asked about along with it.
_LIST_INTERVAL = 5.0

#: Partitions in which a time is looked for at once: each takes a connection, and waits for most of its time.
_QUESTIONS_AT_ONCE = 8

#: Seconds between two tries while the hub does not answer.
_RETRY_INTERVAL = 1.0


class HubWatcher:
    """Keeps the state of a hub's partitions at hand.

    `start` asks once, in the caller's thread, and raises `HubUnavailableError` if there is no answer, or `OptionError`
    if `starting_positions` do not fit the hub's partitions; after that a thread asks again and again until `stop`, and
    sets `news` when `states` has changed, or may raise something.
    """

    def __init__(
        self,
        connection: Connection,
        consumer_group: str,
        starting_positions: StartingPositions,
        timeout: float,
        changed: threading.Event | None = None,
        *,
        patience: float | None = None,
    ) -> None:
        """`timeout` is how long the hub may be silent, `patience` how long `starting_positions` may take, in seconds;
        by default as long."""
        self._connection = connection
        self._consumer_group = consumer_group
        self._starting_positions = starting_positions
        self._timeout = timeout
        self._patience = timeout if patience is None else min(patience, timeout)
        self._condition = threading.Condition()
        self._partitions: tuple[str, ...] = ()
        self._states: dict[str, PartitionState] = {}
        self._schedule = PollSchedule()
        self._asked_at = 0.0  # when the question about everything was put whose answer is known
        self._answered_at = 0.0
        self._hurry = False
        self._last_error: HubUnavailableError | None = None
        self._changed = changed or threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="ehbalance-hub-watcher", daemon=True)

    def start(self) -> None:
        """Ask for all partitions once, then go on in the background."""
        with HubMetadata(self._connection, self._consumer_group) as metadata:
            self._look(metadata, everything=True)
        self._starting_positions.check(self._partitions)
        self._thread.start()

    def stop(self) -> None:
        """End the thread soon; does not wait for it."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def watch(self, partitions: Iterable[str], members: int = 1) -> None:
        """The query waits for events of `partitions`; so many `members` share the hub's answers."""
        with self._condition:
            if self._schedule.watch(partitions, members):
                self._condition.notify_all()

    def rest(self) -> None:
        """The query is at a batch, and does not need to know much until it is watching again."""
        with self._condition:
            self._schedule.rest()

    def catch_up(self, patience: float) -> None:
        """Wait until the hub was asked after this call, about as many watched partitions as the limit allows; at most
        `patience` seconds, and not at all if the limit does not allow it within them."""
        with self._condition:
            since, schedule = time.monotonic(), self._schedule
            schedule.want()
            if schedule.due() <= since + patience:
                self._condition.notify_all()
                self._condition.wait_for(lambda: schedule.looked_at > since or self._stopping, patience)

    def states(self) -> Mapping[str, PartitionState]:
        """What was last heard of each partition: the same mapping until there is something new. Raises
        `HubUnavailableError` if that is too long ago."""
        with self._condition:
            if self._last_error is not None and time.monotonic() - self._answered_at > self._timeout:
                raise self._last_error
            return self._states

    def refresh(self) -> None:
        """Wait until what is known of all partitions was asked for after this call. Raises `HubUnavailableError`."""
        with self._condition:
            since, self._hurry = time.monotonic(), True
            self._condition.notify_all()
            if not self._condition.wait_for(lambda: self._asked_at > since, self._timeout):
                raise self._last_error or HubUnavailableError(f"the event hub has not answered for {self._timeout:g} s")

    # --- what the keeper asks -----------------------------------------------------------------------------------

    def partition_ids(self) -> tuple[str, ...]:
        """The hub's partitions when last asked."""
        with self._condition:
            return self._partitions

    def earliest_position(self, partition: str) -> Position:
        """The position before the first retained event of `partition`."""
        return Position.before(self._state(partition).begin)

    def starting_positions(self, partitions: Sequence[str]) -> dict[str, Position]:
        """What `startingPosition` means now for those of `partitions` of which the hub tells it in time, which are one
        at least. A time costs a question to the hub for each. Raises `HubUnavailableError`."""
        deadline, last_error = time.monotonic() + self._patience, list[HubUnavailableError]()
        with self._condition:
            oldest = min(map(self._schedule.known_at, partitions), default=float("inf"))
        if time.monotonic() - oldest > _LIST_INTERVAL:  # "latest" is now, or nearly so
            self.refresh()

        def position(partition: str) -> Position | None:
            place = self._starting_positions.of(partition)
            source = PartitionAddress(self._connection, self._consumer_group, partition)
            try:
                return resolve(place, source, self._state(partition), deadline - time.monotonic())
            except HubUnavailableError as error:
                last_error.append(error)
                return None

        with ThreadPoolExecutor(_QUESTIONS_AT_ONCE) as pool:
            positions = dict(zip(partitions, pool.map(position, partitions), strict=True))
        found = {partition: place for partition, place in positions.items() if place is not None}
        if last_error and not found:
            raise last_error[0]
        for error in last_error:
            _LOG.warning("%s. Until that is over it is read by nobody", error)
        return found

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with HubMetadata(self._connection, self._consumer_group) as metadata:
            listed_at = time.monotonic()
            while self._wait():
                began = time.monotonic()
                everything, listing = self._hurry, began - listed_at > _LIST_INTERVAL
                try:
                    self._look(metadata, everything=everything, listing=listing)
                    listed_at = began if everything or listing else listed_at
                except BaseException as error:  # a thread that ends would leave the query idle without a message
                    self._failed(error, everything=everything)

    def _failed(self, error: BaseException, *, everything: bool) -> None:
        if not isinstance(error, HubUnavailableError):
            error = HubUnavailableError(f"the event hub could not be asked: {error!r}")
        if self._last_error is None:
            _LOG.warning("%s. Asking again every %g s", error, _RETRY_INTERVAL)
        with self._condition:
            self._last_error = error
            self._changed.set()
            self._hurry = self._hurry or everything  # a caller of `refresh` still waits for it

    def _wait(self) -> bool:
        """Wait for the next look; False if it is time to end."""
        with self._condition:
            if self._last_error:
                self._condition.wait_for(lambda: self._stopping, _RETRY_INTERVAL)
                return not self._stopping
            while not self._stopping and not self._hurry and (left := self._schedule.due() - time.monotonic()) > 0:
                self._condition.wait(left)
            return not self._stopping

    def _look(self, metadata: HubMetadata, *, everything: bool, listing: bool = False) -> None:
        with self._condition:
            self._hurry = False
            began = time.monotonic()
        partitions = metadata.partition_ids() if everything or listing else self._partitions
        with self._condition:
            asked = self._schedule.choose(partitions, everything=everything, also_others=listing)
        states = metadata.partition_states(asked)
        with self._condition:
            changed = partitions != self._partitions or any(self._states.get(p) != state for p, state in states.items())
            if changed or self._last_error:
                self._partitions, self._states = partitions, {**self._states, **states}
                self._changed.set()
            self._schedule.answered(asked, began, changed=changed)
            self._last_error = None
            self._answered_at = time.monotonic()
            if everything:
                self._asked_at = began
            self._condition.notify_all()

    def _state(self, partition: str) -> PartitionState:
        with self._condition:
            if partition not in self._states:
                raise HubUnavailableError(f"the event hub has not said yet what partition {partition} holds")
            return self._states[partition]
