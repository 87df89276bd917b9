"""Of a client that was not tested only the public parts are used, and they return the same rows and states."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import azure.eventhub
import pytest
from azure.eventhub import EventData, EventHubConsumerClient, PartitionContext

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.hub.metadata import HubMetadata
from tests.hub.receiving import address_of, reading
from tests.source.support import HUB, hub_options, receive
from tests.waiting import wait_until

OURS = "spark_ehbalance"


@pytest.fixture
def _guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Refuses our package the client's private parts and modules; fails if it tries to use them."""
    reached: list[str] = []
    for guarded in (EventHubConsumerClient, EventData, PartitionContext):
        monkeypatch.setattr(guarded, "__getattribute__", _refusing(guarded, reached))
    monkeypatch.setattr(builtins, "__import__", _importing(builtins.__import__, reached))
    yield reached
    assert reached == []


def _ours(depth: int = 2) -> bool:
    return str(sys._getframe(depth).f_globals.get("__name__", "")).startswith(OURS)


def _refusing(guarded: type, reached: list[str]) -> Any:
    get = guarded.__getattribute__

    def refuse(self: Any, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__") and _ours():
            reached.append(f"{guarded.__name__}.{name}")
            raise AttributeError(name)
        return get(self, name)

    return refuse


def _importing(load: Any, reached: list[str]) -> Any:
    def refuse(name: str, scope: Any = None, local: Any = None, wanted: Any = (), level: int = 0) -> ModuleType:
        private = [each for each in (*name.split("."), *(wanted or ())) if each.startswith("_")]
        if name.startswith("azure.") and private and _ours():
            reached.append(f"{name}: {wanted}")
            raise ImportError(name)
        return load(name, scope, local, wanted, level)

    return refuse


@pytest.fixture
def filled(emulator: Emulator) -> Emulator:
    """Partition 0 with events of many kinds, 1 without any, 2 with what is left of some."""
    emulator.add_hub(HUB, 3)
    kinds = [{}, {"text": "ä", "number": 7, "real": 0.5, "yes": True, "bytes": b"\xff\x00", "none": None}]
    emulator.append(HUB, 0, [b"%d" % n * (n % 50) for n in range(500)], [kinds[n % 2] for n in range(500)], "key")
    emulator.append(HUB, 2, [b"x"] * 9)
    emulator.trim(HUB, 2, 4)
    return emulator


def _rows_and_states(emulator: Emulator) -> list[Any]:
    """Rows from a sequence number, with an owner level and from a time; and the hub's partitions and states."""
    address = address_of(emulator)
    enqueued = emulator.partition_state(HUB, 0).last_enqueued_time
    assert enqueued is not None
    found: list[Any] = []
    for start, level in ((0, None), (123, 5), (enqueued - timedelta(seconds=60), None)):
        with reading(address, start, owner_level=level) as reader:
            found.append(receive(reader, 377).to_pylist()[:377])
    with HubMetadata(address.connection, "$Default") as metadata:
        found += [metadata.partition_ids(), metadata.partition_states(["0", "1", "2"])]
    return found


def test_the_public_calls_are_enough_and_return_the_same(
    filled: Emulator, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    expected = _rows_and_states(filled)
    monkeypatch.setattr(azure.eventhub, "__version__", "5.99.0")
    request.getfixturevalue("_guard")
    assert _rows_and_states(filled) == expected


def test_a_client_without_the_private_parts_is_used_by_its_public_calls(
    filled: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _rows_and_states(filled)
    for name in ("_create_consumer", "_create_auth"):
        moved = getattr(EventHubConsumerClient, name)
        monkeypatch.setattr(EventHubConsumerClient, name, property(_hidden(moved)))
    assert _rows_and_states(filled) == expected


def _hidden(part: Any) -> Any:
    """A method that only the client's own modules see."""

    def get(self: Any) -> Any:
        if _ours():
            raise AttributeError(part.__name__)
        return part.__get__(self)

    return get


def test_the_guard_refuses_private_parts(filled: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[str] = []
    monkeypatch.setattr(EventHubConsumerClient, "__getattribute__", _refusing(EventHubConsumerClient, reached))
    with HubMetadata(hub_options(filled).connection, "$Default") as metadata:
        assert metadata.partition_ids() == ("0", "1", "2"), "by the public calls"
    assert reached == ["EventHubConsumerClient._create_auth"]


@pytest.mark.parametrize("wait", [0.0, 0.001, 0.01, 0.1])
def test_a_receiver_that_is_closed_while_it_opens_ends(
    filled: Emulator, monkeypatch: pytest.MonkeyPatch, wait: float
) -> None:
    monkeypatch.setattr(azure.eventhub, "__version__", "5.99.0")
    before = set(threading.enumerate())
    with reading(address_of(filled), owner_level=5) as reader:
        reader.receive(1, wait)
    wait_until(lambda: set(threading.enumerate()) <= before, "its threads have ended")
    wait_until(lambda: filled.readers(HUB, 0) == [], "the hub has noticed")


def test_by_the_public_calls_connections_are_replaced_without_a_gap(
    filled: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the client's keep-alive thread reads from one, too."""
    started: list[Any] = []
    receive_batch = EventHubConsumerClient.receive_batch

    def counted(client: EventHubConsumerClient, *args: Any, **settings: Any) -> None:
        started.append(settings["starting_position"])
        receive_batch(client, *args, **settings)

    monkeypatch.setattr(EventHubConsumerClient, "receive_batch", counted)
    monkeypatch.setattr(azure.eventhub, "__version__", "5.99.0")
    filled.delay(0.06, HUB, 0)  # ten events at a time: 3 s for all
    with reading(address_of(filled), owner_level=5, public_life=1.5) as reader:
        assert receive(reader, 500)["sequenceNumber"].to_pylist() == list(range(500))
        assert len(started) > 1
        assert started == sorted(set(started))
        wait_until(lambda: filled.readers(HUB, 0) == [5], "the earlier ones are gone")
