"""One link by which events are sent, to a partition or to the hub, which then chooses one for each batch.

The client opens it; the batches come encoded (`wire.encoder`), as it takes 25 µs to encode an event.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.eventhub.client_errors import ServerBusyError, TransientError, translate_error
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.tokens import TokenUnavailableError
from spark_ehbalance.eventhub.wire.client import cut_off_at, private_calls
from spark_ehbalance.eventhub.wire.encoder import Batch
from spark_ehbalance.eventhub.wire.frames import bounded_transport
from spark_ehbalance.eventhub.wire.sending_link import Deadline, SendingLink

#: Seconds for which the client waits on its socket at a time, as by default.
_SOCKET_TIMEOUT = 0.2


class Sender:
    """Sends to one partition, or to the hub if `partition` is None. Connects at the first call. For one thread at a
    time. Its calls raise what `translate_error` returns or `ClientVersionError`, and it is closed then. If batches are
    `unanswered` then, events may be there twice once these are sent again."""

    def __init__(self, connection: Connection, partition: str | None) -> None:
        self._connection, self._partition = connection, partition
        self._client: Any = None
        self._producer: Any = None
        self._link: SendingLink | None = None
        #: How often the hub has answered that it is too busy.
        self.busy = 0

    def most_bytes(self, deadline: Deadline) -> int:
        """The size of the largest batch that the hub takes, in bytes."""
        with self._errors():
            self._opened(deadline)
            return int(self._producer._max_message_size_on_link)

    @property
    def unanswered(self) -> list[Batch]:
        """The batches that the hub may have without having answered."""
        return self._link.unanswered if self._link is not None else []

    def send(self, window: list[Batch], deadline: Deadline) -> None:
        """Send the batches of a window (`encoder.windows`) together, and wait until the hub has them, until the
        attempt of `deadline` ends. Those that it has are removed from the list, also if this raises."""
        with self._errors(), private_calls():
            link = self._opened(deadline)
            link.send(window, deadline)
            if link.refusals:
                raise link.refusals.pop()

    def close(self) -> None:
        """Close the connection. May be called twice."""
        for closing in (self._producer, self._client):
            if closing is not None:
                with contextlib.suppress(Exception):  # a broken connection has nothing left to close
                    closing.close()
        self._producer = None

    def _opened(self, deadline: Deadline) -> SendingLink:
        if self._link is None:
            deadline.check()
            timeout = min(
                self._connection.network.opening_timeout(_SOCKET_TIMEOUT), deadline.attempt_end - time.monotonic()
            )
            self._client = self._connection.producer_client(
                retry_total=0, socket_timeout=timeout, amqp_transport=bounded_transport()
            )
            with private_calls():
                self._producer = producer = self._client._create_producer(partition_id=self._partition)
                producer._keep_alive = 0  # no thread, see `Receiver`
                with cut_off_at(lambda: deadline.attempt_end, lambda: producer._handler._connection):
                    producer._open()
                self._link = SendingLink(producer._handler)
                _wait_longer(producer._handler._connection._transport.sock)
        return self._link

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except TokenUnavailableError as error:
            self.close()
            raise TransientError(str(error)) from None
        except EhBalanceError:
            self.close()
            raise
        except Exception as error:
            refusals = self._link.refusals if self._link is not None else []
            meant = [
                translate_error(self._converted(each), self._connection, self._partition, sends=True)
                for each in (*refusals, error)
            ]
            self.busy = sum(isinstance(each, ServerBusyError) for each in meant)
            self.close()
            # what does not pass, then what is waited for
            raise min(
                meant, key=lambda each: (isinstance(each, TransientError), not isinstance(each, ServerBusyError))
            ) from error

    def _converted(self, error: Exception) -> Exception:
        """The client's own error for one of its transport."""
        if isinstance(error, EventHubError) or self._producer is None or not self._producer.running:
            return error
        try:
            converted: Exception = self._producer._handle_exception(error)
        except EventHubError as raised:
            return raised
        return converted


def _wait_longer(opened: Any) -> None:
    """Take the client's limit away, one second without an acknowledgement: it would break the connection to a hub that
    stops reading for longer, and what was on its way would be there twice."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # a websocket has the socket below
        getattr(opened, "sock", opened).setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
