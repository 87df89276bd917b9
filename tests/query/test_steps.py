"""The log of an engine's steps replays what it has decided."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from spark_ehbalance.eventhub import connection_string
from tests.query.queries import Group
from tests.query.step_log import of_run, outputs, recorded, replayed
from tests.query.values_group import ValueGroup
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def log() -> list[str]:
    """What two queries have logged, of which one joins the other, and goes on alone."""
    group = ValueGroup(8)
    with recorded() as lines:
        a = group.query("a")
        group.hub.append(5)
        a.read(40)
        b = group.query("b")
        wait_until(lambda: a.step() == 0 and len(a.owned()) == len(b.owned()) == 4, "the partitions are shared")
        group.hub.append(5)
        a.read(60)
        a.stop()
        wait_until(lambda: len(b.owned()) == 8, "b has all")
        b.read(20)
        b.planner.finish(b.finished)
        group.close()
    return lines


@pytest.mark.parametrize(
    ("run", "has"),
    [
        ("a-0", ("BatchRequested", "Read(", "HandOver(", "StopRequested() → []", "Left()")),
        ("b-1", ("RequestHandover(", "SAME_SNAPSHOT", "Checkpoint(", "Left()")),
    ],
)
def test_an_engine_decides_the_same_again(log: list[str], run: str, has: tuple[str, ...]) -> None:
    lines = of_run(log, run)
    assert [part for part in has if not any(part in line for line in lines)] == []
    assert len(lines) > 20
    assert replayed(lines) == lines


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace("PartitionState(begin=0, end=5,", "PartitionState(begin=0, end=4,"),
        lambda line: line.replace("lease_duration=3.0", "lease_duration=30.0"),
    ],
    ids=["other inputs", "other settings"],
)
def test_another_decision_is_a_difference(log: list[str], change: Callable[[str], str]) -> None:
    lines = of_run(log, "a-0")
    changed = [change(line) for line in lines]
    assert changed != lines
    assert outputs(replayed(changed)) != outputs(lines)


def test_another_seed_is_a_difference() -> None:
    group = ValueGroup(8)
    with recorded() as lines:
        group.query("a", strategy_name="eph")
        group.close()
    assert replayed(lines) == lines
    first = re.sub(r"Seeded\(\d+\)", "Seeded(1)", lines[0])
    assert outputs(replayed([first, *lines[1:]])) != outputs(lines)


def test_another_process_replays_a_planners_log_which_has_no_secrets(group: Group) -> None:
    with recorded() as lines:
        group.append(5)
        query = group.query("a")
        query.read(40)
        query.stop()
    assert "Left()" in lines[-1]
    again = subprocess.run(
        [sys.executable, "-m", "tests.query.step_log"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "1"},
    )
    assert again.stdout.splitlines() == lines
    key = connection_string.parse(str(group.raw["connectionString"]))["SharedAccessKey"]
    assert key not in "".join(lines)
