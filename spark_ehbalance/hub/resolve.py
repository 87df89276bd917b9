"""Resolves starting positions, such as `latest` or a time, and offsets, in a partition as it is now, by receivers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub.conditions import busy_wait
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.hub.receiver import Disconnected, OffsetRefused, PartitionAddress, Receiver, RowFormat
from spark_ehbalance.hub.refusals import Busy, RefusedError, Unreachable
from spark_ehbalance.hub.rows import sequence_numbers
from spark_ehbalance.hub.unreadable import KEEP
from spark_ehbalance.values.position import START_OFFSET, Position, names_event
from spark_ehbalance.values.starting_positions import AfterOffset, Edge, UnresolvedPosition

_T = TypeVar("_T")

#: Events received at a time where an offset is looked for, as Azure's client does by default.
_MOST = 300

#: Seconds without another event after which events whose sequence numbers cannot be read were the last ones.
_PAUSE = 3.0


class Unlocated(Enum):
    """Why the next sequence number in a promoted hub is unknown."""

    #: No receiver's answer identifies it.
    UNKNOWN = "unknown"
    #: Nothing has come at the position's offset: no event since the promotion, or Event Hubs has taken it for a
    #: position beyond the last event. That shows when an event has come.
    NOTHING_YET = "nothing yet"


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

    A time is resolved by a receiver, which raises `HubUnavailableError` after `timeout` seconds. If a reader with an
    owner level shuts out readers without one, its level is taken for a moment if it is at most `highest_level`: that
    reader must be one that opens again.
    """
    if position is Edge.EARLIEST:
        return Position.before(state.begin)
    if position is Edge.LATEST:
        return Position(state.end - 1, state.last_offset)
    if isinstance(position, int):
        return Position.before(position)
    if isinstance(position, Position):
        return position
    if isinstance(position, AfterOffset):
        return position_of(position.offset, address, state, timeout)
    if state.last_enqueued is None or state.last_enqueued < position:
        return Position.before(state.end)
    what = f"the first event at or after {position.isoformat()}"
    first = partial(_first_number, state)
    return Position.before(_received(address, position, timeout, what, first, highest_level=highest_level))


def position_of(offset: str, address: PartitionAddress, state: PartitionState, timeout: float) -> Position:
    """The position after the event with this `offset`, in a partition with this `state`.

    If that event is no longer retained, it is the one before the first event after it. Raises `HubUnavailableError` if
    no event comes within `timeout` seconds: there is none at or after `offset`, or the hub does not answer.
    """
    if offset == state.last_offset:
        return Position(state.end - 1, offset)
    if state.begin == state.end:
        return Position.before(state.end)
    what = f"the event at offset {offset}, or the next one"
    number, found = _received(address, offset, timeout, what, _numbered_event)
    return Position(number, offset) if found == offset else Position.before(number)


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


def locate(
    position: Position, address: PartitionAddress, state: PartitionState, timeout: float, owner_level: int | None
) -> int | Unlocated:
    """The sequence number from which on a promoted hub has other events than those that were read up to `position`.

    It is `position.next` if the hub still has its event. `state` must be that of after the promotion. Receivers have
    the `owner_level`. Raises `HubUnavailableError` after `timeout` seconds.

    Rests on what Microsoft advises for forced promotions, to start "from the last committed offset": a receiver at an
    offset that was lost begins with the first event after the promotion.
    """
    deadline = time.monotonic() + timeout

    what = f"the events after offset {position.offset}"

    def first(start: int | str, *, inclusive: bool = True) -> tuple[int | None, str | None] | None:
        left = deadline - time.monotonic()
        (found,) = _received(address, start, left, what, _event_or_quiet, level=owner_level, inclusive=inclusive)
        return found

    assert position.offset is not None
    number = position.sequence_number
    try:
        found = first(position.offset)
    except OffsetRefused:
        found = first(number) if number < state.end else None
        # A hub that is not replicated any more has numbers as offsets again, without a hint of the promotion.
        same = found is not None and (found[1] == position.offset or not names_event(found[1]))
        return position.next if same else Unlocated.UNKNOWN
    if found is None:
        return Unlocated.NOTHING_YET
    if found[1] == position.offset:  # in a compacted hub that of the last event before
        return position.next
    if found[0] is not None and found[0] < number:
        return found[0]
    if found[0] is not None and found[0] > number:  # it has aged out meanwhile
        return position.next
    if found[0] == number:  # it begins here, or the offset was taken for its sequence number
        after = first(position.offset, inclusive=False)
        return number if after is not None and after[0] == number else Unlocated.UNKNOWN
    return Unlocated.UNKNOWN


def _received(
    address: PartitionAddress,
    start: int | datetime | str,
    timeout: float,
    what: str,
    read: Callable[[Receiver, float], _T | None],
    *,
    level: int | None = None,
    highest_level: int | None = None,
    gaps: bool = False,
    **settings: Any,
) -> _T:
    """What `read` returns for a receiver that begins at `start`, and for the deadline; it is tried again with a new
    one until it is not None. `settings` are more of the receiver's. Raises `HubUnavailableError`, which says `what` was
    not found, at the deadline, and `OffsetRefused`."""
    last_error: Exception = TimeoutError("no event came")
    refused = False
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            settings = {"prefetch": 1, **settings}
            receiver = Receiver(address, start, owner_level=level, row_format=RowFormat(on_malformed=KEEP), **settings)
            receiver.gaps = gaps
            with contextlib.closing(receiver):
                found = read(receiver, deadline)
            if found is not None:
                return found
        except Disconnected as other:
            # A reader with an owner level shuts out readers without one. The same level disconnects it for a moment; a
            # reader of this group opens again. Its epoch is lower than the lease's if its batch began before a seek.
            if other.epoch is not None and highest_level is not None and other.epoch <= highest_level:
                level = other.epoch
            last_error = other
        except OffsetRefused:
            raise
        except Unreachable as broken:
            last_error = broken
        except RefusedError as refusal:
            if refused:  # with a fresh token as well
                raise
            refused, last_error = True, refusal
            address.connection.renew()
        time.sleep(busy_wait() if isinstance(last_error, Busy) else 0.2)
    raise HubUnavailableError(
        f"partition {address.partition}: {what} could not be found within {timeout:g} s: {last_error}"
    )


def _first_event(receiver: Receiver) -> tuple[int | None, str | None] | None:
    """Sequence number and offset, as far as they can be read, of the first event of `receiver`; None if none came."""
    events = receiver.receive(1, wait=1.0)
    return (sequence_numbers(events)[0].as_py(), events["offset"][0].as_py()) if events.num_rows else None


def _numbered_event(receiver: Receiver, _: float) -> tuple[int, str | None] | None:
    """`_first_event` if its sequence number can be read."""
    found = _first_event(receiver)
    return None if found is None or found[0] is None else (found[0], found[1])


def _event_or_quiet(receiver: Receiver, _: float) -> tuple[tuple[int | None, str | None] | None]:
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
            if number is not None and number > sequence_number:
                return (last,)
            last = offset or last
            if number == sequence_number:
                return (last,)
    return None


def _first_number(state: PartitionState, receiver: Receiver, deadline: float) -> int | None:
    """The sequence number of the first event of `receiver`; None if none came before the deadline."""
    unreadable = 0
    while not receiver.closed and time.monotonic() < deadline:
        count = receiver.receive(1, wait=_PAUSE if unreadable else 1.0).num_rows
        if receiver.first is not None:
            return receiver.first - unreadable
        if unreadable and not count:  # no other event follows: they are the last ones
            return state.end - unreadable
        unreadable += count
    return None
