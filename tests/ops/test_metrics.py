"""`ehbalance metrics`; `tests/metrics/test_scrape.py` scrapes it with a real Prometheus."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.metrics.prometheus import free_port
from tests.ops.command import Command, assert_error
from tests.ops.groups import Group


def test_sigterm_ends_the_command(used: Group) -> None:
    command = [Path(sys.executable).with_name("ehbalance"), "metrics", used.table, "--port", str(free_port())]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("Serving http://127.0.0.1:")
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_unusable_tables_and_ports_are_errors(ehbalance: Command, used: Group, tmp_path: Path) -> None:
    assert "There is no lease table at " in ehbalance.fails(1, "metrics", used.table, tmp_path / "nowhere")
    address = "https://account.blob.core.windows.net/container"
    assert_error(ehbalance.fails(2, "metrics", address), "EHB_OPTION_INVALID", address, "a lease table in Delta")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        error = ehbalance.fails(1, "metrics", used.table, "--port", other.getsockname()[1])
    assert_error(error, "EHB_PORT_UNAVAILABLE", "127.0.0.1:")
