"""Links: one-way streams of messages in a session; the receiving end grants credit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from .channel import ID_SPAN, Channel, difference
from .codec import Described, UInt
from .errors import MESSAGE_SIZE, AmqpError
from .fast_transfer import fill_headers
from .frames import Attach, Detach, Disposition, Flow, Transfer, encode_frame, error_field, null_terminus, rejected

MAX_MESSAGE_SIZE = 1 << 20  # Azure's limit in bytes for one event or batch in the standard tier
_INITIAL_CREDIT = 1000  # deliveries a sender may have in flight; TCP's flow control bounds the memory
_TRANSFER_OVERHEAD = 64  # bytes of a transfer frame besides its payload, rounded up
_UNSETTLED, _SETTLED, _MIXED = 0, 1, 2  # sender settle modes: none of the deliveries settled, all, either


class _Link:
    """This side's end of a link that the peer has asked for; answer with `accept` or `refuse`.

    Each direction has its own handles; both use the number that the peer has chosen. `attach` is there until the
    answer: as Python's objects it may take seventy times its bytes.
    """

    _snd_settle_mode: int

    def __init__(self, channel: Channel, attach: Attach) -> None:
        self.channel = channel
        self.attach = attach
        self.handle = attach.handle
        self.detached = self.refused = False

    def accept(self) -> None:
        """Attach the link."""
        self._answer(self._snd_settle_mode)

    def refuse(self, error: AmqpError) -> None:
        """Attach and detach at once: AMQP has no other way to refuse a link."""
        self._answer(_MIXED)
        self.detach(error)
        self.refused = True

    def _answer(self, snd_settle_mode: int) -> None:
        self.channel.write(_attach_response(self.attach, snd_settle_mode))
        del self.attach

    def detach(self, error: AmqpError | None = None) -> None:
        """Detach from this side and send the peer the reason; ignored if the link is detached."""
        if not self.detached:
            self.detached = True
            self.channel.write(Detach(self.handle, True, error_field(error)))


def _attach_response(attach: Attach, snd_settle_mode: int) -> Attach:
    """The answer to `attach`. Source and target are never null, also where a detach follows at once."""
    return Attach(
        name=attach.name,
        handle=attach.handle,
        role=not attach.role,
        snd_settle_mode=snd_settle_mode,
        rcv_settle_mode=0,
        source=attach.source or null_terminus(0x28, 11),
        target=attach.target or null_terminus(0x29, 7),
        initial_delivery_count=0 if attach.role else None,
        max_message_size=MAX_MESSAGE_SIZE,
        desired_capabilities=None,
    )


class IncomingLink(_Link):
    """The peer sends. Its credit is renewed automatically; each message is answered with `settle`."""

    _snd_settle_mode = _MIXED

    def __init__(self, channel: Channel, attach: Attach) -> None:
        super().__init__(channel, attach)
        self._delivery_count = attach.initial_delivery_count or 0
        self._credit = 0
        self._first: Transfer | None = None  # first frame of the delivery in progress
        self._parts: list[bytes] = []
        self._size = 0

    def accept(self) -> None:
        """Attach the link and grant credit."""
        super().accept()
        self._grant_credit()

    def _grant_credit(self) -> None:
        self._credit = _INITIAL_CREDIT
        self.channel.write_flow(self.handle, self._delivery_count, self._credit)

    def on_flow(self, flow: Flow) -> None:
        """Answer a peer that asks for this side's state."""
        if flow.echo:
            self.channel.write_flow(self.handle, self._delivery_count, self._credit)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> tuple[bytes, int, int | None] | None:
        """One frame of a delivery. Returns message, message format and delivery id once a message is complete.

        The delivery id is None if the peer wants no answer. A message over the size limit is not kept, and refused at
        its last frame.
        """
        first = self._first = self._first or transfer
        self._size += len(payload)
        if self._size <= MAX_MESSAGE_SIZE:
            self._parts.append(payload)
        else:
            self._parts.clear()
        if transfer.more and not transfer.aborted:
            return None
        parts, size = self._parts, self._size
        self._first, self._parts, self._size = None, [], 0
        self._count_delivery()
        if transfer.aborted:
            return None
        delivery_id = None if first.settled or transfer.settled else first.delivery_id
        if size > MAX_MESSAGE_SIZE:
            text = f"The received message ({size} bytes) exceeds the limit ({MAX_MESSAGE_SIZE} bytes) of the link."
            self.settle(delivery_id, rejected(AmqpError(MESSAGE_SIZE, text)))
            return None
        return b"".join(parts), first.message_format or 0, delivery_id

    def _count_delivery(self) -> None:
        self._delivery_count = (self._delivery_count + 1) % ID_SPAN
        self._credit -= 1
        if self._credit < _INITIAL_CREDIT // 2:
            self._grant_credit()

    def settle(self, delivery_id: int | None, state: Described) -> None:
        """Send the peer the outcome of a delivery; ignored without id and on a detached link."""
        if delivery_id is not None and not self.detached:
            self.channel.write(Disposition(True, delivery_id, delivery_id, True, state))


