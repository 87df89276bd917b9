"""A peer on a plain socket, for frames that the real client never sends."""

from __future__ import annotations

import socket
from typing import Any, TypeVar

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp import frames
from spark_ehbalance.emulator.amqp.codec import Described, Symbol, ULong, encode
from spark_ehbalance.emulator.amqp.frames import Attach, Begin, Close, Flow, Open, Transfer, encode_frame
from spark_ehbalance.emulator.message import Sections, parse_sections

Frame = tuple[Any, bytes]  # performative and payload
PARTITION = "hub/ConsumerGroups/$Default/Partitions/"


def split_frames(data: bytes) -> list[Frame]:
    """The frames of `data` without heartbeats; the last one must be complete."""
    split = []
    while data:
        frame = frames.decode_frame(data, len(data))
        assert frame is not None
        data = data[frame.size :]
        if frame.body:
            performative, end = frames.decode_performative(frame.body)
            split.append((performative, frame.body[end:]))
    return split


def source(address: str) -> Described:
    return Described(ULong(0x28), [address] + [None] * 10)


def target(address: str) -> Described:
    return Described(ULong(0x29), [address] + [None] * 6)


def condition(frame: Any) -> Symbol | None:
    """The error condition of a close, end or detach."""
    return None if frame.error is None else frame.error.value[0]


def request_message(value: str | None = None, **properties: str) -> bytes:
    """A request with a value and application properties."""
    return (
        b"\x00\x53\x73" + encode(["request"]) + b"\x00\x53\x74" + encode(properties) + b"\x00\x53\x77" + encode(value)
    )


_Peer = TypeVar("_Peer", bound="RawPeer")


class RawPeer:
    """Sends and receives single AMQP frames; every read has a timeout."""

    channel = 0  # of its session

    def __init__(self, emulator: Emulator) -> None:
        self.socket = socket.create_connection(("127.0.0.1", emulator.port), timeout=10)
        self._in = b""

    @classmethod
    def opened(cls, emulator: Emulator, **fields: Any) -> RawPeer:
        """A peer with an open connection and a session on channel 0; `fields` are the open's."""
        peer = cls(emulator)
        peer.open(**fields)
        return peer

    @classmethod
    def reading(cls, emulator: Emulator, credit: int = 0, *, partition: int = 0, window: int = 1000) -> RawPeer:
        """A peer with an attached receiver that has credit."""
        peer = cls.opened(emulator)
        peer.attach_receiver(f"{PARTITION}{partition}")
        peer.expect(Attach)
        peer.credit(credit, window=window)
        return peer

    def __enter__(self: _Peer) -> _Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *performatives: Any, payload: bytes = b"") -> None:
        self.socket.sendall(
            b"".join(encode_frame(self.channel, performative, payload) for performative in performatives)
        )

    def open(self, channel: int = 0, **fields: Any) -> tuple[Open, Begin]:
        """Send the header, an open and a begin. Returns the server's open and begin."""
        self.channel = channel
        self.socket.sendall(frames.AMQP_HEADER)
        assert self.take(8) == frames.AMQP_HEADER
        self.send(Open("test", **fields), Begin(None, 0, 1000, 1000))
        return self.expect(Open), self.expect(Begin)

    def attach_receiver(self, address: str, handle: int = 0, **fields: Any) -> None:
        self.send(Attach(f"r{handle}", handle, True, source=source(address), **fields))

    def attach_sender(self, address: str, handle: int = 0) -> None:
        self.send(Attach(f"s{handle}", handle, False, target=target(address)))

    def credit(self, amount: int, handle: int = 0, received: int = 0, window: int = 1000, **fields: Any) -> None:
        self.send(Flow(received + 1, window, 0, 1000, handle, received, amount, **fields))

    def request(self, node: str, value: str | None = None, **properties: str) -> Sections:
        """The response of `$management` or `$cbs` to a request with a value and application properties."""
        return parse_sections(self.request_frame(node, value, **properties)[1])

    def request_frame(self, node: str, value: str | None = None, **properties: str) -> Frame:
        """The encoded response to a request."""
        self.attach_sender(node, handle=0)
        self.attach_receiver(node, handle=1)
        self.credit(1, handle=1)
        self.send(Transfer(0, 0, b"1", 0), payload=request_message(value, **properties))
        response: Frame = self.expect(Transfer)
        return response

    def next(self) -> Frame | None:
        """The next frame; None for a heartbeat. Raises EOFError at the end."""
        size = self.take(4)
        split = split_frames(size + self.take(int.from_bytes(size, "big") - 4))
        return split[0] if split else None

    def expect(self, *kinds: type) -> Any:
        """The next performative of these kinds; a transfer is returned with its payload. Skips other performatives."""
        while True:
            frame = self.next()
            if frame is not None and isinstance(frame[0], kinds):
                return frame if isinstance(frame[0], Transfer) else frame[0]

    def close_condition(self) -> Symbol | None:
        """The condition of the server's close; None if the connection ends without one."""
        try:
            return condition(self.expect(Close))
        except (EOFError, ConnectionResetError):
            return None

    def take(self, count: int) -> bytes:
        """The next bytes. Raises EOFError at the end."""
        while len(self._in) < count:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._in += data
        taken, self._in = self._in[:count], self._in[count:]
        return taken
