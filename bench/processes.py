"""CPU time and memory of this process's descendants, from `/proc` (Linux)."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

#: The part of the system that a process belongs to, by a piece of its command line.
_PARTS = {"org.apache.spark": "JVM", "pyspark": "Python", "spark_ehbalance.emulator": "emulator"}

#: Pieces of the command lines of a reading worker and of a streaming query's planner.
_WORKER, _PLANNER = "pyspark.worker", "python_streaming_source_runner"


def cpu_by_part() -> dict[str, float]:
    """The CPU time so far, in seconds; empty without `/proc`. Ended processes count as Python, because the JVM and the
    emulator go on running."""
    spent: dict[str, float] = defaultdict(float)
    for pid, command in _descendants():
        part = next((name for piece, name in _PARTS.items() if piece in command), "Python")
        own, ended = _cpu(pid)
        spent[part] += own
        spent["Python"] += ended
    return dict(spent)


def largest_worker() -> float:
    """The largest peak memory of a worker, in MB; 0 if it cannot be measured."""
    return max((_peak(pid) for pid, command in _descendants() if _WORKER in command), default=0.0)


def workers_cpu() -> float:
    """The CPU time of the running workers, in seconds."""
    return sum(_cpu(pid)[0] for pid, command in _descendants() if _WORKER in command)


def planners() -> list[int]:
    """The ids of the planner processes of this process's streaming queries."""
    return [pid for pid, command in _descendants() if _PLANNER in command]


def cpu(pid: int) -> float:
    """The CPU time of a process, in seconds."""
    return _cpu(pid)[0]


def _descendants() -> Iterator[tuple[int, str]]:
    """This process's descendants, with their command lines."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(_stat(int(folder.name))[1])
        except OSError:  # ended meanwhile
            continue
    for pid in parents:
        above = parents[pid]
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid():
            try:
                yield pid, Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:
                continue


def _cpu(pid: int) -> tuple[float, float]:
    """The CPU time of a process and of its ended children, in seconds."""
    try:
        user, system, children_user, children_system = map(int, _stat(pid)[11:15])
    except OSError:
        return 0.0, 0.0
    tick = os.sysconf("SC_CLK_TCK")
    return (user + system) / tick, (children_user + children_system) / tick


def _peak(pid: int) -> float:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1e3 if found else 0.0


def _stat(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` after the command: state, parent and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
