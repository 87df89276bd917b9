"""What Event Hubs says of a hub: its partitions, and the first and last event of each.

The client's public calls open a connection for each question and sleep in between (0.36 s each). Here one management
connection stays open, and questions are sent without waiting for the answers to those before, so that any number
takes little more than a round trip (`wire.management`). It needs a few of the client's private parts; where they do
not fit the public calls are used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from azure.eventhub import EventHubConsumerClient
from azure.eventhub.exceptions import AuthenticationError, EventHubError

from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.socket_timeout import cut_off_after
from spark_ehbalance.hub.wire.link import untested_version
from spark_ehbalance.hub.wire.management import Management, Question, management_incompatibility

_LOG = logging.getLogger(__name__)

#: A management connection is opened anew after this many seconds, well before its token (20 to 60 minutes) ends.
_CONNECTION_AGE = 600.0

#: Questions under way at once: a second's worth of what Event Hubs answers (50).
_QUESTIONS_AT_ONCE = 50

#: Seconds for which a token is sent again, or half of its life: the client makes a new one whenever it is asked, and
#: each is encoded anew.
_TOKEN_AGE = 60.0

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


class HubMetadata:
    """Requests a hub's own description. A context manager that closes its connection; for one thread at a time.

    Every call raises `HubUnavailableError`, which names the hub and what failed, if no answer comes.
    """

    def __init__(self, connection: Connection, consumer_group: str) -> None:
        self._connection = connection
        self._consumer_group = consumer_group
        self._client: EventHubConsumerClient | None = None
        self._handler: Any = None
        self._management: Management | None = None
        self._auth: Any = None
        self._opened = 0.0
        self._token, self._token_until = "", 0.0
        self._public_only = False

    def __enter__(self) -> HubMetadata:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def partition_ids(self) -> tuple[str, ...]:
        """The ids of the hub's partitions."""
        answers = self._ask([self._question(_HUB)])
        if answers is None:
            return tuple(self._public(lambda client: client.get_partition_ids()))
        return tuple(id.decode() for id in answers[0][b"partition_ids"])

    def partition_states(self, partitions: Iterable[str]) -> dict[str, PartitionState]:
        """The state of each of `partitions`."""
        wanted, states = list(partitions), dict[str, PartitionState]()
        for first in range(0, len(wanted), _QUESTIONS_AT_ONCE):
            some = wanted[first : first + _QUESTIONS_AT_ONCE]
            answers = self._ask([self._question(_PARTITION, partition=partition) for partition in some])
            for index, partition in enumerate(some):
                states[partition] = self._state(partition, None if answers is None else answers[index])
        return states

    def close(self) -> None:
        """Close the connection; the next question opens a new one."""
        handler, client = self._handler, self._client
        self._handler = self._client = self._management = None
        for closing in (handler, client):
            if closing is not None:
                try:
                    closing.close()
                except Exception as error:  # a connection that is broken already has nothing left to close
                    _LOG.debug("closing a management connection: %s", error)

    def _state(self, partition: str, answer: dict[bytes, Any] | None) -> PartitionState:
        if answer is None:
            found = self._public(lambda client: client.get_partition_properties(partition))
            begin, last = found["beginning_sequence_number"], found["last_enqueued_sequence_number"]
            empty, offset, time_utc = found["is_empty"], found["last_enqueued_offset"], found["last_enqueued_time_utc"]
            never = last < 0
        else:
            begin, last = answer[b"begin_sequence_number"], answer[b"last_enqueued_sequence_number"]
            empty, offset = answer[b"is_partition_empty"], answer[b"last_enqueued_offset"].decode()
            never = last < 0
            ms = answer[b"last_enqueued_time_utc"]
            time_utc = datetime.now(timezone.utc) if never else datetime.fromtimestamp(ms / 1000, timezone.utc)
        end = last + 1
        return PartitionState(end if empty else begin, end, None if never else offset, None if never else time_utc)

    def _question(self, kind: str, **properties: str) -> Question:
        return kind, (("name", self._connection.hub), *properties.items())

    def _ask(self, schedule: Sequence[Question]) -> list[dict[bytes, Any]] | None:
        """The answers over the open management connection; None where only the public calls can be used."""
        for attempt in (1, 2):
            if self._public_only:
                return None
            fresh = self._management is None or time.monotonic() - self._opened > _CONNECTION_AGE
            try:
                if fresh:
                    self.close()
                    self._open()
                return self._request(schedule)
            except (AttributeError, TypeError, ImportError) as error:
                self._use_public_calls(str(error))
            except Exception as error:
                self.close()
                # A connection that was kept open may have been closed by the service meanwhile, and the token that it
                # was opened with may have come from a cache: once more, afresh.
                refused = _is_refusal(error)
                if attempt == 2 or (fresh and not refused):
                    raise self._unavailable(error) from error
                if refused:
                    self._connection.renew()
        return None

    def _open(self) -> None:
        if (reason := untested_version()) is not None:
            self._use_public_calls(reason)
            return
        client: Any = self._connection.consumer_client(self._consumer_group, **_SETTINGS)
        self._client = client
        self._auth = client._create_auth()
        transport = client._amqp_transport
        handler = transport.create_mgmt_client(client._address, mgmt_auth=self._auth, config=client._config)
        self._handler = handler
        with cut_off_after(_ANSWER_TIMEOUT, lambda: handler._connection):
            connection = client._conn_manager.get_connection(endpoint=client._address.hostname, auth=self._auth)
            handler.open(connection=connection)
            while not handler.client_ready():
                time.sleep(0.002)
            operation = _open_operation(handler)
        reason = management_incompatibility(handler, operation)
        if reason is None:
            self._management = Management(handler, operation, transport.get_error)
            self._opened, self._token_until = time.monotonic(), 0.0
        else:
            self._use_public_calls(reason)

    def _request(self, schedule: Sequence[Question]) -> list[dict[bytes, Any]] | None:
        if self._management is None:
            return None
        now = time.monotonic()
        if now >= self._token_until:
            access = self._auth.get_token()
            self._token, self._token_until = access.token, now + min(_TOKEN_AGE, (access.expires_on - time.time()) / 2)
        return self._management.ask(schedule, self._token, _ANSWER_TIMEOUT)

    def _use_public_calls(self, reason: str) -> None:
        _LOG.warning("this azure-eventhub keeps no management connection open (%s): asking slowly", reason)
        self._public_only = True
        self.close()

    def _public(self, question: Any) -> Any:
        try:
            with self._connection.consumer_client(self._consumer_group, **_SETTINGS) as client:
                return question(client)
        except EventHubError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> HubUnavailableError:
        where = f"event hub {self._connection.hub!r} at {self._connection.namespace}"
        what = "refused the credentials" if _is_refusal(error) else "did not answer"
        # What comes from below the public calls says only in its description what has happened.
        told = getattr(error, "description", None) or str(error)
        lines = (told.decode() if isinstance(told, bytes) else str(told)).splitlines() or [type(error).__name__]
        return HubUnavailableError(f"{where} {what} (asked for its properties over AMQP): {lines[0]}")


def _open_operation(handler: Any) -> Any:
    """The client's operation on the hub's `$management`, with its links attached."""
    from azure.eventhub._pyamqp import management_operation  # private: it may not be there

    make: Any = management_operation.ManagementOperation
    operation = make(handler._session, status_code_field=b"status-code", status_description_field=b"status-description")
    operation.open()
    while not operation.ready():  # raises what is wrong with it
        handler._connection.listen()
    return operation


def _is_refusal(error: Exception) -> bool:
    private = any(base.__name__ == "AuthenticationException" for base in type(error).__mro__)
    return private or isinstance(error, AuthenticationError)


#: One attempt: whoever asks decides about the next one.
_SETTINGS = {"retry_total": 0, "socket_timeout": 0.2}

#: Seconds for TLS, SASL, CBS and attach together, and for the answer: round trips, also to another continent.
_ANSWER_TIMEOUT = 20.0
