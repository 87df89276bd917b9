"""An engine's step log reproduces its decisions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack, closing

import pytest

from spark_ehbalance.emulator import Emulator
from tests.query.queries import Group
from tests.query.step_log import outputs, record_steps, replay_log
from tests.query.without_network import answer_without_network
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The step logs of a query, of another that joins it and later runs alone, and of one that uses randomness."""
    with ExitStack() as stack, record_steps() as lines:
        emulator = stack.enter_context(Emulator())
        answer_without_network(emulator, stack.enter_context(pytest.MonkeyPatch.context()))
        group = stack.enter_context(closing(Group(emulator, tmp_path_factory.mktemp("group"))))
        group.append(5)
        a = group.query("a")
        a.read(40)
        b = group.query("b")
        wait_until(lambda: a.step() == 0 and len(a.owned()) == len(b.owned()) == 4, "the partitions are shared")
        group.append(5)
        a.read(60)
        a.stop()
        wait_until(lambda: len(b.owned()) == 8, "b has all")
        b.read(20)
        b.planner.finish(b.finished)
        b.stop()
        group.query("c", leaseTable=group.table.with_name("other"), strategy="eph").stop()
    runs = dict.fromkeys(line.split(": ")[0] for line in lines)
    return [[line for line in lines if line.startswith(f"{run}: ")] for run in runs]


#: Excerpts that the first two logs must contain.
HAS = (
    ("BatchRequested", "Read(", "HandOver(", "StopRequested() → []", "Left()"),
    ("RequestHandover(", "SAME_SNAPSHOT", "Checkpoint(", "Left()"),
)


def test_replay_in_another_process_is_identical_and_contains_no_secrets(logs: list[list[str]]) -> None:
    for log, has in zip(logs, HAS, strict=False):
        assert [part for part in has if not any(part in line for line in log)] == []
        assert len(log) > 20
        again = subprocess.run(
            [sys.executable, "-m", "tests.query.step_log"],
            input="".join(f"{line}\n" for line in log),
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": "1"},
        )
        assert again.stdout.splitlines() == log
        assert "SharedAccessKey" not in again.stdout


@pytest.mark.parametrize(
    ("log", "old", "new"),
    [
        (0, r"PartitionState\(begin=0, end=5,", "PartitionState(begin=0, end=4,"),
        (0, r"lease_duration=3\.0", "lease_duration=30.0"),
        (2, r"SeededRandom\(\d+\)", "SeededRandom(1)"),
    ],
    ids=["other inputs", "other settings", "another seed"],
)
def test_replay_with_changed_inputs_differs(logs: list[list[str]], log: int, old: str, new: str) -> None:
    lines = logs[log]
    changed = [re.sub(old, new, line) for line in lines]
    assert changed != lines
    assert replay_log(lines) == lines
    assert outputs(replay_log(changed)) != outputs(lines)
