"""The pytest plugin, used like in other projects."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData, EventHubConsumerClient
from azure.eventhub.aio import EventHubProducerClient as AsyncProducer
from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.emulator import Emulator, EventHub
from spark_ehbalance.emulator.partition_keys import partition_for_key
from tests.emulator.clients import producer, read, reader, refusal

MakeHub = Callable[..., EventHub]


def test_sent_events_are_listed_in_order_of_arrival(event_hub: EventHub) -> None:
    event = EventData("two")
    event.properties = {"number": 1, "text": "ä", "when": datetime(2026, 1, 31, tzinfo=timezone.utc)}
    event.message_id, event.correlation_id, event.content_type = "m", "c", "text/plain"
    with producer(event_hub.connection_string) as client:
        client.send_event(EventData(b"one"), partition_id="3")
        client.send_event(event, partition_key="ann")
        client.send_event(EventData(b"three"), partition_id="0")
        client.send_event(EventData(b"four"), partition_id="3")
    one, two, three, four = event_hub.events()
    assert [event.body for event in (one, two, three, four)] == [b"one", b"two", b"three", b"four"]
    assert (two.partition_key, two.partition) == ("ann", str(partition_for_key("ann", 4)))
    assert two.properties == {"number": 1, "text": "ä", "when": datetime(2026, 1, 31, tzinfo=timezone.utc)}
    assert (two.message_id, two.correlation_id, two.content_type) == ("m", "c", "text/plain")
    assert (four.partition, four.sequence_number, four.partition_key, four.properties) == ("3", 1, None, {})
    assert timedelta() <= datetime.now(timezone.utc) - four.enqueued_time < timedelta(minutes=1)


def test_appended_events_are_received(event_hub: EventHub, event_hub_connection_string: str) -> None:
    event_hub.append("one", b"two", partition=2, properties={"a": 1})
    event_hub.append(b"three", b"four", partition_key="ann")
    event_hub.append(*"5678")
    assert [event.properties for event in read(event_hub_connection_string, 2, "2")[:2]] == [{b"a": 1}] * 2
    *_, three, four, _, _, _, _ = event_hub.events()
    assert three.partition == four.partition == str(partition_for_key("ann", 4))
    assert {event.partition for event in event_hub.events()[-4:]} == {"0", "1", "2", "3"}


@pytest.mark.parametrize("body", [{"a": 1}, ["one", "two"], 1])
def test_body_must_be_bytes_or_text(event_hub: EventHub, body: Any) -> None:
    with pytest.raises(TypeError, match=r"^the body .* is (dict|list|int), not bytes or str$"):
        event_hub.append(body)


def test_consumer_groups_must_be_a_list(make_event_hub: MakeHub) -> None:
    for call in (make_event_hub, Emulator):
        with pytest.raises(TypeError, match=r"^consumer_groups='billing': expected a list of names$"):
            call(consumer_groups="billing")


def test_events_of_new_partitions_and_removed_events(event_hub: EventHub) -> None:
    event_hub.append("1", "2", "3", partition=0)
    event_hub.emulator.add_partitions(event_hub.name, 1)
    event_hub.append("4", partition=4)
    event_hub.emulator.trim(event_hub.name, 0, 1)
    event_hub.emulator.compact(event_hub.name, 0, 1, 2)
    assert [event.body for event in event_hub.events()] == [b"3", b"4"]


def test_wait_for_events(event_hub: EventHub) -> None:
    async def send() -> None:
        async with AsyncProducer.from_connection_string(event_hub.connection_string) as client:
            waiting = asyncio.create_task(asyncio.to_thread(event_hub.wait_for_events, 1))
            await client.send_event(EventData(b"one"))
            assert [event.body for event in await waiting] == [b"one"]

    asyncio.run(send())
    with pytest.raises(TimeoutError, match=f"hub {event_hub.name} has 1 events after 0.01 s, not 2"):
        event_hub.wait_for_events(2, timeout=0.01)


def test_busy_affects_one_hub(make_event_hub: MakeHub) -> None:
    busy, other = make_event_hub(), make_event_hub()
    with busy.busy():
        assert "throttled" in str(refusal(busy.connection_string))
        with reader(other.connection_string):
            pass
    busy.busy(count=1)
    assert "throttled" in str(refusal(busy.connection_string))
    with reader(busy.connection_string):
        pass


def test_outage_ends_with_its_block(event_hub: EventHub) -> None:
    with producer(event_hub.connection_string, retry_total=0) as client:
        client.send_event(EventData(b"one"))
        with event_hub.unreachable():
            assert event_hub.emulator.connections() == 0
            with pytest.raises(EventHubError):
                client.send_event(EventData(b"lost"))
        client.send_event(EventData(b"two"))
    assert [event.body for event in event_hub.events()] == [b"one", b"two"]


def test_hub_with_a_name_and_a_consumer_group(make_event_hub: MakeHub) -> None:
    hub = make_event_hub("orders", partitions=2, consumer_groups=["billing"])
    with EventHubConsumerClient.from_connection_string(hub.connection_string, "billing") as client:
        assert client.get_eventhub_properties()["eventhub_name"] == "orders"
        assert client.get_partition_ids() == ["0", "1"]
    hub.append("one", partition=1)
    assert len(read(hub.connection_string, 1, "1", group="billing")) == 1
    with pytest.raises(ValueError, match="'Orders' already exists"):
        make_event_hub("Orders")


@pytest.mark.parametrize("busy", [True, False])
def test_hubs_and_faults_end_with_the_test(make_event_hub: MakeHub, busy: bool) -> None:
    hub = make_event_hub("again")
    assert hub.events() == []
    with producer(hub.connection_string, retry_total=0) as client:
        if not busy:
            client.send_event(EventData(b"one"))
            return
        hub.busy()
        hub.emulator.server_busy(seconds=60)
        with pytest.raises(EventHubError):
            client.send_event(EventData(b"one"))


@pytest.mark.parametrize("event_hub_settings", [{"sas_keys": {"writer": "right"}}])
def test_settings_of_a_test(event_hub: EventHub, event_hub_emulator: Emulator) -> None:
    assert "SharedAccessKeyName=writer" in event_hub.connection_string
    assert refusal(event_hub.emulator.connection_string(event_hub.name, key="wrong"))
    assert event_hub.emulator is event_hub_emulator


class TestSettingsOfAClass:
    @pytest.fixture
    def event_hub_settings(self) -> Mapping[str, Any]:
        return {"consumer_groups": ["billing"]}

    def test_settings_are_applied(self, event_hub: EventHub, event_hub_emulators: Callable[..., Emulator]) -> None:
        assert event_hub.emulator is event_hub_emulators(consumer_groups=["billing"]) is not event_hub_emulators()
        with reader(event_hub.connection_string, group="billing"):
            pass


def python(*arguments: str, folder: Path) -> str:
    result = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout


def test_plugin_imports_nothing_until_used(tmp_path: Path) -> None:
    program = (
        "import pytest, sys; old = {*sys.modules}; import spark_ehbalance.pytest_plugin; print({*sys.modules} - old)"
    )
    assert eval(python("-c", program, folder=tmp_path)) <= {"spark_ehbalance", "spark_ehbalance.pytest_plugin"}


CONFTEST = """
import logging, sys, threading

def pytest_sessionfinish():
    assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
    assert not {"pyspark", "azure", "deltalake", "pyarrow"} & {*sys.modules}
"""

TESTS = """
import pytest

@pytest.fixture(scope="session")
def orders(event_hub_emulators):
    emulator = event_hub_emulators()
    emulator.add_hub("orders", 1)
    return emulator

@pytest.mark.parametrize("test", range(4))
def test_new_hub(event_hub, orders, test):
    assert event_hub.emulator is orders
    event_hub.append("one")
    assert len(event_hub.events()) == 1
    assert orders.hubs() == ["orders", event_hub.name]
    event_hub.unreachable()
"""


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["one process", "two processes"])
def test_session_prints_nothing_and_leaves_no_thread(tmp_path: Path, workers: list[str]) -> None:
    if not workers:
        (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_hub.py").write_text(TESTS)
    printed = python("-m", "pytest", "-qqsW", "error", *workers, folder=tmp_path)
    assert re.fullmatch(r"(bringing up nodes\.\.\.\n+)*\.{4}\n", printed)
