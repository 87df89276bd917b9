"""The operating system's information about this host and its processes."""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import psutil

_MASTER = "spark.master"


def mint_owner_id() -> str:
    """A new owner id: the host's name, which helps people recognize the query, and a unique part."""
    host = re.sub(r"[^\w.-]", "-", socket.gethostname(), flags=re.ASCII)[:100]
    return f"{host}-{uuid.uuid4().hex[:12]}"


def spark_master() -> str | None:
    """Spark's master, read from the command line and properties of the JVM that is an ancestor of this process, because
    Spark does not pass it to Python workers. None if it cannot be found."""
    return (submit_settings() or {}).get(_MASTER)


def local_cores(master: str | None) -> int | None:
    """Number of tasks that Spark runs concurrently with this `master`; None for a cluster, or if unknown."""
    if master == "local":
        return 1
    cluster = re.match(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,", master or "")
    if cluster:
        return int(cluster[1]) * int(cluster[2])
    threads = re.match(r"local\[\s*(\d+|\*)\s*[,\]]", master or "")
    if threads:
        return (os.cpu_count() or 1) if threads[1] == "*" else int(threads[1])
    return None


def jvm_pid(pid: int | None = None) -> int:
    """The id of the JVM process that is an ancestor of `pid`, by default of this process; 0 if none is found."""
    try:
        return next((parent.pid for parent in psutil.Process(pid).parents() if parent.name() == "java"), 0)
    except (OSError, psutil.Error):
        return 0


def submit_settings() -> dict[str, str] | None:
    """The settings with which spark-submit started the JVM that is an ancestor of this process; None if there is none,
    or they cannot be read."""
    try:
        commands = (parent.cmdline() for parent in psutil.Process().parents())
        jvm = next((words for words in commands if words and words[0].endswith("java")), None)
        return parse_submit_settings(jvm, os.environ) if jvm else None
    except (OSError, psutil.Error):
        return None


def parse_submit_settings(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of a JVM with this command line. As with spark-submit, the command line overrides the properties
    file that it names, or else the default file. Without spark-submit, only the command line counts."""
    follows = dict(pairwise(words))
    settings = {_MASTER: follows["--master"]} if "--master" in follows else {}
    settings |= _matches(r"(spark\.[^=]+)=(.*)", words)
    if not any(word.endswith(".SparkSubmit") for word in words):
        return settings
    conf = environment.get("SPARK_CONF_DIR") or environment.get("SPARK_HOME", "") + "/conf"
    file = Path(follows.get("--properties-file", conf + "/spark-defaults.conf"))
    lines = file.read_text().splitlines() if file.is_file() else []
    default = {_MASTER: environment.get("MASTER", "local[*]")}
    return default | _matches(r"\s*(spark\.[^\s=:]+)[\s=:]+(\S+)", lines) | settings


def _matches(setting: str, lines: Sequence[str]) -> dict[str, str]:
    """The names and values in the lines that begin with a match of `setting`."""
    return {match[1]: match[2] for line in lines if (match := re.match(setting, line))}
