"""Sessions: the links on one channel of a connection, and the windows that count their transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import HANDLE_IN_USE, NOT_ALLOWED, UNATTACHED_HANDLE, AmqpError
from .frames import (
    Attach,
    Begin,
    Detach,
    End,
    Flow,
    Performative,
    Transfer,
    encode_frame,
    error_field,
)
from .link import ID_SPAN, InboundLink, Link, OutboundLink, attach_answer, difference

if TYPE_CHECKING:
    from .connection import Connection

INCOMING_WINDOW = 5000  # transfer frames; each is dealt with as it comes, so this bounds no memory
HANDLE_MAX = 1023  # links per session, far above what a client uses


class Session:
    """A session that the peer has begun; both directions use the peer's channel number."""

    def __init__(self, connection: Connection, channel: int, begin: Begin) -> None:
        self.connection = connection
        self.channel = channel
        self.links: dict[int, Link] = {}
        self.remote_window = begin.incoming_window
        self._next_outgoing_id = 0  # counts transfer frames
        self._next_delivery_id = 0
        self._next_incoming_id = begin.next_outgoing_id
        self._window_left = INCOMING_WINDOW
        self.write(Begin(channel, 0, INCOMING_WINDOW, INCOMING_WINDOW, HANDLE_MAX))

    def write(self, performative: Performative) -> None:
        """Send a frame on this session's channel."""
        self.connection.write(encode_frame(self.channel, performative))

    def write_flow(
        self,
        handle: int | None = None,
        delivery_count: int | None = None,
        credit: int | None = None,
        drain: bool = False,
    ) -> None:
        """Tell the peer the windows and, with a handle, a link's credit; this renews the window for its transfers."""
        self._window_left = INCOMING_WINDOW
        self.write(
            Flow(
                self._next_incoming_id,
                INCOMING_WINDOW,
                self._next_outgoing_id,
                INCOMING_WINDOW,
                handle,
                delivery_count,
                credit,
                drain=drain,
            )
        )

    def write_transfers(self, frames: bytes | bytearray, count: int) -> None:
        """Send `count` encoded transfer frames."""
        self._next_outgoing_id = (self._next_outgoing_id + count) % ID_SPAN
        self.remote_window -= count
        self.connection.write(frames)

    def take_delivery_ids(self, count: int) -> int:
        """The first of `count` ids for deliveries."""
        first = self._next_delivery_id
        self._next_delivery_id = (first + count) % ID_SPAN
        return first

    def end(self) -> None:
        """Take note that the session is over, and with it its links."""
        for link in self.links.values():
            link.end()
        self.links.clear()

    def on_frame(self, performative: Performative, payload: bytes) -> None:
        """A frame for this session or one of its links. Raises AmqpError for what the peer must not send."""
        if isinstance(performative, Transfer):
            self._on_transfer(performative, payload)
        elif isinstance(performative, Flow):
            self._on_flow(performative)
        elif isinstance(performative, Attach):
            self._on_attach(performative)
        elif isinstance(performative, Detach):
            self._on_detach(performative)
        elif isinstance(performative, End):
            self.connection.forget_session(self)
            self.write(End())
        # a disposition needs nothing: all that is sent here is settled before

    def _on_attach(self, attach: Attach) -> None:
        if attach.handle > HANDLE_MAX:
            raise AmqpError(NOT_ALLOWED, f"handle {attach.handle} is above the handle-max of {HANDLE_MAX}")
        present = self.links.get(attach.handle)
        if present is not None and not present.detached:
            raise AmqpError(HANDLE_IN_USE, f"handle {attach.handle} is in use")
        try:
            link = self.connection.container.create_link(self, attach)
        except AmqpError as error:
            self.links[attach.handle] = refused = Link(self, attach)
            self.write(attach_answer(attach, not attach.role, 2))
            refused.detach(error)
            return
        self.links[attach.handle] = link

    def _on_detach(self, detach: Detach) -> None:
        link = self.links.pop(detach.handle, None)
        if link is not None and not link.detached:
            link.end()
            self.write(Detach(detach.handle, bool(detach.closed)))

    def _on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        self._next_incoming_id = (self._next_incoming_id + 1) % ID_SPAN
        self._window_left -= 1
        if self._window_left < INCOMING_WINDOW // 2:
            self.write_flow()
        link = self.links.get(transfer.handle)
        if isinstance(link, InboundLink) and not link.detached:
            link.on_transfer(transfer, payload)
        elif link is None:
            raise AmqpError(UNATTACHED_HANDLE, f"a transfer on handle {transfer.handle}, which is not attached")
        elif not link.detached:
            raise AmqpError(NOT_ALLOWED, "a transfer on a link whose sender is this side")

    def _on_flow(self, flow: Flow) -> None:
        # before it has seen the begin, a peer cannot know the id; ours begin at 0
        self.remote_window = difference(flow.next_incoming_id or 0, self._next_outgoing_id) + flow.incoming_window
        named = None if flow.handle is None else self.links.get(flow.handle)
        if flow.handle is None and flow.echo:
            self.write_flow()
        if named is not None and not named.detached:
            named.on_flow(flow)
        for link in list(self.links.values()):
            if isinstance(link, OutboundLink) and link is not named:
                link.on_credit()

    def resume(self) -> None:
        """The connection can take more: let the links send."""
        for link in list(self.links.values()):
            if isinstance(link, OutboundLink):
                link.on_credit()

    def abort(self, error: AmqpError) -> None:
        """End the session because of what the peer did in it."""
        self.connection.forget_session(self)
        self.write(End(error_field(error)))
