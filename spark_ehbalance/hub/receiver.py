"""A receiver of one partition that stays open and knows its position."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
from azure.eventhub import EventHubConsumerClient
from azure.eventhub.exceptions import AuthenticationError, EventHubError

from spark_ehbalance.errors import HubUnavailableError, MalformedEventError, MissingError, OptionError
from spark_ehbalance.hub import rows
from spark_ehbalance.hub.busy import BUSY
from spark_ehbalance.hub.conditions import FINAL, Meaning, condition_of, credentials_help, explained, meaning
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.network import NetworkError
from spark_ehbalance.hub.public import LIFE, SETTINGS, PublicReceiver
from spark_ehbalance.hub.rows import Rows
from spark_ehbalance.hub.socket_timeout import cut_off_after
from spark_ehbalance.hub.tokens import NoTokenError
from spark_ehbalance.hub.unreadable import FAIL, SKIP, settle, until_gap
from spark_ehbalance.hub.wire.decoder import Decoder
from spark_ehbalance.hub.wire.link import FastLink, incompatibility, untested_version
from spark_ehbalance.hub.wire.tracking import Newest, newest, without_annotations
from spark_ehbalance.hub.wire.transfers import Messages
from spark_ehbalance.hub.wire.values import MALFORMED
from spark_ehbalance.text import logger

_LOG = logger(__name__)

_T = TypeVar("_T")

#: Seconds for which the client waits on its socket at a time. Its default of 0.2 delays every short read by that.
SOCKET_TIMEOUT = 0.02

#: Seconds for TLS and SASL together: several round trips, possibly to another continent.
_OPEN_TIMEOUT = 20.0


class Disconnected(Exception):
    """Another receiver has the partition: this one was disconnected or refused by the rules for owner levels.

    `epoch` is the other receiver's owner level, None if Event Hubs has not told it.
    """

    def __init__(self, text: str, epoch: int | None) -> None:
        super().__init__(text)
        self.epoch = epoch


class RefusedError(HubUnavailableError):
    """The credentials were refused or have expired."""


class Unreachable(Exception):
    """The connection broke or was refused for a reason that may pass: a new receiver may succeed."""


class Busy(Unreachable):
    """The service was too busy to serve the receiver, which is counted. A new one is to be opened after
    `conditions.busy_wait`."""


class Undecodable(Unreachable):
    """The client's public calls cannot decode one of the next events and return none: a new receiver with `prefetch` 1
    finds out which one."""


class OffsetRefused(Unreachable):
    """Event Hubs has no such offset: a number in a geo-replicated hub, or, possibly, that of an event that was lost."""


#: As the client names the conditions `com.microsoft:georeplication:invalid-offset` and `com.microsoft:argument-error`,
#: with which a hub without geo-replication refuses what is no number.
_NO_SUCH_OFFSET = ("georeplication:invalid-offset", "argument-error")


@dataclass(frozen=True, slots=True)
class PartitionAddress:
    """One partition of a hub, for one consumer group."""

    connection: Connection
    consumer_group: str
    partition: str


class Receiver:
    """Receives the events of a partition as rows, in order and without a gap, from `start` on: a sequence number, the
    time at or after which the first event was enqueued, or (a text) an offset. Unless `inclusive` that event itself is
    left out.

    With an `owner_level` all receivers of the partition with the same or a lower level, or none, are disconnected; with
    None it shares the partition with up to four others. `prefetch` is how many events the hub sends ahead.
    `json_properties` is as for `rows.record_batch`, `on_malformed` as for `unreadable.settle`. Without `fast`, or if
    the fast path is not compatible with the installed client, events come by the client's public calls: the same rows
    at more than ten times the cost, by a new connection after each `public_life` seconds. With `track` the service says
    with each event which one is the partition's newest.

    Sequence numbers of a hub that is not compacted have no gaps, so a gap in what comes is not passed over: the rows
    before it are returned, and the receiver is closed. One that starts at the gap tells whether there are such events.

    It connects at the first call of `receive`. For one thread at a time. Receiving raises `Disconnected`,
    `Unreachable`, `MalformedEventError`, `RefusedError`, `NetworkError` or `MissingError`, and the receiver is closed
    then.
    """

    def __init__(
        self,
        address: PartitionAddress,
        start: int | datetime | str,
        *,
        owner_level: int | None,
        prefetch: int,
        json_properties: bool = False,
        on_malformed: str = FAIL,
        fast: bool = True,
        public_life: float = LIFE,
        track: bool = False,
        inclusive: bool = True,
    ) -> None:
        #: The lowest sequence number that the next event can have, None if it is not known.
        self.next = start if isinstance(start, int) and inclusive else None
        #: The sequence number of the first event of the last call, None if it is not known.
        self.first: int | None = None
        #: With `track` and by the fast path: the partition's newest event when the last one of these was sent.
        self.newest: Newest | None = None
        self.closed = False
        #: Whether gaps are passed over, because the hub is compacted.
        self.gaps = False
        self._began = False  # events have come
        self._address = address
        self._start = start
        self._inclusive = inclusive
        self._owner_level = owner_level
        self._prefetch = prefetch
        self._json = json_properties
        self._on_malformed = on_malformed
        self._fast = fast
        self._public_life = public_life
        self._track = track
        self._waiting: bytes | None = None  # the event that was sent ahead
        self._failure: str | None = None  # of the event after those that were returned
        self._skipped = 0
        self._link: FastLink | None = None
        self._public: PublicReceiver | None = None
        self._decoder = Decoder(address.partition, json_properties)
        timeout = address.connection.network.opening_timeout(SOCKET_TIMEOUT)
        self._client: Any = self._make_client(retry_total=0, socket_timeout=timeout)
        self._consumer: Any = None

    def receive(self, most: int, wait: float, wanted: int | None = None) -> pa.RecordBatch:
        """Up to `most` rows of `rows.ARROW_SCHEMA`; an empty batch if none came within `wait` seconds, or if it is
        closed.

        Waits for more events only while they come without a pause. `wanted` is the number of events for this call and
        later ones, if it is known: the hub sends no more. Closes itself after an event that the client's public calls
        cannot decode.
        """
        if self.closed:
            return self._rows_of([]).batch
        if self._failure is not None:
            self._fail(self._failure)
        deadline = time.monotonic() + wait
        try:
            if self._public is not None and self._public.is_over():
                self._public.close()
                self._public = self._make_public()
            elif self._link is None and self._public is None:
                self._connect()
            if self._link is not None:
                received = self._receive_fast(self._link, most, wait, wanted)
            else:
                assert self._public is not None
                received = self._public.receive(most, deadline)
        except EventHubError as error:
            self.close()
            if self._link is None and (reason := _undecodable(error)):
                if self._prefetch > 1:  # it may not be the next one
                    raise Undecodable(reason) from error
                left = rows.unreadable(None, rows.UnreadableError(reason))
                return self._settled(self._rows_of([left])._replace(unreadable={0: reason}))
            if isinstance(self._start, str) and getattr(error, "error", None) in _NO_SUCH_OFFSET:
                raise OffsetRefused(str(error).splitlines()[0]) from error
            raise _meaning(error, self._address) from error
        except (Unreachable, NetworkError):
            self.close()
            raise
        return self._settled(received)

    def confirm(self, wait: float) -> None:
        """Connect, and wait until the hub has accepted the receiver, for at most `wait` seconds. By the client's public
        calls nothing is known of that. Raises as `receive` does."""
        try:
            if self._link is None and self._public is None:
                self._connect()
            if self._link is not None:
                self._by_client(lambda link: link.confirm(wait), self._link)
        except EventHubError as error:
            self.close()
            raise _meaning(error, self._address) from error
        except Unreachable:
            self.close()
            raise

    def is_usable(self) -> bool:
        """Whether it can be kept for later: not if it was disconnected, if its token is about to expire, or if events
        come by the client's public calls, which do not tell.

        With `track` the hub may send one event ahead, so that `newest` changes when there is one.
        """
        if self._link is None:
            return False
        try:
            usable = self._link.is_usable(1 if self._track else 0)
            if self._track and self._waiting is None and (waiting := self._link.waiting()) is not None:
                self._waiting = waiting
                self.newest = newest(waiting) or self.newest
        except Exception:  # any error ends it
            return False
        return usable

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self.closed = True
        for closing in (self._consumer, self._public, self._client):
            if closing is not None:
                with contextlib.suppress(Exception):  # a broken connection has nothing left to close
                    closing.close()
        if self._link is not None:
            self._link.close()

    def _rows_of(self, events: list[rows.Event]) -> Rows:
        return Rows(rows.record_batch(events, self._address.partition, json_properties=self._json))

    def _settled(self, received: Rows) -> pa.RecordBatch:
        sound = received if self.gaps else until_gap(received, self.next if self._began else None)
        if len(sound.batch) < len(received.batch):
            _LOG.info("partition %s: a gap in what has come: reading again from there", self._address.partition)
            self.close()
        batch, self.first, self.next, problem = settle(sound, self.next, self._on_malformed)
        self._began = self._began or self.first is not None
        if problem is not None and self._on_malformed == FAIL:
            if not batch.num_rows:
                self._fail(problem)
            self._failure = problem
        elif problem is not None and self._on_malformed == SKIP:
            skipped = len(sound.unreadable)
            self._skipped += skipped
            _LOG.warning(
                "partition %s: %d events left out, because onMalformed=skip, %d since the receiver was opened: %s",
                self._address.partition, skipped, self._skipped, problem,
            )  # fmt: skip
        return batch

    def _fail(self, problem: str) -> NoReturn:
        self.close()
        raise MalformedEventError(
            f"partition {self._address.partition}: {problem}. Set onMalformed=skip to go on without such events, or "
            f"onMalformed=keep to have a row for each with its bytes"
        )

    # --- connecting ------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Connect by the fast path if it can be used, else by the client's public calls."""
        reason = untested_version() if self._fast else ""
        if reason is None:
            reason = self._take_over()
        if reason:
            _warn_once(reason)
        if reason is not None:
            self._public = self._make_public()

    def _make_public(self) -> PublicReceiver:
        address = self._address
        return PublicReceiver(
            self._make_client(socket_timeout=address.connection.network.public_timeout(SOCKET_TIMEOUT), **SETTINGS),
            address.connection.namespace,
            address.partition,
            self._start if self.next is None else self.next,
            self._inclusive or self.next is not None,
            self._owner_level,
            self._prefetch,
            self._json,
            self._public_life,
        )

    def _take_over(self) -> str | None:
        """Open the link by the client, and take it over; returns why that is not possible, or None."""
        try:
            self._consumer = self._make_consumer()
        except (AttributeError, TypeError) as error:
            return f"its client is not as expected: {error}"
        try:
            self._open()
            handler = self._consumer._handler
            reason = incompatibility(handler, handler._link)
            if reason is None:
                self._link = FastLink(handler, handler._link, self._prefetch)
                return None
        except (EventHubError, Unreachable, NetworkError, OptionError):
            raise
        except Exception as error:
            raise self._consumer._handle_exception(error, is_consumer=True) from error
        self._consumer.close()
        return reason

    def _make_client(self, **settings: Any) -> EventHubConsumerClient:
        return self._address.connection.consumer_client(self._address.consumer_group, **settings)

    def _make_consumer(self) -> Any:
        consumer = self._client._create_consumer(
            self._address.consumer_group,
            self._address.partition,
            self._start,
            lambda _: None,
            owner_level=self._owner_level,
            prefetch=self._prefetch,
            event_position_inclusive=self._inclusive,
            track_last_enqueued_event_properties=self._track,
        )
        # No keep-alive thread: every close would wait for it, and a process that forks must not have one. The service
        # drops a receiver that is idle for too long, and it is opened again.
        consumer._keep_alive = 0
        return consumer

    def _open(self) -> None:
        """Open the connection and attach the link, without any credit yet."""
        deadline = time.monotonic() + _OPEN_TIMEOUT
        with cut_off_after(_OPEN_TIMEOUT, lambda: self._consumer._handler._connection):
            try:
                while not self._consumer._open():
                    if time.monotonic() >= deadline:
                        raise Unreachable(f"{self._address.connection.namespace} has not attached the link in time")
            except NoTokenError as error:
                raise Unreachable(str(error)) from None
            except OptionError:  # a credential's callable that this process cannot call
                raise
            except Exception as error:
                if self._consumer.running:
                    raise
                raise _not_opened(error, self._address) from None

    def _receive_fast(self, link: FastLink, most: int, wait: float, wanted: int | None) -> Rows:
        try:
            self._waiting = None
            return self._by_client(lambda link: self._decoded(link.receive(most, wait, wanted)), link)
        finally:
            link.release()

    def _decoded(self, messages: Messages) -> Rows:
        if self._track and len(messages):
            self.newest = newest(messages[-1]) or self.newest
            messages = without_annotations(messages)
        return self._decoder.record_batch(messages)

    def _by_client(self, call: Callable[[FastLink], _T], link: FastLink) -> _T:
        """What `call` returns; its errors as those of the client."""
        try:
            return call(link)
        except (EventHubError, Unreachable):
            raise
        except Exception as error:
            raise self._consumer._handle_exception(error, is_consumer=True) from error


