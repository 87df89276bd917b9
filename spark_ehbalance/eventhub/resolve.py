"""Resolves starting positions, such as `latest` or a time, and offsets, in a partition as it is now, by receivers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, TypeVar

from spark_ehbalance.errors import HubUnavailableError, OptionError
from spark_ehbalance.eventhub.client_errors import CredentialsRefusedError, ServerBusyError, TransientError
from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.poll_schedule import MOST_REQUESTS
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

#: Events received at a time where an offset is looked for, as Azure's client does by default.
_MOST = 300

#: No event of a hub ages out before: the shortest retention that can be set.
_SHORTEST_RETENTION = timedelta(hours=1)

#: Partitions in which something is looked for at once: each takes a connection, and mostly waits.
_AT_ONCE = 8

#: Partitions that are requested between two log lines: five seconds' worth.
_LOGGED = round(5 * MOST_REQUESTS)

#: Seconds after which a receiver at which nothing comes has nothing to deliver: some round trips to another continent.
QUIET = 5.0


def resolve(
    position: UnresolvedPosition,
    address: PartitionAddress,
    state: PartitionState,
    timeout: float,
    highest_level: int | None = None,
) -> Position:
    """The position from which reading begins at `position`, in a partition with this `state`.

    A time or an offset is resolved by a receiver, which raises `HubUnavailableError` after `timeout` seconds. If a
    reader with an owner level shuts out readers without one, its level is taken for a moment if it is at most
    `highest_level`: that reader must be one that opens again. Raises `OptionError` for a position with the offset of
    another event.
    """
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
    """The current ends of those of `partitions` whose starting position is `latest`. `request_states` may take a while:
    40 s for 1,000 partitions."""
    latest = [partition for partition in partitions if positions.position(partition) is PartitionEnd.LATEST]
    ends = dict[str, Position]()
    for first in range(0, len(latest), _LOGGED):
        if ends:
            _LOG.info(
                "startingPosition=latest: the ends of %d of %d partitions are known. Reading starts when all are",
                len(ends),
                len(latest),
            )
        requested = latest[first : first + _LOGGED]
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
    """The position at which a member of a group begins, as `resolve`. To the group `latest` is the moment of its first
    start, and it is `now`, both by the hub's clock.

    If events may have aged out since then it is before the first retained one, which means that events are lost.
    """
    moment = latest if position is PartitionEnd.LATEST else position
    # Azure's event processors read with owner level 0 and reconnect, so this may disconnect one for a moment.
    found = resolve(moment, address, state, timeout, highest_level=0)
    had_events = state.last_enqueued is not None and state.last_enqueued >= latest
    if (
        position is PartitionEnd.LATEST
        and had_events
        and 0 < state.begin == found.next
        and now - latest >= _SHORTEST_RETENTION
    ):
        return Position.before(state.begin - 1)
    return found


def _checked(
    position: Position, address: PartitionAddress, state: PartitionState, timeout: float, highest_level: int | None
) -> Position:
    """The same position. Raises `OptionError` if its offset is that of another event: this source reads from the
    number on, and other clients from the offset."""
    if position.offset in (None, START_OFFSET) or not state.begin < position.next <= state.end:
        return position
    number = position_after_offset(position.offset, address, state, timeout, highest_level).sequence_number
    if number != position.sequence_number:
        raise OptionError(
            f"partition {address.partition}: the offset {redacted(position.offset)} is not that of the event before "
            f'{{"next": {position.next}}}: leave one of them out'
        )
    return position


def position_after_offset(
    offset: str, address: PartitionAddress, state: PartitionState, timeout: float, highest_level: int | None = None
) -> Position:
    """The position after the event with this `offset`, in a partition with this `state`. `highest_level` as `resolve`.

    If there is no such event, it is the one before the first event after it; and before the first retained event, which
    means that events are lost, if that is the first one after it. Raises `HubUnavailableError` if the hub refuses
    `offset`, or if no event comes within `timeout` seconds.
    """
    if offset == state.last_offset:
        return state.end_position
    number, found = state.begin, None
    if state.begin < state.end:
        what = f"the event at offset {offset}, or the next one"

        def first(receiver: Receiver, _: float) -> tuple[int, str | None] | None:
            return _first_event(receiver)

        try:
            number, found = _received(address, offset, timeout, what, first, highest_level=highest_level)
        except OffsetNotFoundError as error:
            raise HubUnavailableError(f"partition {address.partition}: {what} could not be found: {error}") from error
    if found == offset:
        return Position(number, offset)
    return Position.before(number if offset == START_OFFSET or number > state.begin else max(0, number - 1))


def find_offset(address: PartitionAddress, sequence_number: int, owner_level: int | None, timeout: float) -> str | None:
    """The offset that stands for this sequence number in a checkpoint; None if it is not found within `timeout`
    seconds.

    It is that of the event with this number. Where a compacted hub has that event no longer, it is that of the last one
    before, and `START_OFFSET` if there is none. A reader of the same or a lower owner level is disconnected for a
    moment: it must be one that opens again.
    """
    deadline, back = time.monotonic() + timeout, 0
    with contextlib.suppress(HubUnavailableError):
        while True:
            start, most = max(0, sequence_number - back), min(1 + back, _MOST)

            def last(receiver: Receiver, deadline: float, most: int = most) -> tuple[str | None] | None:
                return _last_up_to(receiver, sequence_number, most, deadline)

            left = deadline - time.monotonic()
            (found,) = _received(address, start, left, "an offset", last, level=owner_level, prefetch=most, gaps=True)
            if found is not None or start == 0:
                return found or START_OFFSET
            back = max(1, 2 * back)
    return None


def resolve_all(
    addresses: Iterable[PartitionAddress],
    deadline: float,
    look: Callable[[PartitionAddress, float], _T | None],
    *,
    needed: bool = False,
) -> dict[str, _T]:
    """What `look`, which takes the seconds left until the monotonic time `deadline`, finds in each partition, if it
    finds anything.

    A partition where it raises `HubUnavailableError` is logged and omitted; if nothing is found but `needed`, the first
    error is raised.
    """
    errors: list[HubUnavailableError] = []

    def found_in(address: PartitionAddress) -> tuple[str, _T | None]:
        try:
            return address.partition, look(address, deadline - time.monotonic())
        except HubUnavailableError as error:
            errors.append(error)
            return address.partition, None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = {partition: found for partition, found in pool.map(found_in, addresses) if found is not None}
    if errors and needed and not results:
        raise errors[0]
    for error in errors:
        _LOG.warning("%s. The partition is not read until this succeeds", error)
    return results


def has_event(position: Position, address: PartitionAddress, timeout: float, owner_level: int | None) -> bool | None:
    """Whether a geo-replicated hub has the event at `position`, or it has aged out; None if nothing comes there.

    The receiver has the `owner_level`. Raises `HubUnavailableError` after `timeout` seconds.
    """
    assert position.offset is not None
    what = f"the event at offset {position.offset}"
    try:
        (found,) = _received(address, position.offset, timeout, what, _event_or_quiet, level=owner_level)
    except OffsetNotFoundError:
        return False
    return None if found is None else found[1] == position.offset or found[0] > position.sequence_number


def probe_end(start: int, address: PartitionAddress, timeout: float, owner_level: int | None) -> int | None:
    """The sequence number behind the events that come at once to a receiver at `start` with that `owner_level`; None if
    none comes within `timeout` seconds."""

    def end(receiver: Receiver, deadline: float) -> int | None:
        first = _first_number(receiver, deadline, _MOST)
        return None if first is None else receiver.next

    with contextlib.suppress(HubUnavailableError):
        return _received(address, start, timeout, "an event", end, level=owner_level, prefetch=_MOST)
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
    """What `read` returns for a receiver that begins at `start`, and for the deadline; it is tried again with a new
    one until it is not None. `settings` are more of the receiver's. Raises `HubUnavailableError`, which says `what` was
    not found, at the deadline, and `OffsetNotFoundError`."""
    last_error: Exception = TimeoutError("no event came")
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
            # A reader with an owner level shuts out readers without one. The same level disconnects it for a moment; a
            # reader of this group opens again. Its epoch is lower than the lease's if its batch began before a seek.
            if other.epoch is not None and highest_level is not None and other.epoch <= highest_level:
                level = other.epoch
            last_error = other
        except OffsetNotFoundError:
            raise
        except TransientError as broken:
            last_error = broken
        except CredentialsRefusedError as refusal:
            if refused:  # with a fresh token as well
                raise
            refused, last_error = True, refusal
            address.connection.renew()
        time.sleep(busy_wait() if isinstance(last_error, ServerBusyError) else 0.2)
    raise HubUnavailableError(
        f"partition {address.partition}: {what} could not be found within {timeout:g} s: {last_error}"
    )


def _first_event(receiver: Receiver) -> tuple[int, str | None] | None:
    """Sequence number and, if it can be read, offset of the first event of `receiver`; None if none came."""
    events = receiver.receive(1, wait=1.0)
    return (sequence_numbers(events)[0].as_py(), events["offset"][0].as_py()) if events.num_rows else None


def _event_or_quiet(receiver: Receiver, _: float) -> tuple[tuple[int, str | None] | None]:
    """What `_first_event` returns, once an event has come or none has for a while."""
    quiet = time.monotonic() + QUIET
    while True:
        if (found := _first_event(receiver)) is not None or time.monotonic() > quiet:
            return (found,)


def _last_up_to(receiver: Receiver, sequence_number: int, most: int, deadline: float) -> tuple[str | None] | None:
    """The offset of the last event of `receiver` up to `sequence_number`, received `most` at a time, or None if it
    begins with a later one; nothing if no event says so before the deadline."""
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
    """The sequence number of the first event of `receiver`; None if none came before the deadline."""
    while receiver.first is None and not receiver.closed and time.monotonic() < deadline:
        receiver.receive(most, wait=1.0)
    return receiver.first
