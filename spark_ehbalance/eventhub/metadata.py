"""What Event Hubs says about a hub: its partitions, and the first and last event of each.

The client's public calls open a connection for each request and sleep in between (0.36 s each). Here one management
connection stays open, and any number of requests takes little more than a round trip (`wire.management`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from spark_ehbalance.errors import ClientVersionError, HubUnavailableError, MissingError
from spark_ehbalance.eventhub import service_errors
from spark_ehbalance.eventhub.client_errors import (
    CredentialsRefusedError,
    ServerBusyError,
    error_message,
    translate_error,
)
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.poll_schedule import MOST_REQUESTS, Pace
from spark_ehbalance.eventhub.server_busy import BUSY
from spark_ehbalance.eventhub.wire.client import check_open, cut_off_after, private_calls
from spark_ehbalance.eventhub.wire.frames import bounded_transport
from spark_ehbalance.eventhub.wire.management import Management, ManagementRequest
from spark_ehbalance.group.position import Position
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Seconds after which a management connection is replaced, well before its token expires (20 to 60 minutes).
_CONNECTION_AGE = 600.0

#: Seconds for which a hub may be too busy for every request: seven or eight waits.
_BUSY_PATIENCE = 35.0

#: Seconds for which a token is sent again, at most half of its life: the client makes a new one whenever it is asked
#: for one, and then all requests must be encoded again.
_TOKEN_AGE = 60.0

#: Seconds for TLS, SASL, CBS and attach together, and for the responses: round trips, possibly to another continent.
_RESPONSE_TIMEOUT = 20.0

#: Settings of the client: one attempt, because the caller decides about the next one.
_SETTINGS = {"retry_total": 0, "socket_timeout": 0.2}

_HUB, _PARTITION = "com.microsoft:eventhub", "com.microsoft:partition"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The retained events of one partition: sequence numbers `begin` up to but not including `end`.

    `last_offset` is the offset of event `end - 1`; `last_enqueued` is None if there never was an event.
    """

    begin: int
    end: int
    last_offset: str | None
    last_enqueued: datetime | None

    @property
    def end_position(self) -> Position:
        """The position after the last event."""
        return Position(self.end - 1, self.last_offset)


@dataclass(frozen=True, slots=True)
class _Opened:
    """An open connection, with what closes it. `token` is sent `until` a monotonic time."""

    management: Management
    auth: Any
    closing: ExitStack
    token: str = ""
    until: float = 0.0

    def with_token(self, now: float) -> _Opened:
        """With a token that is sent at `now`."""
        if now < self.until:
            return self
        access = self.auth.get_token()
        return replace(self, token=access.token, until=now + min(_TOKEN_AGE, (access.expires_on - time.time()) / 2))


