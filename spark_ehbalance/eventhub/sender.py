"""One link by which events are sent, to a partition or to the hub, which then chooses one for each batch.

The client opens it and sends; the batches come encoded (`wire.outgoing`), as it takes 25 µs to encode an event.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.refusals import Unreachable, refusal
from spark_ehbalance.eventhub.tokens import NoTokenError
from spark_ehbalance.eventhub.wire.client import check_open, cut_off_after, private_calls
from spark_ehbalance.eventhub.wire.frames import bounded_transport
from spark_ehbalance.eventhub.wire.outgoing import BATCH_FORMAT

#: Seconds for each read and write of the client: it gives up a write of 64 KB that takes longer, and returns from a
#: read as soon as something comes.
_SOCKET_TIMEOUT = 10.0

#: Seconds for which nothing of what was sent may be acknowledged. The client's own limit, one second, would break the
#: connection to a hub that stops reading for longer, and what was on its way would be there twice.
_UNACKNOWLEDGED = 10.0

#: Seconds for TLS, SASL, CBS and attach together: several round trips, possibly to another continent.
_OPEN_TIMEOUT = 20.0


class _Batch:
    """What the client sends in the place of a message: it has no section, but for the `payload`."""

    _code = BATCH_FORMAT

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def __getitem__(self, section: int) -> None:
        return None


class Sender:
    """Sends to one partition, or to the hub if `partition` is None. Connects at the first call. For one thread at a
    time. Its calls raise what `refusal` returns or `ClientVersionError`, and it is closed then. After `Unreachable`,
    but not after `Busy`, the hub may have the batch: sent again, its events may be there twice."""

    def __init__(self, connection: Connection, partition: str | None) -> None:
        self._connection, self._partition = connection, partition
        self._client: Any = connection.producer_client(
            retry_total=0, socket_timeout=_SOCKET_TIMEOUT, amqp_transport=bounded_transport()
        )
        self._producer: Any = None

    def most_bytes(self) -> int:
        """The size of the largest batch that the hub takes, in bytes."""
        with self._errors():
            return int(self._opened()._max_message_size_on_link)

    def send(self, payload: bytes, timeout: float) -> None:
        """Send a batch of events (`outgoing.batches`), and wait for at most `timeout` seconds until the hub has it."""
        with self._errors(), private_calls():
            handler = self._opened()._handler
            # the client itself waits without end for a hub that has ended the session, or reads byte by byte
            with cut_off_after(timeout + _SOCKET_TIMEOUT, lambda: handler._connection):
                handler.send_message(_Batch(payload), timeout=timeout)

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
                _wait_longer(producer._handler._connection._transport.sock)
        return self._producer

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except NoTokenError as error:
            self.close()
            raise Unreachable(str(error)) from None
        except EhBalanceError:
            self.close()
            raise
        except Exception as error:
            meant = refusal(self._converted(error), self._connection, self._partition, sends=True)
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


def _wait_longer(opened: Any) -> None:
    """Set `_UNACKNOWLEDGED` where the system has such a limit; a websocket has the socket below."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        limit = round(1000 * _UNACKNOWLEDGED)
        getattr(opened, "sock", opened).setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)


def _with_payload(send: Any, delivery: Any, trace: Any) -> None:
    """The session's own way to `send`, with what the client could not encode."""
    delivery.frame["payload"] = delivery.message.payload
    send(delivery, trace)
