"""`ehbalance simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.group.strategies import DEFAULT_STRATEGY, STRATEGIES
from tests.ops.command import Command

SMALL = ("--partitions", 6, "--members", 2, "--cycles", 12)


def test_the_default_is_one_strategy_as_a_table(ehbalance: Command) -> None:
    outcome = ehbalance("simulate", "--scenario", "crash", *SMALL, "--seed", 3)
    assert outcome.code == 0
    assert "crash: One of four members is gone without a word." in outcome.out
    assert "6 partitions, 2 members, 12 cycles of 10 s, seed 3" in outcome.out
    assert DEFAULT_STRATEGY in outcome.out
    rows = {line.rsplit(maxsplit=1)[0].strip(): line.split()[-1] for line in outcome.out.splitlines() if line.strip()}
    assert rows["moves"] == rows["fewest possible"] == "3"
    assert rows["of them again"] == "0"


def test_compare_shows_all_strategies_side_by_side(ehbalance: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = ehbalance("simulate", "--scenario", "join", "--compare", *SMALL)
    (head,) = [line.split() for line in outcome.out.splitlines() if {*line.split()} & {*STRATEGIES}]
    assert head == list(STRATEGIES)
    assert "…" not in outcome.out, "nothing is cut off"


def test_json_is_the_same_for_the_same_seed(ehbalance: Command) -> None:
    first, again = (ehbalance("simulate", "--scenario", "join", *SMALL, "--json") for _ in range(2))
    assert first == again
    result = json.loads(first.out)
    assert (result["scenario"], result["strategy"], result["partitions"]) == ("join", DEFAULT_STRATEGY, 6)
    assert result["moves"] == result["fewest_moves"] == 2


def test_the_store_may_be_another_than_the_scenarios(ehbalance: Command) -> None:
    def result(*arguments: object) -> Any:
        return json.loads(ehbalance("simulate", "--scenario", "start-up", *SMALL, "--json", *arguments).out)

    here, azure, s3 = result(), *(result("--store", name) for name in ("azure", "s3"))
    assert here["dollars_per_day"] == 0 < s3["dollars_per_day"] < azure["dollars_per_day"]
    assert azure["operations_per_day"] == sum(azure[f"{name}_per_day"] for name in ("writes", "reads", "deletes"))
    assert azure["longest_silence"] < 1
    assert here["seconds_to_balance"] < azure["seconds_to_balance"]


def test_a_scenario_from_a_file(ehbalance: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('partitions = 4\nmembers = 1\ncycles = 10\nevents = [{ at = 20, do = "join" }]', encoding="utf-8")
    result = json.loads(ehbalance("simulate", "--scenario", path, "--json").out)
    assert (result["scenario"], result["moves"]) == ("mine", 2)
    path.write_text("partition = 4", encoding="utf-8")
    assert "partition is unknown: allowed is one of description, partitions" in ehbalance.fails(
        2, "simulate", "--scenario", path
    )


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--strategy", "best"), "--strategy best is wrong: allowed is one of balanced, cooperative"),
        (("--scenario", "nowhere"), "--scenario nowhere is wrong: allowed is a TOML file or one of "),
        (("--store", "tape"), "--store tape is wrong: allowed is one of local, azure, s3, gcs"),
    ],
)
def test_a_wrong_option_is_an_error_of_one_line(ehbalance: Command, arguments: tuple[object, ...], what: str) -> None:
    outcome = ehbalance("simulate", *arguments)
    assert outcome.code != 0
    assert outcome.out == ""
    assert outcome.err.splitlines()[-1].startswith(f"Error: {what}")
