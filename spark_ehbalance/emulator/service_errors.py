"""The errors of Event Hubs, in Azure's words."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime, timezone

from .amqp import errors
from .amqp.errors import AmqpError

ARGUMENT_ERROR = "com.microsoft:argument-error"
ENTITY_DISABLED = "com.microsoft:entity-disabled"
INVALID_OFFSET = "com.microsoft:georeplication:invalid-offset"
OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
SERVER_BUSY = "com.microsoft:server-busy"
_NAMESPACE = "emulator"  # in texts that name it


def service_error(condition: str, text: str) -> AmqpError:
    """An error whose text ends as all of Azure's do, with what its support finds the error by."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    return AmqpError(condition, f"{text} TrackingId:{uuid.uuid4()}, SystemTracker:emulator, Timestamp:{now}")


def not_found(path: str) -> AmqpError:
    """There is no hub at `path`, the path of a link."""
    return service_error(errors.NOT_FOUND, f"The messaging entity 'sb://{_NAMESPACE}/{path}' could not be found.")


def group_not_found(hub: str, group: str) -> AmqpError:
    """The hub does not have this consumer group; its number among the service's containers is made up."""
    entity = f"{_NAMESPACE}:eventhub:{hub.lower()}~32766|{group}"
    return service_error(errors.NOT_FOUND, f"The messaging entity '{entity}' could not be found.")


def no_such_partition(count: int) -> AmqpError:
    return service_error(
        OUT_OF_RANGE,
        "The specified partition is invalid for an EventHub partition sender or receiver. "
        f"It should be between 0 and {count - 1}.",
    )


def invalid_offset(offset: str) -> AmqpError:
    """A geo-replicated hub has, or had, no event with this offset."""
    return service_error(INVALID_OFFSET, f"The supplied offset '{offset[:100]}' is invalid.")


def deleted(entity: str) -> AmqpError:
    return service_error(errors.RESOURCE_DELETED, f"The messaging entity '{entity}' has been deleted.")


def disabled(hub: str) -> AmqpError:
    return service_error(ENTITY_DISABLED, f"Messaging entity 'sb://{_NAMESPACE}/{hub}' is currently disabled.")


def server_busy() -> AmqpError:
    return service_error(
        SERVER_BUSY,
        "The request was terminated because the entity is being throttled. Error code : 50002. "
        "Please wait 4 seconds and try again.",
    )


def too_many_connections() -> AmqpError:
    return service_error(errors.RESOURCE_LIMIT, f"ConnectionsQuotaExceeded for namespace {_NAMESPACE}.")


def idle(path: str, reads: bool, seconds: float) -> AmqpError:
    """Nothing has been sent or asked for on the link in `seconds`."""
    kind = "Consumer" if reads else "Publisher"
    span = f"{int(seconds // 3600):02}:{int(seconds // 60 % 60):02}:{int(seconds % 60):02}"
    return service_error(
        errors.DETACH_FORCED,
        f"The link '{path}' is force detached by the broker due to errors occurred in {kind.lower()}. "
        f"Detach origin: AmqpEventHub{kind}.IdleTimerExpired: Idle timeout: {span}.",
    )


def unauthorized(path: str, reads: bool, *, expired: bool = False) -> AmqpError:
    """No valid token covers the entity at `path`. `expired`: an attached link's token did until now."""
    text = f"Unauthorized access. '{'Listen' if reads else 'Send'}' claim(s) are required to perform this operation. "
    text += f"Resource: 'sb://{path}'."
    if expired:
        return service_error(errors.DETACH_FORCED, f"The link is force detached. Code: RenewToken. Details: {text}")
    return service_error(errors.UNAUTHORIZED, text)


def replaced(old: tuple[str, int | None], new: tuple[str, int | None]) -> AmqpError:
    """The reader `old` (name and epoch) is replaced by `new`."""
    return service_error(
        errors.LINK_STOLEN,
        f"New receiver '{new[0]}' with higher epoch of '{new[1]}' is created hence current receiver '{old[0]}' "
        f"with epoch '{old[1] or 0}' is getting disconnected. If you are recreating the receiver, make sure a "
        "higher epoch is used.",
    )


def epoch_required(highest: int) -> AmqpError:
    return service_error(
        errors.LINK_STOLEN,
        f"At least one receiver for the endpoint is created with epoch of '{highest}', and so non-epoch receiver is "
        "not allowed. Either reconnect with a higher epoch, or make sure all epoch receivers are closed or "
        "disconnected.",
    )


def epoch_too_low(highest: int, epoch: int) -> AmqpError:
    return service_error(
        errors.LINK_STOLEN,
        f"A receiver with a higher epoch '{highest}' already exists. A new receiver with epoch {epoch} cannot be "
        "created. Make sure you are creating receiver with increasing epoch value to ensure connectivity, or ensure "
        "all old epoch receivers are closed or disconnected.",
    )


def too_many_readers(allowed: int, names: Iterable[str]) -> AmqpError:
    return service_error(
        errors.RESOURCE_LIMIT,
        f"Exceeded the maximum number of allowed receivers per partition in a consumer group which is {allowed}. "
        f"List of connected receivers - {', '.join(names)}.",
    )
