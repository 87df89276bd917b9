"""Reads one exact range of a partition, in an executor's Python worker, and copes with what may happen meanwhile."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Generator

import pyarrow as pa
import pyarrow.compute as pc

from spark_ehbalance.errors import DataLossError, EhBalanceError, ForeignReaderError, HubUnavailableError
from spark_ehbalance.hub.metadata import HubMetadata, PartitionState
from spark_ehbalance.hub.receiver import (
    Disconnected,
    PartitionAddress,
    Receiver,
    RefusedError,
    Undecodable,
    Unreachable,
)
from spark_ehbalance.hub.rows import sequence_numbers
from spark_ehbalance.source.options import Options
from spark_ehbalance.source.ranges import Range
from spark_ehbalance.source.receivers import RECEIVERS, Key
from spark_ehbalance.stores.opening import open_store

_LOG = logging.getLogger(__name__)

#: Rows of one record batch: Spark takes 10,000 in one go faster than 1,000. Receivers bound its bytes.
MOST_ROWS = 10_000

#: Seconds to wait before the first and before every later try to reconnect.
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0


def read_range(
    options: Options, wanted: Range, owner: str | None, owner_level: int | None, ended: threading.Event | None = None
) -> Generator[pa.RecordBatch, None, None]:
    """The events of `wanted` as rows, in record batches of up to `MOST_ROWS`.

    `owner` is the member that holds the lease, None without leases. Ends early, and quietly, if the lease is lost
    while reading: its new owner reads the rest; and soon after `ended` is set. Raises `ForeignReaderError`,
    `DataLossError`, `MalformedEventError`, `HubUnavailableError`.
    """
    source = PartitionAddress(options.connection, options.consumer_group, wanted.partition)
    key = Key(source, owner_level, options.json_properties, options.on_malformed)
    with contextlib.closing(_Hand(key, options.prefetch, wanted.end)) as hand:
        yield from _read(options, wanted, owner, owner_level, ended or threading.Event(), hand)


class _Hand:
    """The receiver that a range is read with: taken when it is needed, and put back at the range's end."""

    def __init__(self, key: Key, prefetch: int, end: int) -> None:
        self._key = key
        self._prefetch = prefetch
        self._end = end
        self._receiver: Receiver | None = None
        self._one = False
        #: As of the receiver, after the last call of `receive`.
        self.first: int | None = None
        self.next = 0

    def receive(self, position: int) -> pa.RecordBatch:
        """Up to `MOST_ROWS` from `position` on. Raises what a `Receiver` raises; the next call opens another one."""
        if self._receiver is None or self._receiver.closed or self._receiver.next != position:
            self.close()
            self._receiver = RECEIVERS.take(self._key, position, 1 if self._one else self._prefetch)
        receiver, left = self._receiver, self._end - position
        try:
            batch = receiver.receive(1 if self._one else min(MOST_ROWS, left), 1.0, left)
        except Undecodable:
            self.close()
            self._one = True  # one by one up to the event that it is
            return self.receive(position)
        except BaseException:
            self.close()
            raise
        self._one = self._one and not receiver.closed
        self.first, self.next = receiver.first, position if receiver.next is None else receiver.next
        return batch

    def close(self) -> None:
        """Let go of the receiver. It is kept if it is where the next range begins."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None and receiver.next == self._end:
            RECEIVERS.keep(self._key, receiver)
        elif receiver is not None:
            receiver.close()


def _read(
    options: Options, wanted: Range, owner: str | None, owner_level: int | None, ended: threading.Event, hand: _Hand
) -> Generator[pa.RecordBatch, None, None]:
    position, progress, tries, refused = wanted.start, time.monotonic(), 0, False
    highest, nothing = _highest_of_group(wanted, owner, owner_level), TimeoutError("no event came")
    last_error: Exception = nothing
    while position < wanted.end and not ended.is_set():
        try:
            batch = hand.receive(position)
        except Disconnected as other:
            if other.epoch is None or other.epoch > highest:
                if owner is not None and not _still_held(options, wanted, owner):
                    _LOG.info("partition %s: lease lost while reading, ending at %d", wanted.partition, position)
                    return
                raise _foreign(wanted, other) from other
            # A reader with our own level: the kept one of another worker, the same task run twice, or `ehbalance seek`,
            # which looks for a time. Or, where we have no level, a former owner's kept one, which closes before long.
            # None of them takes the range from us.
            last_error = other
        except Unreachable as broken:
            last_error = broken
        except RefusedError as refusal:
            # The token of a receiver that waited for its sink, or for this task, may be over: once with a fresh one.
            if refused:
                raise
            refused, last_error = True, refusal
            options.connection.renew()
        else:
            before, position = position, hand.next
            if position > before:
                progress, tries, refused, last_error = time.monotonic(), 0, False, nothing
                if hand.first != before:
                    _check_gap(options, wanted.partition, before, hand.first)
                beyond = pc.index(pc.greater_equal(sequence_numbers(batch), wanted.end), True).as_py()
                if beyond >= 0:  # the numbers have gaps, so that there were fewer events than was thought
                    batch = batch.slice(0, beyond)
            if batch.num_rows:
                yield batch
                progress = time.monotonic()  # what the sink took its time for is not the hub's fault
            if position > before or time.monotonic() - progress < options.receiver_timeout:
                continue
        if time.monotonic() - progress >= options.receiver_timeout:
            lost_to = _lost_to(options, wanted, position)
            if lost_to > position:
                position, progress, tries = lost_to, time.monotonic(), 0
                continue
            if owner_level is None and isinstance(last_error, Disconnected):
                raise _foreign(wanted, last_error) from last_error
            raise HubUnavailableError(
                f"partition {wanted.partition}: no event came for receiverTimeout={options.receiver_timeout:g} s while "
                f"reading sequence numbers {wanted.start} to {wanted.end - 1}, now at {position}. The batch fails and "
                f"can be run again. Last seen: {last_error}"
            ) from last_error
        tries += 1
        ended.wait(random.uniform(0.5, 1) * min(_LONGEST_WAIT, _FIRST_WAIT * 2**tries))


def _highest_of_group(wanted: Range, owner: str | None, owner_level: int | None) -> int:
    """The highest owner level at which another reader may belong to this group, and will leave the range to us."""
    if owner_level is not None:
        return owner_level
    return -1 if owner is None else wanted.epoch - 1


def _still_held(options: Options, wanted: Range, owner: str) -> bool:
    """Whether the lease table still has `owner` with the range's epoch.

    Raises `StoreError` if it cannot be asked: the batch has to fail then, as neither its end nor its rest is sure.
    """
    assert options.lease_table is not None
    with open_store(options.lease_table, options.storage_options) as store:
        lease = store.read().leases.get(wanted.partition)
    return lease is not None and lease.owner == owner and lease.epoch == wanted.epoch


def _foreign(wanted: Range, other: Disconnected) -> EhBalanceError:
    return ForeignReaderError(
        f"partition {wanted.partition}: a reader outside this group takes it with owner level "
        f"{'unknown' if other.epoch is None else other.epoch}, while this query holds it with {wanted.epoch}. Stop "
        f"that reader or give it another consumer group. Event Hubs says: {other}"
    )


def _check_gap(options: Options, partition: str, expected: int, found: int | None) -> None:
    """The event `expected` did not come, or may not have come where it is not known what was `found`: fine in a
    compacted hub, loss if it was dropped."""
    begin = _state(options, partition).begin
    if begin > expected:
        _lost(options, partition, expected, found or begin, f"have aged out (the first retained event is {begin})")


def _lost_to(options: Options, wanted: Range, position: int) -> int:
    """Where to go on if what is to come from `position` on will never come, because it is gone; else `position`."""
    try:
        state = _state(options, wanted.partition)
    except HubUnavailableError as error:
        _LOG.warning("partition %s: cannot ask what has become of its events: %s", wanted.partition, error)
        return position
    if state.begin > position:
        end, why = min(state.begin, wanted.end), f"have aged out (the first retained event is {state.begin})"
    elif state.end < wanted.end and state.end <= position:  # what there is before the end is slow, not lost
        end, why = wanted.end, f"are gone (the last event is {state.end - 1}: the event hub was made anew)"
    else:
        return position
    _lost(options, wanted.partition, position, end, why)
    return end


def _lost(options: Options, partition: str, start: int, end: int, why: str) -> None:
    what = f"partition {partition}: events {start} to {end - 1} were planned and now {why}"
    if options.fail_on_data_loss:
        raise DataLossError(f"{what}. Set failOnDataLoss=false to go on without them")
    _LOG.warning("%s. Going on at %d, because failOnDataLoss=false", what, end)


def _state(options: Options, partition: str) -> PartitionState:
    with HubMetadata(options.connection, options.consumer_group) as metadata:
        return metadata.partition_states([partition])[partition]
