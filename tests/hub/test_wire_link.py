"""Reading from the client's connection: what it takes over, what it leaves to the client, and how it ends."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import azure.eventhub
import pytest
from azure.core.credentials import AccessToken
from azure.eventhub._pyamqp.utils import generate_sas_token
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub.receiver import Disconnected, PartitionAddress, Unreachable
from spark_ehbalance.hub.wire import client, link, transfers
from tests.hub.encodings import compound, text
from tests.hub.receiving import address_of, reading, receive_until_error
from tests.source.support import HUB, hub_options, receive
from tests.waiting import wait_until

KEY, SECRET = "reader", "theRightKey"


@pytest.fixture
def full(emulator: Emulator) -> Emulator:
    """Partition 0 has 5,000 events of 0 to 2,000 bytes."""
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [bytes(n % 2000) for n in range(5000)])
    return emulator


# --- which clients are compatible -------------------------------------------------------------------------------


def test_the_installed_client_has_been_tested() -> None:
    assert azure.eventhub.__version__ == client.TESTED, (
        "a new azure-eventhub: if all tests of tests/hub pass with it, set TESTED to its version"
    )


def web_socket(handler: Any) -> None:
    class WebSocket:
        sock, _read_buffer, close = None, None, None

    handler._connection._transport = WebSocket()


#: Changes of the client's handler, and the reason why it is incompatible then.
INCOMPATIBLE: dict[str, tuple[Callable[[Any], object], str]] = {
    "attribute": (lambda handler: delattr(handler._session, "next_incoming_id"), "lacks session.next_inc"),
    "transport": (web_socket, "WebSocket, and neither a socket nor a websocket"),
    "handle": (lambda handler: handler._session._input_handles.clear(), "attached in an unexpected way"),
    "thread": (lambda handler: setattr(handler, "_keep_alive_thread", threading.Thread()), "a thread"),
    "counter": (lambda handler: setattr(handler._link, "delivery_count", None), "counters"),
    "credit": (lambda handler: setattr(handler._link, "current_link_credit", 5), "counters"),
    "no session": (lambda handler: delattr(handler, "_session"), "not as expected"),
}


@pytest.mark.parametrize("what", INCOMPATIBLE)
def test_an_incompatible_client_is_not_taken_over(full: Emulator, handlers: list[Any], what: str) -> None:
    change, reason = INCOMPATIBLE[what]
    with reading(address_of(full)) as reader:
        reader.receive(0, 0.0)
        (handler,), open_link = handlers, handlers[0]._link
        open_link.current_link_credit = 0  # as before it was taken over
        assert client.incompatibility(handler, open_link) is None
        change(handler)
        found = client.incompatibility(handler, open_link)
        assert found is not None
        assert reason in found


# --- credit, windows, memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 2, 7, 1000])
def test_credit_is_granted_again_and_again(full: Emulator, prefetch: int) -> None:
    with reading(address_of(full), prefetch=prefetch) as reader:
        assert receive(reader, 600, 250)["sequenceNumber"].to_pylist()[:600] == list(range(600))


def test_the_session_s_window_is_renewed(full: Emulator, handlers: list[Any]) -> None:
    with reading(address_of(full), prefetch=5000) as reader:
        reader.receive(1, 5.0)
        session = handlers[0]._session
        session.incoming_window = session.target_incoming_window = 50
        handlers[0]._link.flow(link_credit=5000)
        assert receive(reader, 4000, 5000).num_rows >= 4000


def test_counters_wrap(full: Emulator, handlers: list[Any]) -> None:
    with reading(address_of(full)) as reader:
        assert reader.receive(1, 5.0, 1).num_rows == 1
        client = handlers[0]
        client._session.next_incoming_id = client._link.delivery_count = 2**32 - 3
        receive(reader, 10)
        assert client._session.next_incoming_id == client._link.delivery_count
        assert 7 <= client._link.delivery_count < 5000


def test_a_batch_is_bounded_in_bytes(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_SPARE", [])
    monkeypatch.setattr(link, "MOST_BYTES", 1 << 20)
    emulator.add_hub(HUB, 1)
    emulator.append(HUB, 0, [bytes(200_000)] * 50)
    with reading(address_of(emulator), prefetch=50) as reader:
        got = 0
        while got < 50:
            batch = reader.receive(10_000, 5.0)
            assert batch.nbytes < 4 << 20
            got += batch.num_rows


def test_receivers_that_are_kept_open_have_small_buffers(full: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_SPARE", [])
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(reading(address_of(full), prefetch=5000)) for _ in range(5)]
        for each in readers:
            assert receive(each, 2000, 2000).num_rows >= 2000
        for each in readers:  # to the end: a link with events still needs its buffer
            while each.receive(5000, 0.1).num_rows:
                pass
        held = [each._link for each in readers if each._link is not None]
        assert len(held) == 5
        assert sum(len(each._data) for each in held) <= 5 * 2 * link._IDLE_BYTES
        assert 1 <= len(link._SPARE) <= link._MOST_SPARE


def test_the_first_event_of_a_fresh_receiver_comes_without_an_idle_wait(
    full: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, came = link.LinkReader._read, []

    def read(self: link.LinkReader, pause: float) -> bool:
        came.append(original(self, pause))
        return came[-1]

    monkeypatch.setattr(link.LinkReader, "_read", read)
    with reading(address_of(full), start=10) as reader:
        assert reader.receive(1, 5.0).num_rows == 1
    assert came
    assert all(came)


SIZES = [0, 1, 254, 255, 256, 257, 65_535, 65_536, 1_000_000, (1 << 20) - 200, 1_040_000, 3]


def test_bodies_of_any_size(emulator: Emulator) -> None:
    emulator.add_hub(HUB, 1)
    sent = [bytes(range(256)) * (size // 256) + bytes(size % 256) for size in SIZES]
    emulator.append(HUB, 0, sent)
    with reading(address_of(emulator)) as reader:
        assert receive(reader, len(sent))["body"].to_pylist() == sent


# --- a stream in pieces, and invalid bytes -----------------------------------------------------------------------


#: In the encoding of the emulator, an event's first annotation.
EVENT = b"\xa3\x15x-opt-sequence-number"


class Proxy:
    """Passes bytes between a client and the emulator: to the client in pieces of the `sizes`, in turn.

    Once events flow, `instead` is sent to the client in place of everything else.
    """

    def __init__(self, port: int, sizes: list[int], instead: bytes | None = None) -> None:
        self._port, self._sizes, self._instead = port, sizes, instead
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server = socket.create_connection(("127.0.0.1", self._port))
                self._open += [client, server]
                for run in (lambda c=client, s=server: self._up(c, s), lambda c=client, s=server: self._down(s, c)):
                    self._threads.append(threading.Thread(target=run))
                    self._threads[-1].start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        turn = 0
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(client.shutdown, socket.SHUT_RDWR)
            while data := server.recv(1 << 16):
                if self._instead is not None and EVENT in data:
                    client.sendall(self._instead)
                    continue
                while data:
                    size = self._sizes[turn % len(self._sizes)]
                    client.sendall(data[:size])
                    data, turn = data[size:], turn + 1


def through(emulator: Emulator, proxy: Proxy) -> PartitionAddress:
    string = emulator.connection_string(HUB).replace(str(emulator.port), str(proxy.port))
    return address_of(emulator, hub_options(emulator, connectionString=string).connection)


@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=30), most=st.integers(1, 400))
def test_a_stream_in_pieces_is_the_same_stream(full: Emulator, sizes: list[int], most: int) -> None:
    with Proxy(full.port, [*sizes, 5000]) as proxy, reading(through(full, proxy)) as reader:
        rows = receive(reader, 150, most)
        assert rows["sequenceNumber"].to_pylist()[:150] == list(range(150))
        assert list(map(len, rows["body"].to_pylist()))[:150] == list(range(150))


def frame(body: bytes, channel: int = 1) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, 0, channel) + body


LONG = 2**32 - 1
INVALID: dict[str, tuple[bytes, str]] = {
    "too long": (struct.pack(">IBBH", 2 << 20, 2, 0, 1), "a frame of 2097152 bytes"),
    "too short": (struct.pack(">IBBH", 3, 2, 0, 1), "a frame of 3 bytes"),
    "noise": (b"\xff" * 500, "a frame of"),
    "text": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of"),
    "array": (
        frame(b"\x00\x53\x13\xd0" + struct.pack(">II", 14, 1) + b"\xf0" + struct.pack(">II", 5, LONG) + b"\x40"),
        "elements in",
    ),
    "list": (frame(b"\x00\x53\x16\xd0" + struct.pack(">II", 4, LONG)), "no sound AMQP"),
    "nested": (frame(b"\x00\x53\x13" + b"\xc0\x02\x01" * 3000), "no sound AMQP"),
    "end of stream": (b"", "closed"),
}


@pytest.mark.parametrize("what", INVALID)
def test_invalid_bytes_are_one_clear_error(full: Emulator, what: str) -> None:
    sent, reason = INVALID[what]
    with Proxy(full.port, [1 << 16], sent or None) as proxy, reading(through(full, proxy)) as reader:
        if not sent:
            reader.receive(10, 5.0)
            full.drop_connections()
        with pytest.raises(Unreachable, match=reason) as caught:
            receive_until_error(reader, 0.2)
        assert "\n" not in str(caught.value)


def test_a_delivery_without_end_is_one_clear_error(
    full: Emulator, handlers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "MAX_DELIVERY_BYTES", 1 << 20)
    with reading(address_of(full)) as reader:
        reader.receive(1, 5.0)
        handle = handlers[0]._link.remote_handle
    fields = [b"\x52" + bytes((handle,)), b"\x43", text(b"t", 0xA0), b"\x43", b"\x41", b"\x41"]
    more = frame(b"\x00\x53\x14" + compound(0xC0, 6, b"".join(fields)) + bytes(60_000))
    with Proxy(full.port, [1 << 16], more * 5) as proxy, reading(through(full, proxy), prefetch=1000) as reader:
        full.append(HUB, 0, [bytes(1000)] * 3000)
        with pytest.raises(Unreachable, match="a delivery of more than 1048576 bytes"):
            receive_until_error(reader, 0.2)
        assert reader._link is not None
        assert len(reader._link._data) < 8 << 20


# --- how it ends -----------------------------------------------------------------------------------------------


def test_events_that_came_before_an_error_are_returned_first(full: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    original = link.LinkReader._read

    def read(self: link.LinkReader, pause: float) -> bool:
        if len(self._transfers):
            raise ConnectionResetError("cut off")
        return original(self, pause)

    monkeypatch.setattr(link.LinkReader, "_read", read)
    with reading(address_of(full), prefetch=1000) as reader:
        rows = reader.receive(10_000, 5.0)["sequenceNumber"].to_pylist()
        assert rows
        assert rows == list(range(len(rows)))
        assert reader.next == len(rows)
        with pytest.raises(Unreachable, match="cut off"):
            reader.receive(10_000, 5.0)
        assert reader.receive(10_000, 0.1).num_rows == 0


def test_events_that_were_found_are_returned_without_reading(full: Emulator) -> None:
    with reading(address_of(full), prefetch=1000) as reader:
        got = reader.receive(10, 5.0).num_rows
        held = reader._link
        assert held is not None
        whole = len(held._transfers)
        assert whole > 10
        full.drop_connections()
        while got < whole:
            rows = reader.receive(50, 1.0)["sequenceNumber"].to_pylist()
            assert rows == list(range(got, got + len(rows)))
            got += len(rows)
        with pytest.raises(Unreachable):
            receive_until_error(reader, 0.2)


def open_sockets() -> int:
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(str(link.readlink()).startswith("socket:") for link in links if link.is_symlink())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files the Linux way")
@pytest.mark.parametrize("end", ["closed", "dropped", "detached", "stolen", "garbage"])
def test_no_socket_stays_open(full: Emulator, end: str) -> None:
    def once() -> None:
        instead = b"\xff" * 100 if end == "garbage" else None
        with Proxy(full.port, [1 << 16], instead) as proxy, contextlib.ExitStack() as stack:
            reader = stack.enter_context(reading(through(full, proxy), owner_level=1))
            if end != "garbage":
                reader.receive(10, 5.0)
            if end == "closed":
                return
            if end == "dropped":
                full.drop_connections()
            elif end == "detached":
                full.detach(HUB, 0)
            elif end == "stolen":
                stack.enter_context(reading(address_of(full), owner_level=2)).receive(1, 5.0)
            with pytest.raises((Disconnected, Unreachable)):
                receive_until_error(reader, 0.2)

    once()
    before = open_sockets()
    for _ in range(3):
        once()
    wait_until(lambda: open_sockets() <= before, "all are closed")


# --- tokens ----------------------------------------------------------------------------------------------------


class Credential:
    """Returns tokens that are valid for an hour, and counts them."""

    token_type = b"servicebus.windows.net:sastoken"

    def __init__(self) -> None:
        self.given = 0

    def get_token(self, *scopes: str, **_: object) -> AccessToken:
        expiry = int(time.time() + 3600)
        self.given += 1
        return AccessToken(generate_sas_token(f"sb://localhost/{HUB}", KEY, SECRET, expiry), expiry)


@pytest.fixture
def guarded() -> Iterator[Emulator]:
    """An emulator that checks tokens."""
    with Emulator({HUB: 1}, sas_keys={KEY: SECRET}) as running:
        yield running


def test_a_token_is_renewed_while_events_flow(guarded: Emulator, handlers: list[Any]) -> None:
    guarded.append(HUB, 0, [b"%d" % n for n in range(1000)])
    credential = Credential()
    with reading(address_of(guarded)) as reader:
        reader._client._credential = credential
        rows = [receive(reader, 300)]
        assert credential.given == 1
        authenticator = handlers[0]._cbs_authenticator
        authenticator._refresh_window = 7200  # it is renewed in its last two hours
        rows.append(receive(reader, 300))
        guarded.append(HUB, 0, [b"%d" % n for n in range(1000, 2000)])

        def renewed() -> bool:
            rows.append(reader.receive(10, 0.1))
            return credential.given > 1 and authenticator.auth_state.name == "OK"

        wait_until(renewed, "the new token has been taken")
        assert credential.given == 2
        got = [number for each in rows for number in each["sequenceNumber"].to_pylist()]
        rest = receive(reader, 2000 - len(got))["sequenceNumber"].to_pylist() if len(got) < 2000 else []
        assert got + rest == list(range(2000))


def test_an_expired_token_is_refused(guarded: Emulator, handlers: list[Any]) -> None:
    guarded.append(HUB, 0, [b"x"] * 10)
    with reading(address_of(guarded)) as reader:
        receive(reader, 10)
        handlers[0]._cbs_authenticator._expires_on = 0
        with pytest.raises(HubUnavailableError, match=r"partition 0: .*refused the credentials") as caught:
            receive_until_error(reader, 0.2)
        assert "\n" not in str(caught.value)
        assert SECRET not in str(caught.value)


# --- TLS and websockets ----------------------------------------------------------------------------------------


BODIES = [bytes(n % 2000) for n in range(3000)] + [bytes(1_000_000)] * 3


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


def test_with_tls_or_websocket_the_rows_are_the_same(wrapped: tuple[Emulator, PartitionAddress]) -> None:
    _, source = wrapped
    with reading(source, prefetch=1000) as reader:
        table = receive(reader, 3003, 1000)
        assert reader.is_usable()
    assert table["body"].to_pylist() == BODIES
    assert table["sequenceNumber"].to_pylist() == list(range(3003))


@pytest.mark.parametrize("end", ["dropped", "stolen"])
def test_with_tls_or_websocket_it_ends_as_without(wrapped: tuple[Emulator, PartitionAddress], end: str) -> None:
    emulator, source = wrapped
    with reading(source, owner_level=1) as reader, contextlib.ExitStack() as stack:
        reader.receive(10, 5.0)
        if end == "dropped":
            emulator.drop_connections()
        else:
            stack.enter_context(reading(source, owner_level=2)).receive(1, 5.0)
        with pytest.raises(Unreachable if end == "dropped" else Disconnected):
            receive_until_error(reader, 0.2)


def test_with_tls_or_websocket_waiting_takes_the_given_time(
    wrapped: tuple[Emulator, PartitionAddress],
) -> None:
    emulator, source = wrapped
    with reading(source, start=3003) as reader:
        assert reader.receive(10, 0.3).num_rows == 0
        emulator.append(HUB, 0, [b"x"])
        assert reader.receive(10, 5.0).num_rows == 1
