"""Scenarios and their errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_ehbalance.query.options import Options
from spark_ehbalance.simulation.scenario import (
    ACTIONS,
    READY_MADE,
    GroupSettings,
    HubSettings,
    Scenario,
    ScenarioError,
    ScenarioEvent,
    StoreSettings,
    load,
    parse,
)
from tests.raising import raises


@pytest.mark.parametrize(
    ("text", "problem", "allowed"),
    [
        ("partitions = 0", "partitions=0 is invalid", "a whole number of 1 or more"),
        ("members = true", "members=True is invalid", "a whole number of 0 or more"),
        ("settled = 1", "settled=1 is invalid", "true or false"),
        ("[hub]\nrate = -1", "hub.rate=-1 is invalid", "a number of 0 or more"),
        ("[store]\ncommit = 0", "store.commit=0 is invalid", "a duration above 0, such as 10 seconds"),
        ('[store]\ncommit = "soon"', "store.commit='soon' is invalid", "a duration above 0"),
        ("[query]\nbatches = 1", "query.batches is unknown", "one of batch, capacity, trigger, max_events"),
        ("events = [3]", "events[0]=3 is invalid", "a table [events[0]]"),
        ("[[events]]\nat = 1", "events[0].do is missing", "one of join, leave, "),
        ('[[events]]\ndo = "dance"', "events[0].do='dance' is invalid", "one of join, leave, "),
        ('[[events]]\ndo = "join"\n[[events]]\ndo = "crash"\nat = -1', "events[1].at=-1 is invalid", "a duration"),
        (
            '[[events]]\ndo = "crash"\nfactor = 2',
            "events[0].factor cannot be set for crash",
            "at, count, do, every",
        ),
        ("group.balance_interval = 10\ngroup.lease_duration = 10", "group.lease_duration=10 is invalid", "more"),
        ("name = 1", "name is unknown", "one of description, partitions, members, cycles, settled"),
    ],
)
def test_an_invalid_key_is_an_error_with_its_value(text: str, problem: str, allowed: str) -> None:
    begin = re.compile(f"^{re.escape(allowed)}")
    with raises(ScenarioError, "EHB_FILE_INVALID", file="Scenario mine", problem=problem, allowed=begin):
        parse(text, "mine")


def test_values_have_the_forms_of_options_and_defaults() -> None:
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
        events=(ScenarioEvent(at=60, do="skew-clock", count=3, offset=-1200),),
    )
    as_values = "cycles = 20\nstore = { commit = 0.12 }"
    assert parse(as_values, "mine") == Scenario(name="mine", cycles=20, store=StoreSettings(commit=0.12))


def test_defaults_of_the_group_are_those_of_the_source() -> None:
    group = GroupSettings()
    assert (group.balance_interval, group.lease_duration, group.handover_timeout) == (
        Options.balance_interval,
        Options.lease_duration,
        Options.handover_timeout,
    )


def test_a_scenario_is_a_toml_file_or_ready_made(tmp_path: Path) -> None:
    with raises(ScenarioError, "EHB_FILE_INVALID", file="Scenario mine", allowed="TOML"):
        parse("partitions = = 3", "mine")
    path = tmp_path / "mine.toml"
    path.write_text("partitions = 3", encoding="utf-8")
    assert load(str(path)) == Scenario(name="mine", partitions=3)
    for name in ("nowhere", str(tmp_path)):
        allowed = re.compile("a TOML file, or one of .*crash")
        with raises(ScenarioError, "EHB_OPTION_INVALID", option="--scenario", value=repr(name), allowed=allowed):
            load(name)


def test_the_ready_made_scenarios_are_valid_and_use_every_action() -> None:
    scenarios = [load(name) for name in READY_MADE]
    assert len(scenarios) >= 12
    assert {event.do for scenario in scenarios for event in scenario.events} == ACTIONS.keys()
    for scenario in scenarios:
        assert scenario.description.endswith(".")
        assert all(event.at < scenario.seconds for event in scenario.events)
