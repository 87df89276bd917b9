"""Reading from the real client's connection to the emulator: what is taken over, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import azure.eventhub
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.receiver import Disconnected, PartitionAddress
from spark_ehbalance.eventhub.refusals import Unreachable
from spark_ehbalance.eventhub.wire import client
from tests.eventhub.receiving import address_of, reading, receive_until_error
from tests.proxy import HttpProxy
from tests.query.support import HUB, hub_options, receive
from tests.waiting import wait_until


@pytest.fixture
def full(emulator: Emulator) -> Emulator:
    """Partition 0 has 5,000 events of 0 to 2,000 bytes."""
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [bytes(n % 2000) for n in range(5000)])
    return emulator


# --- the contract with the client --------------------------------------------------------------------------------


def test_the_installed_client_has_been_tested() -> None:
    assert azure.eventhub.__version__ == client.TESTED, (
        "a new azure-eventhub: if all tests of tests/eventhub pass with it, set TESTED to its version"
    )


@pytest.mark.parametrize(("prefetch", "count"), [(1, 1), (7, 1), (1000, 2**32 - 3)])
def test_credit_and_window_are_renewed_and_counters_wrap(
    full: Emulator, handlers: list[Any], prefetch: int, count: int
) -> None:
    with reading(address_of(full), prefetch=prefetch) as reader:
        assert reader.receive(1, 5.0, 1).num_rows == 1
        session, opened = handlers[0]._session, handlers[0]._link
        session.next_incoming_id = opened.delivery_count = count
        session.incoming_window = session.target_incoming_window = 50
        opened.flow(link_credit=prefetch)
        assert receive(reader, 600, 250)["sequenceNumber"].to_pylist()[:600] == list(range(1, 601))
        assert session.next_incoming_id == opened.delivery_count
        assert 590 <= opened.delivery_count < 5010


def test_credit_is_granted_for_a_whole_batch_and_not_beyond_what_is_wanted(full: Emulator, handlers: list[Any]) -> None:
    with reading(address_of(full), prefetch=100) as reader:
        assert reader.receive(1, 5.0, 1).num_rows == 1
        granted, flow = list[int](), handlers[0]._link.flow

        def recorded(link_credit: int) -> None:
            granted.append(link_credit)
            flow(link_credit=link_credit)

        handlers[0]._link.flow = recorded
        read = 0
        while read < 4000:
            read += reader.receive(min(1500, 4000 - read), 5.0, 4000 - read).num_rows
        assert handlers[0]._link.current_link_credit == 0
    assert granted[0] == max(granted) == 1500 + 100
    assert len(granted) < 10


# --- memory ------------------------------------------------------------------------------------------------------


def test_a_batch_is_bounded_in_bytes(emulator: Emulator) -> None:
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [bytes(1_000_000)] * 20)
    with reading(address_of(emulator), prefetch=50) as reader:
        got = 0
        while got < 20:
            batch = reader.receive(10_000, 5.0)
            assert batch.nbytes < 8 << 20
            got += batch.num_rows


# --- a stream in pieces, and invalid bytes -----------------------------------------------------------------------


#: In the encoding of the emulator, an event's first annotation.
EVENT = b"\xa3\x15x-opt-sequence-number"


@contextlib.contextmanager
def between(emulator: Emulator, sizes: list[int], instead: bytes | None = None) -> Iterator[PartitionAddress]:
    """The emulator's partition by a way on which its bytes come in pieces of the `sizes`, in turn.

    Once events flow, `instead` comes in place of everything else.
    """

    async def pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", emulator.port)

        async def up() -> None:
            while data := await reader.read(1 << 16):
                back.write(data)
            back.write_eof()

        sending, turn = asyncio.create_task(up()), 0
        try:
            while data := await there.read(1 << 16):
                if instead is not None and EVENT in data:
                    writer.write(instead)
                    continue
                while data:
                    size = sizes[turn % len(sizes)]
                    writer.write(data[:size])
                    await writer.drain()
                    data, turn = data[size:], turn + 1
        finally:
            sending.cancel()
            back.close()
            writer.close()

    with HttpProxy(handler=pieces) as way:
        string = emulator.connection_string(HUB).replace(str(emulator.port), str(way.port))
        yield address_of(emulator, hub_options(emulator, connectionString=string).connection)


@settings(deadline=None, max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=30), most=st.integers(1, 400))
def test_a_stream_in_pieces_is_the_same_stream(full: Emulator, sizes: list[int], most: int) -> None:
    with between(full, [*sizes, 5000]) as source, reading(source) as reader:
        rows = receive(reader, 150, most)
        assert rows["sequenceNumber"].to_pylist()[:150] == list(range(150))
        assert list(map(len, rows["body"].to_pylist()))[:150] == list(range(150))


def frame(body: bytes, channel: int = 1) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, 0, channel) + body


LONG = 2**32 - 1
INVALID: dict[str, tuple[bytes, str]] = {
    "too long": (struct.pack(">IBBH", 2 << 20, 2, 0, 1), "a frame of 2097152 bytes"),
    "text": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of"),
    "array": (
        frame(b"\x00\x53\x13\xd0" + struct.pack(">II", 14, 1) + b"\xf0" + struct.pack(">II", 5, LONG) + b"\x40"),
        "elements in",
    ),
    "list": (frame(b"\x00\x53\x16\xd0" + struct.pack(">II", 4, LONG)), "no sound AMQP"),
    "nested": (frame(b"\x00\x53\x13" + b"\xc0\x02\x01" * 3000), "no sound AMQP"),
}


@pytest.mark.parametrize("what", INVALID)
def test_invalid_bytes_are_one_clear_error(full: Emulator, what: str) -> None:
    sent, reason = INVALID[what]
    with between(full, [1 << 16], sent) as source, reading(source) as reader:
        with pytest.raises(Unreachable, match=reason) as caught:
            receive_until_error(reader, 0.2)
        assert "\n" not in str(caught.value)


# --- how it ends -------------------------------------------------------------------------------------------------


def test_events_that_came_before_an_error_are_returned_first(full: Emulator) -> None:
    with reading(address_of(full), prefetch=1000) as reader:
        got = reader.receive(10, 5.0)["sequenceNumber"].to_pylist()
        full.drop_connections()

        def more() -> bool:
            got.extend(reader.receive(50, 1.0)["sequenceNumber"].to_pylist())
            return False

        with pytest.raises(Unreachable):
            wait_until(more, "it ends")
        assert len(got) > 10
        assert got == list(range(reader.next or 0))
        assert reader.receive(10_000, 0.1).num_rows == 0


def open_sockets() -> int:
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(str(link.readlink()).startswith("socket:") for link in links if link.is_symlink())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files the Linux way")
@pytest.mark.parametrize("end", ["closed", "dropped", "stolen", "garbage"])
def test_no_socket_stays_open(full: Emulator, end: str) -> None:
    def once() -> None:
        instead = b"\xff" * 100 if end == "garbage" else None
        with between(full, [1 << 16], instead) as source, contextlib.ExitStack() as stack:
            reader = stack.enter_context(reading(source, owner_level=1))
            if end != "garbage":
                reader.receive(10, 5.0)
            if end == "closed":
                return
            if end == "dropped":
                full.drop_connections()
            elif end == "stolen":
                stack.enter_context(reading(address_of(full), owner_level=2)).receive(1, 5.0)
            with pytest.raises((Disconnected, Unreachable)):
                receive_until_error(reader, 0.2)

    once()
    before = open_sockets()
    for _ in range(3):
        once()
    wait_until(lambda: open_sockets() <= before, "all are closed")


# --- TLS and websockets ------------------------------------------------------------------------------------------

SIZES = [0, 1, 254, 255, 256, 257, 65_535, 65_536, 1_000_000, (1 << 20) - 200, 1_040_000, 3]
BODIES = [bytes(n % 2000) for n in range(3000)] + [bytes(range(256)) * (n // 256) + bytes(n % 256) for n in SIZES]


@pytest.fixture(params=["TLS", "websocket", "TLS, websocket"])
def wrapped(request: pytest.FixtureRequest) -> Iterator[tuple[Emulator, PartitionAddress]]:
    """An emulator that listens so, with events of many sizes, and its partition 0."""
    tls, websocket = "TLS" in request.param, "websocket" in request.param
    with Emulator({HUB: 1}, tls=tls, websocket_port=0) as running:
        running.append(HUB, 0, BODIES)
        way: dict[str, object] = {"customEndpointAddress": f"localhost:{running.port}"}
        if websocket:
            port = running.websocket_port
            way = {"customEndpointAddress": f"localhost:{port}", "transportType": "AmqpOverWebsocket"}
        if tls:
            way["caFile"] = running.ca_file
        yield running, address_of(running, hub_options(running, **way).connection)


def test_the_rows_are_the_same_on_every_transport(wrapped: tuple[Emulator, PartitionAddress]) -> None:
    emulator, source = wrapped
    with reading(source, prefetch=1000) as reader:
        table = receive(reader, len(BODIES), 1000)
        assert reader.is_usable()
        assert reader.receive(10, 0.3).num_rows == 0
        emulator.append(HUB, 0, [b"x"])
        assert reader.receive(10, 5.0).num_rows == 1
    assert table["body"].to_pylist() == BODIES
    assert table["sequenceNumber"].to_pylist() == list(range(len(BODIES)))


@pytest.mark.parametrize("end", ["dropped", "stolen"])
def test_it_ends_the_same_on_every_transport(wrapped: tuple[Emulator, PartitionAddress], end: str) -> None:
    emulator, source = wrapped
    with reading(source, owner_level=1) as reader, contextlib.ExitStack() as stack:
        reader.receive(10, 5.0)
        if end == "dropped":
            emulator.drop_connections()
        else:
            stack.enter_context(reading(source, owner_level=2)).receive(1, 5.0)
        with pytest.raises(Unreachable if end == "dropped" else Disconnected):
            receive_until_error(reader, 0.2)
