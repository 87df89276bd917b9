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
    HubSettings,
    Scenario,
    ScenarioError,
    StoreSettings,
    load,
    parse,
)


def problem(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "mine")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("partitions = 0", "partitions=0 is wrong: allowed is a whole number from 1"),
        ("members = true", "members=True is wrong: allowed is a whole number from 0"),
        ("settled = 1", "settled=1 is wrong: allowed is true or false"),
        ("[hub]\nrate = -1", "hub.rate=-1 is wrong: allowed is a number from 0"),
        ("[store]\ncommit = 0", "store.commit=0 is wrong: allowed is a length of time over 0, such as 10 seconds"),
        ('[store]\ncommit = "soon"', "store.commit='soon' is wrong: allowed is a length of time over 0"),
        ("[query]\nbatches = 1", "query.batches is unknown: allowed is one of batch, capacity, trigger, max_events"),
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


def test_values_have_the_forms_that_options_have_and_what_is_not_set_its_default() -> None:
    as_text = """
        cycles = "20"
        settled = "False"
        group = { lease_duration = "2 minutes", clock_skew = "0 s" }
        store = { commit = "120 ms", latency = "0.00000003 s" }
        hub = { rate = "0.5", skew = "0" }
        events = [{ at = "1 minute", do = "skew-clock", count = "3", offset = "-20 min" }]
    """
    assert parse(as_text, "mine") == Scenario(
        name="mine",
        cycles=20,
        settled=False,
        group=GroupSettings(lease_duration=120, clock_skew=0),
        store=StoreSettings(commit=0.12, latency=3e-8),
        hub=HubSettings(rate=0.5, skew=0),
        events=(Event(at=60, do="skew-clock", count=3, offset=-1200),),
    )
    as_values = "cycles = 20\nstore = { commit = 0.12 }"
    assert parse(as_values, "mine") == Scenario(name="mine", cycles=20, store=StoreSettings(commit=0.12))


def test_defaults_of_the_group_are_those_of_the_source() -> None:
    group = GroupSettings()
    assert (group.balance_interval, group.checkpoint_interval, group.lease_duration, group.handover_timeout) == (
        Options.balance_interval,
        Options.checkpoint_interval,
        Options.lease_duration,
        Options.handover_timeout,
    )


def test_a_scenario_is_a_toml_file_or_ready_made(tmp_path: Path) -> None:
    assert problem("partitions = = 3").startswith("scenario mine is not TOML: ")
    path = tmp_path / "mine.toml"
    path.write_text("partitions = 3", encoding="utf-8")
    assert load(str(path)) == Scenario(name="mine", partitions=3)
    with pytest.raises(ScenarioError, match=r"--scenario nowhere is wrong: allowed is a TOML file or one of .*crash"):
        load("nowhere")
    with pytest.raises(ScenarioError, match="is wrong: allowed is a TOML file"):
        load(str(tmp_path))


def test_the_ready_made_scenarios_are_valid_and_use_every_action() -> None:
    scenarios = [load(name) for name in READY_MADE]
    assert len(scenarios) >= 12
    assert {event.do for scenario in scenarios for event in scenario.events} == ACTIONS.keys()
    for scenario in scenarios:
        assert scenario.description.endswith(".")
        assert all(event.at < scenario.seconds for event in scenario.events)
