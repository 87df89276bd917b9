"""A time limit for opening a connection: the client has none while a peer is silent in SASL."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def cut_off_after(seconds: float, connection: Callable[[], Any]) -> Iterator[None]:
    """Shut down the socket of the client's `connection` if the block takes longer than `seconds`.

    A read from it then fails at once, with an error of the connection.
    """

    def cut_off() -> None:
        with contextlib.suppress(AttributeError, OSError):  # there may be no socket yet, or it may be closed
            opened = connection()._transport.sock
            getattr(opened, "sock", opened).shutdown(socket.SHUT_RDWR)  # a websocket has one below

    timer = threading.Timer(seconds, cut_off)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
