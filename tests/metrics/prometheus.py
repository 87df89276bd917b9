"""The real Prometheus and its promtool, where they are installed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

#: Skips, unless CI says that it has to be there.
needed = pytest.mark.skipif(
    shutil.which("prometheus") is None and os.environ.get("EHBALANCE_REQUIRE_PROMETHEUS") != "1",
    reason="prometheus with promtool is not installed",
)

RULES = Path(__file__).parents[2] / "monitoring/ehbalance.rules.yml"
DASHBOARD = RULES.with_name("grafana-dashboard.json")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def scraped(port: int) -> str:
    """What is served there."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A running one, asked by its API."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self._address}/{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as got:
            return json.load(got)["data"]

    def value(self, expression: str) -> dict[str, float]:
        """The value of each series, by its labels without those of the scrape."""
        found = self.get("query", query=expression)["result"]
        return {_labels(each["metric"]): float(each["value"][1]) for each in found}

    def firing(self) -> set[str]:
        return {each["labels"]["alertname"] for each in self.get("alerts")["alerts"] if each["state"] == "firing"}


def _labels(metric: dict[str, str]) -> str:
    kept = {name: value for name, value in metric.items() if name not in ("__name__", "instance", "job", "group")}
    return ",".join(f"{name}={value}" for name, value in sorted(kept.items()))


@contextlib.contextmanager
def running(folder: Path, rules: str, ports: list[int]) -> Iterator[Prometheus]:
    """Prometheus with these rules, scraping what listens on `ports` of this machine three times a second."""
    (folder / "rules.yml").write_text(rules)
    targets = [f"127.0.0.1:{port}" for port in ports]
    (folder / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "300ms", "scrape_timeout": "300ms", "evaluation_interval": "300ms"},
                "rule_files": ["rules.yml"],
                "scrape_configs": [{"job_name": "ehbalance", "static_configs": [{"targets": targets}]}],
            }
        )
    )
    promtool("check", "config", str(folder / "prometheus.yml"))
    port = free_port()
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log, stdout=log)
    try:
        made = Prometheus(port)

        def answers() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(OSError):
                return bool(made.get("targets")["activeTargets"])
            return False

        wait_until(answers, "Prometheus answers")
        yield made
    finally:
        process.kill()
        process.wait()