class OutgoingLink(_Link):
    """The peer receives. Send with `send` or `send_records` while `room` is positive.

    Deliveries are settled, with one tag for all; or, if `settled` is made False before `accept`, each has a tag of its
    own, and waits for nothing although the peer may settle it. `send_records` is for settled ones.
    """

    def __init__(self, channel: Channel, attach: Attach) -> None:
        super().__init__(channel, attach)
        self.settled = True
        self._delivery_count = 0
        self._credit = 0
        self._drain = False
        self._rest: bytes = b""  # of a message whose first frames are sent; waits for the session's window

    @property
    def _snd_settle_mode(self) -> int:  # type: ignore[override]
        return _SETTLED if self.settled else _UNSETTLED

    def on_flow(self, flow: Flow) -> None:
        """Update the credit; answer a peer that asks for this side's state."""
        if flow.link_credit is not None:
            self._credit = difference(flow.delivery_count or 0, self._delivery_count) + flow.link_credit
            self._drain = bool(flow.drain)
        if flow.echo:
            self.channel.write_flow(self.handle, self._delivery_count, max(self._credit, 0))

    @property
    def room(self) -> int:
        """How many single-frame messages may be sent now; 0 while a longer message is incomplete."""
        return 0 if self.detached or self._rest else max(0, min(self._credit, self.channel.remote_window))

    def finish_drain(self) -> None:
        """Return the remaining credit if the peer drains the link; call it when nothing is left to send."""
        if self._drain and not self._rest:
            self._delivery_count = (self._delivery_count + max(self._credit, 0)) % ID_SPAN
            self._credit, self._drain = 0, False
            self.channel.write_flow(self.handle, self._delivery_count, 0, drain=True)

    def send_records(self, data: bytearray, starts: Sequence[int]) -> None:
        """Send at most `room` messages, each of which fits into one frame; `data` is filled in and not copied.

        Each of `starts` but the last is a gap of `fast_transfer.HEADER_SIZE` bytes before a message; the last is where
        the last message ends.
        """
        count = len(starts) - 1
        first_id = self.channel.take_delivery_ids(count)
        before_wrap = min(count, ID_SPAN - first_id)  # 2^32 ids are more than a chunk: they wrap at most once
        fill_headers(data, starts[: before_wrap + 1], self.channel.number, self.handle, first_id)
        fill_headers(data, starts[before_wrap:], self.channel.number, self.handle, 0)
        self._count_deliveries(count)
        self.channel.write_transfers(data, count)

    def send(self, message: bytes) -> None:
        """Send one message of any size, in as many frames as it needs; `room` must be positive."""
        delivery_id = self.channel.take_delivery_ids(1)
        self._count_deliveries(1)
        self._rest = message
        tag = b"\x00" if self.settled else uuid.uuid4().bytes
        settled = self.settled
        self._send_frame(
            Transfer(self.handle, delivery_id, tag, UInt(0), settled, False, None, None, False, False, False)
        )
        self.continue_message()

    def continue_message(self) -> bool:
        """Send more of an incomplete message, as far as the window allows. Returns whether it is complete."""
        while self._rest and self.channel.remote_window > 0 and not self.detached:
            self._send_frame(Transfer(self.handle, settled=self.settled))
        return not self._rest

    def _send_frame(self, transfer: Transfer) -> None:
        fits = self.channel.output.max_frame_size - _TRANSFER_OVERHEAD
        part, self._rest = self._rest[:fits], self._rest[fits:]
        frame = encode_frame(self.channel.number, transfer._replace(more=bool(self._rest)), part)
        self.channel.write_transfers(frame, 1)

    def _count_deliveries(self, count: int) -> None:
        self._delivery_count = (self._delivery_count + count) % ID_SPAN
        self._credit -= count


Link = IncomingLink | OutgoingLink
