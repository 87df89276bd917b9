"""CPU and memory of the processes below this one, from `/proc` (Linux)."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

#: The part of the system that a process is, by what its command line has in it.
_PARTS = {"org.apache.spark": "JVM", "pyspark": "Python", "spark_ehbalance.emulator": "emulator"}

#: In the command line of a worker that reads, and of a streaming query's planner.
_WORKER, _PLANNER = "pyspark.worker", "python_streaming_source_runner"


def cpu_by_part() -> dict[str, float]:
    """Seconds of CPU so far; empty where there is no `/proc`. Processes that have ended count as Python: the JVM and
    the emulator live on."""
    spent: dict[str, float] = defaultdict(float)
    for pid, command in _below():
        part = next((name for piece, name in _PARTS.items() if piece in command), "Python")
        own, ended = _cpu(pid)
        spent[part] += own
        spent["Python"] += ended
    return dict(spent)


def largest_worker() -> float:
    """The most memory in MB that one of the workers has held; 0 if that cannot be told."""
    return max((_peak(pid) for pid, command in _below() if _WORKER in command), default=0.0)


def workers_cpu() -> float:
    """Seconds of CPU that the workers which are there have used."""
    return sum(_cpu(pid)[0] for pid, command in _below() if _WORKER in command)


def planners() -> list[int]:
    """The planner processes of this process's streaming queries."""
    return [pid for pid, command in _below() if _PLANNER in command]


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    return _cpu(pid)[0]


def _below() -> Iterator[tuple[int, str]]:
    """The processes that this one has started, and those of theirs, with their command lines."""
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
    """Of a process and of its children that have ended."""
    try:
        user, system, users, systems = map(int, _stat(pid)[11:15])
    except OSError:
        return 0.0, 0.0
    tick = os.sysconf("SC_CLK_TCK")
    return (user + system) / tick, (users + systems) / tick


def _peak(pid: int) -> float:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1e3 if found else 0.0


def _stat(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` after the command: state, parent and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
