"""Requests a hub's metadata: its partitions, and the first and last event of each.

The client's public calls open a connection per request and sleep while they wait (0.36 s per call). Here, one
management connection stays open, and any number of requests together take little more than one round trip
(`wire.management`).
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
from spark_ehbalance.eventhub.poll_schedule import MAX_REQUESTS, RateLimiter
from spark_ehbalance.eventhub.server_busy import BUSY
from spark_ehbalance.eventhub.wire.client import check_open, cut_off_after, private_calls
from spark_ehbalance.eventhub.wire.frames import bounded_transport
from spark_ehbalance.eventhub.wire.management import Management, ManagementRequest
from spark_ehbalance.group.position import Position
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Seconds after which a management connection is replaced, well before its token expires (20 to 60 minutes).
_CONNECTION_AGE = 600.0

#: Seconds for which a hub may throttle all requests before they fail: seven or eight waits.
_BUSY_PATIENCE = 35.0

#: Seconds for which a token is reused, unless half of its lifetime is shorter. The client returns a new token for every
#: call, and a new token requires encoding all requests again.
_TOKEN_AGE = 60.0

#: Time limit in seconds for TLS, SASL, CBS and attach together, and for responses: all need round trips, possibly to
#: another continent.
_RESPONSE_TIMEOUT = 20.0

#: Client settings. The client makes only one attempt, because the caller retries.
_SETTINGS = {"retry_total": 0, "socket_timeout": 0.2}

_HUB, _PARTITION = "com.microsoft:eventhub", "com.microsoft:partition"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The retained events of a partition: sequence numbers from `begin` up to but not including `end`.

    `last_offset` is the offset of event `end - 1`. `last_enqueued` is None if the partition never had an event.
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
    """An open connection. `token` may be used until the monotonic time `until`."""

    management: Management
    auth: Any
    closing: ExitStack
    token: str = ""
    until: float = 0.0

    def with_token(self, now: float) -> _Opened:
        """This connection, with a token that is valid at `now`."""
        if now < self.until:
            return self
        access = self.auth.get_token()
        return replace(self, token=access.token, until=now + min(_TOKEN_AGE, (access.expires_on - time.time()) / 2))


class HubMetadata:
    """Requests a hub's metadata. A context manager that closes its connection. Only one thread may use it at a time.

    Connects at the first request. Every request raises `HubUnavailableError` if no response arrives within
    `response_timeout` seconds, `MissingError` for a missing hub or partition, and `ClientVersionError`.

    Event Hubs rejects more than 50 requests per second from all readers together. So at most `most_requests` are sent
    per second (None: no limit), and rejected requests are repeated after the same wait as in Azure's clients.
    """

    def __init__(
        self,
        connection: Connection,
        consumer_group: str,
        *,
        response_timeout: float = _RESPONSE_TIMEOUT,
        most_requests: float | None = MAX_REQUESTS,
    ) -> None:
        self._connection = connection
        self._consumer_group = consumer_group
        self._response_timeout = response_timeout
        self._limiter = None if most_requests is None else RateLimiter(most_requests)
        self._opened: _Opened | None = None
        #: When the last connection was opened (monotonic seconds); 0 before the first one.
        self.opened_at = 0.0
        #: When the hub was created, in milliseconds since 1970. None before the partitions were listed. Also None for a
        #: geo-replicated hub, because a promotion may change the creation time (offsets identify events instead).
        self.created_ms: int | None = None
        #: The time of the first response about a partition by the hub's clock (ms since 1970); None before that
        #: response.
        self.first_answer_ms: int | None = None

    def __enter__(self) -> HubMetadata:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def partition_ids(self) -> tuple[str, ...]:
        """The ids of the hub's partitions."""
        response = self._responses([(_HUB, (("name", self._connection.hub),))])[0]
        is_replicated = response.get(b"georeplication_factor", 1) > 1
        self.created_ms = None if is_replicated else round(response[b"created_at"])
        return tuple(id.decode() for id in response[b"partition_ids"])

    def partition_states(self, partitions: Iterable[str]) -> dict[str, PartitionState]:
        """The states of `partitions`, all requested over one connection. Waits where needed to keep the rate of
        requests below the limit."""
        partitions = list(partitions)
        remaining, states, connection = partitions, dict[str, PartitionState](), 0.0
        while remaining:
            count = len(remaining)
            if self._limiter is not None:
                while (room := self._limiter.room(time.monotonic())) < 1:
                    time.sleep(self._limiter.wait(time.monotonic()))
                count = min(count, room)
                self._limiter.take(count, time.monotonic())
            batch, remaining = remaining[:count], remaining[count:]
            hub = self._connection.hub
            requests = [(_PARTITION, (("name", hub), ("partition", partition))) for partition in batch]
            responses = self._responses(requests)
            if self.first_answer_ms is None:
                self.first_answer_ms = min(map(_retrieved_ms, responses))
            if states and connection != self.opened_at:
                remaining, states = partitions, {}
                continue
            connection = self.opened_at
            states.update(zip(batch, map(_state, responses), strict=True))
        return states

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.closing.close()

    # --- over the open connection ------------------------------------------------------------------------------

    def _responses(self, requests: Sequence[ManagementRequest]) -> list[Any]:
        """The responses, all received over one connection. Repeats throttled requests."""
        responses, connection = dict[int, Any](), 0.0
        give_up = time.monotonic() + _BUSY_PATIENCE
        while True:
            left = [index for index in range(len(requests)) if index not in responses]
            results = self._request([requests[index] for index in left])
            if responses and connection != self.opened_at:
                responses.clear()
                continue
            connection = self.opened_at
            refused = [result for result in results if isinstance(result, Exception)]
            responses |= {
                i: result for i, result in zip(left, results, strict=True) if not isinstance(result, Exception)
            }
            if not refused:
                return [responses[index] for index in range(len(requests))]
            if len(refused) < len(results):
                give_up = time.monotonic() + _BUSY_PATIENCE
            BUSY.record(self._connection.hub_name, len(refused))
            wait = service_errors.busy_wait()
            if time.monotonic() + wait > give_up:
                raise self._unavailable("is too busy", refused[0], ServerBusyError) from refused[0]
            time.sleep(wait)

    def _request(self, requests: Sequence[ManagementRequest]) -> list[Any]:
        """The responses received over the open management connection, with an error in place of each throttled
        request's response."""
        failed, retried = requests[0], False
        while True:
            opened = self._opened
            fresh = opened is None or time.monotonic() - self.opened_at > _CONNECTION_AGE
            try:
                if opened is None or fresh:
                    self.close()
                    opened = self._opened = self._open()
                opened = self._opened = opened.with_token(time.monotonic())
                results = opened.management.request(requests, opened.token, self._response_timeout)
                for index, result in enumerate(results):
                    if isinstance(result, Exception) and not _is_busy(result):
                        failed = requests[index]
                        raise result
                return results
            except ClientVersionError:
                self.close()
                raise
            except Exception as error:
                self.close()
                translated = translate_error(error, self._connection, dict(failed[1]).get("partition"))
                # Retry once with a new connection and token: the service may have closed the idle connection, and the
                # cached token may have expired.
                is_refused = isinstance(translated, CredentialsRefusedError)
                if retried or isinstance(translated, MissingError) or (fresh and not is_refused):
                    if isinstance(translated, HubUnavailableError):
                        raise translated from error
                    raise self._unavailable("did not answer", translated) from error
                if is_refused:
                    self._connection.renew_credentials()
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
            if network.websocket:  # the client ignores its own setting
                handler._socket_timeout = network.opening_timeout(0.0)
            with cut_off_after(self._response_timeout, lambda: handler._connection):
                connection = client._conn_manager.get_connection(endpoint=client._address.hostname, auth=auth)
                operation = self._opened_operation(handler, connection)
            check_open(handler._connection, handler._session, operation._mgmt_link._response_link)
            self.opened_at = time.monotonic()
            return _Opened(Management(handler, operation, transport.get_error), auth, closing.pop_all())

    def _opened_operation(self, handler: Any, connection: Any) -> Any:
        """The client's operation on the hub's `$management`, with its connection and links open."""
        from azure.eventhub._pyamqp import management_operation

        fields = {"status_code_field": b"status-code", "status_description_field": b"status-description"}
        handler.open(connection=connection)
        while not handler.client_ready():
            time.sleep(0.002)
        make: Any = management_operation.ManagementOperation
        operation = make(handler._session, **fields)
        operation._mgmt_link._request_link.link_credit = 0  # the client would grant itself credit for 10,000 requests
        operation.open()
        while not operation.ready():  # raises the error if opening failed
            handler._connection.listen()
        return operation

    def _unavailable(
        self, problem: str, error: Exception, kind: type[HubUnavailableError] = HubUnavailableError
    ) -> HubUnavailableError:
        what = f"{service_errors.hub_text(self._connection.namespace, self._connection.hub)} {problem}"
        reason = error_message(error).rstrip(".")
        return kind("EHB_HUB_UNREACHABLE", what=f"{what} (request for its properties over AMQP)", reason=reason)


def _close(part: Any) -> None:
    try:
        part.close()
    except Exception as error:  # a broken connection has nothing left to close
        _LOG.debug("Management connection not closed: reason=%s", error)


def _is_busy(error: Exception) -> bool:
    return (
        service_errors.classify(service_errors.condition_of(error), error_message(error))
        is service_errors.ErrorKind.BUSY
    )


def _retrieved_ms(response: dict[bytes, Any]) -> int:
    """When the hub responded, in milliseconds since 1970, by the hub's clock, or by this machine's if the response
    contains no time."""
    return round(response.get(b"runtime_info_retrieval_time_utc") or 1000 * time.time())


def _state(response: dict[bytes, Any]) -> PartitionState:
    begin, end = response[b"begin_sequence_number"], response[b"last_enqueued_sequence_number"] + 1
    begin = end if response[b"is_partition_empty"] else begin
    if end < 1:  # the partition never had an event
        return PartitionState(begin, end, None, None)
    enqueued = datetime.fromtimestamp(response[b"last_enqueued_time_utc"] / 1000, timezone.utc)
    return PartitionState(begin, end, response[b"last_enqueued_offset"].decode(), enqueued)
