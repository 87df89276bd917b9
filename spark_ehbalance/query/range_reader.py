"""Reads one range of a partition in an executor's Python worker: opens receivers, reconnects, and decides when to
stop."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_ehbalance.errors import (
    DataLossError,
    ForeignReaderError,
    HubUnavailableError,
    MissingError,
    StoreError,
    StoreUnavailableError,
)
from spark_ehbalance.eventhub.arrays import to_numpy
from spark_ehbalance.eventhub.client_errors import (
    CredentialsRefusedError,
    MissingHubCheck,
    ServerBusyError,
    TransientError,
)
from spark_ehbalance.eventhub.compaction import is_compacted_away
from spark_ehbalance.eventhub.metadata import HubMetadata, PartitionState
from spark_ehbalance.eventhub.network import NetworkError
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.eventhub.receiver import DisconnectedError, PartitionAddress, Receiver, RowFormat
from spark_ehbalance.eventhub.rows import COLUMNS, sequence_numbers
from spark_ehbalance.eventhub.service_errors import busy_wait
from spark_ehbalance.query.options import Options
from spark_ehbalance.query.range_lease import RangeLease
from spark_ehbalance.query.receivers import RECEIVERS, ReceiverKey, Receivers
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Seconds to wait before the first reconnection, and the maximum before later ones.
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0

#: Seconds for which the service may remember the owner level of a dead reader. A reader that keeps ours disconnected
#: for longer is foreign. The service forgets a level when the connection ends, but how soon it notices the end is not
#: documented.
_DEAD_READER = 90.0

#: Seconds without an event after which the hub is queried for remaining events. Because such a request opens new
#: connections, it is repeated only after the silence has doubled.
_SILENCE = 5.0

_NO_EVENT = TimeoutError("no event arrived")


class BatchFormat(NamedTuple):
    """The columns of the record batches, and the maximum number of rows in each."""

    columns: frozenset[str] = COLUMNS
    #: Spark processes 10,000 rows faster in one batch than in ten. Receivers limit the size in bytes.
    max_rows: int = 10_000


_DEFAULT_FORMAT = BatchFormat()


class RangeEnd(Enum):
    """How a successful read of a range ended."""

    COMPLETE = "all its events were read"
    CANCELLED = "the task ended first"
    LEASE_LOST = "the lease was lost, and the new owner reads the rest"
    STALLED = "the partition is silent, and the stall is recorded"
    COMPACTED = "compaction has removed the rest"


def read_range(
    options: Options,
    wanted: OffsetRange,
    owner: str | None,
    owner_level: int | None,
    cancelled: threading.Event | None = None,
    *,
    receivers: Receivers = RECEIVERS,
    batches: BatchFormat = _DEFAULT_FORMAT,
) -> Generator[pa.RecordBatch, None, RangeEnd]:
    """Yield the events of `wanted` as record batches in the format `batches`, perhaps with additional columns, and
    return how the range ended. Ends soon after `cancelled` is set.

    `owner` is the member that owns the lease; None without leases. `receivers` are kept open by the process between
    tasks. Raises `ForeignReaderError`, `FencedError`, `DataLossError`, `MalformedEventError`, `HubUnavailableError`,
    `MissingError`, `ClientVersionError`, `StoreError`.
    """
    return _RangeReader(options, wanted, owner, owner_level, receivers, batches).read(cancelled or threading.Event())


@dataclass(slots=True)
class _SinceProgress:
    """State since the last event arrived, at monotonic time `at`; `foreign_since` is the monotonic time at which
    another group's reader took over the partition."""

    at: float
    last_error: Exception = _NO_EVENT
    reconnections: int = 0
    token_renewed: bool = False
    foreign_since: float | None = None
    missing: MissingHubCheck = field(default_factory=MissingHubCheck)
    #: Seconds after `at` until the hub is next checked for remaining events.
    checks_after: float = 0.0

    def timed_out(self, timeout: float) -> bool:
        since = self.at if self.foreign_since is None else self.foreign_since + _DEAD_READER
        return time.monotonic() - since >= timeout

    def backoff(self) -> float:
        """Count a reconnection, and return the seconds to wait before it."""
        self.reconnections += 1
        if isinstance(self.last_error, ServerBusyError):
            return busy_wait()
        return random.uniform(0.5, 1) * min(_LONGEST_WAIT, _FIRST_WAIT * 2.0**self.reconnections)


