"""A way out where the client would wait for ever: it has no time-out of its own while a peer says nothing in SASL."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def cut_off_after(seconds: float, connection: Callable[[], Any]) -> Iterator[None]:
    """Shut the socket of the client's `connection` down if the block takes longer than `seconds`.

    Whatever waits for it then fails at once, with an error of the connection.
    """

    def cut_off() -> None:
        with contextlib.suppress(AttributeError, OSError):  # it may not have come as far as a socket, or be closed
            connection()._transport.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut_off)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
