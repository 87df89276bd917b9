"""A long-lived receiver of one partition that tracks its position."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.errors import (
    ClientVersionError,
    EhBalanceError,
    HubUnavailableError,
    MalformedEventError,
    MissingError,
    OptionError,
    describe,
)
from spark_ehbalance.eventhub import rows
from spark_ehbalance.eventhub.client_errors import TransientError, connection_error, error_message, translate_error
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.rows import FAIL, Rows, apply_policy, until_gap
from spark_ehbalance.eventhub.tokens import TokenUnavailableError
from spark_ehbalance.eventhub.wire.client import check_open, check_usable, cut_off_after, private_calls
from spark_ehbalance.eventhub.wire.decoder import Decoder
from spark_ehbalance.eventhub.wire.frames import bounded_transport
from spark_ehbalance.eventhub.wire.link import LinkReader
from spark_ehbalance.group.position import START_OFFSET
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Timeout of the client's socket in seconds. Its default of 0.2 would delay every short read.
SOCKET_TIMEOUT = 0.02

#: Time limit in seconds for opening a connection with TLS and SASL: several round trips, possibly to another continent.
_OPEN_TIMEOUT = 20.0

#: Time limit in seconds for checking that a consumer group exists: several round trips, possibly to another continent.
_GROUP_TIMEOUT = 2.0

#: Maximum number of partitions whose readers are disconnected concurrently. Each needs a connection, and mostly waits.
_MAX_CONCURRENT = 8


class DisconnectedError(Exception):
    """The hub disconnected or rejected this receiver in favour of another receiver, by the rules for owner levels.

    `epoch` is the other receiver's owner level, None if the error does not contain it.
    """

    def __init__(self, text: str, epoch: int | None) -> None:
        super().__init__(text)
        self.epoch = epoch


class OffsetNotFoundError(TransientError):
    """Event Hubs does not have the offset: it is beyond the last event, or a plain number in a geo-replicated hub, or
    may belong to a lost event."""


#: The conditions that the client reports for such offsets: `com.microsoft:georeplication:invalid-offset` and, without
#: geo-replication, `com.microsoft:argument-error`.
_NO_SUCH_OFFSET = ("georeplication:invalid-offset", "argument-error")


@dataclass(frozen=True, slots=True)
class PartitionAddress:
    """A partition of a hub, and a consumer group."""

    connection: Connection
    consumer_group: str
    partition: str


class RowFormat(NamedTuple):
    """How events become rows: the columns besides `sequenceNumber`, the `json_properties` of `rows.record_batch`, and
    the policy (`on_malformed`) of `rows.apply_policy`."""

    columns: frozenset[str] = rows.COLUMNS
    json_properties: bool = False
    on_malformed: str = FAIL


class Receiver:
    """Receives the events of a partition as rows, in order and without gaps, from `start` on: a sequence number, the
    earliest enqueued time, or (as text) the offset of the first event.

    An `owner_level` disconnects all receivers of the partition that have the same level, a lower level or none. With
    None, the receiver shares the partition with up to four others. `prefetch` is the number of events that the hub
    sends ahead.

    Unless `gaps` is set, as for a compacted hub, the receiver returns the rows before a gap in the sequence numbers,
    and then closes. A new receiver at the gap shows whether the missing events exist.

    Connects on the first call to `receive`. Only one thread may use it at a time. Receiving raises `DisconnectedError`,
    `TransientError`, `MalformedEventError`, `CredentialsRefusedError`, `NetworkError`, `MissingError` or
    `ClientVersionError`, and closes the receiver.
    """

    def __init__(
        self,
        address: PartitionAddress,
        start: int | datetime | str,
        *,
        owner_level: int | None,
        prefetch: int,
        row_format: RowFormat = RowFormat(),
        gaps: bool = False,
    ) -> None:
        #: Lowest possible sequence number of the next event, None if unknown.
        self.next = start if isinstance(start, int) else None
        #: Sequence number of the first event of the last call, None if unknown.
        self.first: int | None = None
        self.closed = False
        self._gaps = gaps
        self._began = False  # events were received
        self._address = address
        self._start = start
        self._owner_level = owner_level
        self._prefetch = prefetch
        self._on_malformed = row_format.on_malformed
        self._failure: str | None = None  # why the event after the returned ones is unreadable
        self._skipped = 0
        self._link: LinkReader | None = None
        self._schema = rows.schema_of(row_format.columns)
        self._decoder = Decoder(address.partition, row_format.json_properties, self._schema)
        timeout = address.connection.network.opening_timeout(SOCKET_TIMEOUT)
        self._client: Any = address.connection.consumer_client(
            address.consumer_group, retry_total=0, socket_timeout=timeout, amqp_transport=bounded_transport()
        )
        self._consumer: Any = None
        self._client_error: Any = None  # the client's conversion of an error

    def receive(self, most: int, wait: float, wanted: int | None = None) -> pa.RecordBatch:
        """Up to `most` rows; no rows if none arrived within `wait` seconds, or if the receiver is closed.

        After the first event, waits for more only while they arrive without a pause. `wanted` limits the number of
        events that the hub sends for this call and later ones.
        """
        if self.closed:
            return pa.RecordBatch.from_pylist([], self._schema)
        if self._failure is not None:
            self._fail(self._failure)
        with self._errors():
            link = self._open_link()
            try:
                received = self._decoder.record_batch(link.receive(most, wait, wanted))
            finally:
                link.release()
        return self._check_rows(received)

    def confirm(self, wait: float) -> None:
        """Connect, and wait for at most `wait` seconds until the hub has accepted the receiver. Raises the same errors
        as `receive`."""
        with self._errors():
            self._open_link().confirm(wait)

    def is_usable(self) -> bool:
        """Whether the receiver can be kept for later: it is connected, and its token does not expire soon."""
        try:
            return self._link is not None and self._link.is_usable()
        except Exception:  # any error closes the receiver
            return False

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self.closed = True
        for closing in (self._consumer, self._client):
            if closing is not None:
                with contextlib.suppress(Exception):  # a broken connection has nothing left to close
                    closing.close()
        if self._link is not None:
            self._link.close()

    def _check_rows(self, received: Rows) -> pa.RecordBatch:
        sound = received if self._gaps else until_gap(received, self.next if self._began else None)
        if len(sound.batch) < len(received.batch):
            _LOG.info("Sequence numbers have a gap, reopening the receiver: partition=%s", self._address.partition)
            self.close()
        batch, self.first, self.next, self._failure, skipped, problem = apply_policy(
            sound, self.next, self._on_malformed
        )
        self._began = self._began or self.first is not None
        if self._failure is not None and self.first is None:
            self._fail(self._failure)
        if skipped:
            self._skipped += skipped
            _LOG.warning(
                "Skipped malformed events (onMalformed=skip): partition=%s skipped=%d since_opened=%d first=%s",
                self._address.partition, skipped, self._skipped, problem,
            )  # fmt: skip
        return batch

    def _fail(self, failure: str) -> NoReturn:
        self.close()
        raise MalformedEventError("EHB_EVENT_MALFORMED", partition=self._address.partition, problem=failure)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Closes the receiver on an error, and translates the error into one that `receive` may raise."""
        try:
            try:
                yield
            except (EventHubError, TransientError, EhBalanceError):
                raise
            except Exception as error:
                if self._client_error is None:
                    raise
                raise self._client_error(error, is_consumer=True) from error
        except EventHubError as error:
            self.close()
            if isinstance(self._start, str) and getattr(error, "error", None) in _NO_SUCH_OFFSET:
                raise OffsetNotFoundError(str(error).splitlines()[0]) from error
            raise _translate(error, self._address) from error
        except (TransientError, EhBalanceError):
            self.close()
            raise

    # --- connecting ------------------------------------------------------------------------------------------------

    def _open_link(self) -> LinkReader:
        """The link. The client opens it on the first call; this class then takes it over."""
        if self._link is None:
            with private_calls():
                self._consumer = self._make_consumer()
                self._client_error = self._consumer._handle_exception
                self._open()
                handler = self._consumer._handler
                check_open(handler._connection, handler._session, handler._link)
                check_usable(handler, handler._link)
                self._link = LinkReader(handler, handler._link, self._prefetch)
        return self._link

    def _make_consumer(self) -> Any:
        consumer = self._client._create_consumer(
            self._address.consumer_group,
            self._address.partition,
            self._start,
            lambda _: None,
            owner_level=self._owner_level,
            prefetch=self._prefetch,
            event_position_inclusive=True,
        )
        # No keep-alive thread, because every close would wait for it, and a process that forks must not have one. If
        # the service drops an idle receiver, the receiver is reopened.
        consumer._keep_alive = 0
        return consumer

    def _open(self) -> None:
        """Open the connection and attach the link, but grant no credit."""
        deadline = time.monotonic() + _OPEN_TIMEOUT
        with cut_off_after(_OPEN_TIMEOUT, lambda: self._consumer._handler._connection):
            try:
                with private_calls():
                    while not self._consumer._open():
                        if time.monotonic() >= deadline:
                            namespace = self._address.connection.namespace
                            raise TransientError(f"{namespace} did not attach the link in {_OPEN_TIMEOUT:g} s")
            except TokenUnavailableError as error:
                raise TransientError(describe(error)) from None
            except (ClientVersionError, OptionError):  # OptionError: the callable of a credential failed
                raise
            except Exception as error:
                if self._consumer.running:
                    raise
                raise connection_error(error, self._address.connection, self._address.partition) from None