class _RangeReader:
    """Reads one range: `position` is the sequence number to read next."""

    def __init__(
        self,
        options: Options,
        wanted: OffsetRange,
        owner: str | None,
        owner_level: int | None,
        receivers: Receivers,
        batches: BatchFormat,
    ) -> None:
        self._options = options
        self._wanted = wanted
        self._lease = None if owner is None else RangeLease(options, wanted, owner)
        self._owner_level = owner_level
        self._address = PartitionAddress(options.connection, options.consumer_group, wanted.partition)
        row_format = RowFormat(batches.columns, options.json_properties, options.on_malformed)
        self._receivers, self._key = receivers, ReceiverKey(self._address, owner_level, row_format, options.compacted)
        self._receiver: Receiver | None = None
        self._max_rows = batches.max_rows
        self._position = wanted.start
        self._since = _SinceProgress(time.monotonic())

    def read(self, cancelled: threading.Event) -> Generator[pa.RecordBatch, None, RangeEnd]:
        """The result of `read_range`."""
        try:
            end = yield from self._read(cancelled)
        finally:
            self._release_receiver()
        _LOG.debug("partition %s: reading ended at %d: %s", self._wanted.partition, self._position, end.value)
        return end

    def _read(self, cancelled: threading.Event) -> Generator[pa.RecordBatch, None, RangeEnd]:
        while self._position < self._wanted.end:
            if cancelled.is_set():
                return RangeEnd.CANCELLED
            try:
                batch, first, after = self._receive()
                if first is not None and first != self._position:
                    self._check_gap(first)
                if self._options.compacted and after == self._position and self._rest_is_gone(cancelled):
                    return RangeEnd.COMPACTED
            except DisconnectedError as other:
                self._since.missing.record_answer()
                if self._is_lease_lost(other, cancelled):
                    return self._lease_lost()
                self._since.last_error = other
            except (TransientError, MissingError) as error:
                self._since.last_error = error
                if self._since.missing.record_error(error):
                    raise
            except CredentialsRefusedError as refusal:
                self._since.missing.record_answer()
                self._renew_token(refusal)
            else:
                self._since.missing.record_answer()
                moved, batch = self._advance(batch, after)
                if batch.num_rows:
                    yield batch
                    self._since.at = time.monotonic()  # the sink's time does not count towards receiverTimeout
                if moved or not self._timed_out():
                    continue
            if not self._timed_out():
                cancelled.wait(self._since.backoff())
            elif (end := self._silent()) is not None:
                return end
        return RangeEnd.COMPLETE

    def _receive(self) -> tuple[pa.RecordBatch, int | None, int]:
        """The events from the position on, the first event's sequence number, and the position after the events. Raises
        the errors of `Receiver`; the next call then opens a new receiver."""
        receiver = self._receiver
        if receiver is None or receiver.closed or receiver.next != self._position:
            self._release_receiver()
            receiver = self._receiver = self._receivers.take(self._key, self._position, self._options.prefetch)
        left = self._wanted.end - self._position
        try:
            batch = receiver.receive(min(self._max_rows, left), 1.0, left)
        except BaseException:
            self._release_receiver()
            raise
        return batch, receiver.first, self._position if receiver.next is None else receiver.next

    def _release_receiver(self) -> None:
        """Keep the receiver for the next task if it has reached the range's end; otherwise close it."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None and receiver.next == self._wanted.end:
            self._receivers.keep(self._key, receiver)
        elif receiver is not None:
            receiver.close()

    def _silent(self) -> RangeEnd | None:
        """Handle a `receiverTimeout` without events: continue after lost events, end the range as stalled, or raise an
        error."""
        state = self._state_if_known()
        if state is not None and (end_of_loss := self._end_of_loss(state)) > self._position:
            self._position = end_of_loss
            self._since = _SinceProgress(time.monotonic())
            return None
        if state is not None and (end := self._stalled()) is not None:
            return end
        raise self._timeout() from self._since.last_error

    def _timed_out(self) -> bool:
        return self._since.timed_out(self._options.receiver_timeout)

    def _advance(self, batch: pa.RecordBatch, after: int) -> tuple[bool, pa.RecordBatch]:
        """Move the position to `after`. Returns whether the position has changed, and the events of `batch` that are in
        the range."""
        before, self._position = self._position, after
        if after == before:
            return False, batch
        self._since = _SinceProgress(time.monotonic())
        # Sequence numbers may have gaps, so there may be fewer events than planned.
        beyond = np.flatnonzero(to_numpy(sequence_numbers(batch)) >= self._wanted.end)
        return True, batch.slice(0, int(beyond[0])) if len(beyond) else batch

    def _renew_token(self, refusal: CredentialsRefusedError) -> None:
        """Try once more with a new token, because the receiver's token may have expired while the receiver waited for
        the sink or for this task."""
        if self._since.token_renewed:
            raise refusal
        self._since.token_renewed, self._since.last_error = True, refusal
        self._options.connection.renew_credentials()

    # --- other readers -----------------------------------------------------------------------------------------

    def _is_lease_lost(self, other: DisconnectedError, cancelled: threading.Event) -> bool:
        """Whether the reader that has disconnected ours belongs to the next owner. Raises `ForeignReaderError` if that
        reader does not belong to the group and has stayed for longer than the service remembers a dead reader, and
        `StoreError` if the lease table cannot be read within `receiverTimeout`.

        A reader whose level is not higher than ours belongs to the group and leaves the range to us: another worker has
        kept it open, or it belongs to another attempt of this task, or to `ehbalance seek`, which looks up a time. If
        ours has no owner level, it also waits for a reader that a former owner's worker has kept open and will soon
        close.

        If the store has no epochs, the next owner's reader has the same level as ours, but the next owner claims the
        partition in the store before it connects. So ours reconnects only while this query owns the lease. Otherwise,
        two owners would disconnect each other forever.
        """
        in_group = other.epoch is not None and other.epoch <= self._highest_own_level()
        if in_group and self._options.capabilities.epochs:
            return False
        if self._lease is not None and not self._is_owned(self._lease, cancelled):
            return True
        if not in_group:
            self._wait_for_foreign(other)
        return False

    def _is_owned(self, lease: RangeLease, cancelled: threading.Event) -> bool:
        """The result of `RangeLease.is_owned`, once the lease table can be read."""
        while True:
            try:
                return lease.is_owned()
            except StoreUnavailableError as error:
                if self._timed_out() or cancelled.is_set():
                    raise
                _LOG.warning("partition %s: waiting for the lease table: %s", self._wanted.partition, error)
                cancelled.wait(self._since.backoff())

    def _lease_lost(self) -> RangeEnd:
        _LOG.info("partition %s: lease lost at sequence number %d", self._wanted.partition, self._position)
        return RangeEnd.LEASE_LOST

    def _wait_for_foreign(self, other: DisconnectedError) -> None:
        """Wait while a reader of another group, or a dead reader of this group that the service still remembers, has
        the partition. Raises `ForeignReaderError` if it stays."""
        if self._since.foreign_since is None:
            self._since.foreign_since = time.monotonic()
            _LOG.warning(
                "partition %s: a reader with owner level %s is connected, but does not belong to the lease's owner. "
                "Waiting for %g s, because Event Hubs may still remember a dead reader",
                self._wanted.partition, other.epoch, _DEAD_READER,
            )  # fmt: skip
        elif time.monotonic() - self._since.foreign_since >= _DEAD_READER:
            raise self._foreign(other) from other

    def _highest_own_level(self) -> int:
        """The highest owner level at which another reader may belong to this group."""
        if self._owner_level is not None:
            return self._owner_level
        if not self._options.capabilities.epochs:
            return 0
        return -1 if self._lease is None else self._wanted.epoch - 1

    def _foreign(self, other: DisconnectedError) -> ForeignReaderError:
        level = "unknown" if other.epoch is None else other.epoch
        partition, own_level = self._wanted.partition, self._wanted.epoch
        return ForeignReaderError("EHB_FOREIGN_READER", partition=partition, level=level, own_level=own_level)

    def _timeout(self) -> ForeignReaderError | HubUnavailableError:
        if self._owner_level is None and isinstance(self._since.last_error, DisconnectedError):
            return self._foreign(self._since.last_error)
        return HubUnavailableError(
            "EHB_PARTITION_SILENT",
            partition=self._wanted.partition,
            timeout=self._options.receiver_timeout,
            reason=f"{self._since.last_error}, {self._progress()}",
        )

    def _progress(self) -> str:
        return f"at sequence number {self._position} in the range {self._wanted.start} to {self._wanted.end - 1}"

    def _stalled(self) -> RangeEnd | None:
        """Record that the partition is silent, although the hub answers and reports events in it. Returns None if the
        stall cannot be recorded; the batch then fails."""
        lease, since = self._lease, self._since
        if lease is None or not self._options.capabilities.epochs or since.foreign_since is not None:
            return None
        if not isinstance(since.last_error, (TimeoutError, TransientError)):
            return None
        try:
            recorded = lease.record_stall()
        except StoreError as error:
            _LOG.warning("partition %s: cannot record a stall: %s", self._wanted.partition, error)
            return None
        if not recorded:
            return None if lease.is_owned() else self._lease_lost()
        _LOG.warning(
            "partition %s: stalled for receiverTimeout %s, although the event hub reports events (%s). Its lease is "
            "released. Once the partition delivers events again, it is read from its checkpoint; meanwhile, the others "
            'are read. If the stall persists, see "A partition stalls" in docs/operations.md',
            self._wanted.partition, self._progress(), since.last_error,
        )  # fmt: skip
        return RangeEnd.STALLED

    # --- missing events ----------------------------------------------------------------------------------------

    def _check_gap(self, found: int) -> None:
        """Check why a new receiver began with event `found` instead of the event at the position. In a compacted hub,
        this is normal unless the events in between have aged out. Raises the errors of `Receiver`."""
        try:
            begin = self._partition_state().begin
        except (CredentialsRefusedError, MissingError, NetworkError, TransientError):
            raise
        except HubUnavailableError as error:
            raise TransientError(str(error)) from error
        end = min(found, self._wanted.end)
        if begin > self._position:
            self._report_loss(self._position, end, f"they have aged out (the first retained event is {begin})")
        elif not self._options.compacted:
            reason = f"they do not exist, but event {begin} is retained. If the hub is compacted, set compacted=true"
            self._report_loss(self._position, end, reason)

    def _rest_is_gone(self, cancelled: threading.Event) -> bool:
        """Whether the hub has been silent for a long time, and it is certain that no events remain from the position
        on. This happens if compaction has removed the newest event, a tombstone. Raises the errors of `Receiver`."""
        if time.monotonic() - self._since.at < max(_SILENCE, self._since.checks_after):
            return False
        partition, position = self._wanted.partition, self._position
        try:
            state = self._partition_state()
            if state.end < self._wanted.end:
                return False
            self._release_receiver()  # the hub allows only one receiver with this owner level
            if not is_compacted_away(
                self._address, position, state.begin, self._owner_level, lambda: cancelled.is_set() or self._timed_out()
            ):
                return False
        except (CredentialsRefusedError, MissingError):
            raise
        except HubUnavailableError as error:
            _LOG.warning("partition %s: cannot check whether events are gone: %s", partition, error)
            return False
        finally:
            self._since.checks_after = 2 * (time.monotonic() - self._since.at)
        _LOG.warning(
            "partition %s: neither events %d to %d nor any later events exist, although earlier events can be "
            "received. This is normal only in a compacted event hub", partition, position, self._wanted.end - 1,
        )  # fmt: skip
        return True

    def _state_if_known(self) -> PartitionState | None:
        try:
            return self._partition_state()
        except HubUnavailableError as error:
            partition = self._wanted.partition
            _LOG.warning("partition %s: cannot read the partition's state: %s", partition, error)
            return None

    def _end_of_loss(self, state: PartitionState) -> int:
        """The next available sequence number if the events at the position are lost; else the position."""
        position, end = self._position, self._wanted.end
        if state.begin > position:
            end, reason = min(state.begin, end), f"they have aged out (the first retained event is {state.begin})"
        elif state.end < end and state.end <= position:  # otherwise the events before the new end are late, not lost
            reason = f"the last event is {state.end - 1}, so the event hub was recreated"
        else:
            return position
        self._report_loss(position, end, reason)
        return end

    def _report_loss(self, start: int, end: int, reason: str) -> None:
        partition = self._wanted.partition
        if self._options.fail_on_data_loss:
            raise DataLossError("EHB_EVENTS_LOST", partition=partition, position=start, reason=reason)
        _LOG.warning(
            "skipping lost events, because failOnDataLoss=false: %s. partition=%s from=%d to=%d",
            reason, partition, start, end - 1,
        )  # fmt: skip

    def _partition_state(self) -> PartitionState:
        partition = self._wanted.partition
        with HubMetadata(self._options.connection, self._options.consumer_group) as metadata:
            return metadata.partition_states([partition])[partition]
