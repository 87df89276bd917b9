"""Aborting a connection that takes too long."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from types import SimpleNamespace

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.wire.client import cut_off_after


@pytest.mark.parametrize("websocket", [False, True])
def test_aborted_connection_stays_encrypted(websocket: bool) -> None:
    """Another thread might be about to write."""
    with Emulator({"hub": 1}, tls=True) as running:
        context = ssl.create_default_context(cafile=str(running.ca_file))
        plain = socket.create_connection(("localhost", running.port))
        plain.settimeout(30)
        with context.wrap_socket(plain, server_hostname="localhost") as opened:
            transport = SimpleNamespace(sock=SimpleNamespace(sock=opened) if websocket else opened)
            with cut_off_after(0.1, lambda: SimpleNamespace(_transport=transport)), contextlib.suppress(ssl.SSLError):
                while opened.recv(1000):
                    pass
            with pytest.raises(ssl.SSLError):  # not the underlying socket's method
                opened.send(b"a token")


@pytest.mark.parametrize("websocket", [False, True])
def test_connection_that_gets_its_socket_after_the_deadline_is_aborted(websocket: bool) -> None:
    ours, peer = socket.socketpair()
    with ours, peer:
        holder = SimpleNamespace(sock=None)
        transport = SimpleNamespace(sock=holder) if websocket else holder
        requested = threading.Event()

        def connection() -> SimpleNamespace:
            requested.set()
            return SimpleNamespace(_transport=transport)

        with cut_off_after(0.0, connection):
            assert requested.wait(30), "it was looked for in vain"
            holder.sock = ours
            ours.settimeout(30)
            assert ours.recv(1) == b""
