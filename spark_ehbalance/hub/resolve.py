"""Resolves a starting position, such as `latest` or a time, in a partition as it is now."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime

from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.hub.receiver import Disconnected, PartitionAddress, Receiver, RefusedError, Unreachable
from spark_ehbalance.hub.unreadable import KEEP
from spark_ehbalance.values.position import Position
from spark_ehbalance.values.starting_positions import Edge, UnresolvedPosition

#: Seconds without another event after which events whose sequence numbers cannot be read were the last ones.
_PAUSE = 3.0


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


def _first_at(
    moment: datetime, address: PartitionAddress, state: PartitionState, timeout: float, highest_level: int | None
) -> int:
    """The sequence number of the first event enqueued at or after `moment`; if there is none, of the next event."""
    if state.last_enqueued is None or state.last_enqueued < moment:
        return state.end
    last_error: Exception = TimeoutError("no event came")
    level: int | None = None
    refused = False
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            receiver = Receiver(address, moment, owner_level=level, prefetch=1, on_malformed=KEEP)
            with contextlib.closing(receiver):
                found = _first_number(receiver, state, deadline)
            if found is not None:
                return found
        except Disconnected as other:
            # A reader with an owner level shuts out readers without one. The same level disconnects it for a moment; a
            # reader of this group opens again. Its epoch is lower than the lease's if its batch began before a seek.
            if other.epoch is not None and highest_level is not None and other.epoch <= highest_level:
                level = other.epoch
            last_error = other
        except Unreachable as broken:
            last_error = broken
        except RefusedError as refusal:
            if refused:  # with a fresh token as well
                raise
            refused, last_error = True, refusal
            address.connection.renew()
        time.sleep(0.2)
    raise HubUnavailableError(
        f"partition {address.partition}: the first event at or after {moment.isoformat()} could not be found within "
        f"{timeout:g} s: {last_error}"
    )


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
