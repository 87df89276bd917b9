"""Slow and silent clients and Host headers at the metrics port; the dashboard uses the same server."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator

import pytest

from spark_ehbalance.metrics import http_server
from spark_ehbalance.metrics.http_server import MAX_CONNECTIONS
from spark_ehbalance.metrics.prometheus import MetricsServer
from tests.metrics.prometheus import free_port, scrape_page
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


def is_closed(peer: socket.socket) -> bool:
    """Whether the server closed the connection without a response."""
    with contextlib.suppress(TimeoutError, BlockingIOError):
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""
        return True
    return False


def test_slow_connections_do_not_block_scrapes(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.ExitStack() as opened:
        peers = []
        for _ in range(3 * MAX_CONNECTIONS):
            peers.append(opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)))
            peers[-1].send(b"G")
        assert "process_cpu_seconds_total" in scrape_page(port)
        for peer in peers[: 2 * MAX_CONNECTIONS]:
            assert is_closed(peer)
        peers[-1].setblocking(False)
        assert not is_closed(peers[-1]), "the newest connection stays open"
    assert len(caplog.messages) == 1
    assert f"limit={MAX_CONNECTIONS} address=127.0.0.1:{port}" in caplog.text


def test_slow_request_is_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_TIMEOUT", 0.2)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.settimeout(0.05)

        def ended() -> bool:
            with contextlib.suppress(ConnectionError):
                peer.send(b"G")  # every byte arrives in time
            return is_closed(peer)

        wait_until(ended, "the connection is closed")


@pytest.mark.parametrize(("host", "code"), [("0.0.0.0", 200), ("127.0.0.2", 400), ("localhost", 400)])
def test_host_header_is_checked_only_on_loopback(host: str, code: int, port: int) -> None:
    assert [status(port, host) for host in (None, f"localhost:{port}", f"127.0.0.1:{port}")] == [200] * 3
    assert [status(port, host) for host in ("example.org", f"example.org:{port}", "")] == [400] * 3
    with contextlib.closing(MetricsServer(host, free_port(), tuple)) as server:
        server.start()
        address, port = server._address
        assert status(port, f"example.org:{port}", "127.0.0.1" if host == "0.0.0.0" else address) == code
