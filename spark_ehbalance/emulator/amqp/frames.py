"""Encodes and decodes frames, and the performatives (commands) that they contain."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, cast, get_args, get_origin, get_type_hints

from spark_ehbalance.emulator.amqp.codec import Array, Described, Symbol, UByte, UInt, ULong, UShort, decode, encode
from spark_ehbalance.emulator.amqp.errors import FRAMING_ERROR, AmqpError, DecodeError

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
HEADER_LENGTH = 8
EMPTY_FRAME = struct.pack(">IBBH", 8, 2, 0, 0)
AMQP_FRAME, SASL_FRAME = 0, 1
_FRAME_HEADER = struct.Struct(">IBBH")

_UByte = Annotated[int, UByte]
_UShort = Annotated[int, UShort]
_UInt = Annotated[int, UInt]
_ULong = Annotated[int, ULong]


class Open(NamedTuple):
    """Begins a connection. `idle_time_out` is in milliseconds."""

    container_id: str
    hostname: str | None = None
    max_frame_size: _UInt | None = None
    channel_max: _UShort | None = None
    idle_time_out: _UInt | None = None


class Begin(NamedTuple):
    """Begins a session. Window sizes are counted in transfer frames."""

    remote_channel: _UShort | None
    next_outgoing_id: _UInt
    incoming_window: _UInt
    outgoing_window: _UInt
    handle_max: _UInt | None = None


class Attach(NamedTuple):
    """Attaches a link. `role` is true at the receiver's end."""

    name: str
    handle: _UInt
    role: bool
    snd_settle_mode: _UByte | None = None
    rcv_settle_mode: _UByte | None = None
    source: Any = None
    target: Any = None
    unsettled: dict[Any, Any] | None = None
    incomplete_unsettled: bool | None = None
    initial_delivery_count: _UInt | None = None
    max_message_size: _ULong | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Flow(NamedTuple):
    """The state of a session's windows, and also of a link's credit if `handle` is set."""

    next_incoming_id: _UInt | None
    incoming_window: _UInt
    next_outgoing_id: _UInt
    outgoing_window: _UInt
    handle: _UInt | None = None
    delivery_count: _UInt | None = None
    link_credit: _UInt | None = None
    available: _UInt | None = None
    drain: bool | None = None
    echo: bool | None = None


class Transfer(NamedTuple):
    """A message, or a part of a message. The payload follows the performative."""

    handle: _UInt
    delivery_id: _UInt | None = None
    delivery_tag: bytes | None = None
    message_format: _UInt | None = None
    settled: bool | None = None
    more: bool | None = None
    rcv_settle_mode: _UByte | None = None
    state: Any = None
    resume: bool | None = None
    aborted: bool | None = None
    batchable: bool | None = None


class Disposition(NamedTuple):
    """The outcome of the deliveries `first` to `last`; only of `first` if `last` is None."""

    role: bool
    first: _UInt
    last: _UInt | None = None
    settled: bool | None = None
    state: Any = None


class Detach(NamedTuple):
    handle: _UInt
    closed: bool | None = None
    error: Any = None


class End(NamedTuple):
    error: Any = None


class Close(NamedTuple):
    error: Any = None


class SaslMechanisms(NamedTuple):
    """The authentication mechanisms that the server offers."""

    mechanisms: Any


class SaslInit(NamedTuple):
    """The mechanism that the client has chosen."""

    mechanism: str
    initial_response: bytes | None = None


class SaslOutcome(NamedTuple):
    """The result of the authentication: code 0 means success, 1 a refusal."""

    code: _UByte
    additional_data: bytes | None = None


Performative = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close

# The descriptor and the number of fields. Fields that the classes above do not name are ignored when read, and written
# as nulls, because the Azure Python client reads fields by position.
_DESCRIPTORS: dict[type, tuple[int, int]] = {
    Open: (0x10, 10),
    Begin: (0x11, 8),
    Attach: (0x12, 14),
    Flow: (0x13, 11),
    Transfer: (0x14, 11),
    Disposition: (0x15, 6),
    Detach: (0x16, 3),
    End: (0x17, 1),
    Close: (0x18, 1),
    SaslMechanisms: (0x40, 1),
    SaslInit: (0x41, 3),
    SaslOutcome: (0x44, 2),
}
_BY_CODE = {code: performative for performative, (code, _) in _DESCRIPTORS.items()}


def _number_type(hint: Any) -> type | None:
    """The AMQP number type in a field's type hint; None if the hint does not contain one."""
    for kind in (hint, *get_args(hint)):
        if get_origin(kind) is Annotated:
            return cast("type", kind.__metadata__[0])
    return None


_LAYOUT = {
    performative: [_number_type(hint) for hint in get_type_hints(performative, include_extras=True).values()]
    for performative in _DESCRIPTORS
}


def encode_frame(channel: int, performative: tuple[Any, ...], payload: bytes = b"") -> bytes:
    """Encode a frame that contains `performative`, followed by the `payload` if it is a transfer."""
    code, count = _DESCRIPTORS[type(performative)]
    fields = [
        kind(value) if kind is not None and value is not None else value
        for value, kind in zip(performative, _LAYOUT[type(performative)], strict=True)
    ]
    body = b"\x00\x53" + bytes((code,)) + encode(fields + [None] * (count - len(fields)))
    frame_type = SASL_FRAME if code >= 0x40 else AMQP_FRAME
    return _FRAME_HEADER.pack(8 + len(body) + len(payload), 2, frame_type, channel) + body + payload


