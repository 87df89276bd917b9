"""Forwards HTTP requests to a storage account after a delay, and disturbs the requests to which a rule applies."""

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
from typing import NamedTuple, NoReturn
from urllib.parse import parse_qs, unquote, urlsplit

from chaos.relay import Relay
from chaos.storage.faults import Break, Fault, Refusal, Request, RequestKind, Rule

#: A date in a header or in a listing. All dates have the same length.
_DATE = re.compile(rb"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT")


def run(upstream: str, latency: float, orders: Connection) -> None:
    """Relay requests, and execute `orders`: each is the name of a method and its arguments. Returns when the other end
    of `orders` is closed, or its process ends. The first message sent back is the port."""
    with StorageRelay(upstream, latency) as relay:
        orders.send(relay.port)
        try:
            while True:
                name, arguments = orders.recv()
                orders.send(getattr(relay, name)(*arguments))
        except (EOFError, OSError):
            pass


class StorageRelay(Relay):
    """Forwards each request to the storage at `upstream`, after `latency` seconds. See `StorageProxy`."""

    def __init__(self, upstream: str, latency: float) -> None:
        super().__init__()
        self._upstream = urlsplit(upstream)
        self._latency, self._skew = latency, 0.0
        self._rules: list[Rule] = []
        self._requests: list[Request] = []

    # --- orders ------------------------------------------------------------------------------------------------

    def set_skew(self, seconds: float) -> None:
        self._skew = seconds

    def set_rules(self, *rules: Rule) -> None:
        self._rules = list(rules)

    def requests(self, first: int) -> list[Request]:
        return self._requests[first:]

    def counts(self) -> Counter[RequestKind]:
        return Counter(request.kind for request in self._requests)

    # --- clients -----------------------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        storage = _Storage(self._upstream.hostname, self._upstream.port)
        try:
            while (head := await read_head(reader)) is not None:
                request = head.request()
                self._requests.append(request)
                fault = next((rule.fault for rule in self._rules if rule.applies(request)), None)
                await asyncio.sleep(self._latency)
                await self._handle(head, request, fault, storage, reader, writer)
        finally:
            storage.close()

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
        if isinstance(fault, Refusal):
            writer.write(_refusal_response(fault, request))
            return
        if fault is Break.HANG:
            await _wait_for_hangup(reader)
        if fault is Break.RESET_HALFWAY:
            await storage.send(head.raw + body[: len(body) // 2])
            _reset(writer)
        answer = self._shift_dates(await storage.answer(head.raw + body, request))
        if fault is Break.HANG_WHEN_DONE:
            await _wait_for_hangup(reader)
        if fault is Break.LOST_ANSWER:
            _reset(writer)
        if fault is Break.CUT_ANSWER:
            writer.write(answer[: len(answer) // 2])
            await writer.drain()
            _reset(writer)
        writer.write(answer)
        await writer.drain()

    def _shift_dates(self, answer: bytes) -> bytes:
        if not self._skew:
            return answer
        by = timedelta(seconds=self._skew)
        return _DATE.sub(lambda date: _http_date(parsedate_to_datetime(date[0].decode()) + by).encode(), answer)


class _Storage:
    #: Seconds after which an idle connection is no longer used, because Node closes it after 5.
    _MAX_IDLE_SECONDS = 2.0

    def __init__(self, host: str | None, port: int | None) -> None:
        self._place = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    async def send(self, request: bytes) -> asyncio.StreamReader:
        """Send a request, or the first part of a request. Returns the stream from which the answer can be read."""
        if self._streams is None or time.monotonic() - self._used > self._MAX_IDLE_SECONDS:
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


def _refusal_response(refusal: Refusal, request: Request) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{refusal.code}</Code><Message>Refused.</Message></Error>".encode()
    headers = {"Content-Type": "application/xml", "x-ms-error-code": refusal.code, **refusal.headers}
    return _build_response(
        f"{refusal.status} {refusal.code}", headers, b"" if request.kind is RequestKind.HEAD else body
    )


def _build_response(status: str, headers: Mapping[str, str], body: bytes) -> bytes:
    date = _http_date(datetime.now(timezone.utc))
    all_headers = {"Date": date, "Content-Length": f"{len(body)}", **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def _http_date(time: datetime) -> str:
    return format_datetime(time, usegmt=True)


def _reset(writer: asyncio.StreamWriter) -> NoReturn:
    """Reset a connection, and raise `ConnectionResetError` to end its handling."""
    transport = writer.transport
    no_linger = struct.pack("ii", 1, 0)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
    transport.abort()
    raise ConnectionResetError


async def _wait_for_hangup(reader: asyncio.StreamReader) -> NoReturn:
    """Wait until the client closes the connection, and raise `ConnectionResetError` to end its handling."""
    await reader.read(1)  # a client that waits for an answer sends nothing
    raise ConnectionResetError


# --- HTTP/1.1 messages, which are forwarded unchanged ------------------------------------------------------------


class Head(NamedTuple):
    """A message's first line and its headers, whose names are in lower case."""

    raw: bytes
    first: str
    headers: Mapping[str, str]

    def request(self) -> Request:
        """The kind and the path of the request. Its URL has Azurite's form: /account/container/path."""
        method, target, _ = self.first.split(" ")
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if query.get("comp") == "list":
            return Request(RequestKind.LIST, query.get("prefix", ""))
        path = "/".join(unquote(url.path).split("/")[3:])
        if method == "PUT" and self.headers.keys() & {"if-none-match", "if-match"}:
            return Request(RequestKind.CONDITIONAL_PUT, path)
        if query.get("comp") == "batch":
            return Request(RequestKind.BATCH, path)
        return Request(RequestKind.__members__.get(method, RequestKind.OTHER), path)


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = raw.decode("latin-1").rstrip().split("\r\n")
    fields = (line.partition(":") for line in lines)
    return Head(raw, first, {name.lower(): value.strip() for name, _, value in fields})


async def read_body(reader: asyncio.StreamReader, head: Head) -> bytes:
    """The message's body in the form in which it is sent: as one piece, or in chunks."""
    if head.headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(head.headers.get("content-length", 0)))
    chunks = []
    while True:
        size = await reader.readuntil(b"\r\n")
        chunks += [size, await reader.readexactly(int(size, 16) + 2)]
        if int(size, 16) == 0:
            return b"".join(chunks)


async def read_answer(reader: asyncio.StreamReader, request: Request) -> bytes:
    """The answer to `request`. Raises `ConnectionResetError` if the connection has ended."""
    head = await read_head(reader)
    if head is None:
        raise ConnectionResetError
    empty = request.kind is RequestKind.HEAD or head.first.split(" ")[1] in ("204", "304")
    return head.raw if empty else head.raw + await read_body(reader, head)
