"""Frames, and the performatives (commands) in them.

Performatives are always written with every field, trailing nulls included: the Azure Python client reads them by
position.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, TypeVar, cast

from .codec import Array, Described, Symbol, UByte, UInt, ULong, UShort, decode, encode
from .errors import FRAMING_ERROR, AmqpError, DecodeError

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
HEADER_LENGTH = 8
EMPTY_FRAME = struct.pack(">IBBH", 8, 2, 0, 0)
AMQP_FRAME, SASL_FRAME = 0, 1
_FRAME_HEADER = struct.Struct(">IBBH")
_MIN_MAX_FRAME_SIZE = 512  # bytes; by the specification every peer takes frames of this size


class Open(NamedTuple):
    """Begins a connection; `idle_time_out` in milliseconds."""

    container_id: str
    hostname: str | None = None
    max_frame_size: int | None = None
    channel_max: int | None = None
    idle_time_out: int | None = None
    outgoing_locales: Any = None
    incoming_locales: Any = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Begin(NamedTuple):
    """Begins a session; windows count transfer frames."""

    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Attach(NamedTuple):
    """Attaches a link; `role` is true for the receiver's end."""

    name: str
    handle: int
    role: bool
    snd_settle_mode: int | None = None
    rcv_settle_mode: int | None = None
    source: Any = None
    target: Any = None
    unsettled: dict[Any, Any] | None = None
    incomplete_unsettled: bool | None = None
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


class Flow(NamedTuple):
    """The state of a session's windows, and of a link's credit if it names a handle."""

    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool | None = None
    echo: bool | None = None
    properties: dict[Any, Any] | None = None


class Transfer(NamedTuple):
    """A message or a part of one; the payload follows the performative."""

    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool | None = None
    rcv_settle_mode: int | None = None
    state: Any = None
    resume: bool | None = None
    aborted: bool | None = None
    batchable: bool | None = None


class Disposition(NamedTuple):
    """The outcome of the deliveries `first` … `last`."""

    role: bool
    first: int
    last: int | None = None
    settled: bool | None = None
    state: Any = None
    batchable: bool | None = None


class Detach(NamedTuple):
    """Ends a link."""

    handle: int
    closed: bool | None = None
    error: Any = None


class End(NamedTuple):
    """Ends a session."""

    error: Any = None


class Close(NamedTuple):
    """Ends a connection."""

    error: Any = None


class SaslMechanisms(NamedTuple):
    """The authentication mechanisms that the server offers."""

    mechanisms: Any


class SaslInit(NamedTuple):
    """The mechanism that the client has chosen."""

    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None


class SaslOutcome(NamedTuple):
    """Code 0 is success, 1 a refusal."""

    code: int
    additional_data: bytes | None = None


Performative = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close
_P = TypeVar("_P")

# The AMQP type of each field, which is written and demanded when read; "!" marks a mandatory field.
_FIELDS: dict[type, tuple[int, str]] = {
    Open: (0x10, "str! str uint ushort uint any any any any map"),
    Begin: (0x11, "ushort uint! uint! uint! uint any any map"),
    Attach: (0x12, "str! uint! bool! ubyte ubyte any any map bool uint ulong any any map"),
    Flow: (0x13, "uint uint! uint! uint! uint uint uint uint bool bool map"),
    Transfer: (0x14, "uint! uint bytes uint bool bool ubyte any bool bool bool"),
    Disposition: (0x15, "bool! uint! uint bool any bool"),
    Detach: (0x16, "uint! bool any"),
    End: (0x17, "any"),
    Close: (0x18, "any"),
    SaslMechanisms: (0x40, "any!"),
    SaslInit: (0x41, "sym! bytes str"),
    SaslOutcome: (0x44, "ubyte! bytes"),
}
# the Python type of each AMQP type, and for unsigned integers the limit of their values
_TYPES: dict[str, tuple[type, int | None]] = {
    "ubyte": (UByte, 1 << 8),
    "ushort": (UShort, 1 << 16),
    "uint": (UInt, 1 << 32),
    "ulong": (ULong, 1 << 64),
    "str": (str, None),
    "sym": (str, None),
    "bytes": (bytes, None),
    "bool": (bool, None),
    "map": (dict, None),
    "any": (object, None),
}
_LAYOUT = {
    performative: [(kind.rstrip("!"), kind.endswith("!"), *_TYPES[kind.rstrip("!")]) for kind in kinds.split()]
    for performative, (_, kinds) in _FIELDS.items()
}
_BY_CODE = {code: performative for performative, (code, _) in _FIELDS.items()}