class Frame(NamedTuple):
    """A received frame; `size` is its length in bytes."""

    size: int
    frame_type: int
    channel: int
    body: bytes


def decode_frame(data: bytes | bytearray, max_frame_size: int) -> Frame | None:
    """The frame at the start of `data`, or None if it is incomplete. Raises AmqpError for an invalid header, and for a
    frame of more than `max_frame_size` bytes."""
    if len(data) < HEADER_LENGTH:
        return None
    size, words, frame_type, channel = _FRAME_HEADER.unpack_from(data)
    if size > max_frame_size:
        raise AmqpError(FRAMING_ERROR, f"the frame of {size} bytes exceeds the limit of {max_frame_size}")
    if words < 2 or 4 * words > size or frame_type not in (AMQP_FRAME, SASL_FRAME):
        raise AmqpError(FRAMING_ERROR, f"invalid frame header: {words} words, {size} bytes, type {frame_type}")
    if len(data) < size:
        return None
    with memoryview(data) as view:
        return Frame(size, frame_type, channel, bytes(view[4 * words : size]))


def decode_performative(body: bytes) -> tuple[Performative | SaslInit, int]:
    """The performative at the start of a frame's body, and the start of its payload. Raises DecodeError."""
    value, end = decode(body)
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise DecodeError("a frame does not begin with a performative")
    performative = _BY_CODE.get(value.descriptor) if isinstance(value.descriptor, ULong) else None
    if performative is None:
        raise DecodeError("a frame begins with an unknown performative")
    known, fields = len(_LAYOUT[performative]), value.value
    return cast("Performative | SaslInit", performative(*fields[:known], *[None] * (known - len(fields)))), end


# Settled transfer frames that contain whole messages are written in bulk. Their headers all have the same length, so a
# log can leave a gap of that length before each stored message; a delivery is then one copy of the stored bytes with
# the gaps filled in. This takes 0.2 µs per event, compared with 5 µs for `encode_frame`. The layout of a header:
# size | doff, type, channel | performative, list of 11 fields in 21 bytes | handle | delivery-id | the constant rest
_TRANSFER_HEADER = struct.Struct(">I16sI10s")
_BEFORE_ID = struct.Struct(">BBH6sBIB")
_LIST_OF_11 = b"\x00\x53\x14\xc0\x15\x0b"
# an empty tag, format 0, settled = true, more = false, four defaults, batchable = true
_AFTER_ID = b"\xa0\x00" + b"\x43" + b"\x41" + b"\x42" + b"\x40\x40\x42\x42" + b"\x41"
TRANSFER_HEADER_SIZE = _TRANSFER_HEADER.size


def fill_transfer_headers(
    chunk: bytearray, starts: Sequence[int], channel: int, handle: int, first_delivery_id: int
) -> None:
    """Write a transfer header at each of `starts` except the last, which is the end of the last frame.

    At each start, there is a gap of TRANSFER_HEADER_SIZE bytes, followed by a message. Delivery ids increase from
    `first_delivery_id`; the caller ensures that they stay below 2^32.
    """
    before_id = _BEFORE_ID.pack(2, 0, channel, _LIST_OF_11, 0x70, handle, 0x70)
    pack_into = _TRANSFER_HEADER.pack_into
    delivery_id = first_delivery_id
    start = starts[0]
    for end in starts[1:]:
        pack_into(chunk, start, end - start, before_id, delivery_id, _AFTER_ID)
        delivery_id += 1
        start = end


def error_field(error: AmqpError | None) -> Described | None:
    """The value of an `error` field: condition, description and no info."""
    if error is None:
        return None
    return Described(ULong(0x1D), [Symbol(error.condition), error.description, None])


_FILTER = ULong(0x137000000A)
ACCEPTED = Described(ULong(0x24), [])
SASL_MECHANISMS = SaslMechanisms(Array(map(Symbol, ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"))))


def rejected(error: AmqpError) -> Described:
    """The delivery state of a rejected message."""
    return Described(ULong(0x25), [error_field(error)])


def reply_source(source: Any) -> Any:
    """The source of an attach as Azure returns it: with a number as the descriptor of each filter."""
    if not isinstance(source, Described) or not isinstance(source.value, list):
        return source
    fields = [
        {
            name: Described(_FILTER, content.value) if isinstance(content, Described) else content
            for name, content in field.items()
        }
        if isinstance(field, dict)
        else field
        for field in source.value
    ]
    return source._replace(value=fields)


def terminus(value: Any) -> tuple[str | None, dict[Any, Any]]:
    """The address and the filters of the source or target of an attach. Raises DecodeError if it is malformed."""
    fields = value.value if isinstance(value, Described) else []
    if not isinstance(fields, list):
        raise DecodeError("a source or target is malformed")
    return [*fields, None][0], [*fields, *[None] * 8][7] or {}
