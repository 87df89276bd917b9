"""The errors of Event Hubs, in Azure's words."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Protocol

from .amqp.errors import (
    DETACH_FORCED,
    LINK_STOLEN,
    NOT_FOUND,
    RESOURCE_DELETED,
    RESOURCE_LIMIT,
    UNAUTHORIZED,
    AmqpError,
)

_SERVER_BUSY = "com.microsoft:server-busy"


class NamedReader(Protocol):
    """A receiver in an error text: `epoch` is its owner level, None if it has none."""

    name: str
    epoch: int | None


def service_error(condition: str, text: str) -> AmqpError:
    """An error whose text ends as all of Azure's do, with what its support finds the error by."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    return AmqpError(condition, f"{text} TrackingId:{uuid.uuid4()}, SystemTracker:emulator, Timestamp:{now}")


def not_found(entity: str) -> AmqpError:
    return service_error(NOT_FOUND, f"The messaging entity '{entity}' could not be found.")


def deleted(hub: str) -> AmqpError:
    return service_error(RESOURCE_DELETED, f"The messaging entity '{hub}' has been deleted.")


def server_busy() -> AmqpError:
    return service_error(_SERVER_BUSY, "The request was terminated because the entity is being throttled.")


def unauthorized(path: str, reads: bool) -> AmqpError:
    """No valid token covers the entity at `path`."""
    return service_error(UNAUTHORIZED, _claim_required(path, reads))


def token_expired(path: str, reads: bool) -> AmqpError:
    """The token of a link has expired."""
    text = f"The link is force detached. Code: RenewToken. Details: {_claim_required(path, reads)}"
    return service_error(DETACH_FORCED, text)


def _claim_required(path: str, reads: bool) -> str:
    claim = "Listen" if reads else "Send"
    return f"Unauthorized access. '{claim}' claim(s) are required to perform this operation. Resource: 'sb://{path}'."


def replaced(old: NamedReader, new: NamedReader) -> AmqpError:
    """For a reader that `new` replaces."""
    return service_error(
        LINK_STOLEN,
        f"New receiver '{new.name}' with higher epoch of '{new.epoch}' is created hence current receiver '{old.name}' "
        f"with epoch '{old.epoch or 0}' is getting disconnected. If you are recreating the receiver, make sure a "
        "higher epoch is used.",
    )


def epoch_required(highest: int) -> AmqpError:
    """For a reader without epoch, while one has an epoch."""
    return service_error(
        LINK_STOLEN,
        f"At least one receiver for the endpoint is created with epoch of '{highest}', and so non-epoch receiver is "
        "not allowed. Either reconnect with a higher epoch, or make sure all epoch receivers are closed or "
        "disconnected.",
    )


def epoch_too_low(highest: int, epoch: int) -> AmqpError:
    """For a reader with an epoch, while one has a higher epoch."""
    return service_error(
        LINK_STOLEN,
        f"A receiver with a higher epoch '{highest}' already exists. A new receiver with epoch {epoch} cannot be "
        "created. Make sure you are creating receiver with increasing epoch value to ensure connectivity, or ensure "
        "all old epoch receivers are closed or disconnected.",
    )


def too_many_readers(allowed: int, present: Iterable[NamedReader]) -> AmqpError:
    """For one more reader without epoch than are allowed."""
    return service_error(
        RESOURCE_LIMIT,
        f"Exceeded the maximum number of allowed receivers per partition in a consumer group which is {allowed}. "
        f"List of connected receivers - {', '.join(reader.name for reader in present)}.",
    )
