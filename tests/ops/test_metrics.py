"""`ehbalance metrics`. `tests/metrics/test_scrape.py` has a real Prometheus scrape it."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.ops.command import Command
from tests.ops.groups import Group


def test_what_cannot_be_served_ends_it(ehbalance: Command, used: Group, tmp_path: Path) -> None:
    assert "there is no lease table at " in ehbalance.fails(1, "metrics", used.table, tmp_path / "nowhere")
    address = "https://account.blob.core.windows.net/container"
    assert "allowed is a lease table in Delta" in ehbalance.fails(2, "metrics", address)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        error = ehbalance.fails(1, "metrics", used.table, "--port", other.getsockname()[1])
    assert error.startswith("Error: metrics cannot be served at 127.0.0.1:")
