"""Reads the frames that the client handles, and decodes their fields, because the client's own reader and decoder have
no limits: an 8-byte frame header, or 20 bytes that encode an array, could make the client allocate 4 GB."""

from __future__ import annotations

import functools
import re
import ssl
import struct
import time
from typing import Any

from spark_ehbalance.eventhub.wire.sources import Source, source_of
from spark_ehbalance.eventhub.wire.values import MALFORMED, MalformedError, decode

HEADER = struct.Struct(">IBBH")

TRANSFER, _DISPOSITION, _REJECTED = 0x14, 0x15, 0x25

#: Number of fields per performative. Peers may omit trailing nulls, but the client reads fields by position.
_FIELDS = {0x10: 10, 0x11: 8, 0x12: 14, 0x13: 11, TRANSFER: 11, _DISPOSITION: 6, 0x16: 3, 0x17: 1, 0x18: 1}

#: Defaults, by performative and index, of optional fields that the client reads as numbers: an open's maximum frame
#: size and maximum channel, and a begin's maximum handle.
_DEFAULTS = {0x10: {2: 2**32 - 1, 3: 2**16 - 1}, 0x11: {4: 2**32 - 1}}

#: Number of fields of an error, and the performatives whose last field is an error: detach, end and close.
_ERROR_FIELDS, _WITH_ERROR = 3, (0x16, 0x17, 0x18)

#: Index of a transfer's field `more`, and of a disposition's field `state`.
MORE, _STATE = 5, 4

#: The names that the client uses for a delivery's outcomes, by descriptor.
_OUTCOMES = {0x23: "received", 0x24: "accepted", _REJECTED: "rejected", 0x26: "released", 0x27: "modified"}

#: A frame with a disposition that accepts and settles one delivery. The group is the encoded delivery number.
_ACCEPTED = re.compile(
    rb"(?s)\0\0\0.\x02\0..\x00\x53\x15\xc0.[\x05\x06]\x41(\x43|\x52.|\x70.{4})(?:\x40|\1)\x41\x00\x53\x24"
    rb"(?:\x45|\xc0\x01\0)[\x40-\x42]?"
)

#: Maximum number of deliveries that a disposition may name: the client lists them all.
_MAX_SETTLED = 1 << 16

#: Maximum size in bytes of the response to a token; the service's responses have about 100.
_MAX_RESPONSE = 1 << 16

#: Bytes requested by one read.
_READ_BYTES = 4096

#: First bytes of a protocol header. A frame begins with its size instead.
_PROTOCOL = b"AMQP"


def check_size(size: int, words: int, largest: int) -> None:
    """Raise `MalformedError` if a frame's size in bytes or its header's size in words is invalid."""
    if not 8 <= 4 * words <= size <= largest:
        raise MalformedError(f"a frame of {size} bytes with a header of {4 * words}; the maximum is {largest}")


def fields_of(frame: bytes, pos: int) -> tuple[list[Any], list[int]]:
    """The fields of the performative whose list starts at `pos`; and the position of each field, followed by the end of
    the last one. Raises one of `MALFORMED`."""
    code = frame[pos]
    if code == 0x45:
        return [], [pos + 1]
    if code not in (0xC0, 0xD0):
        raise ValueError("its fields are not a list")
    count, pos = (
        (frame[pos + 2], pos + 3) if code == 0xC0 else (int.from_bytes(frame[pos + 5 : pos + 9], "big"), pos + 9)
    )
    fields, positions = [], [pos]
    for _ in range(count):
        value, pos = decode(frame, pos)
        fields.append(value)
        positions.append(pos)
    return fields, positions


