"""Outgoing bytes, and the ids and transfer windows of a session."""

from __future__ import annotations

from .frames import Begin, Flow, Performative, encode_frame

ID_SPAN = 1 << 32  # ids and counters are unsigned 32-bit integers and wrap
HANDLE_MAX = 255  # the highest number of a session's link, as Azure announces
_INCOMING_WINDOW = 5000  # transfer frames; each is processed on arrival, so the window bounds no memory
_LARGEST_FRAME = 65536  # bytes, as Azure announces


def difference(one: int, other: int) -> int:
    """`one` - `other` for ids or counters that wrap at 32 bits; negative if `one` is behind."""
    return (one - other + ID_SPAN // 2) % ID_SPAN - ID_SPAN // 2


class Output:
    """The encoded frames of a connection that wait to be sent."""

    def __init__(self) -> None:
        self.max_frame_size = _LARGEST_FRAME
        self._frames: list[bytes | bytearray] = []
        self._closed = False

    def write(self, frames: bytes | bytearray) -> None:
        """Add encoded frames; ignored after `close`."""
        if not self._closed:
            self._frames.append(frames)

    def close(self) -> None:
        """Ignore all later frames."""
        self._closed = True

    def take(self) -> bytes | bytearray:
        """Remove and return all waiting bytes. A single block, such as a chunk of many events, is not copied."""
        frames, self._frames = self._frames, []
        return frames[0] if len(frames) == 1 else b"".join(frames)


class Channel:
    """A session without its links: its channel number, ids and windows. Both directions use the peer's number."""

    def __init__(self, output: Output, number: int, begin: Begin, first_delivery_id: int = 0) -> None:
        """Answer the peer's `begin`."""
        self.number = number
        self.output = output
        self.remote_window = begin.incoming_window
        self._next_outgoing_id = 0  # counts transfer frames
        self._next_delivery_id = first_delivery_id
        self._next_incoming_id = begin.next_outgoing_id
        self._incoming_window = _INCOMING_WINDOW
        self.write(Begin(number, 0, _INCOMING_WINDOW, _INCOMING_WINDOW, HANDLE_MAX))

    def write(self, performative: Performative) -> None:
        """Send a frame on this channel."""
        self.output.write(encode_frame(self.number, performative))

    def write_flow(
        self,
        handle: int | None = None,
        delivery_count: int | None = None,
        credit: int | None = None,
        drain: bool = False,
    ) -> None:
        """Send the windows and, with a handle, a link's credit. This reopens the window for incoming transfers."""
        self._incoming_window = _INCOMING_WINDOW
        windows = (self._next_incoming_id, _INCOMING_WINDOW, self._next_outgoing_id, _INCOMING_WINDOW)
        self.write(Flow(*windows, handle, delivery_count, credit, drain=drain))

    def write_transfers(self, frames: bytes | bytearray, count: int) -> None:
        """Send `count` encoded transfer frames."""
        self._next_outgoing_id = (self._next_outgoing_id + count) % ID_SPAN
        self.remote_window -= count
        self.output.write(frames)

    def take_delivery_ids(self, count: int) -> int:
        """Reserve `count` consecutive delivery ids; returns the first."""
        first = self._next_delivery_id
        self._next_delivery_id = (first + count) % ID_SPAN
        return first

    def on_transfer(self) -> None:
        """Count an incoming transfer frame; reopens the window when half of it is used."""
        self._next_incoming_id = (self._next_incoming_id + 1) % ID_SPAN
        self._incoming_window -= 1
        if self._incoming_window < _INCOMING_WINDOW // 2:
            self.write_flow()

    def on_flow(self, flow: Flow) -> None:
        """Update the peer's window. A peer that has not seen the begin sends no id; ids begin at 0 here."""
        self.remote_window = difference(flow.next_incoming_id or 0, self._next_outgoing_id) + flow.incoming_window