def check_group(address: PartitionAddress) -> None:
    """Raise `MissingError` if the hub exists but lacks the consumer group. Also raises `ClientVersionError`; ignores
    other errors, because readers report them.

    Opens a receiver without an owner level, because the management link ignores the group.
    """
    try:
        with contextlib.closing(Receiver(address, START_OFFSET, owner_level=None, prefetch=1)) as receiver:
            receiver.confirm(_GROUP_TIMEOUT)
    except MissingError:
        raise
    except (DisconnectedError, TransientError, HubUnavailableError) as error:
        _LOG.debug("Consumer group not checked: group=%s reason=%s", address.consumer_group, describe(error))


def disconnect_readers(owner_levels: Mapping[PartitionAddress, int]) -> None:
    """Disconnect the readers of these partitions that have the given owner level or a lower one. Failures are only
    logged."""

    def disconnect(address: PartitionAddress, owner_level: int) -> None:
        try:
            with contextlib.closing(Receiver(address, START_OFFSET, owner_level=owner_level, prefetch=1)) as receiver:
                receiver.receive(1, 0.0, 0)
        except (DisconnectedError, TransientError, EhBalanceError) as error:
            _LOG.warning(
                "Former owners' receivers not disconnected: partition=%s reason=%s", address.partition, describe(error)
            )

    with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
        list(pool.map(disconnect, owner_levels, owner_levels.values()))


def _translate(error: EventHubError, address: PartitionAddress) -> Exception:
    text = error_message(error)
    # The first epoch in the text is the other receiver's. The word "epoch" alone is no evidence: it may be part of a
    # hub's name.
    epoch = re.search(r" epoch (?:of )?'(\d+)'", text)
    if epoch or getattr(error, "error", None) == "link:stolen":
        return DisconnectedError(text, int(epoch[1]) if epoch else None)
    return translate_error(error, address.connection, address.partition, address.consumer_group)
