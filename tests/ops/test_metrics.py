"""`ehbalance metrics`. `tests/metrics/test_scrape.py` has a real Prometheus scrape it."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.ops.command import Command
from tests.ops.groups import Group


def test_a_table_that_cannot_be_read_ends_it_before_anything_is_served(
    ehbalance: Command, used: Group, tmp_path: Path
) -> None:
    outcome = ehbalance("metrics", used.table, tmp_path / "nowhere")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("Error: there is no lease table at ")
    outcome = ehbalance("metrics", "https://account.blob.core.windows.net/container")
    assert outcome.code == 2
    assert "allowed is a lease table in Delta" in outcome.err


def test_a_port_that_is_taken_ends_it(ehbalance: Command, used: Group) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        outcome = ehbalance("metrics", used.table, "--port", other.getsockname()[1])
    assert outcome.code == 1
    assert outcome.err.startswith("Error: metrics cannot be served at 127.0.0.1:")
