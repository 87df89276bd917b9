"""Sessions and their links. A link is a one-way stream of messages, for which the receiving end grants credit."""

from __future__ import annotations

import itertools
import struct
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from spark_ehbalance.emulator.amqp import frames
from spark_ehbalance.emulator.amqp.codec import Described, Symbol, ULong
from spark_ehbalance.emulator.amqp.errors import (
    HANDLE_IN_USE,
    MESSAGE_SIZE,
    NOT_ALLOWED,
    UNATTACHED_HANDLE,
    AmqpError,
)
from spark_ehbalance.emulator.amqp.frames import Attach, Begin, Detach, Flow, Transfer, encode_frame, error_field

MAX_FRAME_SIZE = 65536  # bytes in either direction, as Azure announces; larger messages take several frames
MAX_MESSAGE_SIZE = 1 << 20  # Azure's limit in bytes for one event or batch in the standard tier
HANDLE_MAX = 255  # the highest number of a session's link, as Azure announces
ID_SPAN = 1 << 32  # ids and counters are unsigned 32-bit integers and wrap
_INCOMING_WINDOW = 5000  # transfer frames; each is processed on arrival, so the window does not limit memory
_OUTGOING_WINDOW = 65536
_FIRST_OUTGOING_ID = 1
_TRANSFER_OVERHEAD = 64  # bytes of a transfer frame without its payload, rounded up
_TAG = struct.Struct("<I")
UNSETTLED, SETTLED, MIXED = 0, 1, 2  # sender settle modes: no delivery is settled, all are, or some are
_NO_SOURCE, _NO_TARGET = Described(ULong(0x28), [None] * 11), Described(ULong(0x29), [None] * 7)


def lowest_free(used: Collection[int]) -> int:
    """The lowest number that is not in `used`: Azure's choice for its channels and handles."""
    return next(number for number in itertools.count() if number not in used)