@functools.cache
def _warn_once(reason: str) -> None:
    _LOG.warning("events are received by the slower public calls of azure-eventhub: %s", reason)


def _undecodable(error: BaseException) -> str | None:
    """Why the client could not decode what came, if that caused the error: the context is what its decoder raises."""
    cause = error.__context__
    if cause is None or isinstance(cause, EventHubError):
        return None
    return f"the client's decoder: {cause!r}" if isinstance(cause, (*MALFORMED, LookupError)) else _undecodable(cause)


def _not_opened(error: BaseException, address: PartitionAddress) -> Exception:
    """What to raise when no connection could be opened: an error that names the option to look at."""
    namespace, network = address.connection.namespace, address.connection.network
    problem = network.problem(error, namespace)
    if problem is not None and network.is_final(error):
        return NetworkError(f"partition {address.partition}: {problem}")
    return Unreachable(problem or f"no connection could be made to {namespace}")


def _meaning(error: EventHubError, address: PartitionAddress) -> Exception:
    if address.connection.network.problem(error, address.connection.namespace) is not None:
        return _not_opened(error, address)
    text = (str(error).splitlines() or [type(error).__name__])[0]
    # The first epoch in the text is the other receiver's; the word alone may be part of a hub's name.
    epoch = re.search(r" epoch (?:of )?'(\d+)'", text)
    if epoch or getattr(error, "error", None) == "link:stolen":
        return Disconnected(text, int(epoch[1]) if epoch else None)
    if isinstance(error, AuthenticationError) or getattr(error, "error", None) == "unauthorized-access":
        hub, namespace = address.connection.hub, address.connection.namespace
        return RefusedError(
            f"partition {address.partition}: event hub {hub!r} at {namespace} refused the credentials: "
            f"{text.rstrip('.')}. {credentials_help(address.connection.identity is None)}"
        )
    what = meaning(condition_of(error), text)
    if what in FINAL:
        connection, group = address.connection, address.consumer_group
        text = explained(what, connection.namespace, connection.hub, group, address.partition)
        return MissingError(text, sure=what is not Meaning.MISSING)
    if what is Meaning.BUSY:
        BUSY.note(address.connection.hub_name)
        return Busy(text)
    return Unreachable(text)
