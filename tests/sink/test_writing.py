"""A task against the emulator: what arrives, in which order, and what happens when the hub does not take it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from azure.eventhub import EventData
from azure.eventhub._client_base import ConsumerProducerMixin

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import ClientVersionError, HubUnavailableError, MissingError, UnsendableEventError
from spark_ehbalance.hub import conditions
from spark_ehbalance.sink import writing
from spark_ehbalance.sink.columns import Columns
from spark_ehbalance.sink.options import write_options
from spark_ehbalance.sink.writing import Links, Sent, Task
from tests.emulator.clients import bodies, producer, read
from tests.waiting import wait_until

HUB, PARTITIONS = "hub", 4

KEYED = pa.schema([("body", pa.binary()), ("key", pa.string())])
PLAIN = pa.schema([("body", pa.binary())])


@pytest.fixture
def links() -> Links:
    return Links()


@pytest.fixture
def write(emulator: Emulator, links: Links) -> Callable[..., Sent]:
    """Sends rows in a task, in batches of some rows."""
    emulator.add_hub(HUB, PARTITIONS)

    def send(rows: list[dict[str, Any]], schema: pa.Schema = PLAIN, size: int = 100, **options: str) -> Sent:
        given = {"connectionString": emulator.connection_string(HUB), "sendTimeout": "30 s"} | options
        columns = Columns(0, key=1 if "key" in schema.names else None)
        task = Task(write_options(given), columns, links)
        return task.write(pa.Table.from_pylist(rows, schema).to_batches(size))

    return send


def found(emulator: Emulator) -> list[list[EventData]]:
    """The events of each partition."""
    connection = emulator.connection_string(HUB)
    counts = [emulator.partition_state(HUB, p).next_sequence_number for p in range(PARTITIONS)]
    return [read(connection, count, str(p)) if count else [] for p, count in enumerate(counts)]


def counted(emulator: Emulator) -> int:
    return sum(emulator.partition_state(HUB, p).next_sequence_number for p in range(PARTITIONS))


def test_events_of_a_key_arrive_in_order_and_all_are_counted(emulator: Emulator, write: Callable[..., Sent]) -> None:
    rows = [{"body": b"%d" % number, "key": f"key {number % 50}"} for number in range(3000)]
    sent = write(rows, KEYED)
    assert (sent.events, sent.busy, sent.again) == (3000, 0, 0)
    by_key: dict[bytes, list[int]] = {}
    for events in found(emulator):
        assert events, "keys are in all partitions"
        for event in events:
            by_key.setdefault(event.partition_key or b"", []).append(int(event.body_as_str()))
    assert by_key == {b"key %d" % k: list(range(k, 3000, 50)) for k in range(50)}


def test_keys_go_where_the_hub_itself_sends_them(emulator: Emulator, write: Callable[..., Sent]) -> None:
    with producer(emulator.connection_string(HUB)) as client:
        for number in range(20):
            client.send_event(EventData(b"client"), partition_key=f"key {number}")
    write([{"body": b"sink", "key": f"key {number}"} for number in range(20)], KEYED)
    for events in found(emulator):
        keys = {body: {e.partition_key for e in events if bodies([e]) == [body]} for body in (b"client", b"sink")}
        assert keys[b"client"] == keys[b"sink"]


def test_large_and_small_events_fill_batches(emulator: Emulator, write: Callable[..., Sent]) -> None:
    sent = write([{"body": b"x" * size} for size in (1_000_000, 1, 600_000, 600_000, 0)])
    assert (sent.events, sent.batches) == (5, 3)
    assert counted(emulator) == 5


def test_nothing_is_sent_of_a_task_with_a_row_that_is_too_large(emulator: Emulator, write: Callable[..., Sent]) -> None:
    with pytest.raises(UnsendableEventError, match="row 301 of a task"):
        write([{"body": b"x"}] * 300 + [{"body": b"x" * (1 << 20)}])
    assert counted(emulator) == 0


def test_a_busy_hub_is_waited_for_and_counted(
    emulator: Emulator, write: Callable[..., Sent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "busy_wait", lambda: 0.05)
    write([{"body": b"first"}])
    emulator.server_busy(3)
    sent = write([{"body": b"x"}] * 10)
    assert (sent.busy, sent.again) == (3, 0)
    assert counted(emulator) == 11, "a refusal is no doubt: nothing is there twice"
    assert conditions.busy_wait() >= 4


def test_a_hub_that_is_away_for_a_while(
    emulator: Emulator, write: Callable[..., Sent], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spark_ehbalance")
    emulator.refuse_connections()
    result: list[Sent] = []
    thread = threading.Thread(target=lambda: result.append(write([{"body": b"x", "key": "k"}] * 10, KEYED)))
    thread.start()
    wait_until(lambda: "trying again" in caplog.text, "it tries again")
    emulator.refuse_connections(False)
    thread.join(60)
    assert result
    assert result[0].events == counted(emulator) == 10


def test_a_hub_that_stays_away_fails_the_task(emulator: Emulator, write: Callable[..., Sent]) -> None:
    write([{"body": b"x"}])
    emulator.refuse_connections()
    emulator.drop_connections()
    with pytest.raises(HubUnavailableError, match=r"has taken nothing for 0\.3 s \(sendTimeout\): .*The task fails"):
        write([{"body": b"x"}], sendTimeout="300 ms")


def test_a_hub_that_does_not_exist(emulator: Emulator, write: Callable[..., Sent]) -> None:
    with pytest.raises(MissingError, match=r"event hub 'none' at .* does not exist: check eventHubName"):
        write([{"body": b"x"}], connectionString=emulator.connection_string("none"))


def test_links_are_kept_from_task_to_task_and_dropped_when_unused(
    emulator: Emulator, write: Callable[..., Sent], links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept() -> list[Any]:
        return [sender for _, sender in links._kept.values()]

    write([{"body": b"x"}])
    first = kept()
    write([{"body": b"y"}])
    assert kept() == first
    monkeypatch.setattr(writing, "_LINK_IDLE", 0.0)
    write([{"body": b"z"}])
    assert kept() != first
    wait_until(lambda: emulator.connections() == 1, "the old link is closed")
    assert counted(emulator) == 3


def test_a_client_of_another_shape_is_refused(write: Callable[..., Sent], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ConsumerProducerMixin, "_open")
    with pytest.raises(ClientVersionError, match="cannot be used"):
        write([{"body": b"x"}])


@pytest.fixture(autouse=True)
def _closed(links: Links) -> Iterator[None]:
    yield
    for _, sender in links._kept.values():
        sender.close()
