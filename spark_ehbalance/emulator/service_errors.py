"""The errors of Event Hubs with Azure's own texts: pairs of a condition and a text that names its values in braces."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone

from spark_ehbalance.emulator.amqp import errors
from spark_ehbalance.emulator.amqp.errors import AmqpError

AUTH_FAILED = "com.microsoft:auth-failed"
ARGUMENT_ERROR = "com.microsoft:argument-error"
BUSY = "com.microsoft:server-busy"

NOT_FOUND = (errors.NOT_FOUND, "The messaging entity 'sb://emulator/{path}' could not be found.")
# the number 32766 is invented
GROUP_NOT_FOUND = (
    errors.NOT_FOUND,
    "The messaging entity 'emulator:eventhub:{hub}~32766|{group}' could not be found.",
)
NO_SUCH_PARTITION = (
    "com.microsoft:argument-out-of-range",
    "The specified partition is invalid for an EventHub partition sender or receiver. "
    "It should be between 0 and {last}.",
)
INVALID_OFFSET = ("com.microsoft:georeplication:invalid-offset", "The supplied offset '{offset:.100}' is invalid.")
DELETED = (errors.RESOURCE_DELETED, "The messaging entity '{entity}' has been deleted.")
DISABLED = ("com.microsoft:entity-disabled", "Messaging entity 'sb://emulator/{hub}' is currently disabled.")
SERVER_BUSY = (
    BUSY,
    "The request was terminated because the entity is being throttled. Error code : 50002. "
    "Please wait 4 seconds and try again.",
)
TOO_MANY_CONNECTIONS = (errors.RESOURCE_LIMIT, "ConnectionsQuotaExceeded for namespace emulator.")
_UNAUTHORIZED = (
    "Unauthorized access. '{claim}' claim(s) are required to perform this operation. Resource: 'sb://{path}'."
)
UNAUTHORIZED = (errors.UNAUTHORIZED, _UNAUTHORIZED)
TOKEN_EXPIRED = (errors.DETACH_FORCED, f"The link is force detached. Code: RenewToken. Details: {_UNAUTHORIZED}")
REPLACED = (
    errors.LINK_STOLEN,
    "New receiver '{new}' with higher epoch of '{epoch}' is created hence current receiver '{old}' with epoch "
    "'{old_epoch}' is getting disconnected. If you are recreating the receiver, make sure a higher epoch is used.",
)
EPOCH_REQUIRED = (
    errors.LINK_STOLEN,
    "At least one receiver for the endpoint is created with epoch of '{highest}', and so non-epoch receiver is not "
    "allowed. Either reconnect with a higher epoch, or make sure all epoch receivers are closed or disconnected.",
)
EPOCH_TOO_LOW = (
    errors.LINK_STOLEN,
    "Receiver '{old}' with a higher epoch '{highest}' already exists. Receiver '{new}' with epoch {epoch} cannot be "
    "created. Make sure you are creating receiver with increasing epoch value to ensure connectivity, or ensure all "
    "old epoch receivers are closed or disconnected.",
)
TOO_MANY_READERS = (
    errors.RESOURCE_LIMIT,
    "Exceeded the maximum number of allowed receivers per partition in a consumer group which is {allowed}. "
    "List of connected receivers - {names}.",
)


def service_error(error: tuple[str, str], **values: object) -> AmqpError:
    """Create an error whose text ends with a tracking id and a timestamp, as all of Azure's error texts do."""
    condition, text = error
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    end = f"TrackingId:{uuid.uuid4()}, SystemTracker:emulator, Timestamp:{now}"
    return AmqpError(condition, f"{text.format(**values)} {end}")
