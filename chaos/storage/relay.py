"""Forwards requests to a storage, later than they come, and disturbs those that a rule names."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime, parsedate_to_datetime
from multiprocessing.connection import Connection
from typing import NoReturn
from urllib.parse import urlsplit

from chaos.storage.faults import EXPIRED, Break, Fault, Kind, Refusal, Request, Rule
from chaos.storage.http import Head, read_answer, read_body, read_head
from chaos.storage.identity import Identity

#: A date in a header or in a listing. All have the same length.
_DATE = re.compile(rb"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT")


def run(upstream: str, latency: float, orders: Connection) -> None:
    """Relay until the other end of `orders` is closed, also by the end of its process."""
    asyncio.run(Relay(upstream, latency).serve(orders))


class Relay:
    """Forwards to the storage at `upstream`. Each request waits for `latency` seconds. See `StorageProxy`."""

    def __init__(self, upstream: str, latency: float) -> None:
        self._upstream = urlsplit(upstream)
        self._latency, self._skew = latency, 0.0
        self._identity: Identity | None = None
        self._rules: list[Rule] = []
        self._requests: list[Request] = []
        self._ended = asyncio.Event()

    async def serve(self, orders: Connection) -> None:
        """Serve clients, and obey `orders`: the name of a method below, and its arguments. The first answer is the port
        on which it listens."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        orders.send(server.sockets[0].getsockname()[1])
        asyncio.get_running_loop().add_reader(orders.fileno(), self._obey, orders)
        await self._ended.wait()

    def _obey(self, orders: Connection) -> None:
        try:
            name, arguments = orders.recv()
            orders.send(getattr(self, name)(*arguments))
        except (EOFError, OSError):
            self._ended.set()

    # --- orders ------------------------------------------------------------------------------------------------

    def set_skew(self, seconds: float) -> None:
        self._skew = seconds

    def set_rules(self, *rules: Rule) -> None:
        self._rules = list(rules)

    def set_identity(self, signature: str, seconds: float) -> None:
        self._identity = Identity(signature, seconds)

    def tokens(self) -> int:
        return self._identity.issued if self._identity else 0

    def requests(self, first: int) -> list[Request]:
        return self._requests[first:]

    def counts(self) -> Counter[Kind]:
        return Counter(request.kind for request in self._requests)

    # --- clients -----------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        storage = _Storage(self._upstream.hostname, self._upstream.port)
        try:
            while (head := await read_head(reader)) is not None:
                request = head.request()
                self._requests.append(request)
                fault = next((rule.fault for rule in self._rules if rule.applies(request)), None)
                await asyncio.sleep(self._latency)
                await self._handle(head, request, fault, storage, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the connection has ended, or the relay ends
        finally:
            storage.close()
            writer.close()

    async def _handle(
        self,
        head: Head,
        request: Request,
        fault: Fault | None,
        storage: _Storage,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if fault is Break.RESET:
            _reset(writer)
        body = await read_body(reader, head)
        if request.kind is Kind.TOKEN and self._identity:
            writer.write(_answer("200 OK", {"Content-Type": "application/json"}, self._identity.token()))
            return
        if self._identity and head.headers.get("authorization", "").startswith("Bearer "):
            if (signed := self._identity.signed(head)) is None:
                fault = EXPIRED
            else:
                head = signed
        if isinstance(fault, Refusal):
            writer.write(_refused(fault, request))
            return
        if fault is Break.HANG:
            await _hung_up(reader)
        if fault is Break.RESET_HALFWAY:
            await storage.send(head.raw + body[: len(body) // 2])
            _reset(writer)
        answer = self._skewed(await storage.answer(head.raw + body, request))
        if fault is Break.HANG_WHEN_DONE:
            await _hung_up(reader)
        if fault is Break.LOST_ANSWER:
            _reset(writer)
        if fault is Break.CUT_ANSWER:
            writer.write(answer[: len(answer) // 2])
            await writer.drain()
            _reset(writer)
        writer.write(answer)
        await writer.drain()

    def _skewed(self, answer: bytes) -> bytes:
        if not self._skew:
            return answer
        by = timedelta(seconds=self._skew)
        return _DATE.sub(lambda date: _http_date(parsedate_to_datetime(date[0].decode()) + by).encode(), answer)


class _Storage:
    #: Seconds after which an idle connection is not used any more: Node closes it after 5.
    _LONGEST_IDLE = 2.0

    def __init__(self, host: str | None, port: int | None) -> None:
        self._place = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    async def send(self, request: bytes) -> asyncio.StreamReader:
        """Send a request, or the first part of one. The answer comes from what is returned."""
        if self._streams is None or time.monotonic() - self._used > self._LONGEST_IDLE:
            self.close()
            self._streams = await asyncio.open_connection(*self._place)
        reader, writer = self._streams
        writer.write(request)
        await writer.drain()
        return reader

    async def answer(self, raw: bytes, request: Request) -> bytes:
        answer = await read_answer(await self.send(raw), request)
        self._used = time.monotonic()
        return answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


def _refused(refusal: Refusal, request: Request) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{refusal.code}</Code><Message>Refused.</Message></Error>".encode()
    headers = {"Content-Type": "application/xml", "x-ms-error-code": refusal.code, **refusal.headers}
    return _answer(f"{refusal.status} {refusal.code}", headers, b"" if request.kind is Kind.HEAD else body)


def _answer(status: str, headers: Mapping[str, str], body: bytes) -> bytes:
    date = _http_date(datetime.now(timezone.utc))
    all_headers = {"Date": date, "Content-Length": f"{len(body)}", **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def _http_date(time: datetime) -> str:
    return format_datetime(time, usegmt=True)


def _reset(writer: asyncio.StreamWriter) -> NoReturn:
    """Reset a connection, and leave its handling by `ConnectionResetError`."""
    transport = writer.transport
    no_linger = struct.pack("ii", 1, 0)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
    transport.abort()
    raise ConnectionResetError


async def _hung_up(reader: asyncio.StreamReader) -> NoReturn:
    """Wait until the client has hung up, and leave the connection's handling by `ConnectionResetError`."""
    await reader.read(1)  # a client that waits for an answer sends nothing
    raise ConnectionResetError
