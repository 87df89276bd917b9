"""Scenarios: what is allowed in them, and the errors about what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ehbalance.query.options import Options
from spark_ehbalance.simulation.scenario import (
    ACTIONS,
    READY_MADE,
    Event,
    GroupSettings,
    Scenario,
    ScenarioError,
    load,
    parse,
)


def problem(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "mine")
    return str(caught.value)


def test_what_a_scenario_does_not_set_has_its_default() -> None:
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
        group=GroupSettings(lease_duration=60),
        events=(Event(at=5, do="join", count=2, every=1.5),),
    )
    assert parse("", "mine") == Scenario(name="mine")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("partitions = 0", "partitions=0 is wrong: allowed is a whole number from 1"),
        ("partitions = 2.5", "partitions=2.5 is wrong: allowed is a whole number from 1"),
        ("members = true", "members=True is wrong: allowed is a whole number from 0"),
        ("settled = 1", "settled=1 is wrong: allowed is true or false"),
        ("description = 1", "description=1 is wrong: allowed is a text"),
        ("[hub]\nrate = -1", "hub.rate=-1 is wrong: allowed is a number from 0"),
        ("[store]\ncommit = 0", "store.commit=0 is wrong: allowed is a length of time over 0, such as 10 seconds"),
        ('[store]\ncommit = "soon"', "store.commit='soon' is wrong: allowed is a length of time over 0"),
        ("[query]\nbatches = 1", "query.batches is unknown: allowed is one of batch, capacity, trigger, max_events"),
        ("hub = 3", "hub=3 is wrong: allowed is a table [hub]"),
        ("events = [3]", "events[0]=3 is wrong: allowed is a table [events[0]]"),
        ("[[events]]\nat = 1", "events[0].do is missing: allowed is one of join, leave, "),
        ('[[events]]\ndo = "dance"', "events[0].do='dance' is wrong: allowed is one of join, leave, "),
        ('[[events]]\ndo = "join"\n[[events]]\ndo = "crash"\nat = -1', "events[1].at=-1 is wrong: allowed is a length"),
        (
            '[[events]]\ndo = "crash"\nfactor = 2',
            "events[0].factor does not go with crash: allowed is at, count, do, every",
        ),
        ("group.balance_interval = 10\ngroup.lease_duration = 10", "group.lease_duration=10 is wrong: allowed is more"),
        ("name = 1", "name is unknown: allowed is one of description, partitions, members, cycles, settled"),
    ],
)
def test_a_wrong_key_is_named_with_its_value_and_what_is_allowed(text: str, what: str) -> None:
    message = problem(text)
    assert message.startswith(f"scenario mine: {what}")
    assert "\n" not in message


def test_values_have_the_forms_that_options_have() -> None:
    as_text = """
        cycles = "20"
        settled = "False"
        group = { lease_duration = "2 minutes", clock_skew = "0 s" }
        store = { commit = "120 ms", latency = "0.00000003 s" }
        hub = { rate = "0.5", skew = "0" }
        events = [{ at = "1 minute", do = "skew-clock", count = "3", offset = "-20 min" }]
    """
    as_values = """
        cycles = 20
        settled = false
        group = { lease_duration = 120, clock_skew = 0 }
        store = { commit = 0.12, latency = 3e-8 }
        hub = { rate = 0.5, skew = 0 }
        events = [{ at = 60, do = "skew-clock", count = 3, offset = -1200 }]
    """
    scenario = parse(as_values, "mine")
    assert parse(as_text, "mine") == scenario
    assert (scenario.store.commit, scenario.store.latency, scenario.group.clock_skew) == (0.12, 3e-8, 0.0)
    assert (scenario.events[0].at, scenario.events[0].offset, scenario.settled) == (60.0, -1200.0, False)


def test_defaults_of_the_group_are_those_of_the_source() -> None:
    group = GroupSettings()
    assert (group.balance_interval, group.checkpoint_interval, group.lease_duration, group.handover_timeout) == (
        Options.balance_interval,
        Options.checkpoint_interval,
        Options.lease_duration,
        Options.handover_timeout,
    )


def test_a_text_that_is_no_toml_is_an_error() -> None:
    assert problem("partitions = = 3").startswith("scenario mine is not TOML: ")


def test_a_name_that_is_neither_a_file_nor_ready_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"--scenario nowhere is wrong: allowed is a TOML file or one of .*crash"):
        load("nowhere")
    with pytest.raises(ScenarioError, match="is wrong: allowed is a TOML file"):
        load(str(tmp_path))


def test_a_file_is_a_scenario_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("partitions = 3", encoding="utf-8")
    assert load(str(path)) == Scenario(name="mine", partitions=3)


def test_the_ready_made_scenarios_are_valid_and_use_every_action() -> None:
    scenarios = [load(name) for name in READY_MADE]
    assert len(scenarios) >= 12
    assert {event.do for scenario in scenarios for event in scenario.events} == ACTIONS.keys()
    for scenario in scenarios:
        assert scenario.description.endswith(".")
        assert all(event.at < scenario.seconds for event in scenario.events)
