"""Reading from the real client's connection to the emulator: credit, batches and endings."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import azure.eventhub
import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.client_errors import TransientError
from spark_ehbalance.eventhub.wire import client
from tests.eventhub.receiving import address_of, reading, receive_until_error
from tests.query.support import HUB, hub_options, receive
from tests.waiting import wait_until


@pytest.fixture
def full(emulator: Emulator) -> Emulator:
    """Partition 0 has 5,000 events of 0 to 2,000 bytes."""
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [bytes(n % 2000) for n in range(5000)])
    return emulator


# --- the contract with the client --------------------------------------------------------------------------------


def test_installed_client_is_the_tested_version() -> None:
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


def test_credit_covers_a_batch_and_no_more_than_requested(full: Emulator, handlers: list[Any]) -> None:
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


def test_batch_size_in_bytes_is_limited(emulator: Emulator) -> None:
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [bytes(1_000_000)] * 20)
    with reading(address_of(emulator), prefetch=50) as reader:
        got = 0
        while got < 20:
            batch = reader.receive(10_000, 5.0)
            assert batch.nbytes < 8 << 20
            got += batch.num_rows


# --- invalid bytes -----------------------------------------------------------------------------------------------


def write(emulator: Emulator, sent: bytes) -> None:
    """Let the hub send these bytes."""

    def send() -> None:
        for peer in emulator._server.clients:
            peer.write(sent)
            peer.flush()

    emulator._on_loop(send)


def frame(body: bytes) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, 0, 0) + body


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (struct.pack(">IBBH", 2 << 20, 2, 0, 1), "a frame of 2097152 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of"),
        (frame(b"\x00\x53\x13\xd0" + struct.pack(">IIBIIB", 14, 1, 0xF0, 5, 2**32 - 1, 0x40)), "zero-byte elements"),
        (frame(b"\x00\x53\x16\xd0" + struct.pack(">II", 4, 2**32 - 1)), "an invalid AMQP frame"),
    ],
    ids=["too long", "text", "array", "list"],
)
def test_invalid_bytes_are_one_clear_error(full: Emulator, sent: bytes, reason: str) -> None:
    with reading(address_of(full)) as reader:
        reader.receive(10, 5.0)
        write(full, sent)
        with pytest.raises(TransientError, match=reason) as caught:
            receive_until_error(reader, 0.2)
        assert "\n" not in str(caught.value)


# --- endings -----------------------------------------------------------------------------------------------------


def test_events_before_an_error_are_returned_first(full: Emulator) -> None:
    with reading(address_of(full), prefetch=1000) as reader:
        got = reader.receive(10, 5.0)["sequenceNumber"].to_pylist()
        full.drop_connections()

        def more() -> bool:
            got.extend(reader.receive(50, 1.0)["sequenceNumber"].to_pylist())
            return False

        with pytest.raises(TransientError):
            wait_until(more, "it ends")
        assert len(got) > 10
        assert got == list(range(reader.next or 0))
        assert reader.receive(10_000, 0.1).num_rows == 0


def open_sockets() -> int:
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(str(link.readlink()).startswith("socket:") for link in links if link.is_symlink())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files the Linux way")
def test_no_socket_stays_open(full: Emulator) -> None:
    def once(end: Callable[[], object] | None) -> None:
        with reading(address_of(full)) as reader:
            reader.receive(10, 5.0)
            if end is not None:
                end()
                with pytest.raises(TransientError):
                    receive_until_error(reader, 0.2)

    once(None)
    before = open_sockets()
    for end in (None, full.drop_connections, lambda: full.detach(HUB, 0), lambda: write(full, b"\xff" * 100)):
        once(end)
    wait_until(lambda: open_sockets() <= before, "all are closed")


# --- TLS and websockets ------------------------------------------------------------------------------------------

SIZES = [0, 1, 254, 255, 256, 257, 65_535, 65_536, 1_000_000, (1 << 20) - 200, 1_040_000, 3]
BODIES = [bytes(n % 2000) for n in range(3000)] + [bytes(range(256)) * (n // 256) + bytes(n % 256) for n in SIZES]


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
@pytest.mark.parametrize("websocket", [True, False], ids=["websocket", "socket"])
def test_rows_and_endings_are_the_same_on_every_transport(tls: bool, websocket: bool) -> None:
    """Without TLS, deliveries are unsettled."""
    with Emulator({HUB: 1}, tls=tls, websocket_port=0, settled=tls) as emulator:
        emulator.append(HUB, 0, BODIES)
        port = emulator.websocket_port if websocket else emulator.port
        way: dict[str, object] = {"customEndpointAddress": f"localhost:{port}"}
        way |= {"transportType": "AmqpOverWebsocket"} if websocket else {}
        way |= {"caFile": emulator.ca_file} if tls else {}
        with reading(address_of(emulator, hub_options(emulator, **way).connection), prefetch=1000) as reader:
            table = receive(reader, len(BODIES), 1000)
            assert reader.is_usable()
            assert reader.receive(10, 0.3).num_rows == 0
            emulator.append(HUB, 0, [b"x"])
            assert reader.receive(10, 5.0).num_rows == 1
            emulator.drop_connections()
            with pytest.raises(TransientError):
                receive_until_error(reader, 0.2)
    assert table["body"].to_pylist() == BODIES
    assert table["sequenceNumber"].to_pylist() == list(range(len(BODIES)))
