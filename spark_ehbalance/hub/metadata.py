"""What Event Hubs says of a hub: its partitions, and the first and last event of each.

The client's public calls open a connection for each question and sleep in between (0.36 s each). Here one management
connection stays open, and questions are sent without waiting for the answers to those before, so that any number
takes little more than a round trip. It needs a few of the client's private parts; where they do not fit the public
calls are used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any

from azure.eventhub import EventHubConsumerClient
from azure.eventhub.exceptions import AuthenticationError, EventHubError

from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.watchdog import cut_off_after

_LOG = logging.getLogger(__name__)

#: A management connection is opened anew after this many seconds, well before its token (20 to 60 minutes) ends.
_CONNECTION_AGE = 600.0

#: ... and after this many questions: the client grants its peer 10,000 answers and never more.
_CONNECTION_QUESTIONS = 5000

#: Questions under way at once: a second's worth of what Event Hubs answers (50).
_QUESTIONS_AT_ONCE = 50

#: The kind of a question, and the properties that are sent with it.
_Question = tuple[str, dict[str, str]]


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
    """Asks one hub about itself. For one thread at a time.

    Every call raises `HubUnavailableError`, which says what was tried, if there is no answer.
    """

    def __init__(self, connection: Connection, consumer_group: str) -> None:
        self._connection = connection
        self._consumer_group = consumer_group
        self._client: EventHubConsumerClient | None = None
        self._handler: Any = None
        self._link: Any = None
        self._auth: Any = None
        self._opened = 0.0
        self._asked = 0
        self._public_only = False

    def partition_ids(self) -> tuple[str, ...]:
        """The ids of the hub's partitions."""
        answers = self._ask([("com.microsoft:eventhub", {})])
        if answers is None:
            return tuple(self._public(lambda client: client.get_partition_ids()))
        return tuple(id.decode() for id in answers[0][b"partition_ids"])

    def partition_states(self, partitions: Iterable[str]) -> dict[str, PartitionState]:
        """The state of each of `partitions`."""
        wanted, states = list(partitions), dict[str, PartitionState]()
        for first in range(0, len(wanted), _QUESTIONS_AT_ONCE):
            some = wanted[first : first + _QUESTIONS_AT_ONCE]
            answers = self._ask([("com.microsoft:partition", {"partition": partition}) for partition in some])
            for index, partition in enumerate(some):
                states[partition] = self._state(partition, None if answers is None else answers[index])
        return states

    def close(self) -> None:
        """Close the connection; the next question opens a new one."""
        handler, client = self._handler, self._client
        self._handler = self._client = self._link = None
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

    def _ask(self, questions: Sequence[_Question]) -> list[dict[bytes, Any]] | None:
        """The answers over the open management connection; None where only the public calls can be used."""
        for attempt in (1, 2):
            if self._public_only:
                return None
            old = time.monotonic() - self._opened > _CONNECTION_AGE or self._asked > _CONNECTION_QUESTIONS
            fresh = self._link is None or old
            try:
                if fresh:
                    self.close()
                with cut_off_after(_ANSWER_TIMEOUT, lambda: self._handler._connection):
                    if fresh:
                        self._open()
                    return self._request(questions)
            except (AttributeError, TypeError, ImportError) as error:
                _LOG.warning("this azure-eventhub keeps no management connection open (%s): asking slowly", error)
                self._public_only = True
                self.close()
            except Exception as error:
                self.close()
                # A connection that was kept open may have been closed by the service meanwhile: once more, afresh.
                if fresh or attempt == 2:
                    raise self._unavailable(error) from error
        return None

    def _open(self) -> None:
        client: Any = self._connection.consumer_client(self._consumer_group, **_SETTINGS)
        self._client = client
        self._auth = client._create_auth()
        handler = client._amqp_transport.create_mgmt_client(
            client._address, mgmt_auth=self._auth, config=client._config
        )
        self._handler = handler
        handler.open(connection=client._conn_manager.get_connection(endpoint=client._address.hostname, auth=self._auth))
        while not handler.client_ready():
            time.sleep(0.002)
        self._link = _management_link(handler)
        self._opened, self._asked = time.monotonic(), 0

    def _request(self, questions: Sequence[_Question]) -> list[dict[bytes, Any]]:
        client: Any = self._client
        transport = client._amqp_transport
        answers: dict[int, dict[bytes, Any]] = {}
        refused: list[Exception] = []

        def answered(index: int, _result: Any, status: Any, description: bytes, response: Any, error: Any) -> None:
            if status is None:
                refused.append(error)
            elif int(status) >= 400:
                refused.append(transport.get_error(int(status), (description or b"").decode()))
            else:
                answers[index] = response.value

        token = transport.get_updated_token(self._auth)
        for index, (kind, properties) in enumerate(questions):
            message = transport.build_message(
                application_properties={"name": client.eventhub_name, **properties, "security_token": token}
            )
            self._asked += 1
            self._link._mgmt_link.execute_operation(message, partial(answered, index), operation="READ", type=kind)
        while len(answers) < len(questions):
            _listen(self._handler, self._link)
            if refused:
                raise refused[0]
        return [answers[index] for index in range(len(questions))]

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


def _management_link(handler: Any) -> Any:
    """The open link to the hub's `$management`."""
    from azure.eventhub._pyamqp import management_operation  # private: it may not be there

    make: Any = management_operation.ManagementOperation
    link = make(handler._session, status_code_field=b"status-code", status_description_field=b"status-description")
    link.open()
    while not link.ready():
        _listen(handler, link)
    return link


def _listen(handler: Any, link: Any) -> None:
    """Take what comes next on the connection; raises what is wrong with it."""
    handler._connection.listen()
    if link._mgmt_error is not None:
        raise link._mgmt_error


def _is_refusal(error: Exception) -> bool:
    private = any(base.__name__ == "AuthenticationException" for base in type(error).__mro__)
    return private or isinstance(error, AuthenticationError)


#: One attempt: whoever asks decides about the next one.
_SETTINGS = {"retry_total": 0, "socket_timeout": 0.2}

#: Seconds for TLS, SASL, CBS, attach and the answer together: several round trips, also to another continent.
_ANSWER_TIMEOUT = 20.0
