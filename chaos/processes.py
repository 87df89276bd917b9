"""Starts, commands and kills query processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.query import Settings


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    command: str


class QueryProcess:
    """A Spark application in its own process tree."""

    def __init__(self, settings: Settings, log: Path, program: str = "chaos.query") -> None:
        """`program` is the module to run. It must accept the same commands as `chaos.query`."""
        self._journal = log.with_suffix(".jsonl")
        self._position = 0
        temporary = Path(settings.folder) / "tmp"
        with self._journal.open("wb") as out, log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", program, settings.to_json()],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                text=True,
                start_new_session=True,  # so that Ctrl-C reaches only the starting process
                env=_environment(temporary),
            )

    def command(self, do: str, **details: str) -> None:
        """Send a command. Its result appears in the journal."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **details}) + "\n")
            self._process.stdin.flush()

    def new_events(self) -> list[dict[str, Any]]:
        with self._journal.open() as journal:
            journal.seek(self._position)
            lines = journal.readlines()
        complete = [line for line in lines if line.endswith("\n")]
        self._position += sum(len(line.encode()) for line in complete)
        return [json.loads(line) for line in complete if line.startswith("{")]

    def planner(self) -> list[int]:
        """The ids of the planner processes."""
        return self._matching("python_streaming_source_runner")

    def workers(self) -> list[int]:
        """The ids of the Python workers, without the daemon that forks them."""
        daemons = set(self._matching("pyspark.daemon pyspark.worker"))
        return [process.pid for process in self.tree() if process.parent in daemons]

    def tree(self) -> list[Process]:
        """All processes in this process's session: its descendants belong to it even after this process has ended."""
        return session_processes(self._process.pid)

    def kill(self) -> None:
        """Send SIGKILL to the driver, the JVM, the planner and the workers."""
        kill_session(self._process.pid)
        self._process.wait()

    def _matching(self, command: str) -> list[int]:
        return [process.pid for process in self.tree() if command in process.command]


def list_processes() -> list[Process]:
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,ppid=,stat=,args="], capture_output=True, text=True).stdout
    rows = [line.split(None, 3) for line in listed.splitlines()]
    return [Process(int(row[0]), int(row[1]), row[3]) for row in rows if len(row) == 4 and not row[2].startswith("Z")]


def session_processes(leader: int) -> list[Process]:
    """The processes in the session that the process `leader` started."""
    return [process for process in list_processes() if _session_of(process.pid) == leader]


def kill_session(leader: int) -> None:
    """Send SIGKILL to all processes in a session."""
    # Pause all processes first, so that none can react to the end of another.
    send((process.pid for process in session_processes(leader)), signal.SIGSTOP)
    send((process.pid for process in session_processes(leader)), signal.SIGKILL)


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def send(pids: Iterable[int], which: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, which)


def wait_for(condition: Any, what: str, timeout: float) -> None:
    """Wait until `condition()` is true. Raises `TimeoutError`."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out after {timeout:g} s: not yet true that {what}")
        time.sleep(0.05)


def _environment(temporary: Path) -> dict[str, str]:
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "EHBALANCE_LOG_LEVEL": os.environ.get("EHBALANCE_LOG_LEVEL", "INFO"),
        # Spark's launcher starts another small JVM.
        "SPARK_LAUNCHER_OPTS": f"-XX:-UsePerfData -Djava.io.tmpdir={temporary}",
    }
    environment.pop("SPARK_HOME", None)  # it could point to another Spark
    return environment
