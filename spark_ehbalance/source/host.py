"""What the host says about itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from spark_ehbalance.member.load_meter import CpuTime

#: Linux only; its first line has the clock ticks of all cores together, by what they were spent on (proc(5)).
_STAT = Path("/proc/stat")

#: Linux only: a folder for each process, with the words of its command line and, in `stat`, the number of its parent.
_PROCESSES = Path("/proc")

_MASTER = "spark.master"


def cpu_time(stat: Path = _STAT) -> CpuTime | None:
    """How long the host's cores have been busy, in clock ticks; None on a system that does not tell."""
    try:
        name, *ticks = stat.read_text().split("\n", 1)[0].split()
        # user, nice, system, idle, iowait, irq, softirq, steal; what comes after is contained in user and nice.
        spent = [int(each) for each in ticks[:8]]
        return CpuTime(sum(spent) - spent[3] - spent[4], sum(spent)) if name == "cpu" else None
    except (OSError, ValueError, IndexError):
        return None


def spark_master(process: int | None = None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The master of the Spark whose JVM has started this process, or the process with this number; None if that cannot
    be told: Spark tells its Python workers nothing of it, but what it was started with does."""
    try:
        parent = os.getpid() if process is None else process
        while not (words := _words(parent)) or not words[0].endswith("java"):
            parent = int((_PROCESSES / str(parent) / "stat").read_text().rsplit(")", 1)[1].split()[1])
        return _master(words, Path(environment.get("SPARK_CONF_DIR") or environment["SPARK_HOME"] + "/conf"))
    except (OSError, ValueError, IndexError, KeyError):
        return None


def _words(process: int) -> list[str]:
    return (_PROCESSES / str(process) / "cmdline").read_bytes().decode(errors="replace").split("\0")


def _master(words: Sequence[str], conf: Path) -> str | None:
    """As spark-submit finds it: in its command line, in the file of properties that this names, in the default one."""
    follows = dict(pairwise(words))
    given = [word.removeprefix(_MASTER + "=") for word in words if word.startswith(_MASTER + "=")]
    if given or "--master" in follows:
        return (given or [follows["--master"]])[-1]
    if not any(word.endswith(".SparkSubmit") for word in words):
        return None
    file = Path(follows.get("--properties-file", conf / "spark-defaults.conf"))
    lines = file.read_text().splitlines() if file.is_file() else []
    found = [match[1] for line in lines if (match := re.match(rf"\s*{re.escape(_MASTER)}[\s=:]+(\S+)", line))]
    return found[-1] if found else "local[*]"
