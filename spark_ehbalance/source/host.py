"""What the host says about itself."""

from __future__ import annotations

from pathlib import Path

from spark_ehbalance.source.load import CpuTime

#: Linux only; its first line has the clock ticks of all cores together, by what they were spent on (proc(5)).
_STAT = Path("/proc/stat")


def cpu_time(stat: Path = _STAT) -> CpuTime | None:
    """How long the host's cores have been busy, in clock ticks; None on a system that does not tell."""
    try:
        name, *ticks = stat.read_text().split("\n", 1)[0].split()
        # user, nice, system, idle, iowait, irq, softirq, steal; what comes after is contained in user and nice.
        spent = [int(each) for each in ticks[:8]]
        return CpuTime(sum(spent) - spent[3] - spent[4], sum(spent)) if name == "cpu" else None
    except (OSError, ValueError, IndexError):
        return None
