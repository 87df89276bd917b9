"""Messages as decoded by the client's own decoder, for comparison with rows."""

from __future__ import annotations

from azure.eventhub import EventData
from azure.eventhub._common import _SYS_PROP_KEYS_TO_MSG_PROPERTIES as PROPERTIES
from azure.eventhub.amqp import AmqpMessageBodyType

from spark_ehbalance.eventhub.rows import Event, data_body, sequence_body, value_body


def decoded_by_client(message: bytes) -> Event:
    """The event, as an input of `record_batch`."""
    event = EventData.from_bytes(message)
    kind, parts = event.body_type, event.body
    body: bytes | None
    if kind == AmqpMessageBodyType.DATA:
        body = data_body([parts] if isinstance(parts, bytes) else parts)
    else:
        body = sequence_body(parts) if kind == AmqpMessageBodyType.SEQUENCE else value_body(parts)
    # not `system_properties`, which omit zero, false and empty values
    properties = event.raw_amqp_message.properties
    standard = {name: getattr(properties, attribute, None) for name, attribute in PROPERTIES}
    present = {name: value for name, value in standard.items() if value is not None}
    return body, {**present, **(event.raw_amqp_message.annotations or {})}, event.properties or {}
