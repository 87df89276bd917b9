"""Resolves starting positions, such as `latest` or a time, and offsets into sequence numbers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, TypeVar

from spark_ehbalance.errors import HubUnavailableError, OptionError, describe
from spark_ehbalance.eventhub.client_errors import CredentialsRefusedError, ServerBusyError, TransientError
from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.poll_schedule import MAX_REQUESTS
from spark_ehbalance.eventhub.receiver import (
    DisconnectedError,
    OffsetNotFoundError,
    PartitionAddress,
    Receiver,
    RowFormat,
)
from spark_ehbalance.eventhub.rows import KEEP, sequence_numbers
from spark_ehbalance.eventhub.service_errors import busy_wait
from spark_ehbalance.group.position import START_OFFSET, Position
from spark_ehbalance.group.starting_positions import AfterOffset, PartitionEnd, StartingPositions, UnresolvedPosition
from spark_ehbalance.settings.secrets import redacted
from spark_ehbalance.text import logger

_LOG = logger(__name__)

_T = TypeVar("_T")

#: Events per receive call while searching for an offset: the default of Azure's client.
_MAX_EVENTS = 300

#: The shortest retention that a hub can have: younger events are not deleted.
_MIN_RETENTION = timedelta(hours=1)

#: Maximum number of partitions that are resolved concurrently. Each needs a connection, and mostly waits.
_MAX_CONCURRENT = 8

#: Number of partitions after which a log line is written: five seconds' worth of requests.
_LOG_EVERY = round(5 * MAX_REQUESTS)

#: Seconds of silence after which a receiver is assumed to have no event to deliver: several round trips to another
#: continent.
QUIET = 5.0


def resolve(
    position: UnresolvedPosition,
    address: PartitionAddress,
    state: PartitionState,
    timeout: float,
    highest_level: int | None = None,
) -> Position:
    """Resolve `position` in a partition with this `state`.

    Resolves times and offsets with a receiver; raises `HubUnavailableError` after `timeout` seconds. A reader with an
    owner level makes the hub refuse receivers without one. If the reader's level is at most `highest_level`, the
    receiver uses the same level, which disconnects the reader for a moment. Raises `OptionError` if the position's
    offset and sequence number belong to different events."""
    if position is PartitionEnd.EARLIEST:
        return Position.before(state.begin)
    if position is PartitionEnd.LATEST:
        return state.end_position
    if isinstance(position, int):
        return Position.before(position)
    if isinstance(position, Position):
        return _checked(position, address, state, timeout, highest_level)
    if isinstance(position, AfterOffset):
        return position_after_offset(position.offset, address, state, timeout, highest_level)
    if state.begin == state.end or state.last_enqueued is None or state.last_enqueued < position:
        return state.end_position
    what = f"the first event at or after {position.isoformat()}"
    return Position.before(_received(address, position, timeout, what, _first_number, highest_level=highest_level))


def latest_ends(
    positions: StartingPositions,
    partitions: Iterable[str],
    request_states: Callable[[list[str]], Mapping[str, PartitionState]],
) -> dict[str, Position]:
    """The current ends of those `partitions` that start at `latest`. `request_states` may take 40 s for 1,000
    partitions."""
    latest = [partition for partition in partitions if positions.position(partition) is PartitionEnd.LATEST]
    ends = dict[str, Position]()
    for first in range(0, len(latest), _LOG_EVERY):
        if ends:
            _LOG.info(
                "Resolving startingPosition=latest before the first read: resolved=%d partitions=%d",
                len(ends),
                len(latest),
            )
        requested = latest[first : first + _LOG_EVERY]
        states = request_states(requested)
        ends |= {partition: states[partition].end_position for partition in requested}
    return ends


def resolve_start(
    position: UnresolvedPosition,
    latest: datetime,
    now: datetime,
    address: PartitionAddress,
    state: PartitionState,
    timeout: float,
) -> Position:
    """Resolve a starting position for a member of a group. `latest` is the time at which the group first started.
    `latest` and `now` are times by the hub's clock.

    If events may have aged out since `latest`, the result is a position before the first retained event, which counts
    as data loss.
    """
    start = latest if position is PartitionEnd.LATEST else position
    # May disconnect an Azure event processor for a moment: it reads with owner level 0, and reconnects.
    found = resolve(start, address, state, timeout, highest_level=0)
    had_events = state.last_enqueued is not None and state.last_enqueued >= latest
    if (
        position is PartitionEnd.LATEST
        and had_events
        and 0 < state.begin == found.next
        and now - latest >= _MIN_RETENTION
    ):
        return Position.before(state.begin - 1)
    return found


def _checked(
    position: Position, address: PartitionAddress, state: PartitionState, timeout: float, highest_level: int | None
) -> Position:
    """Return `position`, or raise `OptionError` if its offset and sequence number belong to different events: this
    source would read from the sequence number, but other clients from the offset."""
    if position.offset in (None, START_OFFSET) or not state.begin < position.next <= state.end:
        return position
    number = position_after_offset(position.offset, address, state, timeout, highest_level).sequence_number
    if number != position.sequence_number:
        raise OptionError(
            "EHB_POSITION_INVALID",
            partition=address.partition,
            problem=f"offset {redacted(position.offset)} does not belong to the event before next={position.next}",
            allowed="next or offset alone",
        )
    return position


def position_after_offset(
    offset: str, address: PartitionAddress, state: PartitionState, timeout: float, highest_level: int | None = None
) -> Position:
    """The position after the event at `offset`, in a partition with this `state`. `highest_level` has the same meaning
    as in `resolve`.

    If there is no such event, returns the position of the first later one. If that is the first retained event, returns
    the position before it, which counts as data loss. Raises `HubUnavailableError` if the hub refuses `offset`, or if
    no event arrives within `timeout` seconds.
    """
    if offset == state.last_offset:
        return state.end_position
    number, found = state.begin, None
    if state.begin < state.end:
        what = f"the first event at or after offset {offset}"

        def first(receiver: Receiver, _: float) -> tuple[int, str | None] | None:
            return _first_event(receiver)

        try:
            number, found = _received(address, offset, timeout, what, first, highest_level=highest_level)
        except OffsetNotFoundError as error:
            raise _not_found(address, what, error) from error
    if found == offset:
        return Position(number, offset)
    return Position.before(number if offset == START_OFFSET or number > state.begin else max(0, number - 1))


def find_offset(address: PartitionAddress, sequence_number: int, owner_level: int | None, timeout: float) -> str | None:
    """The offset to store in a checkpoint for this sequence number; None if it is not found within `timeout` seconds.

    If a compacted hub has deleted the event, returns the offset of the last event before it, or `START_OFFSET`.
    Disconnects readers with the same or a lower owner level for a moment, so they must reconnect.
    """
    deadline, distance = time.monotonic() + timeout, 0
    with contextlib.suppress(HubUnavailableError):
        while True:
            start, most = max(0, sequence_number - distance), min(1 + distance, _MAX_EVENTS)

            def last(receiver: Receiver, deadline: float, most: int = most) -> tuple[str | None] | None:
                return _last_up_to(receiver, sequence_number, most, deadline)

            left = deadline - time.monotonic()
            (found,) = _received(address, start, left, "an offset", last, level=owner_level, prefetch=most, gaps=True)
            if found is not None or start == 0:
                return found or START_OFFSET
            distance = max(1, 2 * distance)
    return None


def resolve_all(
    addresses: Iterable[PartitionAddress],
    deadline: float,
    resolve_one: Callable[[PartitionAddress, float], _T | None],
    *,
    needed: bool = False,
) -> dict[str, _T]:
    """The results of `resolve_one` by partition, except those that are None. `resolve_one` receives the seconds left
    until the monotonic time `deadline`.

    Logs and omits partitions for which it raises `HubUnavailableError`. If there is no result at all although `needed`,
    raises the first error.
    """
    errors: list[HubUnavailableError] = []

    def resolved(address: PartitionAddress) -> tuple[str, _T | None]:
        try:
            return address.partition, resolve_one(address, deadline - time.monotonic())
        except HubUnavailableError as error:
            errors.append(error)
            return address.partition, None

    with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
        results = {partition: result for partition, result in pool.map(resolved, addresses) if result is not None}
    if errors and needed and not results:
        raise errors[0]
    for error in errors:
        _LOG.warning("The partition will not be read until its position is resolved: %s", error)
    return results


def has_event(position: Position, address: PartitionAddress, timeout: float, owner_level: int | None) -> bool | None:
    """Whether a geo-replicated hub has the event at `position`, or had the event until it aged out; None if no event
    arrives.

    Raises `HubUnavailableError` after `timeout` seconds.
    """
    assert position.offset is not None
    what = f"the event at offset {position.offset}"
    try:
        (found,) = _received(address, position.offset, timeout, what, _event_or_quiet, level=owner_level)
    except OffsetNotFoundError:
        return False
    return None if found is None else found[1] == position.offset or found[0] > position.sequence_number


def probe_end(start: int, address: PartitionAddress, timeout: float, owner_level: int | None) -> int | None:
    """The sequence number after the first events that arrive from `start` on; None if no event arrives within `timeout`
    seconds."""

    def end(receiver: Receiver, deadline: float) -> int | None:
        first = _first_number(receiver, deadline, _MAX_EVENTS)
        return None if first is None else receiver.next

    with contextlib.suppress(HubUnavailableError):
        return _received(address, start, timeout, "an event", end, level=owner_level, prefetch=_MAX_EVENTS)
    return None


def _received(
    address: PartitionAddress,
    start: int | datetime | str,
    timeout: float,
    what: str,
    read: Callable[[Receiver, float], _T | None],
    *,
    level: int | None = None,
    highest_level: int | None = None,
    **settings: Any,
) -> _T:
    """The first result of `read` other than None. Until then, calls `read` repeatedly, with a new receiver at `start`
    and the deadline. `settings` are additional arguments of the receiver. Raises `OffsetNotFoundError` and, at the
    deadline, `HubUnavailableError`, whose text contains `what`."""
    last_error: Exception = TimeoutError("no event arrived")
    refused = False
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            settings = {"prefetch": 1, **settings}
            receiver = Receiver(address, start, owner_level=level, row_format=RowFormat(on_malformed=KEEP), **settings)
            with contextlib.closing(receiver):
                found = read(receiver, deadline)
            if found is not None:
                return found
        except DisconnectedError as other:
            # Using the same level disconnects the reader for a moment; this group's readers reconnect. The reader's
            # epoch is lower than the lease's if its batch began before a seek.
            if other.epoch is not None and highest_level is not None and other.epoch <= highest_level:
                level = other.epoch
            last_error = other
        except OffsetNotFoundError:
            raise
        except TransientError as error:
            last_error = error
        except CredentialsRefusedError as error:
            if refused:  # refused even with a new token
                raise
            refused, last_error = True, error
            address.connection.renew_credentials()
        time.sleep(busy_wait() if isinstance(last_error, ServerBusyError) else 0.2)
    raise _not_found(address, what, last_error, f" within {timeout:g} s")


def _not_found(address: PartitionAddress, what: str, error: Exception, limit: str = "") -> HubUnavailableError:
    what = f"Partition {address.partition}: {what} was not found{limit}"
    return HubUnavailableError("EHB_HUB_UNREACHABLE", what=what, reason=describe(error))


def _first_event(receiver: Receiver) -> tuple[int, str | None] | None:
    """The sequence number of the first event that `receiver` returns, and its offset if readable; None if no event
    arrived."""
    events = receiver.receive(1, wait=1.0)
    return (sequence_numbers(events)[0].as_py(), events["offset"][0].as_py()) if events.num_rows else None


def _event_or_quiet(receiver: Receiver, _: float) -> tuple[tuple[int, str | None] | None]:
    """The result of `_first_event`, once an event has arrived or none has arrived for `QUIET` seconds."""
    quiet = time.monotonic() + QUIET
    while True:
        if (found := _first_event(receiver)) is not None or time.monotonic() > quiet:
            return (found,)


def _last_up_to(receiver: Receiver, sequence_number: int, most: int, deadline: float) -> tuple[str | None] | None:
    """The offset of the last event up to `sequence_number` that `receiver` returns, or `(None,)` if its first event is
    a later one; None if the events that arrive before the deadline do not show which of the two applies."""
    last: str | None = None
    while not receiver.closed and time.monotonic() < deadline:
        events = receiver.receive(most, wait=1.0)
        for number, offset in zip(sequence_numbers(events).to_pylist(), events["offset"].to_pylist(), strict=True):
            if number > sequence_number:
                return (last,)
            last = offset or last
            if number == sequence_number:
                return (last,)
    return None


def _first_number(receiver: Receiver, deadline: float, most: int = 1) -> int | None:
    """The sequence number of the first event that `receiver` returns; None if no event arrived before the deadline."""
    while receiver.first is None and not receiver.closed and time.monotonic() < deadline:
        receiver.receive(most, wait=1.0)
    return receiver.first
