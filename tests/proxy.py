"""An HTTP proxy for tests: CONNECT to known addresses, with or without Basic authentication."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping

from chaos.relay import Relay

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class HttpProxy(Relay):
    """A relay whose clients name a target.

    `targets` maps addresses that clients can request to local ports, so that a test can use names that nobody else
    resolves. `connected` and `refused` count requests. A `handler` serves connections in another way.
    """

    def __init__(
        self,
        targets: Mapping[str, int] | None = None,
        *,
        user: str | None = None,
        password: str = "",
        handler: Handler | None = None,
    ) -> None:
        super().__init__()
        self._targets = targets or {}
        self._expected = None if user is None else base64.b64encode(f"{user}:{password}".encode()).decode()
        self._handler = handler
        self.connected = self.refused = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._handler:
            await self._handler(reader, writer)
            return
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if self._expected is not None and headers.get("proxy-authorization") != f"Basic {self._expected}":
            await self._refuse(writer, "407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=tests")
        elif method != "CONNECT" or target not in self._targets:
            await self._refuse(writer, "403 Forbidden")
        else:
            self.connected += 1
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await self.join(reader, writer, self._targets[target])

    async def _refuse(self, writer: asyncio.StreamWriter, status: str) -> None:
        self.refused += 1
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