def encode_frame(channel: int, performative: tuple[Any, ...], payload: bytes = b"") -> bytes:
    """One frame of `performative`, followed by `payload` (of a transfer)."""
    code = _FIELDS[type(performative)][0]
    fields = [
        value if limit is None or value is None else python_type(value)
        for value, (_, _, python_type, limit) in zip(performative, _LAYOUT[type(performative)], strict=True)
    ]
    body = b"\x00\x53" + bytes((code,)) + encode(fields)
    frame_type = SASL_FRAME if code >= 0x40 else AMQP_FRAME
    return _FRAME_HEADER.pack(8 + len(body) + len(payload), 2, frame_type, channel) + body + payload


class FrameHeader(NamedTuple):
    """The first 8 bytes of a frame: `size` of the whole frame and start of its `body`, both in bytes."""

    size: int
    body: int
    frame_type: int
    channel: int


def decode_header(data: bytes | bytearray, pos: int, max_frame_size: int) -> FrameHeader:
    """The frame header at `pos`. Raises AmqpError if it is invalid or the frame exceeds `max_frame_size` bytes."""
    size, words, frame_type, channel = _FRAME_HEADER.unpack_from(data, pos)
    if size > max_frame_size:
        raise AmqpError(FRAMING_ERROR, f"a frame of {size} bytes; at most {max_frame_size} are allowed")
    if words < 2 or 4 * words > size or frame_type not in (AMQP_FRAME, SASL_FRAME):
        raise AmqpError(FRAMING_ERROR, f"a frame header of {words} words in {size} bytes, type {frame_type}")
    return FrameHeader(size, 4 * words, frame_type, channel)


def decode_performative(body: bytes) -> tuple[Performative | SaslInit, int]:
    """The performative at the start of a frame's body, and the start of its payload. Raises DecodeError."""
    value, end = decode(body)
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise DecodeError("a frame does not begin with a performative")
    performative = _BY_CODE.get(value.descriptor) if isinstance(value.descriptor, ULong) else None
    if performative is None:
        raise DecodeError("a frame begins with an unknown performative")
    return cast("Performative | SaslInit", _checked(performative, value.value)), end


def _checked(performative: type[_P], values: list[Any]) -> _P:
    layout = _LAYOUT[performative]
    if len(values) > len(layout):
        raise DecodeError(f"{performative.__name__} has {len(values)} fields; it may have {len(layout)}")
    values = values + [None] * (len(layout) - len(values))
    for index, (value, (kind, mandatory, python_type, limit)) in enumerate(zip(values, layout, strict=True)):
        if value is None:
            valid = not mandatory
        elif limit is not None:
            valid = isinstance(value, int) and 0 <= value < limit
        else:
            valid = isinstance(value, python_type)
        if not valid:
            raise DecodeError(f"field {index} of {performative.__name__} is not a valid {kind}")
    return performative(*values)


def error_field(error: AmqpError | None) -> Described | None:
    """The value of an `error` field: condition, description and no info."""
    if error is None:
        return None
    return Described(ULong(0x1D), [Symbol(error.condition), error.description, None])


ACCEPTED = Described(ULong(0x24), [])
SASL_MECHANISMS = SaslMechanisms(Array([Symbol("ANONYMOUS"), Symbol("EXTERNAL"), Symbol("PLAIN")]))


def rejected(error: AmqpError) -> Described:
    """The delivery state of a message that is refused."""
    return Described(ULong(0x25), [error_field(error)])


def terminus(value: Any, length: int) -> tuple[str | None, dict[Any, Any]]:
    """Address and filter map of a source (`length` 11) or target (7) field of an attach. Raises DecodeError."""
    if value is None:
        return None, {}
    fields = value.value if isinstance(value, Described) else None
    if not isinstance(fields, list) or len(fields) > length:
        raise DecodeError("a source or target is malformed")
    address = fields[0] if fields else None
    filters = fields[7] if len(fields) > 7 and length > 7 else None
    if not isinstance(address, str | None) or not isinstance(filters, dict | None):
        raise DecodeError("a source or target has a malformed address or filter")
    return address, filters or {}


def null_terminus(code: int, length: int) -> Described:
    """A source (code 0x28) or target (0x29) of nulls, for a peer that sent none."""
    return Described(ULong(code), [None] * length)


def usable_frame_size(announced: int | None, ceiling: int) -> int:
    """The largest frame to send to a peer that has announced a limit in its open. Raises AmqpError if it is too low."""
    if announced is not None and announced < _MIN_MAX_FRAME_SIZE:
        raise AmqpError("amqp:invalid-field", f"max-frame-size {announced} is below {_MIN_MAX_FRAME_SIZE}")
    return ceiling if announced is None else min(announced, ceiling)
