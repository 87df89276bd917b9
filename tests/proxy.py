"""An HTTP proxy for tests: CONNECT, to the addresses that it knows, with Basic authentication or without."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class HttpProxy:
    """Between `with` and its end it listens on `port`.

    `targets` are the addresses that clients may ask for, each with the port of this machine to which they are
    connected, so that a test can use names that nobody else resolves. `connected` and `refused` count requests. A
    `handler` serves each connection in another way.
    """

    def __init__(
        self,
        targets: Mapping[str, int] | None = None,
        *,
        user: str | None = None,
        password: str = "",
        handler: Handler | None = None,
    ) -> None:
        self._targets = targets or {}
        self._expected = None if user is None else base64.b64encode(f"{user}:{password}".encode()).decode()
        self._handler = handler or self._serve
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connected = self.refused = 0

    def __enter__(self) -> HttpProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def drop(self) -> None:
        """Break all connections."""
        asyncio.run_coroutine_threadsafe(self._drop(), self._loop).result()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        """Pass everything on to this port of this machine, and back."""
        there, back = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        finally:
            back.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        await self._drop()

    async def _drop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._guarded(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._handler(reader, writer)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
