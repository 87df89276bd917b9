"""The control port: operations on a server in another process.

One JSON object a line: {"call": name, "args": {…}} is answered with {"result": …} or {"error": text}. Where the
emulator has keys, a call needs one of them as its "key". Bytes are written as {"base64": text}. Any other line closes
the connection. That protects against web pages: whatever a browser sends begins with a line of HTTP.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Any

from spark_ehbalance.emulator.administration import Administration

_LINE_LIMIT = 256 << 20  # bytes: 1,000 events of up to 190 KB in base64


class ControlServer:
    """Listens for calls and executes them on the loop on which it was started."""

    def __init__(self, execute: Callable[[str, dict[str, Any]], Any], keys: Collection[str] | None) -> None:
        """`execute` takes a call's name and arguments. Calls need one of `keys`; with None they need none."""
        self._execute = execute
        self._keys = keys
        self._listener: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError if the port is not available."""
        self._listener = await asyncio.start_server(self._serve, host, port, limit=_LINE_LIMIT)
        return int(self._listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._listener:
            self._listener.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                request = _request(line)
                if request is None:
                    writer.write(_refusal(line))
                    break
                writer.write(_encode(self._reply(*request)))
                await writer.drain()
        except (OSError, ValueError):
            pass  # the peer has disconnected, or a line exceeds the limit
        finally:
            self._writers.discard(writer)
            writer.close()

    def _reply(self, call: str, arguments: dict[str, Any], key: str) -> dict[str, Any]:
        if self._keys is not None and not any(hmac.compare_digest(key.encode(), each.encode()) for each in self._keys):
            return {"error": "the emulator was started with keys (--sas-key): a call needs one of them"}
        try:
            return {"result": self._execute(call, arguments)}
        except Exception as error:  # the caller gets it
            return {"error": str(error) or repr(error)}


class EmulatorControl(Administration):
    """Calls an emulator in another process through its control port; not thread-safe."""

    def __init__(self, host: str, port: int, timeout: float = 60.0, key: str = "") -> None:
        """Connect; `timeout` is in seconds for each call. `key`: one of the emulator's keys, if it has any. Raises
        OSError."""
        self._key = key
        self._socket = socket.create_connection((host, port), timeout)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()

    def __enter__(self) -> EmulatorControl:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _invoke(self, call: str, arguments: Mapping[str, Any]) -> Any:
        self._socket.sendall(_encode({"call": call, "args": arguments, "key": self._key}))
        line = self._file.readline()
        if not line:
            raise ConnectionError("the emulator has closed its control port")
        reply = _decode(line)
        if "error" in reply:
            raise ValueError(reply["error"])
        return reply.get("result")


def _request(line: bytes) -> tuple[str, dict[str, Any], str] | None:
    """The call, its arguments and the key; None if the line is not a request."""
    try:
        request = _decode(line)
        call, arguments, key = request["call"], request.get("args", {}), request.get("key", "")
    except Exception:  # a line may be anything
        return None
    good = isinstance(call, str) and isinstance(arguments, dict) and isinstance(key, str)
    return (call, arguments, key) if good else None


def _refusal(line: bytes) -> bytes:
    """The answer to a line that is not a request; to HTTP, in HTTP."""
    text = _encode({"error": 'a request is one line of JSON, {"call": name, "args": {...}}: the connection ends'})
    return b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n" + text if b" HTTP/" in line else text


def _encode(value: Any) -> bytes:
    return json.dumps(value, default=_to_json).encode() + b"\n"


def _to_json(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be sent through the control port")


def _decode(line: bytes) -> Any:
    return json.loads(
        line, object_hook=lambda value: base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value
    )
