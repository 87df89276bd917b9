"""The `$management` node, which returns the properties of hubs and partitions."""

from __future__ import annotations

from typing import Any

from spark_ehbalance.emulator.amqp.codec import Array, Int, Timestamp
from spark_ehbalance.emulator.amqp.errors import NOT_FOUND, AmqpError
from spark_ehbalance.emulator.broker import Broker, Hub
from spark_ehbalance.emulator.cbs import Tokens
from spark_ehbalance.emulator.message import Response, Sections
from spark_ehbalance.emulator.service_errors import BUSY

_NEVER_MS = -62_135_596_800_000  # the year 1 in milliseconds since 1970: Azure's value for "never"
_STATUS = {NOT_FOUND: 404, BUSY: 503}


def answer(request: Sections, broker: Broker, tokens: Tokens) -> Response:
    """Respond to a READ request for a hub or a partition. `tokens` are the client's tokens."""
    fields = request.application
    name, partition = fields.get("name"), fields.get("partition")
    if fields.get("operation") != "READ" or not isinstance(name, str):
        return Response(400, "The operation must be READ, and the name must be an event hub's.")
    # the Go client puts only a token for "hub/$management", and sends the hub's token with each request
    if not tokens.allow(name.lower()) and not tokens.check(fields.get("security_token"), name.lower()):
        return Response(401, "Unauthorized access. A token for this event hub is required.")
    try:
        hub = broker.enabled_hub(name)
        hub.faults.check_busy(hub.name)
        hub.requests.check()
        if fields.get("type") == "com.microsoft:eventhub":
            return Response(200, "OK", _hub(hub))
        if fields.get("type") == "com.microsoft:partition":
            return Response(200, "OK", _partition(hub, str(partition)))
    except AmqpError as error:
        return Response(_STATUS.get(error.condition, 400), error.description, condition=error.condition)
    return Response(400, "The type must be com.microsoft:eventhub or com.microsoft:partition.")


def _hub(hub: Hub) -> dict[str, Any]:
    return {
        "name": hub.name,
        "type": "com.microsoft:eventhub",
        "created_at": Timestamp(round(hub.created_at.timestamp() * 1000)),
        "partition_count": Int(len(hub.partitions)),
        "georeplication_factor": Int(2 if hub.geo_replicated else 1),  # the number of regions
        "partition_ids": Array(str(index) for index in range(len(hub.partitions))),
    }


def _partition(hub: Hub, partition: str) -> dict[str, Any]:
    log = hub.partition(partition)
    last = log.next_sequence_number - 1
    return {
        "name": hub.name,
        "type": "com.microsoft:partition",
        "partition": partition,
        "begin_sequence_number_epoch": Int(log.first_epoch),
        "begin_sequence_number": last if log.is_empty else log.first_sequence_number,
        "last_enqueued_sequence_number_epoch": Int(log.last_epoch),
        "last_enqueued_sequence_number": last,
        "last_enqueued_offset": log.last_offset,
        "last_enqueued_time_utc": Timestamp(_NEVER_MS if log.last_enqueued_ms is None else log.last_enqueued_ms),
        "is_partition_empty": log.is_empty,
    }
