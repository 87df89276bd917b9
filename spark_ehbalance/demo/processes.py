"""The demo's processes: each starts in its own process group, and all are ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from spark_ehbalance.demo.requirements import spark_submit
from spark_ehbalance.shipped import conf, job


class DemoError(Exception):
    """The demo cannot go on, or broke a rule. The text is one line, sometimes with the end of a log."""


class Interrupted(Exception):
    """SIGINT or another signal ended the demo. The argument is the signal's number."""


class Child:
    """A process whose output goes to a file."""

    def __init__(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.may_end = False  # whether it was asked to end, or ends by itself
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which then ends its children
            )

    def ended(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process itself: a job stops its own processes in the right order."""
        self.may_end = True
        self._process.terminate()

    def printed(self) -> str:
        """The output so far."""
        return self._log.read_text(errors="replace")

    def failure(self, what: str) -> DemoError:
        """An error that says `what` happened to this process, with the end of its output."""
        end = "\n".join(self.printed().splitlines()[-30:])
        return DemoError(f"{self.name} {what}\n--- the last that {self.name} printed:\n{end}")

    def kill(self) -> None:
        """Send SIGKILL to the process and to all that it started (Spark's Python workers have groups of their own)."""
        self.may_end = True
        if self._process.poll() is not None:
            return
        os.killpg(self._process.pid, signal.SIGSTOP)  # so that it starts no more
        family = psutil.Process(self._process.pid).children(recursive=True)
        os.killpg(self._process.pid, signal.SIGKILL)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()


def start_job(name: str, root: Path, settings: Mapping[str, str], connection_string: str, folder: Path) -> Child:
    """Start the job in `root` with spark-submit; `settings` override its file's. Temporary files and the log go into
    `folder`."""
    temporary = folder / f"{name}.tmp"
    temporary.mkdir(exist_ok=True)  # a job that was killed left it
    environment = {
        **os.environ,
        "EHBALANCE_CONNECTION_STRING": connection_string,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(temporary),
        "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData",  # performance data would go to /tmp
        "TMPDIR": str(temporary),
    }
    environment.pop("SPARK_HOME", None)  # it may be of another Spark
    overrides = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    command: list[str | Path] = [spark_submit(), *overrides, "--properties-file", root / conf(), root / job()]
    return Child(f"query {name}", command, environment, folder / f"{name}.log")
