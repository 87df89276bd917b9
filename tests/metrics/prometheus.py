"""Runs Prometheus' promtool, if installed, and requests metrics pages."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

#: Skips a test without promtool unless CI requires it.
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None and os.environ.get("EHBALANCE_REQUIRE_PROMETHEUS") != "1",
    reason="promtool, of Debian's package prometheus, is not installed",
)

RULES = Path(__file__).parents[2] / "monitoring/ehbalance.rules.yml"
DASHBOARD = RULES.with_name("grafana-dashboard.json")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scrape_page(port: int) -> str:
    """The metrics page served at `port`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def promtool(*arguments: str, text: str = "") -> None:
    """Run promtool with `text` on standard input."""
    result = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
