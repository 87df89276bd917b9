"""Scenarios: what may stand in them, and what is said about what may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ehbalance.simulation.scenario import ACTIONS, READY_MADE, Event, Scenario, ScenarioError, load, parse


def problem(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "mine")
    return str(caught.value)


def test_a_scenario_sets_what_it_is_about_and_the_rest_has_its_default() -> None:
    scenario = parse(
        """
        description = "One joins."
        partitions = 8
        [group]
        lease_duration = 60
        [[events]]
        at = 5
        do = "join"
        count = 2
        every = 1.5
        """,
        "mine",
    )
    assert scenario == Scenario(
        name="mine",
        description="One joins.",
        partitions=8,
        group=type(scenario.group)(lease_duration=60),
        events=(Event(at=5, do="join", count=2, every=1.5),),
    )
    assert parse("", "mine") == Scenario(name="mine")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("partitions = 0", "partitions=0 is wrong: allowed is a whole number of 1 or more"),
        ("partitions = 2.5", "partitions=2.5 is wrong: allowed is a whole number of 1 or more"),
        ("members = true", "members=True is wrong: allowed is a whole number of 0 or more"),
        ("settled = 1", "settled=1 is wrong: allowed is true or false"),
        ("description = 1", "description=1 is wrong: allowed is a text"),
        ("[hub]\nrate = -1", "hub.rate=-1 is wrong: allowed is a number of 0 or more"),
        ("[store]\ncommit = 0", "store.commit=0 is wrong: allowed is a number above 0"),
        ("[store]\ncommit = nan", "store.commit=nan is wrong: allowed is a number above 0"),
        ("[store]\ncommit = inf", "store.commit=inf is wrong: allowed is a number above 0"),
        ('[store]\ncommit = "1"', "store.commit='1' is wrong: allowed is a number above 0"),
        ("[query]\nbatches = 1", "query.batches is unknown: allowed is one of batch, capacity, trigger, max_events"),
        ("hub = 3", "hub=3 is wrong: allowed is a table [hub]"),
        ("events = 3", "events=3 is wrong: allowed are tables [[events]]"),
        ("events = [3]", "events[0]=3 is wrong: allowed is a table [events[0]]"),
        ("[[events]]\nat = 1", "events[0].do is missing: allowed is one of join, leave, "),
        ('[[events]]\ndo = "dance"', "events[0].do='dance' is wrong: allowed is one of join, leave, "),
        ('[[events]]\ndo = "join"\n[[events]]\ndo = "crash"\nat = -1', "events[1].at=-1 is wrong: allowed is a number"),
        (
            '[[events]]\ndo = "crash"\nfactor = 2',
            "events[0].factor does not go with crash: allowed is at, count, do, every",
        ),
        ("group.balance_interval = 10\ngroup.lease_duration = 10", "group.lease_duration=10 is wrong: allowed is more"),
        ("name = 1", "name is unknown: allowed is one of description, partitions, members, cycles, settled"),
    ],
)
def test_what_is_wrong_is_named_with_its_value_and_what_is_allowed(text: str, what: str) -> None:
    said = problem(text)
    assert said.startswith(f"scenario mine: {what}")
    assert "\n" not in said


def test_what_is_no_toml_is_said_to_be_none() -> None:
    assert problem("partitions = = 3").startswith("scenario mine is not TOML: ")


def test_a_name_that_is_neither_a_file_nor_ready_made(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"--scenario nowhere is wrong: allowed is a TOML file or one of .*crash"):
        load("nowhere")
    with pytest.raises(ScenarioError, match="is wrong: allowed is a TOML file"):
        load(str(tmp_path))


def test_a_file_is_a_scenario_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("partitions = 3", encoding="utf-8")
    assert load(str(path)) == Scenario(name="mine", partitions=3)


def test_the_ready_made_ones_are_right_and_do_everything_that_can_be_done() -> None:
    scenarios = [load(name) for name in READY_MADE]
    assert len(scenarios) >= 12
    assert {event.do for scenario in scenarios for event in scenario.events} == ACTIONS.keys()
    for scenario in scenarios:
        assert scenario.description.endswith(".")
        assert all(event.at < scenario.seconds for event in scenario.events)
