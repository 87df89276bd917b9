"""Parses a link's address into the entity that it names, and a link's filters into a start position."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import unquote

from spark_ehbalance.emulator.amqp.codec import Described
from spark_ehbalance.emulator.amqp.errors import NOT_FOUND, AmqpError
from spark_ehbalance.emulator.partition_log import PartitionLog
from spark_ehbalance.emulator.service_errors import ARGUMENT_ERROR, INVALID_OFFSET, service_error

_SELECTOR = re.compile(r"\s*amqp\.annotation\.x-opt-(offset|sequence-number|enqueued-time)\s*(>=?)\s*'([^']*)'\s*")
_SELECTOR_NAME = "apache.org:selector-filter:string"
_REPLICATED_OFFSET = re.compile(r"\d{1,9}:-?\d{1,19}:(-?\d{1,19})")
_INTEGER = re.compile(r"-?\d{1,19}")
_PARTS = {"consumergroups": "group", "partitions": "partition"}


class Entity(NamedTuple):
    """The entity that an address names. `group` and `partition` are None if the address does not contain them."""

    hub: str
    group: str | None = None
    partition: str | None = None


def entity_path(address: str) -> str:
    """The path in an address or audience, without the scheme and host, and without leading and trailing slashes."""
    if "://" in address:
        address = address.partition("://")[2].partition("/")[2]
    return unquote(address).strip("/")


def parse_entity(address: str) -> Entity:
    """The entity that `address` names. Raises AmqpError (amqp:not-found) if no entity can have this path."""
    hub, *rest = entity_path(address).split("/")
    parts = {_PARTS.get(part.lower(), ""): name for part, name in zip(rest[::2], rest[1::2], strict=False)}
    if not hub or len(rest) % 2 or len(parts) != len(rest) // 2 or "" in parts:
        raise AmqpError(NOT_FOUND, f"The messaging entity '{address}' could not be found.")
    return Entity(hub, **parts)


def start_position(filters: dict[Any, Any], log: PartitionLog) -> int:
    """The sequence number at which a receiver with these source filters starts.

    Without a selector, or if the position is before the first retained event, this is the first retained event. Raises
    AmqpError for an invalid selector, and for a position beyond the end of the partition.
    """
    selector = filters.get(_SELECTOR_NAME)
    if isinstance(selector, Described):
        selector = selector.value
    if selector is None:
        return log.first_sequence_number
    match = _SELECTOR.fullmatch(selector) if isinstance(selector, str) else None
    if match is None:
        raise AmqpError(ARGUMENT_ERROR, "The receiver's selector is not a position: offset, sequence number or time.")
    field, operator, value = match.groups()
    inclusive, kind = operator == ">=", field.replace("-", " ")
    if field == "offset" and value == "@latest":
        return log.next_sequence_number
    if field == "offset" and value != "-1" and log.geo_replicated:
        replicated = _REPLICATED_OFFSET.fullmatch(value)
        if replicated is None or (log.refuses_lost_offsets and log.is_lost(int(replicated[1]), value)):
            raise service_error(INVALID_OFFSET, offset=value)
        start = int(replicated[1]) + (not inclusive)
        return max(min(start, log.next_sequence_number), log.first_sequence_number)
    if not _INTEGER.fullmatch(value):
        raise AmqpError(ARGUMENT_ERROR, f"The supplied {kind} '{value}' is invalid.")
    position = int(value)
    last = log.last_offset.rpartition(":")[2] if field == "offset" else str(log.next_sequence_number - 1)
    if field != "enqueued-time" and position > int(last):
        raise _beyond_end_error(kind, value, last)
    if field != "sequence-number":
        return log.after(position, inclusive, is_time=field == "enqueued-time")
    return max(position if inclusive else position + 1, log.first_sequence_number)


def _beyond_end_error(kind: str, value: str, last: str) -> AmqpError:
    return AmqpError(
        ARGUMENT_ERROR, f"The supplied {kind} '{value}' is invalid. The last {kind} in the system is '{last}'"
    )
