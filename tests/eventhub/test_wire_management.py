"""Requests over the real client's management link to the emulator, and invalid responses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.amqp.session import IncomingLink, OutgoingLink
from spark_ehbalance.emulator.endpoints import RequestEndpoint, ResponseEndpoint
from spark_ehbalance.emulator.message import build_response
from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.eventhub import metadata as metadata_module
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.wire.management import Management, read_response
from spark_ehbalance.eventhub.wire.values import MalformedError
from tests.query.support import HUB, hub_options

PARTITIONS = ["0", "1", "2"]

#: Called with the client's handler and its management operation.
OnOpened = Callable[[Callable[[Any, Any], object]], None]


@pytest.fixture
def on_opened(monkeypatch: pytest.MonkeyPatch) -> OnOpened:
    """Has a function called with what is about to be taken over from the client, each time."""

    def set_up(call: Callable[[Any, Any], object]) -> None:
        def made(handler: Any, operation: Any, refusal: Any) -> Management:
            call(handler, operation)
            return Management(handler, operation, refusal)

        monkeypatch.setattr(metadata_module, "Management", made)

    return set_up


def test_no_more_is_sent_than_the_peer_grants(metadata: HubMetadata, on_opened: OnOpened) -> None:
    written = []

    def grant_little(handler: Any, operation: Any) -> None:
        transport, sender = handler._connection._transport, operation._mgmt_link._request_link
        granted, write = sender._incoming_flow, transport.write

        def flow(frame: Any) -> None:
            granted(frame)
            sender.current_link_credit = 2

        def little(data: bytes) -> None:
            sender.current_link_credit = 2  # as a peer's flow would, once it has answered
            written.append(data)
            write(data)

        sender._incoming_flow, transport.write, sender.current_link_credit = flow, little, 2

    on_opened(grant_little)
    assert metadata.partition_states(PARTITIONS * 4).keys() == {*PARTITIONS}
    assert len(written) >= 6


def test_credit_that_comes_after_all_responses_is_used(
    metadata: HubMetadata, on_opened: OnOpened, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted, opened = set[int](), []

    def grant_late(link: IncomingLink) -> None:
        def grant() -> None:
            granted.add(id(link))
            link._credit = 4
            link._write_credit()
            link.session.connection.flush()

        if id(link) in granted:
            asyncio.get_running_loop().call_later(0.05, grant)
        else:
            grant()

    monkeypatch.setattr(RequestEndpoint, "credit", 4)
    monkeypatch.setattr(IncomingLink, "_grant_credit", grant_late)
    on_opened(lambda handler, operation: opened.append(handler))
    for _ in range(3):  # the credit ends within the second call
        assert metadata.partition_states(PARTITIONS).keys() == {*PARTITIONS}
    assert len(opened) == 1, "no time limit has passed"


@pytest.fixture
def on_attached(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[IncomingLink], object]], None]:
    """Has a function called with each link for requests to a hub, in place of granting credit."""
    grant = IncomingLink._grant_credit

    def set_up(call: Callable[[IncomingLink], object]) -> None:
        def granted(link: IncomingLink) -> None:
            endpoint = link.endpoint
            (call if isinstance(endpoint, RequestEndpoint) and endpoint._node == "$management" else grant)(link)

        monkeypatch.setattr(IncomingLink, "_grant_credit", granted)

    return set_up


def test_no_request_is_sent_before_the_peer_grants_credit(
    metadata: HubMetadata, on_attached: Callable[[Callable[[IncomingLink], object]], None]
) -> None:
    left = []

    def grant_late(link: IncomingLink) -> None:
        def grant() -> None:
            link._credit = 100
            link._write_credit()
            link.session.connection.flush()

        left.append(link._credit)  # negative after a request
        asyncio.get_running_loop().call_later(0.2, grant)

    on_attached(grant_late)
    assert metadata.partition_states(PARTITIONS).keys() == {*PARTITIONS}
    assert left == [0]


def test_a_flood_of_messages_in_place_of_credit_is_an_error(
    emulator: Emulator, on_opened: OnOpened, on_attached: Callable[[Callable[[IncomingLink], object]], None]
) -> None:
    emulator.add_hub(HUB, 3)
    floods = list[Callable[[], object]]()

    def hold_back(link: IncomingLink) -> None:
        loop = asyncio.get_running_loop()

        def flood() -> None:
            for each in link.session.links():
                if isinstance(each.endpoint, ResponseEndpoint) and each.endpoint.node == "$management":
                    assert isinstance(each, OutgoingLink)
                    for _ in range(140):
                        each.send(build_response("none", {"status-code": 200}, {"filler": "x" * 60_000}))
            link.session.connection.flush()

        floods.append(lambda: loop.call_soon_threadsafe(flood))

    on_attached(hold_back)
    on_opened(lambda handler, operation: floods[-1]())
    with (
        HubMetadata(hub_options(emulator).connection, "$Default", response_timeout=5.0) as metadata,
        pytest.raises(HubUnavailableError, match="messages that nobody has asked for"),
    ):
        metadata.partition_states(PARTITIONS)


def test_a_silent_hub_is_an_error_after_the_timeout(emulator: Emulator, on_opened: OnOpened) -> None:
    emulator.add_hub(HUB, 3)
    silent = [True]

    def lose(handler: Any, _: object) -> None:
        transport = handler._connection._transport
        write = transport.write
        transport.write = lambda data: None if silent else write(data)

    on_opened(lose)
    with HubMetadata(hub_options(emulator).connection, "$Default", response_timeout=2.0) as metadata:
        with pytest.raises(HubUnavailableError, match="3 responses have not come within 2 s"):
            metadata.partition_states(PARTITIONS)
        silent.clear()
        assert metadata.partition_states(PARTITIONS).keys() == {*PARTITIONS}


# --- responses ---------------------------------------------------------------------------------------------------


class Refused(Exception):
    """The status of a response is an error."""


def refusal(status: int, description: str) -> Exception:
    return Refused(f"{status}: {description}")


RESPONSE = build_response(
    "0000002a",
    {"status-code": 200, "status-description": "OK"},
    {"begin_sequence_number": 5, "is_partition_empty": False},
)


def test_a_response_has_a_value_or_a_refusal() -> None:
    expected = {b"begin_sequence_number": 5, b"is_partition_empty": False}
    assert read_response(RESPONSE, refusal) == (b"0000002a", expected)
    refused = build_response("00000001", {"status-code": 404, "status-description": "no such entity"}, {})
    request_id, error = read_response(refused, refusal)
    assert (request_id, type(error), str(error)) == (b"00000001", Refused, "404: no such entity")


@settings(max_examples=300)
@given(data=st.data())
def test_a_response_cut_off_or_changed_is_one_or_a_clear_error(data: st.DataObject) -> None:
    response = bytearray(RESPONSE)
    for _ in range(data.draw(st.integers(0, 3))):
        response[data.draw(st.integers(0, len(response) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedError, Refused):
        request_id, _ = read_response(bytes(response[: data.draw(st.integers(0, len(response)))]), refusal)
        assert isinstance(request_id, bytes)
