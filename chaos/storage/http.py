"""HTTP/1.1 messages, read from a connection and kept as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from chaos.storage.faults import Kind, Request


class Head(NamedTuple):
    """A message's first line and its headers, whose names are in lower case."""

    raw: bytes
    first: str
    headers: Mapping[str, str]

    def request(self) -> Request:
        """What is asked by the message, whose path is that of an Azurite: /account/container/path."""
        method, target, _ = self.first.split(" ")
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if query.get("comp") == "list":
            return Request(Kind.LIST, query.get("prefix", ""))
        path = "/".join(unquote(url.path).split("/")[3:])
        if method == "PUT" and self.headers.keys() & {"if-none-match", "if-match"}:
            return Request(Kind.CONDITIONAL_PUT, path)
        if query.get("comp") == "batch":
            return Request(Kind.BATCH, path)
        if url.path.endswith("/oauth2/v2.0/token"):
            return Request(Kind.TOKEN, path)
        return Request(Kind.__members__.get(method, Kind.OTHER), path)


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = raw.decode("latin-1").rstrip().split("\r\n")
    fields = (line.partition(":") for line in lines)
    return Head(raw, first, {name.lower(): value.strip() for name, _, value in fields})


async def read_body(reader: asyncio.StreamReader, head: Head) -> bytes:
    """The message's body as it is sent: at once or in chunks."""
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
    empty = request.kind is Kind.HEAD or head.first.split(" ")[1] in ("204", "304")
    return head.raw if empty else head.raw + await read_body(reader, head)
