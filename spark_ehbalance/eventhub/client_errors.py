"""What an error of the client means for who reads or writes, in words that say what to do about it."""

from __future__ import annotations

import time

from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.errors import HubUnavailableError, MissingError
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.network import NetworkError
from spark_ehbalance.eventhub.server_busy import BUSY
from spark_ehbalance.eventhub.service_errors import (
    FINAL,
    ErrorKind,
    classify,
    condition_of,
    credentials_help,
    explained,
    is_refusal,
)
from spark_ehbalance.eventhub.wire.values import MalformedError
from spark_ehbalance.settings.secrets import looks_secret

#: How the client begins when the service has refused a token, in three lines.
_TOKEN_REFUSED = "CBS Token authentication failed."

#: Characters of an error that are repeated: those of the service have fewer.
_LONGEST = 1000

#: Seconds for which a hub must be reported missing: the service moves hubs between its machines and loses links, and
#: one wrong answer must not fail a query.
_MISSING_FOR = 2.0


class CredentialsRefusedError(HubUnavailableError):
    """The credentials were refused or have expired."""


class TransientError(Exception):
    """The connection broke or was refused for a reason that may pass: a new receiver, or sender, may succeed."""


class ServerBusyError(TransientError, HubUnavailableError):
    """The service was too busy, which is counted: to be tried again after `busy_wait`. A request for
    properties was repeated before."""


class MissingHubCheck:
    """Decides when to believe that a hub, or its partition or consumer group, is missing. `since` is the monotonic time
    of the first of the latest answers that agree on that."""

    def __init__(self) -> None:
        self.since: float | None = None

    def answered(self) -> None:
        """Note an answer other than an error."""
        self.since = None

    def is_confirmed_by(self, error: Exception) -> bool:
        """Note an error; returns whether the errors of the last two seconds agree that the hub is missing."""
        if not isinstance(error, MissingError):
            self.since = None
            return False
        self.since = self.since or time.monotonic()
        return time.monotonic() - self.since >= _MISSING_FOR


def connection_error(error: BaseException, connection: Connection, partition: str | None) -> Exception:
    """What to raise when no connection could be opened: an error that names the option to look at."""
    problem = connection.network.problem(error, connection.namespace)
    if problem is not None and connection.network.is_final(error):
        return NetworkError(_of(partition) + problem)
    if problem is None and isinstance(error, MalformedError):
        problem = f"{connection.namespace} sent {error}: check that it is the address of an event hub"
    return TransientError(problem or f"no connection could be made to {connection.namespace}")


def translate_error(
    error: Exception, connection: Connection, partition: str | None, consumer_group: str = "", *, sends: bool = False
) -> Exception:
    """The package's error for an error of the client on an open or refused connection: `NetworkError`,
    `CredentialsRefusedError`, `MissingError`, `ServerBusyError` or `TransientError`.

    A sender has no `consumer_group`, and may have no `partition`.
    """
    namespace, hub = connection.namespace, connection.hub
    if connection.network.problem(error, namespace) is not None:
        return connection_error(error, connection, partition)
    text = error_message(error)
    what = classify(condition_of(error), text)
    if is_refusal(error) and what not in FINAL:
        advice = credentials_help(connection.identity is None, sends=sends, reference=connection.reference)
        return CredentialsRefusedError(
            f"{_of(partition)}event hub {hub!r} at {namespace} refused the credentials: {text.rstrip('.')}. {advice}"
        )
    if what in FINAL:
        return MissingError(explained(what, namespace, hub, consumer_group, partition))
    if what is ErrorKind.BUSY:
        BUSY.note(connection.hub_name)
        return ServerBusyError(text)
    return TransientError(text)


def error_message(error: Exception) -> str:
    """What an error says, in one line. Those of the client's private parts say the least in their first line. A server
    may say anything, also the token that it was given."""
    given = getattr(error, "description", None) or str(error)
    lines = (given.decode(errors="replace") if isinstance(given, bytes) else str(given)).splitlines()
    if isinstance(error, EventHubError):
        lines = lines[: 3 if lines[:1] == [_TOKEN_REFUSED] else 1]
    text = " ".join(lines) or type(error).__name__
    if looks_secret(text := text[:_LONGEST]):
        return "it said what looks like a key or a token, which is not repeated here"
    return text


def _of(partition: str | None) -> str:
    return "" if partition is None else f"partition {partition}: "
