"""The demo's processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_ehbalance.demo.processes import Child
from tests.waiting import wait_until


def runs(pid: int) -> bool:
    """Whether the process runs; one that was killed may wait for its parent."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="processes are looked up as Linux shows them")
def test_a_kill_reaches_processes_in_groups_of_their_own(tmp_path: Path) -> None:
    command = [
        "python3",
        "-c",
        "import os, time; os.fork() or os.setsid(); print(os.getpid(), flush=True); time.sleep(99)",
    ]
    child = Child("it", command, os.environ, tmp_path / "log")
    wait_until(lambda: len(child.printed().split()) == 2, "both run")
    pids = [int(pid) for pid in child.printed().split()]
    assert all(runs(pid) for pid in pids)
    child.kill()
    wait_until(lambda: not any(runs(pid) for pid in pids), "none runs")
    assert child.ended() is not None
    child.kill()
