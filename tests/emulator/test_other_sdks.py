"""Microsoft's SDKs for Java and JavaScript, unmodified, against the plugin's emulator; Go's is in test_go_client.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ehbalance.emulator import EventHub
from spark_ehbalance.emulator.partition_keys import partition_for_key
from tests.processors.conftest import jars

__all__ = ["jars"]

SDKS = Path(__file__).with_name("sdks")
PROPERTIES = {"text": "ä", "number": 7, "yes": True}
KEYED = str(partition_for_key("ann", 4))  # not 3, which the other events use


def check(hub: EventHub, program: list[str]) -> None:
    """Check a program that sends three events and prints them after reading them back."""
    result = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    expected = [
        ["to a key", KEYED, 0, "ann", {}],
        ["to a partition", "3", 0, None, {}],
        ["with properties", "3", 1, None, PROPERTIES],
    ]
    assert sorted(json.loads(result.stdout)) == expected
    events = hub.events()
    assert [
        [event.body.decode(), event.partition, event.sequence_number, event.partition_key, event.properties]
        for event in events
    ] == expected
    assert (events[2].message_id, events[2].content_type) == ("id-1", "text/plain")


def test_javascript(event_hub: EventHub) -> None:
    modules = Path(sys.prefix, "azurite")
    if not (modules / "node_modules/@azure/event-hubs").is_dir():
        assert not os.environ.get("EHBALANCE_REQUIRE_AZURITE"), "the JavaScript SDK is missing"
        pytest.skip("the JavaScript SDK, installed with Azurite, is missing")
    node = shutil.which("node") or "node"
    check(event_hub, [node, str(SDKS / "round_trip.cjs"), event_hub.connection_string, str(modules)])


def test_java(event_hub: EventHub, jars: str) -> None:
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-cp", jars]
    check(event_hub, ["java", *options, str(SDKS / "RoundTrip.java"), event_hub.connection_string])
