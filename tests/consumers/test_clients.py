"""azure-eventhub's clients with our stores, including requirements from azure-eventhub's own tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import CloseReason, EventHubConsumerClient, LoadBalancingStrategy

from spark_ehbalance.consumers import DeltaCheckpointStore
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import DataLossError
from spark_ehbalance.group.commands import Seek
from spark_ehbalance.group.position import Position
from tests.consumers.clients import Client
from tests.consumers.consumers import OPERATOR, Consumers
from tests.query.support import HUB
from tests.raising import assert_reports, raises
from tests.waiting import wait_until

PARTITIONS = 2  # a client takes half a second to close a receiver

DOCUMENTATION = Path(__file__).parents[2] / "docs/azure-clients.md"

NewClient = Callable[..., Client]


@pytest.fixture
def partitions() -> int:
    return PARTITIONS


@pytest.fixture
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """Geo-replicated, if a test's parameter is true."""
    with Emulator(geo_replicated=getattr(request, "param", False)) as running:
        yield running


@pytest.fixture
def client(consumers: Consumers) -> Iterator[NewClient]:
    """Starts a client with a store; all are stopped after the test."""
    started: list[Client] = []

    def start(store: DeltaCheckpointStore, *arguments: Any, **options: Any) -> Client:
        started.append(Client(consumers.group.emulator.connection_string(HUB), store, *arguments, **options))
        return started[-1]

    yield start
    for client in started:
        client.stop()


def test_client_continues_after_the_checkpoint(consumers: Consumers, client: NewClient) -> None:
    consumers.group.append(PARTITIONS + 1, PARTITIONS)
    first = client(consumers.store(), lambda partition, number: number <= int(partition))
    wait_until(lambda: len(first.seen) == PARTITIONS * (PARTITIONS + 1), "all was read")
    first.stop()
    after = {p: int(p) + 1 for p in consumers.partitions}
    assert consumers.group.checkpoints() == after, "what a query would read next"
    listed = consumers.checkpoints(consumers.store())
    assert {p: file["offset"] for p, file in listed.items()} == {p: first.offsets[p, int(p)] for p in after}
    second = client(consumers.store())
    expected = [(p, number) for p, start in after.items() for number in range(start, PARTITIONS + 1)]
    wait_until(lambda: len(second.seen) >= len(expected), "the rest was read")
    second.stop()
    assert sorted(second.seen) == expected


@pytest.mark.parametrize(
    ("emulator", "retained"), [(True, range(5)), (True, range(11)), (False, range(6, 11))], indirect=["emulator"]
)
def test_client_reads_the_retained_events_after_a_loss(
    consumers: Consumers, client: NewClient, emulator: Emulator, retained: range
) -> None:
    """After a promotion, the hub's last event is before the checkpoint, or new events have the lost events' numbers; or
    the first retained event is after the checkpoint."""
    consumers.group.append(9, PARTITIONS)
    promoted = retained.start == 0
    first = client(consumers.store(), lambda _, number: promoted or number < 3)
    wait_until(lambda: len(first.seen) == 9 * PARTITIONS, "all was read")
    first.stop()
    if promoted:
        emulator.promote(HUB, 6)
    for partition in consumers.partitions:
        emulator.trim(HUB, partition, retained.start)
        emulator.append(HUB, partition, [b"new"] * (retained.stop - (3 if promoted else 9)))
    second = client(consumers.store(failOnDataLoss="false"), lambda *_: False)
    expected = [(partition, number) for partition in consumers.partitions for number in retained]
    wait_until(lambda: len(second.seen) >= len(expected), "what is retained was read", timeout=30)
    second.stop()
    assert sorted(second.seen) == expected
    assert not second.errors
    assert consumers.group.checkpoints() == dict.fromkeys(consumers.partitions, retained.start), "it is stored"


@pytest.mark.parametrize("emulator", [True], indirect=True)
@pytest.mark.parametrize(("more", "refused"), [(3, True), (8, False)], ids=["as many", "more"])
def test_new_events_with_the_numbers_of_lost_ones_are_an_error(
    consumers: Consumers, client: NewClient, emulator: Emulator, more: int, *, refused: bool
) -> None:
    consumers.group.append(9, PARTITIONS)
    first = client(consumers.store())
    wait_until(lambda: len(first.seen) == 9 * PARTITIONS, "all was read")
    first.stop()
    emulator.promote(HUB, 3, refuse_lost=refused)
    emulator.append(HUB, 0, [b"new"] * more)
    store = consumers.store()
    reason = re.compile("a promotion")
    with raises(DataLossError, "EHB_EVENTS_LOST", partition="0", position=9, reason=reason):
        wait_until(lambda: consumers.claim_listed(store, "a", "0").keys() == {"0"}, "it is claimed")
    assert consumers.group.checkpoints()["0"] == 9


