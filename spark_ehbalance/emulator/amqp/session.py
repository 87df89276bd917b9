"""Sessions: the links on one channel of a connection."""

from __future__ import annotations

from .channel import HANDLE_MAX, Channel
from .errors import HANDLE_IN_USE, NOT_ALLOWED, UNATTACHED_HANDLE, AmqpError
from .events import AttachRequested, CreditChanged, Event, LinkDetached, MessageReceived, SessionFailed
from .frames import Attach, Detach, End, Flow, Performative, Transfer, error_field
from .link import IncomingLink, Link, OutgoingLink


class Session:
    """A session that the peer has begun."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._links: dict[int, Link] = {}
        self._asked: Link | None = None  # the link that the peer has asked for last

    def receive(self, performative: Performative, payload: bytes) -> list[Event]:
        """The events of one frame. Raises AmqpError for a frame that the peer must not send."""
        if self._asked is not None and self._asked.refused:  # it got no credit, so that nothing more comes for it
            self._links.pop(self._asked.handle)
            self._asked = None
        if isinstance(performative, Transfer):
            return self._on_transfer(performative, payload)
        if isinstance(performative, Flow):
            return self._on_flow(performative)
        if isinstance(performative, Attach):
            return self._on_attach(performative)
        if isinstance(performative, Detach):
            return self._on_detach(performative)
        return []  # a disposition needs nothing: every delivery from this side is settled when it is sent

    def end(self, error: AmqpError | None = None) -> list[Event]:
        """End the session, because of `error` or as the answer to the peer's end."""
        self._channel.write(End(error_field(error)))
        attached = [link for link in self._links.values() if not link.detached]
        for link in attached:
            link.detached = True
        failed = [SessionFailed(self._channel.number, error)] if error else []
        return [*(LinkDetached(link) for link in attached), *failed]

    def _on_attach(self, attach: Attach) -> list[Event]:
        if attach.handle > HANDLE_MAX:
            raise AmqpError(NOT_ALLOWED, f"handle {attach.handle} is above the handle-max of {HANDLE_MAX}")
        present = self._links.get(attach.handle)
        if present is not None and not present.detached:
            raise AmqpError(HANDLE_IN_USE, f"handle {attach.handle} is in use")
        link = (OutgoingLink if attach.role else IncomingLink)(self._channel, attach)
        self._links[attach.handle] = self._asked = link
        return [AttachRequested(link)]

    def _on_detach(self, detach: Detach) -> list[Event]:
        link = self._links.pop(detach.handle, None)
        if link is None or link.detached:
            return []
        link.detached = True
        self._channel.write(Detach(detach.handle, bool(detach.closed)))
        return [LinkDetached(link)]

    def _on_transfer(self, transfer: Transfer, payload: bytes) -> list[Event]:
        self._channel.on_transfer()
        link = self._links.get(transfer.handle)
        if link is None:
            raise AmqpError(UNATTACHED_HANDLE, f"a transfer on handle {transfer.handle}, which is not attached")
        if link.detached:
            return []
        if isinstance(link, OutgoingLink):
            raise AmqpError(NOT_ALLOWED, "a transfer on a link whose sender is this side")
        complete = link.on_transfer(transfer, payload)
        return [] if complete is None else [MessageReceived(link, *complete)]

    def _on_flow(self, flow: Flow) -> list[Event]:
        self._channel.on_flow(flow)
        if flow.handle is None:
            if flow.echo:
                self._channel.write_flow()
        elif (link := self._links.get(flow.handle)) is not None and not link.detached:
            link.on_flow(flow)
        links = self._links.values()
        return [CreditChanged(link) for link in links if isinstance(link, OutgoingLink) and not link.detached]
