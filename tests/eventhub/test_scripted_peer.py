"""The client's own states against a peer that sends what the service does, frame by frame.

Values and texts were seen in frames that azure-sdk-for-python's live tests exchanged with a namespace, or in public
issues: its own channel and handles, settled deliveries without a tag, and how it ends links and connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from azure.eventhub._pyamqp.sasl import SASLTransport

from spark_ehbalance.emulator.amqp import frames as server
from spark_ehbalance.emulator.amqp.codec import Array, Int, Symbol, Timestamp, encode
from spark_ehbalance.emulator.amqp.errors import AmqpError
from spark_ehbalance.emulator.amqp.frames import Attach, Close, Detach, End, Flow, Transfer, encode_frame
from spark_ehbalance.emulator.message import parse_sections
from spark_ehbalance.errors import EhBalanceError, HubUnavailableError, MissingError
from spark_ehbalance.eventhub import sender as sender_module
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.receiver import Disconnected
from spark_ehbalance.eventhub.refusals import Busy, RefusedError, Unreachable
from spark_ehbalance.eventhub.sender import Sender
from spark_ehbalance.eventhub.sending.columns import Columns
from spark_ehbalance.eventhub.sending.write_options import write_options
from spark_ehbalance.eventhub.sending.writing import Links, Task
from spark_ehbalance.eventhub.wire.outgoing import Batch
from spark_ehbalance.eventhub.wire.sending_link import Deadline
from spark_ehbalance.query.options import stream_options
from tests.emulator.raw import source, split_frames, target
from tests.eventhub.encodings import compound, ordinary, section, text
from tests.eventhub.receiving import address_of, reading, receive_until_error
from tests.proxy import HttpProxy
from tests.query.support import receive
from tests.waiting import wait_until

SETTLED = {"delivery_tag": b"", "settled": True}
UNSETTLED = {"delivery_tag": b"\1\0\0\0", "settled": False}


class Ending(NamedTuple):
    """How the service ends a link, session or connection."""

    frames: tuple[type, ...]
    condition: str
    text: str
    receiver: type[Exception] = Unreachable
    sender: type[Exception] = Unreachable
    epoch: int | None = None


class Service(HttpProxy):
    """Takes one hub link for each connection: delivers `events` to a receiver, and accepts batches.

    The first connection has an `ending`: `after` so many deliveries, batches or requests, or at the attach.
    """

    def __init__(self) -> None:
        super().__init__(handler=self._serve)
        self.events: list[bytes] = []
        self.style: dict[str, Any] = SETTLED
        self.frame_bytes = 1 << 20
        self.window = 5000
        self.names_limits = True  # of frames, channels and handles
        self.credit = 1000
        self.credit_each = 0  # batches; granted again whenever it is used up
        self.most_taken = -1  # batches; to more there is no answer
        self.silent = False  # from the start
        self.stall = 0.0  # seconds for which nothing is read after the first batch has begun
        self.most_in_window = 0  # frames of a sender between two flows
        self.ending: Ending | None = None
        self.after = -1
        self.resets = False  # the connection after its ending
        self.has_reset = False
        self.batches: list[bytes] = []
        self.refused: dict[bytes, str] = {}  # batch -> condition
        self.refusal_delay = 0.0
        self.connections = 0

    @property
    def connection(self) -> Connection:
        string = f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName=n;SharedAccessKey=k;EntityPath=hub"
        return stream_options({"connectionString": f"{string};UseDevelopmentEmulator=true"}).connection

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def take() -> bytes:
            size = await reader.readexactly(4)
            return size + await reader.readexactly(int.from_bytes(size, "big") - 4)

        self.connections += 1
        if self.silent:
            await reader.read()
            return
        mechanisms = Array([Symbol(each) for each in ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")])
        await reader.readexactly(8)
        writer.write(server.SASL_HEADER + encode_frame(0, server.SaslMechanisms(mechanisms)))
        await take()
        writer.write(encode_frame(0, server.SaslOutcome(0)) + server.AMQP_HEADER)
        await reader.readexactly(8)
        served = _Connection(self, writer.write)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while not (self.resets and served.has_ended):
                frame = await take()
                for performative, payload in split_frames(frame):
                    served.take(performative, payload, int.from_bytes(frame[6:8], "big"))
                await writer.drain()
                if served.received_of_batches and self.stall:
                    pause, self.stall = self.stall, 0.0
                    await asyncio.sleep(pause)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.close()
            await writer.wait_closed()
            self.has_reset = True


class _Connection:
    """With the service's own channel 0, and its own handles in the order of the attaches."""

    def __init__(self, service: Service, write: Callable[[bytes], None]) -> None:
        self._service, self._write = service, write
        self._ending, service.ending = service.ending, None
        self._own: dict[int, int] = {}  # handles, by the client's
        self._addresses: dict[int, str] = {}  # by the client's handle
        self._readers: dict[str, int] = {}  # the own handles of links to the client, by address
        self._next_id, self._delivery_id = 1, 0
        self._received, self._in_window, self._batch = 0, 0, b""
        self._delivered, self._credit, self._window, self._done = 0, 0, 0, 0
        self.has_ended = False
        self.received_of_batches = self._refusals = 0

    def send(self, *performatives: Any, payload: bytes = b"") -> None:
        self._write(b"".join(encode_frame(0, each, payload) for each in performatives))

    def take(self, performative: Any, payload: bytes, channel: int) -> None:
        if isinstance(performative, Flow):
            self._received = performative.next_outgoing_id  # AMQP 1.0, 2.5.6
        match performative:
            case server.Open():
                frame, channels = (65_536, 4999) if self._service.names_limits else (None, None)
                self.send(server.Open("6466_G5", "", frame, channels, 120_000))
            case server.Begin():
                handle_max = 255 if self._service.names_limits else None
                self.send(server.Begin(channel, 1, self._service.window, 65_536, handle_max))
            case Attach():
                self._attach(performative)
            case Flow(handle=handle) if handle is not None and "/Partitions/" in self._addresses[handle]:
                self._window = performative.next_incoming_id + performative.incoming_window - self._next_id
                self._credit = (performative.delivery_count or 0) + performative.link_credit - self._delivered
                self._deliver(self._own[handle])
            case Transfer():
                self._transfer(performative, payload)
            case Detach(closed=True):
                self.send(Detach(self._own[performative.handle], True))
            case End() | Close():
                self.send(performative)

    def _attach(self, asked: Attach) -> None:
        own = self._own[asked.handle] = len(self._own)
        reads, address = asked.role, (asked.source if asked.role else asked.target).value[0]
        self._addresses[asked.handle] = address
        modes, count = (1 if reads else 0, 0), 0 if reads else None
        ends = source(address), target(address)
        self.send(Attach(asked.name, own, not reads, *modes, *ends, None, None, count, 1 << 20))
        if reads:
            self._readers[address] = own
        else:
            self.send(
                self._flow(handle=own, delivery_count=0, link_credit=100 if _is_node(address) else self._service.credit)
            )
        if not _is_node(address):
            self._count(0)

    def _flow(self, **fields: Any) -> Flow:
        self._in_window = 0
        return Flow(self._received, self._service.window, self._next_id, 65_536, **fields)

    def _count(self, more: int = 1) -> bool:
        """Something was done; returns whether the ending has come."""
        self._done += more
        if self._ending is None or self._done < self._service.after:
            return False
        self.has_ended = True
        error = server.error_field(AmqpError(self._ending.condition, self._ending.text))
        for kind in self._ending.frames:
            if kind is not Detach:
                self.send(kind(error))
                continue
            for own in sorted(self._own.values())[0 if End in self._ending.frames else -1 :]:
                self.send(Detach(own, True, error))
        return True

    def _deliver(self, own: int) -> None:
        service = self._service
        while self._credit and self._window > 0 and self._delivered < len(service.events):
            if self._delivered == len(service.events) // 2:
                self.send(self._flow(echo=True))  # as after three minutes without a frame
            event, size = service.events[self._delivered], service.frame_bytes
            parts = [event[at : at + size] for at in range(0, len(event), size)]
            self._send_message(own, parts, batchable=True, **service.style)
            self._window -= len(parts)
            self._delivered += 1
            self._credit -= 1
            if self._count():
                self._credit = 0

    def _send_message(self, own: int, parts: list[bytes], **fields: Any) -> None:
        first = Transfer(own, self._delivery_id, message_format=0, more=len(parts) > 1, **fields)
        for number, part in enumerate(parts, 1):
            self.send(Transfer(own, more=number < len(parts)) if number > 1 else first, payload=part)
        self._delivery_id += 1
        self._next_id += len(parts)

    def _transfer(self, sent: Transfer, payload: bytes) -> None:
        self._received += 1
        self._in_window += 1
        address, service = self._addresses[sent.handle], self._service
        self.received_of_batches += not _is_node(address)
        service.most_in_window = max(service.most_in_window, self._in_window)
        if self._in_window == service.window:  # a little later: what comes until then is too much
            asyncio.get_running_loop().call_later(0.05, lambda: self.send(self._flow()))
        self._batch += payload
        if sent.more or (address != "$cbs" and self._count()):
            return
        batch, self._batch = self._batch, b""
        outcome = server.ACCEPTED
        if not _is_node(address) and len(service.batches) == service.most_taken:
            return
        if condition := service.refused.get(batch[-1:]):
            outcome = server.rejected(AmqpError(condition, "why"))
        elif not _is_node(address):
            service.batches.append(batch)
        answer = server.Disposition(True, sent.delivery_id or 0, None, True, outcome)
        if condition and service.refusal_delay:
            self._refusals += 1
            asyncio.get_running_loop().call_later(service.refusal_delay * self._refusals, self.send, answer)
            return
        self.send(answer)
        if service.credit_each and not _is_node(address):
            counts = {"handle": self._own[sent.handle], "delivery_count": len(service.batches)}
            self.send(*(self._flow(**counts, link_credit=credit) for credit in (0, service.credit_each)))
        if _is_node(address):
            self._send_message(self._readers[address], [_answer(address, batch)], **UNSETTLED)


