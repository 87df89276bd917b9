"""Resolves a starting position, such as `latest` or a time, and an offset, in a partition as it is now."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from typing import TypeVar

from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub.conditions import busy_wait
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.hub.receiver import (
    Busy,
    Disconnected,
    OffsetRefused,
    PartitionAddress,
    Receiver,
    RefusedError,
    Unreachable,
)
from spark_ehbalance.hub.unreadable import KEEP
from spark_ehbalance.values.position import Position, names_event
from spark_ehbalance.values.starting_positions import Edge, UnresolvedPosition

_T = TypeVar("_T")

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
    if isinstance(position, datetime):
        return Position.before(_first_at(position, address, state, timeout, highest_level))
    assert isinstance(position, int)
    return Position.before(position)


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
    return _received(offset, address, timeout, None, what, lambda receiver, _: _last_finished(receiver, offset))


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

    def first(start: int | str, *, inclusive: bool = True) -> tuple[int | None, str | None] | None:
        what = f"the events after offset {position.offset}"
        return _received(
            start,
            address,
            deadline - time.monotonic(),
            None,
            what,
            _first_event_or_quiet,
            level=owner_level,
            inclusive=inclusive,
        )[0]

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


def _first_at(
    moment: datetime, address: PartitionAddress, state: PartitionState, timeout: float, highest_level: int | None
) -> int:
    """The sequence number of the first event enqueued at or after `moment`; if there is none, of the next event."""
    if state.last_enqueued is None or state.last_enqueued < moment:
        return state.end
    what = f"the first event at or after {moment.isoformat()}"
    return _received(
        moment,
        address,
        timeout,
        highest_level,
        what,
        lambda receiver, deadline: _first_number(receiver, state, deadline),
    )


def _received(
    start: int | datetime | str,
    address: PartitionAddress,
    timeout: float,
    highest_level: int | None,
    what: str,
    read: Callable[[Receiver, float], _T | None],
    *,
    level: int | None = None,
    inclusive: bool = True,
) -> _T:
    """What `read` returns for a receiver that begins at `start`, and for the deadline; it is tried again with a new
    one until it is not None. Raises `HubUnavailableError`, which says `what` was not found, at the deadline, and
    `OffsetRefused`."""
    last_error: Exception = TimeoutError("no event came")
    refused = False
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            receiver = Receiver(address, start, owner_level=level, prefetch=1, on_malformed=KEEP, inclusive=inclusive)
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
    if not events.num_rows:
        return None
    number, offset = (events.column(name)[0].as_py() for name in ("sequenceNumber", "offset"))
    return number, offset


def _first_event_or_quiet(receiver: Receiver, deadline: float) -> tuple[tuple[int | None, str | None] | None]:
    """What `_first_event` returns, once an event has come or none has for a while."""
    quiet = time.monotonic() + QUIET
    while True:
        if (found := _first_event(receiver)) is not None or time.monotonic() > quiet:
            return (found,)


def _last_finished(receiver: Receiver, offset: str) -> Position | None:
    """The position after the event at `offset`, if `receiver` begins with it; else before its first event."""
    first = _first_event(receiver)
    if first is None or first[0] is None:
        return None
    return Position(first[0], offset) if first[1] == offset else Position.before(first[0])


def _first_number(receiver: Receiver, state: PartitionState, deadline: float) -> int | None:
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
