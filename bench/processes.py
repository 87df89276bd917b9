"""CPU time and memory of this process's descendants."""

from __future__ import annotations

import contextlib
import re
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import psutil

#: The part of the system that a process belongs to, by a piece of its command line.
_PARTS = {
    "kafka.Kafka": "broker",
    "org.apache.spark": "JVM",
    "pyspark": "Python",
    "spark_ehbalance.emulator": "emulator",
}

#: Pieces of the command lines of a reading worker and of a streaming query's planner.
_WORKER, _PLANNER = "pyspark.worker", "python_streaming_source_runner"


class _Found(NamedTuple):
    pid: int
    command: str
    #: CPU time in seconds; `ended` is that of ended children, 0 where the system does not tell it (macOS).
    cpu: float
    ended: float


def cpu_by_part() -> dict[str, float]:
    """The CPU time so far, in seconds. Ended processes count as Python, because the JVM and the emulator go on
    running."""
    spent: dict[str, float] = defaultdict(float)
    for each in _descendants():
        part = next((name for piece, name in _PARTS.items() if piece in each.command), "Python")
        spent[part] += each.cpu
        spent["Python"] += each.ended
    return dict(spent)


def largest_worker() -> float:
    """The largest peak memory of a worker, in MB; 0 if it cannot be measured."""
    return max((_peak(each.pid) for each in _descendants() if _WORKER in each.command), default=0.0)


def end_workers() -> None:
    """End the reading workers, so that Spark forks new ones for the next tasks. To be called while no task runs."""
    found = {each.pid: psutil.Process(each.pid) for each in _descendants() if _WORKER in each.command}
    workers = [process for process in found.values() if process.ppid() in found]  # the rest are their daemons
    for process in workers:
        process.terminate()
    psutil.wait_procs(workers)


def planners() -> list[int]:
    """The ids of the planner processes of this process's streaming queries."""
    return [each.pid for each in _descendants() if _PLANNER in each.command]


def await_planners() -> None:
    """Wait until all planners have ended, and what they have spent is counted as that of their parent."""
    while planners() or any(_is_zombie(each) for each in psutil.Process().children(recursive=True)):
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


def _descendants() -> list[_Found]:
    """This process's descendants that have not ended meanwhile."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            ended = times.children_user + times.children_system
            found.append(_Found(process.pid, " ".join(process.cmdline()), times.user + times.system, ended))
    return found


def _peak(pid: int) -> float:
    """Linux only: psutil knows no peak elsewhere either."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1e3 if found else 0.0