def _is_node(address: str) -> bool:
    return address.rsplit("/", 1)[-1].startswith("$")


def _answer(address: str, request: bytes) -> bytes:
    status, more, value = 202, text(b"status-description") + text(b"Accepted"), b""
    if address != "$cbs":
        status, more = 200, text(b"operation") + text(b"READ")
        hub = {"name": "hub", "type": "com.microsoft:eventhub", "created_at": Timestamp(1_745_950_594_294)}
        hub |= {"partition_count": Int(2), "partition_ids": Array(["0", "1"]), "georeplication_factor": Int(1)}
        value = section(0x77, encode(hub))
    properties = [None] * 5 + [parse_sections(request).properties[0]] + [None] * 7
    application = compound(0xC1, 4, more + text(b"status-code") + b"\x71" + status.to_bytes(4, "big"))
    return section(0x73, encode(properties)) + section(0x74, application) + value


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as made:
        yield made


# --- what is delivered and sent ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "style", "frame_bytes"),
    [(70_000, SETTLED, 1 << 20), (500, UNSETTLED, 1 << 20), (500, SETTLED, 100), (500, UNSETTLED, 100)],
    ids=["more than a window", "unsettled", "several frames", "unsettled in several frames"],
)
def test_each_event_arrives_once(service: Service, count: int, style: dict[str, Any], frame_bytes: int) -> None:
    service.events = [ordinary(number) for number in range(count)]
    service.style, service.frame_bytes = style, frame_bytes
    with reading(address_of(None, service.connection), prefetch=300) as reader:
        table = receive(reader, count, 100_000)
        assert table["sequenceNumber"].to_pylist() == list(range(count))
        assert list(map(len, table["body"].to_pylist())) == [number % 400 for number in range(count)]
        assert reader.receive(10, 0.0).num_rows == 0
        assert reader.is_usable()


