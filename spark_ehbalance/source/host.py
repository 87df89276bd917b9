"""What the operating system tells about this host and its processes."""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from spark_ehbalance.member.load_meter import CpuTime

#: Linux only. Its first line has the clock ticks of all cores together, by what they were spent on (proc(5)).
_STAT = Path("/proc/stat")

#: Linux only: a folder for each process, with its command line and, in `stat`, the id of its parent.
_PROCESSES = Path("/proc")

_MASTER = "spark.master"


def mint_owner_id() -> str:
    """A new owner id: the host's name, for people, and a unique part."""
    host = re.sub(r"[^\w.-]", "-", socket.gethostname(), flags=re.ASCII)[:100]
    return f"{host}-{uuid.uuid4().hex[:12]}"


def cpu_time(stat: Path = _STAT) -> CpuTime | None:
    """How long the host's cores have been busy, in clock ticks; None where the system does not tell."""
    try:
        name, *ticks = stat.read_text().split("\n", 1)[0].split()
        # user, nice, system, idle, iowait, irq, softirq, steal; what comes after is contained in user and nice.
        spent = [int(each) for each in ticks[:8]]
        return CpuTime(sum(spent) - spent[3] - spent[4], sum(spent)) if name == "cpu" else None
    except (OSError, ValueError, IndexError):
        return None


def spark_master(
    process: int | None = None, environment: Mapping[str, str] = os.environ, processes: Path = _PROCESSES
) -> str | None:
    """The master of the Spark whose JVM is an ancestor of this process, or of the one with id `process`; None if it
    cannot be found. Spark does not tell its Python workers, so it is read off the JVM's command line and properties.
    """
    try:
        parent = os.getpid() if process is None else process
        while not (words := _command_line(processes / str(parent))) or not words[0].endswith("java"):
            parent = int((processes / str(parent) / "stat").read_text().rsplit(")", 1)[1].split()[1])
        return _master(words, Path(environment.get("SPARK_CONF_DIR") or environment["SPARK_HOME"] + "/conf"))
    except (OSError, ValueError, IndexError, KeyError):
        return None


def _command_line(process: Path) -> list[str]:
    return (process / "cmdline").read_bytes().decode(errors="replace").split("\0")


def _master(words: Sequence[str], conf: Path) -> str | None:
    """As spark-submit finds it: on its command line, in the properties file named there, in the default one."""
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
