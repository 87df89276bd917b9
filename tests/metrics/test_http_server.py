"""Idle clients and Host headers at the metrics port; the dashboard uses the same server."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator

import pytest

from spark_ehbalance.metrics import http_server
from spark_ehbalance.metrics.http_server import MAX_CONNECTIONS
from spark_ehbalance.metrics.prometheus import MetricsServer
from tests.metrics.prometheus import free_port
from tests.waiting import wait_until


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server."""
    server = MetricsServer("127.0.0.1", free := free_port(), tuple)
    server.start()
    yield free
    server.close()


def status(port: int, host: str | None = None, address: str = "127.0.0.1") -> int:
    with contextlib.closing(http.client.HTTPConnection(address, port, timeout=10)) as connection:
        connection.request("GET", "/metrics", headers={} if host is None else {"Host": host})
        return connection.getresponse().status


def test_connections_beyond_the_limit_are_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server._Handler, "timeout", 1.0)
    with contextlib.ExitStack() as opened:
        for _ in range(MAX_CONNECTIONS):
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)).send(b"G")
        surplus = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        with contextlib.suppress(ConnectionResetError):
            assert surplus.recv(1) == b""
        wait_until(lambda: _is_served(port), "idle connections are closed")


def _is_served(port: int) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return status(port) == 200
    return False


@pytest.mark.parametrize(("host", "code"), [("0.0.0.0", 200), ("127.0.0.2", 400), ("localhost", 400)])
def test_host_header_is_checked_only_on_loopback(host: str, code: int, port: int) -> None:
    assert [status(port, host) for host in (None, f"localhost:{port}", f"127.0.0.1:{port}")] == [200] * 3
    assert [status(port, host) for host in ("example.org", f"example.org:{port}", "")] == [400] * 3
    with contextlib.closing(MetricsServer(host, free_port(), tuple)) as server:
        server.start()
        address, port = server._address
        assert status(port, f"example.org:{port}", "127.0.0.1" if host == "0.0.0.0" else address) == code
