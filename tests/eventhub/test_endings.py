"""How receivers, senders and requests react when the service ends links, sessions and connections or rejects batches.

Conditions and texts come from frames that azure-sdk-for-python's live tests exchanged with a namespace, or from public
issues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from azure.eventhub._pyamqp.sasl import SASLTransport

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp import session as session_module
from spark_ehbalance.emulator.amqp.errors import AmqpError
from spark_ehbalance.emulator.amqp.frames import (
    ACCEPTED,
    Close,
    Detach,
    End,
    Flow,
    Transfer,
    encode_frame,
    error_field,
    rejected,
)
from spark_ehbalance.emulator.amqp.session import IncomingLink, Link, OutgoingLink, Session
from spark_ehbalance.emulator.endpoints import HubEndpoint, PublisherEndpoint, RequestEndpoint, ResponseEndpoint
from spark_ehbalance.errors import EhBalanceError, HubUnavailableError, MissingError
from spark_ehbalance.eventhub.client_errors import CredentialsRefusedError, ServerBusyError, TransientError
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.receiver import DisconnectedError
from spark_ehbalance.eventhub.sender import Sender
from spark_ehbalance.eventhub.sending.columns import SinkColumns
from spark_ehbalance.eventhub.sending.write_options import write_options
from spark_ehbalance.eventhub.sending.writing import LinkPool, WriteTask
from spark_ehbalance.eventhub.wire.encoder import EncodedBatch
from spark_ehbalance.eventhub.wire.sending_link import Deadline
from tests.eventhub.receiving import address_of, reading, receive_until_error
from tests.query.support import HUB, hub_options, receive
from tests.raising import raises
from tests.waiting import wait_until


class Ending(NamedTuple):
    """How the service ends a link, session or connection."""

    frames: tuple[type, ...]
    condition: str
    text: str
    receiver: type[Exception] = TransientError
    sender: type[Exception] = TransientError
    epoch: int | None = None

    def send(self, link: Link) -> None:
        session, error = link.session, AmqpError(self.condition, self.text)
        connection = session.connection
        for kind in self.frames:
            if kind is Detach:
                for ended in session.links() if End in self.frames else [link]:
                    ended.detach(error)
            else:
                link.end()
                connection.write(encode_frame(session.number if kind is End else 0, kind(error_field(error))))
        connection.flush()


class Service:
    """An emulated hub with one `ending`, at the first attach or `after` that many requests or batches. It accepts any
    batches, even of bytes that are not events."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.connection = hub_options(emulator).connection
        self.ending: Ending | None = None
        self.after = 0
        self.resets = self.has_reset = False  # the connection after its ending
        self.attached: list[Link] = []
        self.batches: list[bytes] = []
        self.refused: dict[bytes, str] = {}  # batch -> condition

    def on_attach(self, link: Link) -> None:
        self.attached.append(link)
        if not self.after:
            self.has_ended(link)

    def has_ended(self, link: Link) -> bool:
        """Whether the ending happens before another request or batch is answered."""
        if self.ending is None or self.after:
            self.after -= self.ending is not None
            return False
        self.ending.send(link)
        self.ending = None
        if self.resets:
            link.session.connection.drop()  # type: ignore[attr-defined]
            self.has_reset = True
        return True

    def on_batch(self, endpoint: PublisherEndpoint, batch: bytes, _: int, number: int | None) -> None:
        if self.has_ended(link := endpoint._link):
            return
        if condition := self.refused.get(batch[-1:]):
            outcome = rejected(AmqpError(condition, "why"))
        else:
            self.batches.append(batch)
            outcome = ACCEPTED
        link.settle(number, outcome)


