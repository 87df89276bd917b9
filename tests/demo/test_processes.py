"""The demo's processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from spark_ehbalance.demo.processes import Child, DemoError, fetched_jars
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


def fetching(tmp_path: Path, program: str) -> Child:
    child = Child("it", [sys.executable, "-c", program], os.environ, tmp_path / "log")
    wait_until(lambda: child.ended() is not None, "it has ended")
    return child


def test_the_jars_are_those_that_spark_has_fetched(tmp_path: Path) -> None:
    child = fetching(tmp_path, "print(':: loading settings'); print('Jars: /ivy/a.jar,/ivy/b.jar')")
    assert fetched_jars(child, "io.delta:x:1") == "/ivy/a.jar,/ivy/b.jar"


@pytest.mark.parametrize(
    ("printed", "error"),
    [
        (
            "[unresolved dependency: io.delta#x;1: not found]",
            r"^Delta Lake \(io\.delta:x:1\) could not be .*a network.*$",
        ),
        ("Segmentation fault", r"(?s)^it failed\n.*Segmentation fault$"),
    ],
)
def test_what_cannot_be_fetched_is_said(tmp_path: Path, printed: str, error: str) -> None:
    with pytest.raises(DemoError, match=error):
        fetched_jars(fetching(tmp_path, f"print({printed!r}); raise SystemExit(1)"), "io.delta:x:1")
