"""Translates errors of Azure's client into the package's errors."""

from __future__ import annotations

import time

from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.errors import EhBalanceError, HubUnavailableError, MissingError, describe
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.network import NetworkError
from spark_ehbalance.eventhub.server_busy import BUSY
from spark_ehbalance.eventhub.service_errors import (
    FINAL,
    ErrorKind,
    classify,
    condition_of,
    credentials_to_check,
    hub_text,
    is_refusal,
    missing_error,
)
from spark_ehbalance.eventhub.wire.values import MalformedError
from spark_ehbalance.settings.secrets import looks_secret

#: First line of the client's three-line error for a refused token.
_TOKEN_REFUSED = "CBS Token authentication failed."

#: Maximum number of characters of a server's message in an error; the service's own messages are shorter.
_MAX_TEXT_LENGTH = 1000

#: Seconds for which a hub must be reported missing before it counts as missing. While the service moves a hub between
#: its machines, it may report the hub missing for a moment, and one such answer must not fail a query.
_MISSING_FOR = 2.0


class CredentialsRefusedError(HubUnavailableError):
    """The credentials were refused or have expired."""


class TransientError(Exception):
    """The connection broke or was refused, possibly temporarily: retry with a new receiver or sender."""


class ServerBusyError(TransientError, HubUnavailableError):
    """The service throttled the request: retry after `busy_wait`. Requests for a hub's properties have already been
    retried when this is raised."""


class MissingHubCheck:
    """Decides when a hub, consumer group or partition counts as missing. `since` is the monotonic time of the first
    `MissingError` since the last other answer; None if the last answer was not a `MissingError`."""

    def __init__(self) -> None:
        self.since: float | None = None

    def record_answer(self) -> None:
        """Record a successful answer."""
        self.since = None

    def record_error(self, error: Exception) -> bool:
        """Record an error. Returns True if every answer for at least `_MISSING_FOR` seconds has been a
        `MissingError`."""
        if not isinstance(error, MissingError):
            self.since = None
            return False
        self.since = self.since or time.monotonic()
        return time.monotonic() - self.since >= _MISSING_FOR


def connection_error(error: BaseException, connection: Connection, partition: str | None) -> Exception:
    """The error to raise for a connection that could not be opened: `NetworkError` if a retry is pointless, otherwise
    `TransientError`."""
    problem = connection.network.problem(error, connection.namespace)
    if problem is not None and connection.network.is_final(error):
        target = connection.hub_name if partition is None else f"partition {partition} of {connection.hub_name}"
        return NetworkError("EHB_NETWORK_INVALID", target=target, problem=problem)
    if problem is None and isinstance(error, MalformedError):
        problem = f"{connection.namespace} sent {error}; it may not be the address of an event hub"
    return TransientError(problem or f"no connection to {connection.namespace}")


def translate_error(
    error: Exception, connection: Connection, partition: str | None, consumer_group: str = "", *, sends: bool = False
) -> Exception:
    """Translate an error that the client raised on an open or refused connection into a `NetworkError`,
    `CredentialsRefusedError`, `MissingError`, `ServerBusyError` or `TransientError`.

    For a sender, `consumer_group` is empty, and `partition` may be None.
    """
    namespace, hub = connection.namespace, connection.hub
    if connection.network.problem(error, namespace) is not None:
        return connection_error(error, connection, partition)
    text = error_message(error)
    kind = classify(condition_of(error), text)
    if kind in FINAL:
        return missing_error(kind, namespace, hub, consumer_group, partition)
    place, reason = hub_text(namespace, hub, partition), text.rstrip(".")
    if is_refusal(error):
        check = credentials_to_check(connection.identity is None, sends=sends, reference=connection.reference)
        return CredentialsRefusedError("EHB_CREDENTIALS_REFUSED", hub=place, reason=reason, check=check)
    if kind is ErrorKind.BUSY:
        BUSY.record(connection.hub_name)
        return ServerBusyError("EHB_HUB_UNREACHABLE", what=f"{place} is too busy", reason=reason)
    return TransientError(text)


def error_message(error: Exception) -> str:
    """An error's message, on one line. A message that repeats the token sent to the server is not shown."""
    if isinstance(error, EhBalanceError):
        return describe(error)
    text = getattr(error, "description", None) or str(error)
    lines = (text.decode(errors="replace") if isinstance(text, bytes) else str(text)).splitlines()
    if isinstance(error, EventHubError):  # the other lines are for developers of the client
        lines = lines[: 3 if lines[:1] == [_TOKEN_REFUSED] else 1]
    line = (" ".join(lines) or type(error).__name__)[:_MAX_TEXT_LENGTH]
    return "the text is not shown, as it may contain a key or a token" if looks_secret(line) else line