@pytest.fixture
def service(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Service:
    emulator.add_hub(HUB, 2)
    made = Service(emulator)

    def accepting(kind: type[Any]) -> None:
        accept = kind.accept

        def accepted(link: Any, attach: Any) -> None:
            accept(link, attach)
            end = link.endpoint
            if isinstance(end, HubEndpoint) or (isinstance(end, RequestEndpoint) and end._node == "$management"):
                made.on_attach(link)

        monkeypatch.setattr(kind, "accept", accepted)

    answer = RequestEndpoint.on_message

    def requested(endpoint: RequestEndpoint, *message: Any) -> None:
        if endpoint._node == "$cbs" or not made.has_ended(endpoint._link):
            answer(endpoint, *message)

    accepting(IncomingLink)
    accepting(OutgoingLink)
    monkeypatch.setattr(RequestEndpoint, "on_message", requested)
    monkeypatch.setattr(PublisherEndpoint, "on_message", lambda endpoint, *message: made.on_batch(endpoint, *message))
    return made


# --- windows and credit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [[20], [3], range(10)], ids=["last", "in between", "first"])
def test_batches_keep_to_the_window(service: Service, monkeypatch: pytest.MonkeyPatch, large: Sequence[int]) -> None:
    """Even batches of several frames, which the client counts as one."""
    write_flow, left = Session.write_flow, list[int]()

    def later(session: Session, *fields: Any, **more: Any) -> None:
        def write() -> None:
            left.append(session._incoming_window)
            write_flow(session, *fields, **more)
            session.connection.flush()

        asyncio.get_running_loop().call_later(0.05, write)

    monkeypatch.setattr(session_module, "_INCOMING_WINDOW", 5)
    monkeypatch.setattr(Session, "write_flow", later)
    sender = Sender(service.connection, "0")
    payloads = [bytes(200_000) if number in large else b"%d" % number for number in range(30)]
    sender.send(window := [EncodedBatch(1, payload) for payload in payloads], Deadline(30.0))
    sender.close()
    assert (window, service.batches, min(left)) == ([], payloads, 0)


def test_flows_contain_the_next_frame_number(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a peer that relies on the number would close its window forever."""
    on_flow, counted = Session._on_flow, list[tuple[int, int]]()

    def compared(session: Session, flow: Flow) -> None:
        counted.append((flow.next_outgoing_id, session._next_incoming_id))
        on_flow(session, flow)

    monkeypatch.setattr(Session, "_on_flow", compared)
    sender = Sender(service.connection, "0")
    sender.send([EncodedBatch(1, bytes(200_000))], Deadline(20.0))
    link = service.attached[0]
    for credit in (0, 1000):  # the client does not answer flows
        service.emulator._on_loop(partial(link.session.write_flow, link.handle, link._delivery_count, credit))
    sender.send([EncodedBatch(1, bytes(200_000))], Deadline(20.0))
    wait_until(lambda: max(counted)[0] > 4, "the client's flows have arrived")
    sender.close()
    assert [named for named, _ in counted] == [next_one for _, next_one in counted]


def test_sending_keeps_to_the_peers_credit(service: Service) -> None:
    """The client assumes credit even if a peer grants none."""
    sender = Sender(service.connection, "0")
    sender.most_bytes(Deadline(30.0))
    link = sender._producer._handler._link
    link._incoming_flow([0, 5000, 1, 65536, link.handle, link.delivery_count, 0, 0, False, False, None])
    assert link.current_link_credit == 0
    sender.close()


def test_sending_waits_for_credit(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PublisherEndpoint, "credit", 0)
    sender = Sender(service.connection, "0")
    with pytest.raises(TransientError, match="did not answer in time"):
        sender.send([EncodedBatch(1, b"")], Deadline(2.0))
    assert (service.batches, sender.unanswered) == ([], [])


def test_token_is_renewed_between_batches(service: Service) -> None:
    """The hub acknowledges the token's message on the same session, which numbers all messages."""
    sender = Sender(service.connection, "0")
    sender.most_bytes(Deadline(30.0))
    authenticator = sender._producer._handler._cbs_authenticator
    old, authenticator._refresh_window = authenticator._expires_on, float("inf")
    payloads = [bytes(100_000) for _ in range(5)]
    sender.send(window := [EncodedBatch(1, payload) for payload in payloads], Deadline(30.0))
    assert (window, service.batches, sender.unanswered) == ([], payloads, [])
    assert authenticator._refresh_window < old, "the token was renewed"
    assert authenticator._mgmt_link._request_link._pending_deliveries == []
    sender.close()


def test_sender_without_the_tokens_link_fails_immediately(service: Service) -> None:
    """The client would wait for the token until the deadline."""
    sender = Sender(service.connection, "0")
    sender.most_bytes(Deadline(60.0))
    error = AmqpError("amqp:link:detach-forced", FORCED)

    def detach() -> None:
        session = service.attached[0].session
        for link in session.links():
            if not isinstance(link.endpoint, HubEndpoint):
                link.detach(error)
        session.connection.flush()

    service.emulator._on_loop(detach)
    started = time.monotonic()
    with pytest.raises(TransientError, match="IdleTimerExpired"):
        sender.send([EncodedBatch(1, b"x")], Deadline(60.0))
    assert time.monotonic() - started < 20
    assert (service.batches, sender.unanswered) == ([], [])


def test_endless_response_to_a_token_is_rejected(service: Service) -> None:
    """The client would collect it in memory."""
    sender = Sender(service.connection, "0")
    sender.most_bytes(Deadline(30.0))
    session = service.attached[0].session

    def respond() -> None:
        (link,) = (link for link in session.links() if isinstance(link.endpoint, ResponseEndpoint))
        for _ in range(4):
            part = encode_frame(session.number, Transfer(link.handle, 1, b"", 0, True, more=True), bytes(30_000))
            session.write_transfers(part, 1)
        session.connection.flush()

    service.emulator._on_loop(respond)
    with pytest.raises(TransientError, match="a response to a token of more than 65536 bytes"):
        sender.send([EncodedBatch(1, b"x")], Deadline(30.0))


def test_heartbeats_are_sent_between_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A steady stream of acknowledgements delayed them until the hub closed the connection as idle."""
    received = []

    def later(endpoint: PublisherEndpoint, _: bytes, __: int, number: int | None) -> None:
        received.append(number)
        asyncio.get_running_loop().call_later(0.15 * len(received), endpoint._settle_and_flush, number, ACCEPTED)

    monkeypatch.setattr(PublisherEndpoint, "on_message", later)
    with Emulator({HUB: 1}, idle_timeout=1.0) as emulator:
        sender = Sender(hub_options(emulator).connection, "0")
        sender.send(window := [EncodedBatch(1, b"%d" % number) for number in range(20)], Deadline(30.0))
        sender.close()
    assert (window, len(received)) == ([], 20)


@pytest.mark.parametrize(
    ("condition", "raised"),
    [
        ("amqp:internal-error", ServerBusyError),
        ("amqp:unauthorized-access", CredentialsRefusedError),
        ("com.microsoft:server-busy", ServerBusyError),
    ],
)
def test_most_severe_rejection_is_raised_and_busy_ones_are_counted(
    service: Service, condition: str, raised: type[Exception]
) -> None:
    """A permanent error takes precedence over a busy hub, which is retried."""
    service.refused = {b"a": condition, b"b": "com.microsoft:server-busy", b"c": "com.microsoft:server-busy"}
    window = [EncodedBatch(1, payload) for payload in (b"a", b"b", b"taken", b"c")]
    sender = Sender(service.connection, "0")
    with pytest.raises(raised) as caught:
        sender.send(window, Deadline(30.0))
    assert type(caught.value) is raised
    assert [batch.payload for batch in window] == [b"a", b"b", b"c"]
    assert (sender.busy, sender.unanswered) == (2 + (condition == "com.microsoft:server-busy"), [])


@pytest.mark.parametrize(("silent", "way"), [(True, {}), (True, {"transportType": "AmqpOverWebsocket"}), (False, {})])
def test_all_attempts_share_a_deadline(silent: bool, way: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt gets half of the time, including connecting, even if rejections arrive occasionally."""
    refusals = []

    def refuse(endpoint: PublisherEndpoint, _: bytes, __: int, number: int | None) -> None:
        refusals.append(number)
        error = rejected(AmqpError("amqp:internal-error", "why"))
        asyncio.get_running_loop().call_later(0.6 * len(refusals), endpoint._settle_and_flush, number, error)

    monkeypatch.setattr(PublisherEndpoint, "on_message", refuse)
    with Emulator({HUB: 1}, websocket_port=0) as emulator:
        emulator.silence_connections(silent)
        port = emulator.websocket_port if way else emulator.port
        options = {"connectionString": emulator.connection_string(HUB), "sendTimeout": "3 s", **way}
        options["customEndpointAddress"] = f"localhost:{port}"
        rows = pa.RecordBatch.from_pylist([{"body": b"%d" % number, "key": f"{number}"} for number in range(10)])
        where = f"Event hub 'hub' at localhost:{emulator.port}"
        with raises(HubUnavailableError, "EHB_SEND_TIMEOUT", where=where, timeout=3.0):
            WriteTask(write_options(options), SinkColumns(0, key=1), LinkPool()).write([rows])
    assert silent or 10 < len(refusals) <= 20


# --- endings -----------------------------------------------------------------------------------------------------

MISSING = "The messaging entity 'ns:eventhub:hub~16383|group' could not be found. TrackingId:0949_G16_B31"
IDLE = "The connection was inactive for more than the allowed 240000 milliseconds and is closed by container '5e_G12'."
STOLEN = "New receiver 'nil' with higher epoch of '1' is created hence current receiver 'nil' with epoch '' is getting"
BESIDE = "At least one receiver for the endpoint is created with epoch of '5', and so non-epoch receiver is not allowed"
LOWER = "Receiver 'nil' with a higher epoch '2' already exists. Receiver 'nil' with epoch 0 cannot be created."
FIVE = "Exceeded the maximum number of allowed receivers per partition in a consumer group which is 5."
BUSY = "The request was terminated because the entity is being throttled. Please wait 4 seconds and try again."
FORCED = "The link 'G16:1' is force detached. Details: AmqpMessagePublisher.IdleTimerExpired: Idle timeout: 00:30:00."
CLAIM = "Unauthorized access. 'Listen' claim(s) are required to perform this operation."

#: (ending, the receiver's error, the sender's error)
LINK, BOTH_MISSING, BOTH_REFUSED = (
    (Detach,),
    (MissingError, MissingError),
    (CredentialsRefusedError, CredentialsRefusedError),
)
ENDINGS = {
    "stolen": Ending(LINK, "amqp:link:stolen", STOLEN, DisconnectedError, epoch=1),
    "beside a level": Ending(LINK, "amqp:link:stolen", BESIDE, DisconnectedError, epoch=5),
    "lower level": Ending(LINK, "amqp:link:stolen", LOWER, DisconnectedError, epoch=2),
    "five receivers": Ending(LINK, "amqp:resource-limit-exceeded", FIVE),
    "busy": Ending(LINK, "com.microsoft:server-busy", BUSY, ServerBusyError, ServerBusyError),
    "changed": Ending(LINK, "com.microsoft:entity-updated", ""),
    "idle link": Ending(LINK, "amqp:link:detach-forced", FORCED),
    "lost link": Ending(LINK, "amqp:not-found", ""),
    "missing": Ending(LINK, "amqp:not-found", MISSING, *BOTH_MISSING),
    "deleted": Ending(LINK, "amqp:resource-deleted", "", *BOTH_MISSING),
    "unauthorized": Ending(LINK, "amqp:unauthorized-access", CLAIM, *BOTH_REFUSED),
    "session": Ending((End,), "amqp:connection:forced", IDLE),
    "busy session": Ending((End,), "com.microsoft:server-busy", BUSY, ServerBusyError, ServerBusyError),
    "busy connection": Ending((Close,), "com.microsoft:server-busy", BUSY, ServerBusyError, ServerBusyError),
    "too many connections": Ending((Close,), "amqp:resource-limit-exceeded", ""),
    "idle connection": Ending((Detach, End, Close), "amqp:connection:forced", IDLE),
}


@pytest.mark.parametrize("count", [0, 3], ids=["at the attach", "after events"])
@pytest.mark.parametrize("name", ENDINGS)
def test_receivers_error_after_an_ending(service: Service, name: str, count: int) -> None:
    ending = ENDINGS[name]
    service.emulator.append(HUB, 0, [b"x"] * 3)
    service.ending = None if count else ending
    with reading(address_of(service.emulator), prefetch=10) as reader:
        got = receive(reader, count)["sequenceNumber"].to_pylist() if count else []
        if count:
            service.emulator._on_loop(lambda: ending.send(service.attached[0]))
        with pytest.raises((DisconnectedError, TransientError, EhBalanceError)) as caught:
            receive_until_error(reader)
        assert (got, reader.next, reader.closed) == (list(range(count)), count, True)
    assert type(caught.value) is ending.receiver
    assert getattr(caught.value, "epoch", None) == ending.epoch


@pytest.mark.parametrize("after", [0, 1], ids=["at the attach", "after a batch"])
@pytest.mark.parametrize("name", ENDINGS)
def test_senders_error_after_an_ending(service: Service, name: str, after: int) -> None:
    service.ending, service.after = ENDINGS[name], after
    window = [EncodedBatch(1, b"%d" % number) for number in range(3)]
    left = window[after:]
    sender = Sender(service.connection, "0")
    with pytest.raises((TransientError, EhBalanceError)) as caught:
        sender.send(window, Deadline(30.0))
    assert (type(caught.value), window) == (ENDINGS[name].sender, left)
    assert sender.busy == ("busy" in name)
    assert sender.unanswered == window or not after, "their events may be there twice"


@pytest.mark.parametrize("name", ENDINGS)
def test_interrupted_request_is_repeated(service: Service, name: str) -> None:
    service.ending, service.after = ENDINGS[name], 1
    with HubMetadata(service.connection, "$Default", response_timeout=30.0) as metadata:
        assert metadata.partition_ids() == ("0", "1")
        if ENDINGS[name].sender is MissingError:
            with pytest.raises(MissingError):
                metadata.partition_ids()
        else:
            assert metadata.partition_ids() == ("0", "1")
            assert len(service.attached) == 2


@pytest.mark.parametrize("name", [name for name in ENDINGS if "busy" in name])
def test_failed_write_reports_why_the_connection_was_closed(
    service: Service, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    service.ending, service.resets = ENDINGS[name], True
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
    with pytest.raises(ServerBusyError):
        sender.send([EncodedBatch(1, bytes(100_000))], Deadline(30.0))
    assert failed
    assert sender.busy == 1
