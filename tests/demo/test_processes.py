"""The demo's processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

from spark_ehbalance.demo.processes import Child
from tests.waiting import wait_until


def runs(pid: int) -> bool:
    """Whether the process runs; one that was killed may wait for its parent."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_kill_reaches_processes_in_groups_of_their_own(tmp_path: Path) -> None:
    program = "import os, time; os.fork() or os.setsid(); print(os.getpid(), flush=True); time.sleep(99)"
    child = Child("it", [sys.executable, "-c", program], os.environ, tmp_path / "log")
    wait_until(lambda: len(child.printed().split()) == 2, "both run")
    pids = [int(pid) for pid in child.printed().split()]
    assert all(runs(pid) for pid in pids)
    child.kill()
    wait_until(lambda: not any(runs(pid) for pid in pids), "none runs")
    assert child.ended() is not None
    child.kill()
