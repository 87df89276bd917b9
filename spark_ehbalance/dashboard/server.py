"""Serves the page on the loopback address, and what changes on it as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from spark_ehbalance.dashboard.board import Board

ADDRESS = "127.0.0.1"

#: The page has no address of elsewhere, and nothing may be put into it that has: see docs/security.md.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

#: The files of the page, whose names are their paths.
PAGE = Path(__file__).parent / "page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

#: Seconds for the last words to viewers.
_PATIENCE = 1.0

#: Seconds after which a viewer hears that the server is there, if there is nothing new.
_SIGN_OF_LIFE = 1.0


def application(board: Board) -> Starlette:
    """The page of `board`, as an ASGI application.

    It answers GET alone, and only who asks by this machine's name: a page of somebody else's could give its own name
    this address (DNS rebinding).
    """

    async def events(_: Request) -> Response:
        return StreamingResponse(_events(board), media_type="text/event-stream", headers=_HEADERS)

    routes = [Route("/events", events), *map(_file, PAGE.iterdir())]
    names = [ADDRESS, "localhost"]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)
    return Starlette(routes=routes, middleware=[hosts])


def _file(file: Path) -> Route:
    content, kind = file.read_bytes(), _TYPES[file.suffix]

    async def answer(_: Request) -> Response:
        return Response(content, media_type=kind, headers=_HEADERS)

    return Route("/" if file.name == "page.html" else f"/{file.name}", answer)


async def _events(board: Board) -> AsyncIterator[str]:
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(changed.set)

    with board.viewer(wake):
        seen: int | None = None
        while not board.closed:
            seen, news = board.news(seen)
            yield f"data: {news}\n\n"
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), _SIGN_OF_LIFE)
            changed.clear()


class _Server(uvicorn.Server):
    """Lets viewers go when it is to end, for which uvicorn would wait."""

    def __init__(self, board: Board) -> None:
        super().__init__(uvicorn.Config(application(board), log_config=None, log_level="error", lifespan="off"))
        self._board = board

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._board.close()
        asyncio.get_running_loop().call_later(_PATIENCE, self._let_go)
        await super().shutdown(sockets)

    def _let_go(self) -> None:
        """Of those that take nothing, such as a browser that is suspended."""
        for each in [*self.server_state.connections]:
            each.transport.abort()


def listening(port: int) -> socket.socket:
    """A socket that listens on this port; 0: on a free one. Raises `OSError`."""
    return socket.create_server((ADDRESS, port))


def serve(board: Board, listener: socket.socket) -> None:
    """Serve the page of `board` until SIGINT or SIGTERM."""
    with contextlib.suppress(KeyboardInterrupt):
        _Server(board).run(sockets=[listener])
