"""Runs `ehbalance dashboard` as a process and reads its pages."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

_COMMAND = ("-c", "from spark_ehbalance.ops import main; main()", "dashboard")


class Dashboard:
    """A process that serves the page and prints its address."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        found = re.fullmatch(r"Dashboard: (http://127\.0\.0\.1:(\d+)/) \(press Ctrl-C to stop\)\n", self.first_line)
        assert found is not None, self.first_line + self.end(signal.SIGKILL)[1]
        self.address, self.port = found[1], int(found[2])

    def end(self, by: int = signal.SIGINT) -> tuple[int, str]:
        """The exit code, and the output after the address."""
        if self.process.poll() is None:
            self.process.send_signal(by)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out + err

    def request(self, path: str = "/", method: str = "GET", host: str | None = None) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, headers={} if host is None else {"Host": host})
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, headers, answer.read().decode()

    def facts(self, number: int = 0) -> dict[str, Any]:
        """The page's data about the group with this number."""
        code, _, text = self.request(f"/facts/{number}")
        assert code == 200
        return dict(json.loads(text))


@contextlib.contextmanager
def running(*arguments: object, port: int = 0) -> Iterator[Dashboard]:
    """Run the command with these arguments."""
    dashboard = Dashboard(*_COMMAND, *map(str, arguments), "--port", str(port))
    try:
        yield dashboard
    finally:
        dashboard.end(signal.SIGKILL)
