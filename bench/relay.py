"""A relay to a port of this machine that delays what it passes on, and tells when connections came."""

from __future__ import annotations

import contextlib
import socket
import time
from queue import SimpleQueue
from threading import Thread

_CHUNK = 1 << 18


class Relay:
    """Listens on `port` between `with` and its end; a round trip takes `round_trip` seconds more than without it.

    Threads, because a loop's timers are too coarse for a millisecond.
    """

    def __init__(self, target: int, round_trip: float = 0.0) -> None:
        """Pass everything on to port `target`, and back."""
        self._target, self._delay = target, round_trip / 2
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        #: When each connection came, in seconds since 1970.
        self.came: list[float] = []

    def __enter__(self) -> Relay:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the end of `with`
            while True:
                client = self._listener.accept()[0]
                self.came.append(time.time())
                server = socket.create_connection(("127.0.0.1", self._target))
                for source, target in ((client, server), (server, client)):
                    target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    due: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                    Thread(target=self._take, args=(source, due), daemon=True).start()
                    Thread(target=_deliver, args=(due, target), daemon=True).start()

    def _take(self, source: socket.socket, due: SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"more"
        while data:
            try:
                data = source.recv(_CHUNK)
            except OSError:
                data = b""
            due.put((time.monotonic() + self._delay, data))


def _deliver(due: SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
    """Until an empty piece has come, which is the end."""
    with contextlib.suppress(OSError):
        while True:
            at, data = due.get()
            time.sleep(max(0.0, at - time.monotonic()))
            if not data:
                break
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