class HubMetadata:
    """Requests a hub's own description. A context manager that closes its connection; for one thread at a time.

    Connects at the first request. Every request raises `HubUnavailableError` if no response comes within
    `response_timeout` seconds, `MissingError` for a hub or partition that does not exist, and `ClientVersionError`.

    Event Hubs refuses what is more than 50 requests a second for all readers together. So at most `most_requests` are
    made in a second (None: no limit), and what was refused is asked for again after the wait of Azure's clients.
    """

    def __init__(
        self,
        connection: Connection,
        consumer_group: str,
        *,
        response_timeout: float = _RESPONSE_TIMEOUT,
        most_requests: float | None = MOST_REQUESTS,
    ) -> None:
        self._connection = connection
        self._consumer_group = consumer_group
        self._response_timeout = response_timeout
        self._pace = None if most_requests is None else Pace(most_requests)
        self._opened: _Opened | None = None
        #: When the last connection was opened (monotonic seconds); 0 before that.
        self.opened_at = 0.0
        #: When the hub was created, in milliseconds since 1970; None before its partitions were listed, and for a
        #: geo-replicated hub: whether that time outlives a promotion is not known, and its offsets identify events.
        self.created_ms: int | None = None
        #: The hub's clock (ms since 1970) at the first answer about a partition; None before one.
        self.first_answer_ms: int | None = None

    def __enter__(self) -> HubMetadata:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def partition_ids(self) -> tuple[str, ...]:
        """The ids of the hub's partitions."""
        found = self._answers([(_HUB, (("name", self._connection.hub),))])[0]
        is_replicated = found.get(b"georeplication_factor", 1) > 1
        self.created_ms = None if is_replicated else round(found[b"created_at"])
        return tuple(id.decode() for id in found[b"partition_ids"])

    def partition_states(self, partitions: Iterable[str]) -> dict[str, PartitionState]:
        """The state of each of `partitions`, all by one connection. So many that the rate of requests would be exceeded
        take a while."""
        partitions = list(partitions)
        remaining, states, connection = partitions, dict[str, PartitionState](), 0.0
        while remaining:
            count = len(remaining)
            if self._pace is not None:
                while (room := self._pace.room(time.monotonic())) < 1:
                    time.sleep(self._pace.wait(time.monotonic()))
                count = min(count, room)
                self._pace.take(count, time.monotonic())
            some, remaining = remaining[:count], remaining[count:]
            requests = [(_PARTITION, (("name", self._connection.hub), ("partition", each))) for each in some]
            answers = self._answers(requests)
            if self.first_answer_ms is None:
                self.first_answer_ms = min(map(_retrieved_ms, answers))
            if states and connection != self.opened_at:
                remaining, states = partitions, {}
                continue
            connection = self.opened_at
            states.update(zip(some, map(_state, answers), strict=True))
        return states

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.closing.close()

    # --- over the open connection ------------------------------------------------------------------------------

    def _answers(self, requests: Sequence[ManagementRequest]) -> list[Any]:
        """The response to each request, all by one connection. Waits and asks again as long as the hub is too busy."""
        found, connection = dict[int, Any](), 0.0
        give_up = time.monotonic() + _BUSY_PATIENCE
        while True:
            left = [index for index in range(len(requests)) if index not in found]
            answers = self._request([requests[index] for index in left])
            if found and connection != self.opened_at:
                found.clear()
                continue
            connection = self.opened_at
            refused = [each for each in answers if isinstance(each, Exception)]
            found.update({i: each for i, each in zip(left, answers, strict=True) if not isinstance(each, Exception)})
            if not refused:
                return [found[index] for index in range(len(requests))]
            if len(refused) < len(answers):
                give_up = time.monotonic() + _BUSY_PATIENCE
            BUSY.note(self._connection.hub_name, len(refused))
            wait = service_errors.busy_wait()
            if time.monotonic() + wait > give_up:
                raise self._unavailable(ServerBusyError(error_message(refused[0]))) from refused[0]
            time.sleep(wait)

    def _request(self, requests: Sequence[ManagementRequest]) -> list[Any]:
        """The responses over the open management connection, errors where the hub was too busy."""
        failed, retried = requests[0], False
        while True:
            opened = self._opened
            fresh = opened is None or time.monotonic() - self.opened_at > _CONNECTION_AGE
            try:
                if opened is None or fresh:
                    self.close()
                    opened = self._opened = self._open()
                opened = self._opened = opened.with_token(time.monotonic())
                answers = opened.management.request(requests, opened.token, self._response_timeout)
                for index, each in enumerate(answers):
                    if isinstance(each, Exception) and not _is_busy(each):
                        failed = requests[index]
                        raise each
                return answers
            except ClientVersionError:
                self.close()
                raise
            except Exception as error:
                self.close()
                meant = translate_error(error, self._connection, dict(failed[1]).get("partition"))
                # A second attempt with a new connection and token: the service may have closed a connection that was
                # kept open, and its token may have been an expired one from a cache.
                is_refused = isinstance(meant, CredentialsRefusedError)
                if retried or isinstance(meant, MissingError) or (fresh and not is_refused):
                    raise self._unavailable(meant) from error
                if is_refused:
                    self._connection.renew()
                retried = True

    def _open(self) -> _Opened:
        client: Any = self._connection.consumer_client(
            self._consumer_group, amqp_transport=bounded_transport(), **_SETTINGS
        )
        with ExitStack() as closing, private_calls():
            closing.callback(_close, client)
            auth = client._create_auth()
            transport, network = client._amqp_transport, self._connection.network
            handler = transport.create_mgmt_client(client._address, mgmt_auth=auth, config=client._config)
            closing.callback(_close, handler)
            if network.websocket:  # the client does not pass it on
                handler._socket_timeout = network.opening_timeout(0.0)
            with cut_off_after(self._response_timeout, lambda: handler._connection):
                connection = client._conn_manager.get_connection(endpoint=client._address.hostname, auth=auth)
                operation = self._opened_operation(handler, connection)
            check_open(handler._connection, handler._session, operation._mgmt_link._response_link)
            self.opened_at = time.monotonic()
            return _Opened(Management(handler, operation, transport.get_error), auth, closing.pop_all())

    def _opened_operation(self, handler: Any, connection: Any) -> Any:
        """The client's operation on the hub's `$management`, with connection and links open."""
        from azure.eventhub._pyamqp import management_operation

        fields = {"status_code_field": b"status-code", "status_description_field": b"status-description"}
        handler.open(connection=connection)
        while not handler.client_ready():
            time.sleep(0.002)
        make: Any = management_operation.ManagementOperation
        operation = make(handler._session, **fields)
        operation._mgmt_link._request_link.link_credit = 0  # the client would grant itself credit for 10,000 requests
        operation.open()
        while not operation.ready():  # raises the reason if it cannot be opened
            handler._connection.listen()
        return operation

    def _unavailable(self, error: Exception) -> HubUnavailableError:
        is_busy = isinstance(error, ServerBusyError)
        if isinstance(error, HubUnavailableError) and not is_busy:
            return error
        what = "is too busy" if is_busy else "did not answer"
        where = f"event hub {self._connection.hub!r} at {self._connection.namespace}"
        kind = ServerBusyError if is_busy else HubUnavailableError
        return kind(f"{where} {what} (asked for its properties over AMQP): {error}")


def _close(part: Any) -> None:
    try:
        part.close()
    except Exception as error:  # a broken connection has nothing left to close
        _LOG.debug("closing a management connection: %s", error)


def _is_busy(error: Exception) -> bool:
    return (
        service_errors.classify(service_errors.condition_of(error), error_message(error))
        is service_errors.ErrorKind.BUSY
    )


def _retrieved_ms(response: dict[bytes, Any]) -> int:
    """When the hub answered, in milliseconds since 1970 by its clock, or by this machine's if the answer lacks it."""
    return round(response.get(b"runtime_info_retrieval_time_utc") or 1000 * time.time())


def _state(response: dict[bytes, Any]) -> PartitionState:
    begin, end = response[b"begin_sequence_number"], response[b"last_enqueued_sequence_number"] + 1
    begin = end if response[b"is_partition_empty"] else begin
    if end < 1:  # there never was an event
        return PartitionState(begin, end, None, None)
    enqueued = datetime.fromtimestamp(response[b"last_enqueued_time_utc"] / 1000, timezone.utc)
    return PartitionState(begin, end, response[b"last_enqueued_offset"].decode(), enqueued)
