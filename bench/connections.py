"""What receivers cost to open over TLS: each with a connection of its own, as the source has them; and all in one
connection, a session and a link each, which the client can open but the source does not use. Over a way with a round
trip of 20 ms, as to a region nearby."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from bench.common import GROUP, Log, Row, emulator
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.receiver import PartitionAddress, Receiver

SUBJECT = "connections"

#: Seconds that bytes take each way.
_WAY = 0.010

#: Receivers that a task opens at the same time.
_TOGETHER = 8


def measure(log: Log, *, partitions: int, runs: int) -> Iterator[Row]:
    """Open a receiver for each of `partitions`, `runs` times in each way."""
    ways: dict[str, Callable[[Connection, int], Sequence[Any]]] = {"one connection": _shared, "one each": _own}
    wall: dict[str, list[float]] = {how: [] for how in ways}
    cpu: dict[str, list[float]] = {how: [] for how in ways}
    with emulator(partitions, tls=True) as server, _slow_way_to(server.port) as port:
        network = replace(server.connection.network, endpoint=("localhost", port))
        connection = replace(server.connection, network=network)
        for run in range(runs + 1):
            log(f"{partitions} receivers: run {run} of {runs}")
            for how, opened in ways.items():
                began, spent = time.monotonic(), time.process_time()
                closing = opened(connection, partitions)
                wall[how].append(1000 * (time.monotonic() - began))
                cpu[how].append(1000 * (time.process_time() - spent) / partitions)
                for each in closing:
                    each.close()
    for name, unit, found in ((f"{partitions} opened", "ms", wall), ("CPU each", "ms", cpu)):
        shared, own = (tuple(each[1:]) for each in found.values())
        yield Row(
            SUBJECT, f"receivers in one connection, round trip 20 ms: {name}", unit, shared, None, {"one each": own}
        )


def _receivers(connection: Connection, partitions: int) -> list[Receiver]:
    addresses = [PartitionAddress(connection, GROUP, str(each)) for each in range(partitions)]
    return [Receiver(each, 0, owner_level=1, prefetch=1) for each in addresses]


def _own(connection: Connection, partitions: int) -> Sequence[Any]:
    receivers = _receivers(connection, partitions)
    with ThreadPoolExecutor(_TOGETHER) as pool:
        list(pool.map(lambda each: each.receive(1, 0.0, 0), receivers))
    return receivers


def _shared(connection: Connection, partitions: int) -> Sequence[Any]:
    consumers: list[Any] = [each._make_consumer() for each in _receivers(connection, partitions)]
    first = consumers[0]
    while not first._open():
        pass
    for each in consumers[1:]:
        each._create_handler(each._client._create_auth(auth_uri=each._client._auth_uri))
        each._handler.open(connection=first._handler._connection)
    waiting = consumers[1:]
    while waiting:
        waiting = [each for each in waiting if not each._handler.client_ready()]
    return [first._handler]


@contextlib.contextmanager
def _slow_way_to(port: int) -> Iterator[int]:
    """A port from which bytes take `_WAY` seconds to `port` on this machine, and as long back."""
    spawn = multiprocessing.get_context("spawn")  # in a process of its own, so that its CPU time is not counted
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_relay, args=(port, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()


def _relay(port: int, told: Any) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(1 << 16):
            loop.call_later(_WAY, writer.write, data)
        loop.call_later(_WAY, writer.close)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(carry(reader, there[1]), carry(there[0], writer), return_exceptions=True)

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())