def _difference(one: int, other: int) -> int:
    """`one` - `other` for ids or counters that wrap at 32 bits; negative if `one` is behind."""
    return (one - other + ID_SPAN // 2) % ID_SPAN - ID_SPAN // 2


class BaseConnection(ABC):
    """The part of a connection that sessions use: the encoded frames to send, and the attached links."""

    def __init__(self) -> None:
        self.writable = True  # the socket accepts more
        self.closed = False  # later frames are ignored
        self.max_frame_size = MAX_FRAME_SIZE
        self.links: set[Link] = set()
        self._frames: list[bytes | bytearray] = []

    @abstractmethod
    def make_endpoint(self, link: Link, attach: Attach) -> Endpoint:
        """Create the endpoint of a link that the peer attaches. Raises AmqpError to refuse the link."""

    @abstractmethod
    def flush(self) -> None:
        """Send the bytes that `take` returns. Call this after each change that the peer did not cause."""

    def write(self, encoded: bytes | bytearray) -> None:
        if not self.closed:
            self._frames.append(encoded)

    def take(self) -> bytes | bytearray:
        """Remove and return all pending bytes. If they are a single block, such as a chunk of events, it is not
        copied."""
        pending, self._frames = self._frames, []
        return pending[0] if len(pending) == 1 else b"".join(pending)


class Endpoint:
    """Serves a link. Subclasses handle its events."""

    credit = 1000  # maximum deliveries in flight from the peer; TCP's flow control limits the memory
    max_message_size = (1 << 64) - 1  # announced to the peer
    properties: Mapping[Symbol, Any] = {}  # of the link, in addition to the peer's

    def on_message(self, message: bytes, message_format: int, delivery_id: int | None) -> None:
        """Handle a message, and settle it with `IncomingLink.settle`. `delivery_id` is None if it is already settled.
        Raises DecodeError, which closes the connection, if the message is malformed."""

    def on_capacity(self) -> None:
        """Handle an increase of the link's capacity."""

    def on_detached(self) -> None:
        """Handle the end of the link. Called once."""


class _Link:
    """This side's end of a link. `handle` identifies it in sent frames."""

    def __init__(self, session: Session, handle: int) -> None:
        self.session = session
        self.handle = handle
        self.endpoint = Endpoint()
        self.detached = False
        self._delivery_count = self._credit = 0

    def answer(self, attach: Attach, settle_mode: int | None = None) -> None:
        """Respond to the peer's `attach`, by default with the peer's settle mode. This is also the first step of
        refusing a link: AMQP requires an attach, followed by a detach."""
        if settle_mode is None:
            settle_mode = MIXED if attach.snd_settle_mode is None else attach.snd_settle_mode
        self.session.write(
            Attach(
                name=attach.name,
                handle=self.handle,
                role=not attach.role,
                snd_settle_mode=settle_mode,
                rcv_settle_mode=attach.rcv_settle_mode if attach.role else 0,
                source=frames.reply_source(attach.source) or _NO_SOURCE,  # clients treat null as a refusal
                target=attach.target or _NO_TARGET,
                initial_delivery_count=0 if attach.role else None,
                max_message_size=self.endpoint.max_message_size,
                properties={**(attach.properties or {}), **self.endpoint.properties} or None,
            )
        )

    def on_flow(self, flow: Flow) -> None:
        """Send this side's state if the peer requests it."""
        if flow.echo:
            self._write_credit()

    def _write_credit(self, drain: bool = False) -> None:
        self.session.write_flow(self.handle, self._delivery_count, max(self._credit, 0), drain)

    def detach(self, error: AmqpError | None = None) -> None:
        """Detach the link from this side, and send `error` as the reason. Idempotent."""
        if not self.detached:
            self.session.write(Detach(self.handle, True, error_field(error)))
            self.end()

    def end(self) -> None:
        if not self.detached:
            self.detached = True
            self.session.connection.links.discard(self)
            self.endpoint.on_detached()


class IncomingLink(_Link):
    """A link on which the peer sends. Its credit is renewed automatically. The endpoint settles each message with
    `settle`."""

    def __init__(self, session: Session, handle: int) -> None:
        super().__init__(session, handle)
        self._first: Transfer | None = None  # first frame of the delivery in progress
        self._parts: list[bytes] = []
        self._size = 0

    def accept(self, attach: Attach) -> None:
        """Accept the peer's `attach` and grant credit."""
        self.answer(attach)
        self._delivery_count = attach.initial_delivery_count or 0
        self._grant_credit()

    def _grant_credit(self) -> None:
        self._credit = self.endpoint.credit
        self._write_credit()

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        """Process one frame of a delivery. A message above the size limit is dropped, and rejected after its last
        frame."""
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
        if self._credit < self.endpoint.credit // 2:
            self._grant_credit()
        if transfer.aborted:
            return
        delivery_id = None if first.settled or transfer.settled else first.delivery_id
        if size > MAX_MESSAGE_SIZE:
            text = f"The received message ({size} bytes) exceeds the limit ({MAX_MESSAGE_SIZE} bytes) of the link."
            self.settle(delivery_id, frames.rejected(AmqpError(MESSAGE_SIZE, text)))
        else:
            self.endpoint.on_message(b"".join(parts), first.message_format or 0, delivery_id)

    def settle(self, delivery_id: int | None, state: Described) -> None:
        """Send the outcome of a delivery. Does nothing if `delivery_id` is None, or if the link is detached."""
        if delivery_id is not None and not self.detached:
            self.session.write(frames.Disposition(True, delivery_id, None, True, state))


class OutgoingLink(_Link):
    """A link on which the peer receives. Send with `send` or `send_records` while `capacity` is positive.

    By default, deliveries are sent settled, with an empty tag. If `settled` is set to False before `accept`, deliveries
    are unsettled, and each has its own tag. `send_records` requires settled deliveries.
    """

    def __init__(self, session: Session, handle: int) -> None:
        super().__init__(session, handle)
        self.settled = True
        self.unsettled: set[int] = set()  # deliveries that `settle` settles unless the peer has settled them
        self._drain = False
        self._rest: bytes = b""  # of a partly sent message, which waits for the session's window to open

    def accept(self, attach: Attach) -> None:
        self.answer(attach, SETTLED if self.settled else UNSETTLED)

    def on_flow(self, flow: Flow) -> None:
        if flow.link_credit is not None:
            self._credit = _difference(flow.delivery_count or 0, self._delivery_count) + flow.link_credit
            self._drain = bool(flow.drain)
        super().on_flow(flow)

    @property
    def capacity(self) -> int:
        """The number of single-frame messages that can be sent now; 0 while a longer message is partly sent."""
        return 0 if self.detached or self._rest else max(0, min(self._credit, self.session.remote_window))

    def finish_drain(self) -> None:
        """Give up the remaining credit if the peer drains the link. Call this when there is nothing to send."""
        if self._drain and not self._rest:
            self._delivery_count = (self._delivery_count + max(self._credit, 0)) % ID_SPAN
            self._credit, self._drain = 0, False
            self._write_credit(drain=True)

    def send_records(self, data: bytearray, starts: Sequence[int]) -> None:
        """Send at most `capacity` messages, each of which fits into one frame. `data` is modified, not copied.

        At each of `starts` except the last, there is a gap of `TRANSFER_HEADER_SIZE` bytes, followed by a message; the
        last is the end of the last message.
        """
        count = len(starts) - 1
        first_id = self._count_deliveries(count)
        before_wrap = min(count, ID_SPAN - first_id)  # ids wrap at most once: a chunk is shorter than 2^32
        frames.fill_transfer_headers(data, starts[: before_wrap + 1], self.session.number, self.handle, first_id)
        frames.fill_transfer_headers(data, starts[before_wrap:], self.session.number, self.handle, 0)
        self.session.write_transfers(data, count)

    def send(self, message: bytes) -> int:
        """Send one message of any size, in as many frames as it needs. `capacity` must be positive. Returns the
        delivery id."""
        delivery_id = self._count_deliveries(1)
        self._rest = message
        tag = b"" if self.settled else _TAG.pack(self._delivery_count)
        first = Transfer(self.handle, delivery_id, tag, 0, self.settled, batchable=self.settled)
        self._send_frame(first)
        self.continue_message()
        return delivery_id

    def settle(self, delivery_id: int) -> None:
        """Settle a delivery, unless it is already settled or the link is detached."""
        if delivery_id in self.unsettled and not self.detached:
            self.unsettled.remove(delivery_id)
            self.session.write(frames.Disposition(False, delivery_id, None, True, frames.ACCEPTED))

    def continue_message(self) -> bool:
        """Send more of a partly sent message, if the window allows. Returns False while part of the message is left."""
        while self._rest and self.session.remote_window > 0 and not self.detached:
            self._send_frame(Transfer(self.handle))
        return not self._rest

    def _send_frame(self, transfer: Transfer) -> None:
        fits = self.session.connection.max_frame_size - _TRANSFER_OVERHEAD
        part, self._rest = self._rest[:fits], self._rest[fits:]
        transfer = transfer._replace(more=bool(self._rest))
        self.session.write_transfers(encode_frame(self.session.number, transfer, part), 1)

    def _count_deliveries(self, count: int) -> int:
        """Count `count` deliveries and return the id of the first one."""
        self._delivery_count = (self._delivery_count + count) % ID_SPAN
        self._credit -= count
        first = self.session.next_delivery_id
        self.session.next_delivery_id = (first + count) % ID_SPAN
        return first


Link = IncomingLink | OutgoingLink


class Session:
    """A session with its ids, windows and links. `number` is this side's channel. Each side numbers its channels and
    handles independently."""

    def __init__(self, connection: BaseConnection, number: int, begin: Begin, peers_channel: int) -> None:
        """Respond to the peer's `begin` on `peers_channel`."""
        self.number = number
        self.connection = connection
        self.remote_window = begin.incoming_window
        self._links: dict[int, Link] = {}  # by the peer's handle; kept until the peer detaches
        self._next_outgoing_id = _FIRST_OUTGOING_ID  # counts transfer frames
        self.next_delivery_id = 0
        self._next_incoming_id = begin.next_outgoing_id
        self._incoming_window = _INCOMING_WINDOW
        self.write(Begin(peers_channel, _FIRST_OUTGOING_ID, _INCOMING_WINDOW, _OUTGOING_WINDOW, HANDLE_MAX))

    # --- called by links

    def write(self, performative: frames.Performative) -> None:
        self.connection.write(encode_frame(self.number, performative))

    def write_flow(
        self,
        handle: int | None = None,
        count: int | None = None,
        credit: int | None = None,
        drain: bool = False,
        *,
        echo: bool = False,
    ) -> None:
        """Send the windows and, if a handle is given, a link's delivery count and credit. `echo` requests a response.
        Reopens the window for incoming transfers."""
        self._incoming_window = _INCOMING_WINDOW
        windows = (self._next_incoming_id, _INCOMING_WINDOW, self._next_outgoing_id, _OUTGOING_WINDOW)
        available = None if handle is None else 0
        self.write(Flow(*windows, handle, count, credit, available, drain, echo))

    def write_transfers(self, encoded: bytes | bytearray, count: int) -> None:
        """Send `count` encoded transfer frames."""
        self._next_outgoing_id = (self._next_outgoing_id + count) % ID_SPAN
        self.remote_window -= count
        self.connection.write(encoded)

    def links(self) -> list[Link]:
        """The attached links of this session."""
        return [link for link in self._links.values() if not link.detached]

    # --- called by the connection

    def receive(self, performative: frames.Performative, payload: bytes) -> None:
        """Process one frame. Raises AmqpError if it is invalid."""
        match performative:
            case Transfer():
                self._on_transfer(performative, payload)
            case Flow():
                self._on_flow(performative)
            case Attach():
                self._on_attach(performative)
            case Detach(handle, closed):
                link = self._links.pop(handle, None)
                if link is not None and not link.detached:
                    self.write(Detach(link.handle, bool(closed)))
                    link.end()
            case frames.Disposition(True, first, last):
                settled = range(first, (first if last is None else last) + 1)
                for link in self.links():
                    if isinstance(link, OutgoingLink):
                        link.unsettled -= {delivery_id for delivery_id in link.unsettled if delivery_id in settled}

    def close(self, error: AmqpError | None = None) -> None:
        """End the session and its links, and send `error` as the reason."""
        for link in self.links():
            if error is None:
                link.end()
            else:
                link.detach(error)
        self.write(frames.End(error_field(error)))

    def _on_attach(self, attach: Attach) -> None:
        if attach.handle > HANDLE_MAX:
            raise AmqpError(NOT_ALLOWED, f"handle {attach.handle} is above the handle-max of {HANDLE_MAX}")
        present = self._links.get(attach.handle)
        if present is not None and not present.detached:
            raise AmqpError(HANDLE_IN_USE, f"handle {attach.handle} is in use")
        self._links.pop(attach.handle, None)
        handle = lowest_free({link.handle for link in self._links.values()})
        link = self._links[attach.handle] = (OutgoingLink if attach.role else IncomingLink)(self, handle)
        try:
            link.endpoint = self.connection.make_endpoint(link, attach)
        except AmqpError as error:
            link.answer(attach)
            link.detach(error)
        else:
            self.connection.links.add(link)
            link.accept(attach)

    def _on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        self._next_incoming_id = (self._next_incoming_id + 1) % ID_SPAN
        self._incoming_window -= 1
        if self._incoming_window < _INCOMING_WINDOW // 2:
            self.write_flow()
        link = self._links.get(transfer.handle)
        if link is None:
            raise AmqpError(UNATTACHED_HANDLE, f"handle {transfer.handle} is not attached")
        if link.detached:
            return
        if isinstance(link, OutgoingLink):
            raise AmqpError(NOT_ALLOWED, "the peer is the receiver of this link")
        link.on_transfer(transfer, payload)

    def _on_flow(self, flow: Flow) -> None:
        # a peer does not send an id before it receives the begin
        next_incoming_id = _FIRST_OUTGOING_ID if flow.next_incoming_id is None else flow.next_incoming_id
        self.remote_window = _difference(next_incoming_id, self._next_outgoing_id) + flow.incoming_window
        if flow.handle is None:
            if flow.echo:
                self.write_flow()
        elif (named := self._links.get(flow.handle)) is not None and not named.detached:
            named.on_flow(flow)
        for link in self.links():
            if isinstance(link, OutgoingLink):
                link.endpoint.on_capacity()