def test_a_peer_may_leave_out_its_limits(service: Service) -> None:
    service.names_limits, service.events = False, [ordinary(number) for number in range(10)]
    with reading(address_of(None, service.connection)) as reader:
        assert receive(reader, 10)["sequenceNumber"].to_pylist() == list(range(10))
    service.events = []
    sender = Sender(service.connection, "0")
    sender.send(window := [Batch(1, bytes(200_000))], Deadline(30.0))
    sender.close()
    assert (window, service.batches) == ([], [bytes(200_000)])


@pytest.mark.parametrize("large", [[20], [3], range(10)], ids=["last", "in between", "first"])
def test_batches_keep_to_the_window(service: Service, large: Sequence[int]) -> None:
    """Also those of several frames, which the client takes for one."""
    service.window = 5
    sender = Sender(service.connection, "0")
    payloads = [bytes(200_000) if number in large else b"%d" % number for number in range(30)]
    sender.send(window := [Batch(1, payload) for payload in payloads], Deadline(30.0))
    sender.close()
    assert (window, service.batches, service.most_in_window) == ([], payloads, 5)


def test_flows_name_the_next_frame(service: Service) -> None:
    """A peer that counts on it would close its window for ever."""
    service.window, service.credit, service.credit_each = 20, 1, 1
    sender = Sender(service.connection, "0")
    sender.send(window := [Batch(1, b"%d" % number + bytes(200_000)) for number in range(12)], Deadline(20.0))
    sender.close()
    assert (window, len(service.batches)) == ([], 12)