def decoded(frame: bytes) -> tuple[int, Any]:
    """The code and the fields of a whole frame's performative, for the client's handlers. Raises `MalformedError`."""
    start = 4 * frame[4]
    if start == len(frame):
        return 1, b"EMPTY"
    try:
        if frame[start : start + 2] != b"\x00\x53":
            raise ValueError("it does not begin with a performative")
        code = frame[start + 2]
        fields, positions = fields_of(frame, start + 3)
        fields = _filled(fields, _FIELDS.get(code, 0))
        for index, default in _DEFAULTS.get(code, {}).items():
            fields[index] = default if fields[index] is None else fields[index]
        if code == _DISPOSITION:
            _, first, last, _, state, _ = fields
            if len(range(first, (first if last is None else last) + 1)) > _MAX_SETTLED:
                raise ValueError("it settles too many deliveries")
            if state is not None:
                if frame[positions[_STATE]] != 0:
                    raise ValueError("its state is not an outcome")
                descriptor, _ = decode(frame, positions[_STATE] + 1)
                if descriptor == _REJECTED:
                    state = _filled(state, 1)
                    state[0] = _filled(state[0], _ERROR_FIELDS)
                fields[_STATE] = {_OUTCOMES.get(descriptor): state}
        elif code == TRANSFER:
            fields.append(memoryview(frame)[positions[-1] :])
        elif code in _WITH_ERROR:
            fields[-1] = _filled(fields[-1], _ERROR_FIELDS)
    except MALFORMED as error:
        raise MalformedError(f"an invalid AMQP frame: {error}") from error
    return code, fields


def _filled(fields: Any, count: int) -> Any:
    """A copy of the list `fields` with the omitted nulls; None for None. Raises TypeError for anything else."""
    return fields if fields is None else fields + [None] * (count - len(fields))


class FrameReader:
    """Reads frames in place of the client's `transport`, and sends through the transport (`write`)."""

    def __init__(self, transport: Any, largest: int) -> None:
        self._transport, self._largest, self._write = transport, largest, transport.write
        #: Seconds to wait for a frame; None means the socket's timeout.
        self.wait: float | None = None
        #: Whether a write has failed.
        self.broken = False
        self._source: Source | None = None
        self._data = bytearray()  # received bytes that have not been returned yet
        self._failure: Exception | None = None  # found by `has_frame`: a socket reports its error only once

    def takeover_state(self) -> tuple[Source, bytes] | None:
        """The source, and the bytes after the last frame, for the reader that takes over; None if no frame was read."""
        return None if self._source is None else (self._source, bytes(self._data))

    def write(self, data: bytes) -> None:
        """Like the transport's `write`, but if the connection is broken, only a read raises the error, after all
        that the peer had sent before (perhaps the reason) was read."""
        try:
            self._write(data)
        except (ConnectionError, ssl.SSLEOFError):
            self.broken = True

    def receive_frame(self, verify_frame_type: int | None = 0) -> tuple[int | None, tuple[int, Any] | None]:
        """Like the transport's `receive_frame`: returns the channel and the performative of the next frame, or a
        protocol header; None for both if no frame arrives within the socket's timeout. Raises `OSError` or
        `MalformedError`."""
        with self._transport.socket_lock:
            frame = self._next()
        if frame is None:
            return None, None
        if frame.startswith(_PROTOCOL):
            return 0, (0, frame)
        _, _, kind, channel = HEADER.unpack_from(frame)
        if verify_frame_type is not None and kind != verify_frame_type:
            raise MalformedError(f"a frame of type {kind} instead of {verify_frame_type}")
        return channel, decoded(frame)

    def has_frame(self, *, waits: bool = False) -> bool:
        """Whether `receive_frame` would return a frame or raise without waiting. If `waits`, first waits as long as it
        does."""
        with self._transport.socket_lock:
            try:
                return self._read(self._timeout() if waits else 0.0) is not None
            except (OSError, MalformedError) as error:
                self._failure = error
                return True

    def take_accepted(self) -> list[int]:
        """The numbers of the deliveries that the received frames accept, up to the first frame that does anything else.
        Removes these frames. Decoding each and passing it through the client's handlers takes ten times as long."""
        numbers, end = list[int](), 0
        with self._transport.socket_lock:
            while found := _ACCEPTED.match(self._data, end):
                if self._data[end + 3] != len(found[0]):
                    break
                numbers.append(int.from_bytes(found[1][1:], "big"))
                end = found.end()
            del self._data[:end]
        return numbers

    def _next(self) -> bytes | None:
        size = self._read(self._timeout())
        if size is None:
            return None
        frame = bytes(self._data[:size])
        del self._data[:size]
        return frame

    def _timeout(self) -> float | None:
        sock = self._transport.sock
        if sock is None:
            raise ConnectionError("the connection is closed")
        timeout: float | None = sock.gettimeout() if self.wait is None else self.wait
        return timeout

    def _read(self, wait: float | None) -> int | None:
        """Read the next frame into `_data`. Returns its size, or None if the frame is still incomplete after `wait`
        seconds."""
        if self._failure is not None:
            raise self._failure
        if self._source is None:
            self._source = source_of(self._transport)
        deadline = None if wait is None else time.monotonic() + wait
        while (size := self._size()) is None or len(self._data) < size:
            buffer = bytearray(_READ_BYTES)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with memoryview(buffer) as view:
                received = self._source.read_into(view, left)
            self._data += buffer[:received]
            if not received and left == 0:
                return None
        return size

    def _size(self) -> int | None:
        """The size of the next frame in bytes; None while its header is incomplete."""
        if len(self._data) < HEADER.size:
            return None
        if self._data.startswith(_PROTOCOL):
            return HEADER.size
        size, words, _, _ = HEADER.unpack_from(self._data)
        check_size(size, words, self._largest)
        return int(size)