def test_lost_events_in_one_partition_do_not_stop_the_others(consumers: Consumers, client: NewClient) -> None:
    consumers.group.append(9, PARTITIONS)
    first = client(consumers.store(), lambda _, number: number < 3)
    wait_until(lambda: len(first.seen) == 9 * PARTITIONS, "all was read")
    first.stop()
    consumers.group.emulator.trim(HUB, 0, 6)
    second = client(consumers.store(), load_balancing_strategy=LoadBalancingStrategy.GREEDY)
    wait_until(lambda: len(second.seen) >= 6 and len(second.errors) >= 2, "the other partition is read", timeout=30)
    assert second.seen == [("1", number) for number in range(3, 9)]
    assert {(partition, type(error)) for partition, error in second.errors} == {(None, DataLossError)}
    reason = re.compile("the first retained event is 6")
    assert_reports(second.errors[0][1], "EHB_EVENTS_LOST", partition="0", position=3, reason=reason)
    assert consumers.group.checkpoints() == {"0": 3, "1": 9}, "no event is skipped"
    consumers.order(Seek(by=OPERATOR, at_ms=0, partition="0", position=Position(6), force=True))
    wait_until(lambda: len(second.seen) >= 8, "it is read from the position that was set")
    assert second.seen[6:] == [("0", 7), ("0", 8)]


def test_handler_error_reopens_its_partition(consumers: Consumers, client: NewClient) -> None:
    failed = threading.Event()

    def process(partition: str, number: int) -> bool:
        if partition == "1" and not failed.is_set():
            failed.set()
            raise RuntimeError("not this time")
        return True

    consumers.group.append(1, PARTITIONS)
    reading = client(consumers.store(), process)
    wait_until(lambda: sorted(reading.seen) == [("0", 0), ("1", 0), ("1", 0)], "the event is processed again")
    assert [(partition, str(error)) for partition, error in reading.errors] == [("1", "not this time")]
    assert reading.closed == [("1", CloseReason.OWNERSHIP_LOST)]
    assert sorted(reading.opened) == ["0", "1", "1"]
    wait_until(lambda: consumers.group.checkpoints() == {"0": 1, "1": 1}, "both are checkpointed")
    reading.stop()
    assert sorted(reading.closed[1:]) == [(p, CloseReason.SHUTDOWN) for p in consumers.partitions]
    assert not consumers.shares(), "everything was given back"
    assert not consumers.snapshot().members


def test_documented_example_reads_and_leaves_on_interrupt(consumers: Consumers) -> None:
    example = re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(encoding="utf-8"), re.DOTALL)[0]
    consumers.group.append(1, PARTITIONS)
    environment = {
        "EVENTHUB_CONNECTION_STRING": consumers.group.emulator.connection_string(HUB),
        "LEASE_TABLE": str(consumers.group.table),
    }
    with subprocess.Popen(
        [sys.executable, "-u", "-c", example], env=os.environ | environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        try:
            lines = [process.stdout.readline() for _ in consumers.partitions]
            wait_until(lambda: consumers.group.checkpoints() == {"0": 1, "1": 1}, "both are checkpointed")
            process.send_signal(signal.SIGINT)
            process.wait(60)
        finally:
            process.kill()
    assert sorted(lines) == ["0 0 x\n", "1 0 x\n"]
    assert not consumers.snapshot().members


def test_client_continues_after_a_stopped_query(consumers: Consumers, client: NewClient) -> None:
    query = consumers.group.query("q")
    consumers.group.append(1, PARTITIONS)
    query.read(PARTITIONS)
    query.notify()
    worker = EventHubConsumerClient.from_connection_string(
        consumers.group.emulator.connection_string(HUB), "$Default", socket_timeout=0.02
    )
    kept = threading.Event()  # like a receiver that a query's worker keeps open after a move
    thread = threading.Thread(
        target=lambda: worker.receive(lambda *_: kept.set(), partition_id="0", owner_level=1, starting_position="-1")
    )
    thread.start()
    assert kept.wait(60)
    query.stop()
    consumers.group.append(1, PARTITIONS)
    reading = client(consumers.store())
    wait_until(lambda: len(reading.seen) >= PARTITIONS, "the consumer reads")
    assert sorted(reading.seen) == [(p, 1) for p in consumers.partitions], "where the query has stopped"
    worker.close()
    thread.join(60)
