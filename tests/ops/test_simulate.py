"""`ehbalance simulate`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ehbalance.group.strategies import DEFAULT_STRATEGY, STRATEGIES
from tests.ops.command import Command, assert_error
from tests.waiting import wait_until

SMALL = 'partitions = 6\nmembers = 2\ncycles = 12\nevents = [{ at = 60, do = "crash" }]'


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def test_default_output_is_a_table_for_one_strategy(ehbalance: Command, mine: Path) -> None:
    outcome = ehbalance("simulate", "--scenario", mine, "--seed", 3)
    assert outcome.code == 0
    assert "mine: a custom scenario." in outcome.out
    assert "6 partitions, 2 members, 12 cycles of 10 s, seed 3" in outcome.out
    assert DEFAULT_STRATEGY in outcome.out
    rows = {line.rsplit(maxsplit=1)[0].strip(): line.split()[-1] for line in outcome.out.splitlines() if line.strip()}
    assert rows["moves"] == rows["fewest possible"] == "3"
    assert rows["events read again"] == "0"


def test_compare_displays_all_strategies_side_by_side(
    ehbalance: Command, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = ehbalance("simulate", "--scenario", mine, "--compare")
    (head,) = [line.split() for line in outcome.out.splitlines() if {*line.split()} & {*STRATEGIES}]
    assert head == list(STRATEGIES)
    assert "…" not in outcome.out, "nothing is cut off"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_ends_a_comparison_at_once() -> None:
    command = [Path(sys.executable).with_name("ehbalance"), "simulate", "--scenario", "large", "--compare"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: len(children.read_text().split()) >= 3, "two workers and a resource tracker run")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")


def test_predefined_scenario_as_json(ehbalance: Command) -> None:
    result = json.loads(ehbalance("simulate", "--scenario", "join", "--json").out)
    assert (result["scenario"], result["strategy"], result["partitions"]) == ("join", DEFAULT_STRATEGY, 32)
    assert result["moves"] == result["fewest_moves"] == 11


def test_invalid_option_is_an_error(ehbalance: Command) -> None:
    for option, value, allowed in (
        ("--strategy", "best", "one of balanced, cooperative"),
        ("--scenario", "nowhere", "a TOML file, or one of "),
    ):
        error = ehbalance.fails(2, "simulate", option, value)
        assert_error(error, "EHB_OPTION_INVALID", f"{option}='{value}'", allowed)
