"""What a place such as `latest` or a time means in a partition as it is now."""

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

#: Seconds without another event after which those whose numbers cannot be read were the last ones.
_PAUSE = 3.0


def resolve(
    place: UnresolvedPosition,
    source: PartitionAddress,
    state: PartitionState,
    timeout: float,
    highest_level: int | None = None,
) -> Position:
    """The position from which reading begins at `place`.

    A time costs a question to the hub, which may raise `HubUnavailableError` after `timeout` seconds. Where a
    reader with an owner level shuts out those without, that level is taken for a moment if it is `highest_level` or
    lower: its reader has to be one that opens anew.
    """
    if place is Edge.EARLIEST:
        return Position.before(state.begin)
    if place is Edge.LATEST:
        return Position(state.end - 1, state.last_offset)
    if isinstance(place, datetime):
        return Position.before(_first_at(place, source, state, timeout, highest_level))
    assert isinstance(place, int)
    return Position.before(place)


def _first_at(
    moment: datetime, source: PartitionAddress, state: PartitionState, timeout: float, highest_level: int | None
) -> int:
    """Sequence number of the first event enqueued at or after `moment`; where there is none, of the next to come."""
    if state.last_enqueued is None or state.last_enqueued < moment:
        return state.end
    last_error: Exception = TimeoutError("no event came")
    level: int | None = None
    refused = False
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            receiver = Receiver(source, moment, owner_level=level, prefetch=1, on_malformed=KEEP)
            with contextlib.closing(receiver):
                unreadable = 0
                while not receiver.closed and time.monotonic() < deadline:
                    came = receiver.receive(1, wait=_PAUSE if unreadable else 1.0).num_rows
                    if receiver.first is not None:
                        return receiver.first - unreadable
                    if unreadable and not came:  # nothing else: they are the last ones
                        return state.end - unreadable
                    unreadable += came
        except Disconnected as other:
            # Beside a reader with an owner level nobody gets in without one. With the same level one does, for a
            # moment: that reader is disconnected, and opens anew if it is one of ours. Its epoch is below the lease's
            # where the batch in flight began before another seek.
            if other.epoch is not None and highest_level is not None and other.epoch <= highest_level:
                level = other.epoch
            last_error = other
        except Unreachable as broken:
            last_error = broken
        except RefusedError as refusal:
            if refused:  # with a fresh token as well
                raise
            refused, last_error = True, refusal
            source.connection.renew()
        time.sleep(0.2)
    raise HubUnavailableError(
        f"partition {source.partition}: the first event at or after {moment.isoformat()} could not be found within "
        f"{timeout:g} s: {last_error}"
    )