def _end(connection: Any, end: Any, channel: int, fields: list[Any]) -> None:
    """Handle an End frame with the client's handler `end`, but keep the error, which `end` drops. Also ends the
    connection, because it has only this session."""
    from azure.eventhub._pyamqp.error import AMQPConnectionError

    end(channel, fields)
    if fields[0]:
        condition, text, info = fields[0]
        connection._error = AMQPConnectionError(condition=condition, description=text, info=info)


def _transfer(link: Any, transfer: Any, fields: list[Any]) -> None:
    """Handle a transfer with the client's handler `transfer`, but limit the message that it collects."""
    if len(link._received_payload) > _MAX_RESPONSE:
        raise MalformedError(f"a response to a token of more than {_MAX_RESPONSE} bytes")
    transfer(fields)


class _Bounded:
    """Mixin for a client whose connections read with a `FrameReader`, and whose errors keep the reason why a session
    ended or a token was refused."""

    @property
    def _connection(self) -> Any:
        return self.__dict__["_connection"]

    @_connection.setter
    def _connection(self, connection: Any) -> None:
        self.__dict__["_connection"] = connection
        if connection is not None:
            transport = connection._transport
            transport.frames = FrameReader(transport, connection._max_frame_size)
            transport.receive_frame, transport.write = transport.frames.receive_frame, transport.frames.write
            connection._incoming_end = functools.partial(_end, connection, connection._incoming_end)

    @property
    def _cbs_authenticator(self) -> Any:
        return self.__dict__["_cbs_authenticator"]

    @_cbs_authenticator.setter
    def _cbs_authenticator(self, token: Any) -> None:
        self.__dict__["_cbs_authenticator"] = token
        if token is not None:
            completed = token._on_execute_operation_complete
            # if there is an error condition, the client drops status and description, which contain the reason
            token._on_execute_operation_complete = lambda *answer, error_condition=None: completed(*answer[:4])
            link = token._mgmt_link._response_link
            link._incoming_transfer = functools.partial(_transfer, link, link._incoming_transfer)


def _bounded(create: Any, *arguments: Any, **settings: Any) -> Any:
    client = create(*arguments, **settings)
    kind = type(client)
    client.__class__ = type(kind.__name__, (_Bounded, kind), {})
    return client


@functools.cache
def bounded_transport() -> Any:
    """The `amqp_transport` argument for clients whose connections limit the size of frames."""
    from azure.eventhub._transport._pyamqp_transport import PyamqpTransport

    # the client would grant itself credit for 10,000 messages
    clients: dict[str, Any] = {"receive": {}, "send": {"link_credit": 0}, "mgmt": {}}
    functions = {
        (name := f"create_{client}_client"): staticmethod(
            functools.partial(_bounded, getattr(PyamqpTransport, name), **settings)
        )
        for client, settings in clients.items()
    }
    return type("BoundedTransport", (PyamqpTransport,), functions)
