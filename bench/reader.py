"""CPU and time of one reader per event: the hot loop, from the socket to Arrow with all columns, beside the client's
own `receive_batch`, without any Arrow.

python -m bench.reader [--events 100000] [--runs 5] [--shape NAME]...
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from azure.eventhub import EventHubConsumerClient, EventHubProducerClient, TransportType
from azure.eventhub.amqp import AmqpAnnotatedMessage
from rich.console import Console
from rich.table import Table

from bench.certificate import make, trusting
from spark_ehbalance.emulator import EmulatorControl
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.receiver import Receiver, Source

HUB = "hub"
PREFETCH = 1000  # the source's default
GROUP = "$Default"


@dataclass(frozen=True)
class TlsConnection(Connection):
    """An emulator that listens with TLS."""

    port: int = 0
    certificate: Path | None = None

    def consumer_client(self, consumer_group: str, **settings: Any) -> EventHubConsumerClient:
        assert self.certificate is not None
        return super().consumer_client(
            consumer_group,
            custom_endpoint_address=f"sb://localhost:{self.port}",
            transport_type=TransportType.Amqp,
            ssl_context=trusting(self.certificate),
            **settings,
        )


class Cost(NamedTuple):
    """Of one event: CPU of this process in µs; and events a second."""

    cpu: float
    rate: float


@contextlib.contextmanager
def emulator(certificate: Path | None = None) -> Iterator[tuple[EmulatorControl, Connection]]:
    """An emulator without hubs, as a process of its own, so that its work is not counted as ours."""
    command = [sys.executable, "-m", "spark_ehbalance.emulator", "--port", "0", "--control-port", "0"]
    if certificate is not None:
        command += ["--certificate", str(certificate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            ready = re.fullmatch(r"Emulator ready: (\S+:(\d+);\S+) \(control port (\d+)\)\n", process.stdout.readline())
            if ready is None:
                raise OSError("the emulator did not start")
            string = f"{ready[1].rstrip(';')};EntityPath={HUB}"
            with EmulatorControl("127.0.0.1", int(ready[3])) as control:
                if certificate is None:
                    yield control, Connection("localhost", HUB, connection_string=string)
                else:
                    yield control, TlsConnection("localhost", HUB, None, string, int(ready[2]), certificate)
        finally:
            process.terminate()


# --- shapes of events ------------------------------------------------------------------------------------------

Fill = Callable[[EmulatorControl, Connection, int], None]


def _plain(size: int, properties: Callable[[int], dict[str, Any]] | None = None) -> Fill:
    def fill(control: EmulatorControl, connection: Connection, events: int) -> None:
        body = os.urandom(size)
        control.append(HUB, 0, [body] * events, [properties(n) for n in range(events)] if properties else None)

    return fill


def _keyed(control: EmulatorControl, connection: Connection, events: int) -> None:
    body = os.urandom(1024)
    for start in range(0, events, 100):
        control.append(HUB, 0, [body] * min(100, events - start), None, f"key {start // 100 % 2000}")


def _unexpected(control: EmulatorControl, connection: Connection, events: int) -> None:
    """No two alike: a body that is no data, and an annotation and a property of which each has another name."""
    with EventHubProducerClient.from_connection_string(str(connection.connection_string)) as client:
        for start in range(0, events, 500):  # a batch has 1 MB
            batch = [
                AmqpAnnotatedMessage(
                    value_body="x" * 1000,
                    annotations={f"x-{n}": n},
                    application_properties={f"p{n}": n},
                )
                for n in range(start, min(start + 500, events))
            ]
            client.send_batch(batch, partition_id="0")  # type: ignore[arg-type]


SHAPES: dict[str, Fill] = {
    "1 KB": _plain(1024),
    "100 B": _plain(100),
    "64 KB": _plain(64 * 1024),
    "1 KB, 2 properties": _plain(1024, lambda n: {"device": "thermometer-17", "unit": "°C"}),
    "1 KB, 2 properties, one unique": _plain(1024, lambda n: {"device": "thermometer-17", "id": f"{n:08d}"}),
    "1 KB, partition key": _keyed,
    "1 KB, no two alike": _unexpected,
}
BARS = {"1 KB": 2.0, "1 KB, 2 properties, one unique": 5.0, "1 KB, no two alike": 10.0}

# --- readers ---------------------------------------------------------------------------------------------------


def hot(connection: Connection, events: int) -> Cost:
    """The hot loop, with batches as the source asks for them."""
    receiver = Receiver(Source(connection, GROUP, "0"), 0, owner_level=None, prefetch=PREFETCH)
    got = receiver.receive(1, 10.0).num_rows
    begun, cpu, first = time.perf_counter(), time.process_time(), got
    while got < events:
        got += receiver.receive(min(10_000, events - got), 10.0).num_rows
    cost = _cost(begun, cpu, got - first)
    receiver.close()
    return cost


def public(connection: Connection, events: int) -> Cost:
    """`EventHubConsumerClient.receive_batch`, with a callback that only counts."""
    client = connection.consumer_client(GROUP)
    got = first = 0
    begun = cpu = 0.0
    cost: Cost | None = None

    def count(context: object, batch: list[object]) -> None:
        nonlocal got, first, begun, cpu, cost
        got += len(batch)
        if not first:  # what it takes to connect does not count
            begun, cpu, first = time.perf_counter(), time.process_time(), got
        if got >= events and cost is None:
            cost = _cost(begun, cpu, got - first)
            client.close()

    from_the_start: dict[str, Any] = {"partition_id": "0", "starting_position": "-1"}
    client.receive_batch(count, max_batch_size=PREFETCH, prefetch=PREFETCH, **from_the_start)
    assert cost is not None
    return cost


def _cost(begun: float, cpu: float, events: int) -> Cost:
    return Cost((time.process_time() - cpu) / events * 1e6, events / (time.perf_counter() - begun))


def median(measure: Callable[[], Cost], runs: int) -> Cost:
    """The median of each number."""
    return Cost(*map(statistics.median, zip(*(measure() for _ in range(runs)), strict=True)))


# --- the table -------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--shape", choices=list(SHAPES), action="append")
    asked = parser.parse_args()
    table = Table("event", "hot loop, µs CPU", "bar", "k/s", "receive_batch, µs CPU", "k/s", "times less")
    with tempfile.TemporaryDirectory() as folder:
        certificate = make(Path(folder))
        for name in asked.shape or SHAPES:
            _measure(name, None, asked.events, asked.runs, table)
        if not asked.shape or "1 KB" in asked.shape:
            _measure("1 KB", certificate, asked.events, asked.runs, table)
    Console().print(table)


def _measure(name: str, certificate: Path | None, events: int, runs: int, table: Table) -> None:
    if name == "64 KB":
        events //= 20  # the emulator keeps them in memory
    if name == "1 KB, no two alike":
        events //= 5  # sent by the client, which takes its time
    with emulator(certificate) as (control, connection):
        control.add_hub(HUB, 1)
        SHAPES[name](control, connection, events)
        fast = median(lambda: hot(connection, events), runs)
        slow = median(lambda: public(connection, events), max(1, runs // 2))
    numbers = [f"{fast.cpu:.2f}", f"{BARS.get(name, '')}", f"{fast.rate / 1e3:,.0f}"]
    label = f"{name}, TLS" if certificate else name
    table.add_row(label, *numbers, f"{slow.cpu:.1f}", f"{slow.rate / 1e3:,.0f}", f"{slow.cpu / fast.cpu:.1f}")


if __name__ == "__main__":
    main()
