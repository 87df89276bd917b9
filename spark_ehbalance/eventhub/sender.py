"""A link that sends events to a partition, or to the hub, which then chooses a partition for each batch.

The client opens the link, but `wire.encoder` encodes the batches, because the client's encoder takes 25 µs per event.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.errors import EhBalanceError, describe
from spark_ehbalance.eventhub.client_errors import ServerBusyError, TransientError, translate_error
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.tokens import TokenUnavailableError
from spark_ehbalance.eventhub.wire.client import cut_off_at, private_calls
from spark_ehbalance.eventhub.wire.encoder import EncodedBatch
from spark_ehbalance.eventhub.wire.frames import bounded_transport
from spark_ehbalance.eventhub.wire.sending_link import Deadline, SendingLink

#: Timeout of the client's socket in seconds: the client's default.
_SOCKET_TIMEOUT = 0.2

#: Maximum size of a value in AMQP, in bytes. A peer without a limit reports more.
_LARGEST = (1 << 32) - 1


class Sender:
    """Sends to a partition, or to the hub if `partition` is None. Connects on the first call. Only one thread may use
    it at a time.

    Methods raise the errors of `translate_error` or `ClientVersionError`, and then close the sender. Sending
    `unanswered` batches again may duplicate events.
    """

    def __init__(self, connection: Connection, partition: str | None) -> None:
        self._connection, self._partition = connection, partition
        self._client: Any = None
        self._producer: Any = None
        self._link: SendingLink | None = None
        #: Number of times that the hub throttled this sender.
        self.busy = 0

    def most_bytes(self, deadline: Deadline) -> int:
        """Maximum size of a batch, in bytes."""
        with self._errors():
            self._opened(deadline)
            return min(int(self._producer._max_message_size_on_link), _LARGEST)

    @property
    def unanswered(self) -> list[EncodedBatch]:
        """Sent batches that were not acknowledged."""
        return self._link.unanswered if self._link is not None else []

    def send(self, window: list[EncodedBatch], deadline: Deadline) -> None:
        """Send the batches of a `window` (`encoder.windows`) concurrently, and wait for their acknowledgements until
        the attempt of `deadline` ends. Removes acknowledged batches from `window`, even if an error is raised."""
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
                producer._keep_alive = 0  # no keep-alive thread; see `Receiver`
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
            raise TransientError(describe(error)) from None
        except EhBalanceError:
            self.close()
            raise
        except Exception as error:
            refusals = self._link.refusals if self._link is not None else []
            errors = [
                translate_error(self._converted(cause), self._connection, self._partition, sends=True)
                for cause in (*refusals, error)
            ]
            self.busy = sum(isinstance(cause, ServerBusyError) for cause in errors)
            self.close()
            # prefers errors that a retry cannot fix, then throttling
            raise min(
                errors, key=lambda cause: (isinstance(cause, TransientError), not isinstance(cause, ServerBusyError))
            ) from error

    def _converted(self, error: Exception) -> Exception:
        """The client's own error for an error that its transport raised."""
        if isinstance(error, EventHubError) or self._producer is None or not self._producer.running:
            return error
        try:
            converted: Exception = self._producer._handle_exception(error)
        except EventHubError as raised:
            return raised
        return converted


def _wait_longer(opened: Any) -> None:
    """Remove the client's limit of one second without a TCP acknowledgement. If a hub paused for longer, the limit
    would break the connection, and resending would duplicate events."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # a websocket object wraps the socket
        getattr(opened, "sock", opened).setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
