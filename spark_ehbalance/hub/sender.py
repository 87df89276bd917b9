"""One link by which events are sent, to a partition or to the hub, which then chooses one for each batch.

The client opens it and sends; the batches come encoded (`wire.outgoing`), as it takes 25 µs to encode an event.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.errors import EhBalanceError, HubUnavailableError, MissingError
from spark_ehbalance.hub.conditions import (
    FINAL,
    Meaning,
    condition_of,
    credentials_help,
    explained,
    is_refusal,
    meaning,
)
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.network import NetworkError
from spark_ehbalance.hub.receiver import RefusedError
from spark_ehbalance.hub.server_busy import BUSY
from spark_ehbalance.hub.tokens import NoTokenError
from spark_ehbalance.hub.wire.client import check_open, cut_off_after, private_calls
from spark_ehbalance.hub.wire.outgoing import BATCH_FORMAT

#: Seconds for each read and write of the client: it gives up a write of 64 KB that takes longer, and returns from a
#: read as soon as something comes.
_SOCKET_TIMEOUT = 10.0

#: Seconds for TLS, SASL, CBS and attach together: several round trips, possibly to another continent.
_OPEN_TIMEOUT = 20.0

#: How the client names the condition of a batch that is too large.
_TOO_LARGE = "link:message-size-exceeded"


class NotSent(Exception):
    """The link is closed; the hub has not said that it has the batch. Sent again, its events may be there twice."""


class BusyHub(NotSent):
    """The hub was too busy, which is counted, and has refused the batch: to be sent after `conditions.busy_wait`."""


class _Batch:
    """What the client sends in the place of a message: it has no section, but for the `payload`."""

    _code = BATCH_FORMAT

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def __getitem__(self, section: int) -> None:
        return None


class Sender:
    """Sends to one partition, or to the hub if `partition` is None. Connects at the first call. For one thread at a
    time. Its calls raise `NotSent`, `MissingError`, `RefusedError` or another `HubUnavailableError`, or
    `ClientVersionError`, and it is closed then."""

    def __init__(self, connection: Connection, partition: str | None) -> None:
        self._connection, self._partition = connection, partition
        self._client: Any = connection.producer_client(retry_total=0, socket_timeout=_SOCKET_TIMEOUT)
        self._producer: Any = None

    def most_bytes(self) -> int:
        """The size of the largest batch that the hub takes, in bytes."""
        with self._errors():
            return int(self._opened()._max_message_size_on_link)

    def send(self, sections: Sequence[bytes], timeout: float) -> None:
        """Send a batch of events (`Encoder.event`), and wait for at most `timeout` seconds until the hub has it."""
        with self._errors(), private_calls():
            self._opened()._handler.send_message(_Batch(b"".join(sections)), timeout=timeout)

    def close(self) -> None:
        """Close the connection. May be called twice."""
        for closing in (self._producer, self._client):
            if closing is not None:
                with contextlib.suppress(Exception):  # a broken connection has nothing left to close
                    closing.close()
        self._producer = None

    def _opened(self) -> Any:
        if self._producer is None:
            with private_calls():
                self._producer = producer = self._client._create_producer(partition_id=self._partition)
                producer._keep_alive = 0  # no thread, see `Receiver`
                with cut_off_after(_OPEN_TIMEOUT, lambda: producer._handler._connection):
                    producer._open()
                session = producer._handler._session
                session._outgoing_transfer = partial(_with_payload, session._outgoing_transfer)
        return self._producer

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except EhBalanceError:
            self.close()
            raise
        except NoTokenError as error:
            self.close()
            raise NotSent(str(error)) from None
        except Exception as error:
            meant = self._meaning(self._converted(error))
            self.close()
            raise meant from error

    def _converted(self, error: Exception) -> Exception:
        """The client's own error for one of its transport. Of a batch that was on its way when the link was closed it
        says no more than that: then that of the link."""
        if isinstance(error, EventHubError) or self._producer is None or not self._producer.running:
            return error
        try:
            handler = self._producer._handler
            check_open(handler._connection, handler._session, handler._link)
            converted: Exception = self._producer._handle_exception(error)
        except EventHubError as raised:
            return raised
        except Exception as ended:
            converted = self._producer._handle_exception(ended)
        return converted

    def _meaning(self, error: Exception) -> Exception:
        connection = self._connection
        where = f"event hub {connection.hub!r} at {connection.namespace}"
        problem = connection.network.problem(error, connection.namespace)
        if problem is not None:
            return NetworkError(problem) if connection.network.is_final(error) else NotSent(problem)
        text = (str(error).splitlines() or [type(error).__name__])[0]
        if is_refusal(error):
            advice = credentials_help(connection.identity is None, sends=True)
            return RefusedError(f"{where} refused the credentials: {text.rstrip('.')}. {advice}")
        what = meaning(condition_of(error), text)
        if what in FINAL:
            named = explained(what, connection.namespace, connection.hub, "", self._partition)
            return MissingError(named)
        if what is Meaning.BUSY:
            BUSY.note(connection.hub_name)
            return BusyHub(text)
        if condition_of(error) == _TOO_LARGE:
            return HubUnavailableError(f"{where} refused a batch as too large: {text}")
        return NotSent(text)


def _with_payload(send: Any, delivery: Any, trace: Any) -> None:
    """The session's own way to `send`, with what the client could not encode."""
    delivery.frame["payload"] = delivery.message.payload
    send(delivery, trace)
