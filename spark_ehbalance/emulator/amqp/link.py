"""Links: one-way streams of messages in a session, with credit given by whoever receives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .codec import UInt
from .errors import MESSAGE_SIZE, AmqpError
from .fast_transfer import fill_headers
from .frames import Attach, Detach, Disposition, Flow, Transfer, encode_frame, error_field, null_terminus, rejected

if TYPE_CHECKING:
    from ..partition_log import Chunk
    from .codec import Described
    from .session import Session

MAX_MESSAGE_SIZE = 1 << 20  # Azure's limit for one event or batch in the standard tier, in bytes
_INITIAL_CREDIT = 1000  # deliveries a sender may have under way; only what a peer waits for, memory is bounded by TCP
ID_SPAN = 1 << 32  # ids and counters are unsigned, 32 bits, and wrap
_TRANSFER_OVERHEAD = 64  # bytes of a frame that are not payload, rounded up
_SETTLED, _MIXED = 1, 2  # sender settle modes: all deliveries settled, either


def difference(one: int, other: int) -> int:
    """How far the id or counter `one` is ahead of `other`, negative if it is behind; both wrap at 32 bits."""
    return (one - other + ID_SPAN // 2) % ID_SPAN - ID_SPAN // 2


class Link:
    """This end of a link that the peer has asked for; it is attached as soon as it is made.

    Handles are chosen per direction, so the peer's number serves for both.
    """

    _role: bool  # true at the receiving end
    _snd_settle_mode: int

    def __init__(self, session: Session, attach: Attach) -> None:
        self.session = session
        self.handle = attach.handle
        self.detached = False
        self._name = attach.name
        self._asked = attach

    def accept(self) -> None:
        """Answer the peer's attach."""
        self.session.write(attach_answer(self._asked, self._role, self._snd_settle_mode))

    def detach(self, error: AmqpError | None = None) -> None:
        """End the link from this side; the peer is told why. Does nothing if it has ended already."""
        if not self.detached:
            self.end()
            self.session.write(Detach(self.handle, True, error_field(error)))

    def end(self) -> None:
        """Take note that the link is over, however that came."""
        if not self.detached:
            self.detached = True
            self.on_end()

    def on_end(self) -> None:
        """For subclasses: the link is over."""

    def on_flow(self, flow: Flow) -> None:
        """For subclasses: the peer has told its state of the link."""


def attach_answer(asked: Attach, role: bool, snd_settle_mode: int) -> Attach:
    """The attach that answers `asked`; source and target are never null, also when a detach follows at once."""
    return Attach(
        name=asked.name,
        handle=asked.handle,
        role=role,
        snd_settle_mode=snd_settle_mode,
        rcv_settle_mode=0,
        source=asked.source or null_terminus(0x28, 11),
        target=asked.target or null_terminus(0x29, 7),
        initial_delivery_count=None if role else 0,
        max_message_size=MAX_MESSAGE_SIZE,
        desired_capabilities=None,
    )


class InboundLink(Link):
    """The peer sends. Subclasses take whole messages in `on_message` and answer each with `settle`."""

    _role = True
    _snd_settle_mode = _MIXED

    def __init__(self, session: Session, attach: Attach) -> None:
        super().__init__(session, attach)
        self._delivery_count = attach.initial_delivery_count or 0
        self._credit = 0
        self._first: Transfer | None = None  # of the delivery that is under way
        self._parts: list[bytes] = []
        self._size = 0

    def accept(self) -> None:
        super().accept()
        self._grant()

    def _grant(self) -> None:
        self._credit = _INITIAL_CREDIT
        self.session.write_flow(self.handle, self._delivery_count, self._credit)

    def on_flow(self, flow: Flow) -> None:
        if flow.echo:
            self.session.write_flow(self.handle, self._delivery_count, self._credit)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        """One frame of a delivery. A message over the limit is refused at its end; what came of it is not kept."""
        first = self._first = self._first or transfer
        self._size += len(payload)
        if self._size <= MAX_MESSAGE_SIZE:
            self._parts.append(payload)
        else:
            self._parts.clear()
        if transfer.more and not transfer.aborted:
            return
        parts, size = self._parts, self._size
        self._first, self._parts, self._size = None, [], 0
        self._delivery_count = (self._delivery_count + 1) % ID_SPAN
        self._credit -= 1
        if self._credit < _INITIAL_CREDIT // 2:
            self._grant()
        if transfer.aborted:
            return
        delivery_id = None if first.settled or transfer.settled else first.delivery_id
        if size > MAX_MESSAGE_SIZE:
            text = f"The received message ({size} bytes) exceeds the limit ({MAX_MESSAGE_SIZE} bytes) of the link."
            self.settle(delivery_id, rejected(AmqpError(MESSAGE_SIZE, text)))
        else:
            self.on_message(b"".join(parts), first.message_format or 0, delivery_id)

    def on_message(self, message: bytes, message_format: int, delivery_id: int | None) -> None:
        """For subclasses: a whole message; `delivery_id` is None if the peer wants no answer."""

    def settle(self, delivery_id: int | None, state: Described) -> None:
        """Tell the peer what became of a delivery."""
        if delivery_id is not None and not self.detached:
            self.session.write(Disposition(True, delivery_id, delivery_id, True, state))


