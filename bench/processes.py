"""CPU time of this process's descendants."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict

import psutil

#: The part of the system that a process belongs to, by a piece of its command line.
_PARTS = {
    "kafka.Kafka": "broker",
    "org.apache.spark": "JVM",
    "pyspark": "Python",
    "spark_ehbalance.emulator": "emulator",
}


def cpu_by_part() -> dict[str, float]:
    """The CPU time so far, in seconds. Ended processes count as Python: JVM and emulator keep running."""
    spent: dict[str, float] = defaultdict(float)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command, times = " ".join(process.cmdline()), process.cpu_times()
            part = next((name for piece, name in _PARTS.items() if piece in command), "Python")
            spent[part] += times.user + times.system
            spent["Python"] += times.children_user + times.children_system
    return dict(spent)


def planners() -> set[int]:
    """The ids of the planner processes of this process's streaming queries."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "python_streaming_source_runner" in " ".join(process.cmdline()):
                found.add(process.pid)
    return found


def await_planners() -> None:
    """Wait until all planners have ended and their CPU time is counted as their parent's."""
    while planners() or any(_is_zombie(child) for child in psutil.Process().children(recursive=True)):
        time.sleep(0.01)


def _is_zombie(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        # the shell that starts Java can leave a child for which nobody waits
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.name() != "bash")
    return False


def cpu(pid: int) -> float:
    """The CPU time of a process, in seconds. Raises `psutil.NoSuchProcess`."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system
