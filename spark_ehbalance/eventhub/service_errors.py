"""Classifies the service's errors by their AMQP condition, or by status and text if they have none. Pure."""

from __future__ import annotations

import enum
import random
import re

from spark_ehbalance.errors import MissingError


class ErrorKind(enum.Enum):
    """Kinds of errors that the service reports."""

    MISSING = "the hub or the consumer group does not exist"
    NO_GROUP = "the consumer group does not exist"
    NO_PARTITION = "the hub has no such partition"
    DISABLED = "the hub was disabled by its owner"
    BUSY = "the hub is throttled: retry after `busy_wait`"
    OTHER = "any other error, possibly transient"


#: Errors that persist until the hub or the query is changed.
FINAL = frozenset({ErrorKind.MISSING, ErrorKind.NO_GROUP, ErrorKind.NO_PARTITION, ErrorKind.DISABLED})

#: Seconds that Azure's clients wait after "server busy" (`ServerBusyBaseSleepTimeInSecs` in .NET and Java), as the
#: service's error text requests; and the maximum of the jitter factor that keeps throttled clients from retrying in
#: lockstep.
_BUSY_WAIT, _BUSY_SPREAD = 4.0, 1.25

_STATUS = re.compile(r"\bStatus code: (\d{3})\b")
_GROUP = re.compile(r":eventhub:[^':|]*\|[^'|]*' could not be found")


def classify(condition: str | None, text: str) -> ErrorKind:
    """The kind of an error with this `text` and AMQP `condition`, whose prefix up to the colon may be missing."""
    name = (condition or "").rpartition(":")[2]
    status = _STATUS.search(text)
    if name == "server-busy" or (status and status[1] in ("429", "503")) or "com.microsoft:server-busy" in text:
        return ErrorKind.BUSY
    if name == "entity-disabled" or (status and "is currently disabled" in text):
        return ErrorKind.DISABLED
    if "specified partition is invalid" in text:
        return ErrorKind.NO_PARTITION
    missing = name == "not-found" or (status is not None and status[1] == "404")
    if missing and _GROUP.search(text):
        return ErrorKind.NO_GROUP
    # Errors of links that the service has lost have the same condition, but not these words.
    if (missing and "could not be found" in text) or name == "resource-deleted":
        return ErrorKind.MISSING
    return ErrorKind.OTHER


def condition_of(error: BaseException) -> str | None:
    """The AMQP condition of an error raised by the client; None if the error has none."""
    condition = getattr(error, "error", None) or getattr(error, "condition", None)
    condition = getattr(condition, "value", condition)
    return condition.decode(errors="replace") if isinstance(condition, bytes) else condition


def is_refusal(error: Exception) -> bool:
    """Whether this error, raised by the client or its transport, means that the credentials were refused."""
    named = any(base.__name__ in ("AuthenticationError", "AuthenticationException") for base in type(error).__mro__)
    return named or getattr(error, "error", None) == "unauthorized-access"


def credentials_to_check(by_key: bool, *, sends: bool = False, reference: str | None = None) -> str:
    """What to check after credentials were refused: the key, which may have been read from `reference`, or the Entra ID
    role."""
    if by_key:
        right = "send" if sends else "listen"
        where = "connectionString" if reference is None else f"connectionString={reference}, which was read again"
        return f"name, value and {right} right of the key or signature in {where}"
    role = "Sender" if sends else "Receiver"
    return f"credential and its role Azure Event Hubs Data {role}"


def hub_text(namespace: str, hub: str, partition: str | None = None) -> str:
    """The hub, or its `partition`, as the beginning of an error message."""
    if partition is None:
        return f"Event hub {hub!r} at {namespace}"
    return f"Partition {partition} of event hub {hub!r} at {namespace}"


def missing_error(kind: ErrorKind, namespace: str, hub: str, group: str, partition: str | None) -> MissingError:
    """The error for a hub, consumer `group` or partition that is missing or disabled: a `kind` of `FINAL`."""
    what, problem = hub_text(namespace, hub), "does not exist"
    if kind is ErrorKind.DISABLED:
        problem = "is disabled"
    elif kind is ErrorKind.NO_GROUP:
        what = f"Consumer group {group!r} of event hub {hub!r} at {namespace}"
    elif kind is ErrorKind.NO_PARTITION:
        what = hub_text(namespace, hub, partition)
        problem = "does not exist: the hub has fewer partitions than the query has read"
    elif partition is not None and group:
        what += f" or its consumer group {group!r}"
    return MissingError("EHB_HUB_NOT_FOUND", what=what, problem=problem)


def busy_wait() -> float:
    """Seconds to wait before the next request to a throttling hub."""
    return _BUSY_WAIT * random.uniform(1.0, _BUSY_SPREAD)
