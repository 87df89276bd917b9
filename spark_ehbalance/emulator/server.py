"""The server: listens for clients and connects them to the broker, `$cbs` and `$management`.

Everything here runs on one asyncio loop; `Emulator` calls it from other threads.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator

from spark_ehbalance.emulator.broker import Broker
from spark_ehbalance.emulator.client import Client
from spark_ehbalance.emulator.endpoints import HubEndpoint
from spark_ehbalance.emulator.settings import Settings

_TICK = 1.0  # maximum seconds between checks of time-outs and expired tokens


class Server:
    """A namespace and its connected clients. Call its methods on the loop's thread."""

    def __init__(self, settings: Settings, tls: ssl.SSLContext | None) -> None:
        self.settings = settings
        self.port = settings.port
        self.websocket_port = settings.websocket_port
        self.broker = Broker(settings)
        self.clients: set[Client] = set()
        self._tls = tls
        self._listeners: list[asyncio.Server] = []
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises OSError if a port is not available, and ImportError if the `websockets` package is missing."""
        self.port = await self._listen(self._make_client, self.port)
        if self.websocket_port is not None:
            from spark_ehbalance.emulator.websocket import WebSocketConnection  # its package is optional

            self.websocket_port = await self._listen(
                lambda: WebSocketConnection(self._make_client), self.websocket_port
            )
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    def _make_client(self) -> Client:
        return Client(self.settings, self.broker, self.clients)

    async def _listen(self, make: Callable[[], asyncio.Protocol], port: int) -> int:
        """Listen on `port`, or on a free port if it is 0. Returns the port."""
        loop = asyncio.get_running_loop()
        self._listeners.append(await loop.create_server(make, self.settings.host, port, ssl=self._tls))
        bound: int = self._listeners[-1].sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._ticker:
            self._ticker.cancel()
        for client in list(self.clients):
            client.drop()
        await asyncio.sleep(0)  # lets asyncio report the lost connections

    def endpoints(self, hub: str, partition: str | int | None = None) -> Iterator[HubEndpoint]:
        """The attached publishers and readers of a hub, or of one of its partitions."""
        for client in list(self.clients):
            for endpoint in client.hub_endpoints():
                if endpoint.hub.name.lower() == hub.lower() and (
                    partition is None or endpoint.partition == str(partition)
                ):
                    yield endpoint

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(min(_TICK, self.settings.idle_timeout / 8))
            for client in list(self.clients):
                client.check_timeouts()