def test_a_hub_that_stops_reading_for_less_than_the_deadline_gets_a_batch_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the client waits in a write."""
    wait_longer = sender_module._wait_longer

    def small_buffer(opened: Any) -> None:
        wait_longer(opened)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)

    monkeypatch.setattr(sender_module, "_wait_longer", small_buffer)
    service.stall = 11.0
    sender = Sender(service.connection, "0")
    sender.send(window := [Batch(1, bytes(20_000_000))], Deadline(60.0))
    sender.close()
    assert (window, len(service.batches), service.connections) == ([], 1, 1)


@pytest.mark.parametrize(
    ("condition", "raised"),
    [("amqp:internal-error", Busy), ("amqp:unauthorized-access", RefusedError), ("com.microsoft:server-busy", Busy)],
)
def test_one_of_several_refusals_is_raised_and_the_busy_ones_are_counted(
    service: Service, condition: str, raised: type[Exception]
) -> None:
    """What does not pass comes first, then a busy hub, which is waited for."""
    service.refused = {b"a": condition, b"b": "com.microsoft:server-busy", b"c": "com.microsoft:server-busy"}
    window = [Batch(1, each) for each in (b"a", b"b", b"taken", b"c")]
    sender = Sender(service.connection, "0")
    with pytest.raises(raised) as caught:
        sender.send(window, Deadline(30.0))
    assert type(caught.value) is raised
    assert [each.payload for each in window] == [b"a", b"b", b"c"]
    assert (sender.busy, sender.unanswered) == (2 + (condition == "com.microsoft:server-busy"), [])


def test_no_more_is_sent_than_the_peer_has_granted(service: Service) -> None:
    """The client takes credit of its own where a peer grants none."""
    sender = Sender(service.connection, "0")
    sender.most_bytes(Deadline(30.0))
    link = sender._producer._handler._link
    link._incoming_flow([0, 5000, 1, 65536, link.handle, link.delivery_count, 0, 0, False, False, None])
    assert link.current_link_credit == 0
    sender.close()


def test_nothing_is_sent_before_the_peer_grants_credit(service: Service) -> None:
    service.credit = 0
    sender = Sender(service.connection, "0")
    with pytest.raises(Unreachable, match="did not answer in time"):
        sender.send([Batch(1, b"")], Deadline(2.0))
    assert (service.batches, sender.unanswered) == ([], [])


# --- how it ends -------------------------------------------------------------------------------------------------

MISSING = "The messaging entity 'ns:eventhub:hub~16383|group' could not be found. TrackingId:0949_G16_B31"
IDLE = "The connection was inactive for more than the allowed 240000 milliseconds and is closed by container '5e_G12'."
STOLEN = "New receiver 'nil' with higher epoch of '1' is created hence current receiver 'nil' with epoch '' is getting"
BESIDE = "At least one receiver for the endpoint is created with epoch of '5', and so non-epoch receiver is not allowed"
LOWER = "Receiver 'nil' with a higher epoch '2' already exists. Receiver 'nil' with epoch 0 cannot be created."
FIVE = "Exceeded the maximum number of allowed receivers per partition in a consumer group which is 5."
BUSY = "The request was terminated because the entity is being throttled. Please wait 4 seconds and try again."
FORCED = "The link 'G16:1' is force detached. Details: AmqpMessagePublisher.IdleTimerExpired: Idle timeout: 00:30:00."
CLAIM = "Unauthorized access. 'Listen' claim(s) are required to perform this operation."

#: For a receiver, then for a sender.
LINK, BOTH_MISSING, BOTH_REFUSED = (Detach,), (MissingError, MissingError), (RefusedError, RefusedError)
ENDINGS = {
    "stolen": Ending(LINK, "amqp:link:stolen", STOLEN, Disconnected, epoch=1),
    "beside a level": Ending(LINK, "amqp:link:stolen", BESIDE, Disconnected, epoch=5),
    "lower level": Ending(LINK, "amqp:link:stolen", LOWER, Disconnected, epoch=2),
    "five receivers": Ending(LINK, "amqp:resource-limit-exceeded", FIVE),
    "busy": Ending(LINK, "com.microsoft:server-busy", BUSY, Busy, Busy),
    "changed": Ending(LINK, "com.microsoft:entity-updated", ""),
    "idle link": Ending(LINK, "amqp:link:detach-forced", FORCED),
    "lost link": Ending(LINK, "amqp:not-found", ""),
    "missing": Ending(LINK, "amqp:not-found", MISSING, *BOTH_MISSING),
    "deleted": Ending(LINK, "amqp:resource-deleted", "", *BOTH_MISSING),
    "unauthorized": Ending(LINK, "amqp:unauthorized-access", CLAIM, *BOTH_REFUSED),
    "session": Ending((End,), "amqp:connection:forced", IDLE),
    "busy session": Ending((End,), "com.microsoft:server-busy", BUSY, Busy, Busy),
    "busy connection": Ending((Close,), "com.microsoft:server-busy", BUSY, Busy, Busy),
    "too many connections": Ending((Close,), "amqp:resource-limit-exceeded", ""),
    "idle connection": Ending((Detach, End, Close), "amqp:connection:forced", IDLE),
}


@pytest.mark.parametrize("after", [0, 3], ids=["at the attach", "after events"])
@pytest.mark.parametrize("name", ENDINGS)
def test_a_receiver_that_is_ended(service: Service, name: str, after: int) -> None:
    ending = ENDINGS[name]
    service.events = [ordinary(number) for number in range(6)]
    service.ending, service.after = ending, after
    with reading(address_of(None, service.connection), prefetch=10) as reader:
        got = receive(reader, after)["sequenceNumber"].to_pylist() if after else []
        with pytest.raises((Disconnected, Unreachable, EhBalanceError)) as caught:
            receive_until_error(reader)
        assert (got, reader.next, reader.closed) == (list(range(after)), after, True)
    assert type(caught.value) is ending.receiver
    assert getattr(caught.value, "epoch", None) == ending.epoch


@pytest.mark.parametrize("after", [0, 2], ids=["at the attach", "after a batch"])
@pytest.mark.parametrize("name", ENDINGS)
def test_a_sender_that_is_ended(service: Service, name: str, after: int) -> None:
    service.ending, service.after = ENDINGS[name], after
    window = [Batch(1, b"%d" % number) for number in range(3)]
    left = window[1:] if after else window[:]
    sender = Sender(service.connection, "0")
    with pytest.raises((Unreachable, EhBalanceError)) as caught:
        sender.send(window, Deadline(30.0))
    assert (type(caught.value), window) == (ENDINGS[name].sender, left)
    assert sender.busy == ("busy" in name)
    assert sender.unanswered == window or not after, "their events may be there twice"


@pytest.mark.parametrize("name", [name for name in ENDINGS if "busy" in name])
def test_the_reason_for_a_broken_connection_is_read_when_a_write_fails(
    service: Service, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    service.ending, service.after, service.resets = ENDINGS[name], 0, True
    write, failed = SASLTransport.write, list[OSError]()

    def write_after_the_reset(transport: Any, data: bytes) -> None:
        if len(data) > 10_000:
            wait_until(lambda: service.has_reset, "the peer has reset the connection")
        try:
            write(transport, data)
        except OSError as error:
            failed.append(error)
            raise

    monkeypatch.setattr(SASLTransport, "write", write_after_the_reset)
    sender = Sender(service.connection, "0")
    with pytest.raises(Busy):
        sender.send([Batch(1, bytes(100_000))], Deadline(30.0))
    assert failed
    assert sender.busy == 1


def _is_silent(service: Service) -> None:
    service.silent = True


def _takes_one(service: Service) -> None:
    service.most_taken = 1


def _refuses_now_and_then(service: Service) -> None:
    """Each batch by itself, the next one a second later."""
    service.refused = {b"%d" % number: "amqp:internal-error" for number in range(10)}
    service.refusal_delay = 1.0


EMULATOR = {"connectionString": "Endpoint=sb://127.0.0.1:{port};{key};UseDevelopmentEmulator=true"}
TLS = {"connectionString": "Endpoint=sb://ns.example;{key}", "customEndpointAddress": "localhost:{port}"}


@pytest.mark.parametrize(
    ("fault", "way"),
    [
        (_is_silent, EMULATOR),
        (_is_silent, TLS),
        (_is_silent, TLS | {"transportType": "AmqpOverWebsocket"}),
        (_takes_one, EMULATOR),
        (_refuses_now_and_then, EMULATOR),
    ],
)
def test_one_deadline_is_for_all_attempts(
    service: Service, fault: Callable[[Service], None], way: dict[str, str]
) -> None:
    """Of which each has half of the time, from opening the connection on."""
    fault(service)
    key = "SharedAccessKeyName=n;SharedAccessKey=k;EntityPath=hub"
    options = {name: text.format(port=service.port, key=key) for name, text in way.items()} | {"sendTimeout": "5 s"}
    rows = pa.RecordBatch.from_pylist([{"body": b"%d" % number, "key": f"{number}"} for number in range(10)])
    with pytest.raises(HubUnavailableError, match="has taken nothing for 5 s"):
        Task(write_options(options), Columns(0, key=1), Links()).write([rows])
    assert service.connections == 2


@pytest.mark.parametrize("name", ENDINGS)
def test_a_request_that_is_ended_is_made_again(service: Service, name: str) -> None:
    service.ending, service.after = ENDINGS[name], 2
    with HubMetadata(service.connection, "$Default", response_timeout=30.0) as metadata:
        assert metadata.partition_ids() == ("0", "1")
        if ENDINGS[name].sender is MissingError:
            with pytest.raises(MissingError):
                metadata.partition_ids()
        else:
            assert metadata.partition_ids() == ("0", "1")
            assert service.connections == 2
