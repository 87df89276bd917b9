"""Classifies the service's errors by their AMQP condition, or by status and text where there is none. Pure."""

from __future__ import annotations

import enum
import random
import re


class ErrorKind(enum.Enum):
    """What an error of the service means."""

    MISSING = "the hub or the consumer group does not exist"
    NO_GROUP = "the consumer group does not exist"
    NO_PARTITION = "the hub has no such partition"
    DISABLED = "the hub was disabled by its owner"
    BUSY = "more was asked of the hub than it carries: to be asked again after `busy_wait`"
    OTHER = "anything else, which may pass"


#: Those that stay until somebody changes the hub or the query.
FINAL = frozenset({ErrorKind.MISSING, ErrorKind.NO_GROUP, ErrorKind.NO_PARTITION, ErrorKind.DISABLED})

#: Seconds that Azure's clients wait after "server busy" (`ServerBusyBaseSleepTimeInSecs` in .NET's and Java's), and the
#: service's text asks for; and how many times as long at most: who is refused together must not come back together.
_BUSY_WAIT, _BUSY_SPREAD = 4.0, 1.25

_STATUS = re.compile(r"\bStatus code: (\d{3})\b")
_GROUP = re.compile(r":eventhub:[^':|]*\|[^'|]*' could not be found")


def classify(condition: str | None, text: str) -> ErrorKind:
    """What a refusal means that has this AMQP `condition`, with or without the part before the colon, and `text`."""
    name = (condition or "").rpartition(":")[2]
    status = _STATUS.search(text)
    if name == "server-busy" or (status and status[1] in ("429", "503")) or "com.microsoft:server-busy" in text:
        return ErrorKind.BUSY
    if name == "entity-disabled" or (status and "is currently disabled" in text):
        return ErrorKind.DISABLED
    if "specified partition is invalid" in text:
        return ErrorKind.NO_PARTITION
    gone = name == "not-found" or (status is not None and status[1] == "404")
    if gone and _GROUP.search(text):
        return ErrorKind.NO_GROUP
    # the same condition without these words comes from links that the service has lost
    if (gone and "could not be found" in text) or name == "resource-deleted":
        return ErrorKind.MISSING
    return ErrorKind.OTHER


def condition_of(error: BaseException) -> str | None:
    """The AMQP condition of an error of the client, None if it has none."""
    condition = getattr(error, "error", None) or getattr(error, "condition", None)
    condition = getattr(condition, "value", condition)
    return condition.decode(errors="replace") if isinstance(condition, bytes) else condition


def is_refusal(error: Exception) -> bool:
    """Whether the credentials were refused, in the client's own error or in that of its transport."""
    named = any(base.__name__ in ("AuthenticationError", "AuthenticationException") for base in type(error).__mro__)
    return named or getattr(error, "error", None) == "unauthorized-access"


def credentials_help(by_key: bool, *, sends: bool = False, reference: str | None = None) -> str:
    """What to do if the credentials were refused: those `by_key`, read at `reference`, or those of Entra ID."""
    if by_key:
        right = "send" if sends else "listen"
        where = "connectionString" if reference is None else f"connectionString={reference}, which was read again"
        return f"Check the key or signature in {where}: its name, its value, and that it may {right}"
    role = "Sender" if sends else "Receiver"
    return f"Check credential, and that it has the role Azure Event Hubs Data {role} of the hub"


def explained(what: ErrorKind, namespace: str, hub: str, consumer_group: str, partition: str | None) -> str:
    """One line for a user that says what is missing or disabled (one of `FINAL`), and what to do about it."""
    where = f"event hub {hub!r} at {namespace}"
    if what is ErrorKind.DISABLED:
        return f"{where} is disabled: enable it (its status in the portal), then start the query again"
    if what is ErrorKind.NO_GROUP:
        return f"consumer group {consumer_group!r} does not exist in {where}: create it, or set consumerGroup"
    if what is ErrorKind.NO_PARTITION:
        return f"partition {partition} does not exist in {where}: it has fewer partitions than the query has read from"
    if partition is None or not consumer_group:
        return f"{where} does not exist: check eventHubName and the namespace"
    group = f"its consumer group {consumer_group!r}"
    return f"{where} or {group} does not exist: check eventHubName, consumerGroup and the namespace"


def busy_wait() -> float:
    """Seconds to wait before a hub that was busy is asked again."""
    return _BUSY_WAIT * random.uniform(1.0, _BUSY_SPREAD)
