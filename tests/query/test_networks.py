"""Queries that share a hub which they reach in other ways: planners and readers go through the same network."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.network import NetworkError
from spark_ehbalance.eventhub.ranges import Range
from spark_ehbalance.eventhub.rows import sequence_numbers
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.query.options import stream_options
from spark_ehbalance.query.range_reader import read_range
from spark_ehbalance.query.receivers import Receivers
from tests.proxy import HttpProxy
from tests.query.queries import Event, Group, Query
from tests.query.support import HUB
from tests.waiting import wait_until

PARTITIONS = 4

#: A namespace that does not exist: who calls it by its own name gets no further.
NOWHERE = "space.servicebus.invalid"


class Way(NamedTuple):
    """The options of a way, and how many connections were made on it."""

    options: Mapping[str, object]
    used: Callable[[], int]


@contextlib.contextmanager
def through_a_proxy(hub: Emulator, patch: pytest.MonkeyPatch) -> Iterator[Way]:
    with HttpProxy({f"{NOWHERE}:443": hub.websocket_port}, user="me", password="not for all") as proxy:
        patch.setenv("HUB_PROXY", f"http://me:not%20for%20all@localhost:{proxy.port}")
        yield Way({"httpProxy": "env:HUB_PROXY", "caFile": hub.ca_file}, lambda: proxy.connected)
        assert not proxy.refused


@contextlib.contextmanager
def through_a_gateway(hub: Emulator, _: pytest.MonkeyPatch) -> Iterator[Way]:
    connections: list[object] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await gateway.join(reader, writer, hub.port)

    with HttpProxy(handler=forward) as gateway:
        yield Way(
            {"customEndpointAddress": f"localhost:{gateway.port}", "caFile": hub.ca_file}, lambda: len(connections)
        )


#: A websocket through a proxy, and AMQP through a gateway, both with certificates of a private authority.
WAYS = (through_a_proxy, through_a_gateway)


@pytest.fixture
def hub() -> Iterator[Emulator]:
    with Emulator(tls=True, tls_names=(NOWHERE,), websocket_port=0) as running:
        yield running


@pytest.fixture
def receivers() -> Iterator[Receivers]:
    """Those that a worker keeps open."""
    made = Receivers()
    yield made
    made.close()


@pytest.mark.parametrize("by", WAYS)
def test_queries_share_a_hub(
    by: Callable[[Emulator, pytest.MonkeyPatch], contextlib.AbstractContextManager[Way]],
    hub: Emulator,
    receivers: Receivers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(hub, tmp_path, PARTITIONS)
    received = Counter[Event]()

    def run(query: Query, end: StreamOffset) -> None:
        """Run a batch as executors do."""
        for each in query.run(end):
            for batch in read_range(options, each, query.owner, each.epoch, receivers=receivers):
                received.update((each.partition, number) for number in sequence_numbers(batch).to_pylist())

    def read(*queries: Query) -> None:
        """Run batches of all queries until everything was received."""

        def finished() -> bool:
            for query in queries:
                if (end := query.plan()) is not None:
                    run(query, end)
            return received.total() >= group.everything().total()

        wait_until(finished, "everything is read")

    with by(hub, monkeypatch) as way, contextlib.closing(group):
        string = hub.connection_string(HUB).replace(f"localhost:{hub.port}", NOWHERE)
        group.raw |= {"connectionString": string, "leaseDuration": "10s", "handoverTimeout": "60s", **way.options}
        group.raw["startingPosition"] = "2020-01-01T00:00:00Z"  # which takes a receiver to resolve
        options = group.options()
        group.append(50, PARTITIONS)
        a = group.query("a")
        read(a)
        b = group.query("b")
        wait_until(lambda: [read(a, b), len(a.owned()), len(b.owned())][1:] == [2, 2], "they share")
        group.append(50, PARTITIONS)
        read(a, b)
        before = way.used()
        hub.drop_connections()
        group.append(50, PARTITIONS)
        read(a, b)
        assert received == group.everything()
        assert a.seen
        assert b.seen
        assert way.used() > before > 0


def test_an_executor_does_not_try_again_what_is_set_wrong(
    hub: Emulator, receivers: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_hub(HUB, 1)
    hub.append(HUB, 0, [b"x"])
    with HttpProxy({f"{NOWHERE}:443": hub.websocket_port}, user="me", password="another") as proxy:
        monkeypatch.setenv("HUB_PROXY", f"http://me:wrong@localhost:{proxy.port}")
        string = hub.connection_string(HUB).replace(f"localhost:{hub.port}", NOWHERE)
        options = stream_options({"connectionString": string, "httpProxy": "env:HUB_PROXY", "caFile": str(hub.ca_file)})
        with pytest.raises(NetworkError, match=r"partition 0: the proxy .* \(status 407\): check httpProxy"):
            list(read_range(options, Range("0", 0, 0, 1), None, None, receivers=receivers))
        assert proxy.refused == 1