class OutboundLink(Link):
    """The peer receives. Subclasses send in `on_credit`, as long as `room` allows."""

    _role = False
    _snd_settle_mode = _SETTLED

    def __init__(self, session: Session, attach: Attach) -> None:
        super().__init__(session, attach)
        self._delivery_count = 0
        self._credit = 0
        self._drain = False
        self._rest: bytes = b""  # of a message that has begun and waits for the session's window

    def on_flow(self, flow: Flow) -> None:
        if flow.link_credit is not None:
            self._credit = difference(flow.delivery_count or 0, self._delivery_count) + flow.link_credit
            self._drain = bool(flow.drain)
        self.on_credit()
        if flow.echo and not self.detached:
            self.session.write_flow(self.handle, self._delivery_count, max(self._credit, 0))

    def on_credit(self) -> None:
        """For subclasses: there may be room to send now."""

    @property
    def room(self) -> int:
        """How many messages of one frame may be sent now; 0 also while a longer message is under way."""
        return 0 if self.detached or self._rest else max(0, min(self._credit, self.session.remote_window))

    def finish_drain(self) -> None:
        """With nothing left to send, give back the credit of a peer that asks for that."""
        if self._drain and not self._rest:
            self._delivery_count = (self._delivery_count + max(self._credit, 0)) % ID_SPAN
            self._credit, self._drain = 0, False
            self.session.write_flow(self.handle, self._delivery_count, 0, drain=True)

    def send_chunk(self, chunk: Chunk) -> None:
        """Send records, no more than `room`, each of which fits into one frame."""
        count = len(chunk.starts) - 1
        first_id = self.session.take_delivery_ids(count)
        # an id wraps at most once in 2^32 events, so that chunk is sent in two
        before_wrap = min(count, ID_SPAN - first_id)
        fill_headers(chunk.data, chunk.starts[: before_wrap + 1], self.session.channel, self.handle, first_id)
        fill_headers(chunk.data, chunk.starts[before_wrap:], self.session.channel, self.handle, 0)
        self._count_delivery(count)
        self.session.write_transfers(chunk.data, count)

    def send(self, message: bytes) -> None:
        """Send one message of any size, pre-settled, in as many frames as it needs; `room` must not be 0."""
        delivery_id = self.session.take_delivery_ids(1)
        self._count_delivery(1)
        first = Transfer(self.handle, delivery_id, b"\x00", UInt(0), True, False, None, None, False, False, False)
        self._rest = message
        self._send_frame(first)
        self.continue_message()

    def continue_message(self) -> bool:
        """Send more of a message that waits for the session's window; whether there is none any more."""
        while self._rest and self.session.remote_window > 0 and not self.detached:
            self._send_frame(Transfer(self.handle, settled=True))
        return not self._rest

    def _send_frame(self, transfer: Transfer) -> None:
        fits = self.session.connection.peer_max_frame_size - _TRANSFER_OVERHEAD
        part, self._rest = self._rest[:fits], self._rest[fits:]
        frame = encode_frame(self.session.channel, transfer._replace(more=bool(self._rest)), part)
        self.session.write_transfers(frame, 1)

    def _count_delivery(self, count: int) -> None:
        self._delivery_count = (self._delivery_count + count) % ID_SPAN
        self._credit -= count
