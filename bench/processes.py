"""CPU time of this process's descendants."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict

import psutil

#: A piece of a process's command line → the part of the system to which the process belongs.
_PARTS = {
    "kafka.Kafka": "broker",
    "org.apache.spark": "JVM",
    "pyspark": "Python",
    "multiprocessing.spawn": "emulator",
}


def cpu_by_part() -> dict[str, float]:
    """The CPU time so far, in seconds, by part of the system. Processes that have ended count as Python, because the
    JVM and the emulator keep running."""
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
    """Wait until all planners have ended, and their CPU time has been added to their parent's."""
    while planners() or any(_is_zombie(child) for child in psutil.Process().children(recursive=True)):
        time.sleep(0.01)


def _is_zombie(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        # the shell that starts Java can leave a child that is never reaped
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.name() != "bash")
    return False


def cpu(pid: int) -> float:
    """The CPU time of a process, in seconds. Raises `psutil.NoSuchProcess`."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system
