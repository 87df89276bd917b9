"""A peer on a plain socket, for frames that the real client never sends."""

from __future__ import annotations

import socket
from typing import Any

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp.codec import Described, Symbol, ULong
from spark_ehbalance.emulator.amqp.frames import (
    AMQP_HEADER,
    Attach,
    Begin,
    Close,
    Flow,
    Open,
    Performative,
    Transfer,
    decode_header,
    decode_performative,
    encode_frame,
)

Frame = tuple[Any, bytes]  # performative and payload


def split_frames(data: bytes) -> list[Frame]:
    """The frames of `data` without heartbeats. Raises struct.error if the last one is incomplete."""
    frames = []
    while data:
        header = decode_header(data, 0, len(data))
        body, data = data[header.body : header.size], data[header.size :]
        if body:
            performative, end = decode_performative(body)
            frames.append((performative, body[end:]))
    return frames


class RawPeer:
    """Sends and receives single AMQP frames; every read has a timeout."""

    def __init__(self, emulator: Emulator | int) -> None:
        """`emulator` may be its port."""
        port = emulator if isinstance(emulator, int) else emulator.port
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._in = b""

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *performatives: Performative, payload: bytes = b"") -> None:
        self.socket.sendall(b"".join(encode_frame(0, performative, payload) for performative in performatives))

    def open(self, **fields: Any) -> None:
        """Header, open and a session on channel 0."""
        self.socket.sendall(AMQP_HEADER)
        assert self._take(8) == AMQP_HEADER
        self.send(Open("test", **fields), Begin(None, 0, 1000, 1000))
        self.expect(Open)
        self.expect(Begin)

    def attach_receiver(self, address: str, handle: int = 0, **fields: Any) -> None:
        source = Described(ULong(0x28), [address] + [None] * 10)
        self.send(Attach(f"r{handle}", handle, True, source=source, **fields))

    def attach_sender(self, address: str, handle: int = 0) -> None:
        self.send(Attach(f"s{handle}", handle, False, target=Described(ULong(0x29), [address] + [None] * 6)))

    def credit(self, amount: int, handle: int = 0, received: int = 0, window: int = 1000, **fields: Any) -> None:
        self.send(Flow(received, window, 0, 1000, handle, received, amount, **fields))

    def next(self) -> Frame | None:
        """The next frame; None for a heartbeat. Raises EOFError at the end."""
        size = self._take(4)
        frames = split_frames(size + self._take(int.from_bytes(size, "big") - 4))
        return frames[0] if frames else None

    def expect(self, kind: type) -> Any:
        """The next performative of a kind, a transfer with its payload; others are skipped."""
        while True:
            frame = self.next()
            if frame is not None and isinstance(frame[0], kind):
                return frame if kind is Transfer else frame[0]

    def close_condition(self) -> Symbol | None:
        """The condition of the close that ends the connection; None if it ends without one."""
        try:
            error = self.expect(Close).error
        except (EOFError, ConnectionResetError):
            return None
        return None if error is None else error.value[0]

    def _take(self, count: int) -> bytes:
        while len(self._in) < count:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._in += data
        taken, self._in = self._in[:count], self._in[count:]
        return taken
