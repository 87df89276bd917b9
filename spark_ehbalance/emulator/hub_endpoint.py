"""The common part of publishers and readers."""

from __future__ import annotations

import time

from .amqp.errors import AmqpError
from .amqp.session import Endpoint, Link, OutgoingLink
from .broker import Hub
from .faults import Faults


class HubEndpoint(Endpoint):
    """Serves a link on which a client publishes or reads events; all methods run on the server's loop."""

    def __init__(self, link: Link, hub: Hub, partition: str | None, path: str, faults: Faults) -> None:
        """A token must cover `path`, in lower case. Raises AmqpError if the hub has no such partition."""
        if partition is not None:
            hub.partition(partition)
        self.hub = hub
        self.partition = partition
        self.path = path
        self.reads = isinstance(link, OutgoingLink)
        #: On the monotonic clock: when the client last sent something or asked for something, or got a message.
        self.last_active = time.monotonic()
        self._attached = link
        self._faults = faults

    def detach(self, error: AmqpError | None = None) -> None:
        """End the link and send the client the reason; ignored if it has ended."""
        self._attached.detach(error)
        self._attached.session.output.flush()
