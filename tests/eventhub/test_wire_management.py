"""Requests over the real client's management link to the emulator, and invalid responses."""

from __future__ import annotations

import asyncio
import contextlib
import re
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
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.wire.management import read_response
from spark_ehbalance.eventhub.wire.values import MalformedError
from tests.query.support import HUB, hub_options
from tests.raising import raises

PARTITIONS = ["0", "1", "2"]


#: Replaces the granting of credit for requests to a hub.
Grant = Callable[[IncomingLink], object]


@pytest.fixture
def granting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Grant], None]:
    """Replaces the granting of credit for property requests with a function."""
    grant = IncomingLink._grant_credit

    def set_up(call: Grant) -> None:
        def granted(link: IncomingLink) -> None:
            endpoint = link.endpoint
            (call if isinstance(endpoint, RequestEndpoint) and endpoint._node == "$management" else grant)(link)

        monkeypatch.setattr(IncomingLink, "_grant_credit", granted)

    return set_up


def test_requests_respect_credit_whenever_it_is_granted(
    metadata: HubMetadata,
    clients: list[Connection],
    monkeypatch: pytest.MonkeyPatch,
    granting: Callable[[Grant], None],
) -> None:
    left = list[int]()

    def grant_late(link: IncomingLink) -> None:
        def grant() -> None:
            link._credit = 2
            link._write_credit()
            link.session.connection.flush()

        left.append(link._credit)  # negative if more was sent than granted
        asyncio.get_running_loop().call_later(0.05, grant)

    monkeypatch.setattr(RequestEndpoint, "credit", 2)
    granting(grant_late)
    for _ in range(3):
        assert metadata.partition_states(PARTITIONS * 2).keys() == {*PARTITIONS}
    assert len(left) > 9
    assert set(left) == {0}
    assert len(clients) == 1, "no time limit has passed"


def test_flood_of_unrequested_messages_is_an_error(emulator: Emulator, granting: Callable[[Grant], None]) -> None:
    emulator.add_hub(HUB, 3)

    def flood(link: IncomingLink) -> None:
        for response in link.session.links():
            if isinstance(response.endpoint, ResponseEndpoint) and response.endpoint.node == "$management":
                assert isinstance(response, OutgoingLink)
                for _ in range(40):
                    response.send(build_response("none", {"status-code": 200}, {"filler": "x" * 60_000}))
        if not link.detached:
            link.session.connection.flush()
            asyncio.get_running_loop().call_later(0.1, flood, link)

    granting(flood)
    with (
        HubMetadata(hub_options(emulator).connection, "$Default", response_timeout=5.0) as metadata,
        raises(HubUnavailableError, "EHB_HUB_UNREACHABLE", reason=re.compile("unrequested messages")),
    ):
        metadata.partition_states(PARTITIONS)


def test_silent_hub_is_an_error_after_the_timeout(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.add_hub(HUB, 3)
    answer, silent = RequestEndpoint.on_message, [True]

    def lost(endpoint: RequestEndpoint, *message: Any) -> None:
        if endpoint._node == "$cbs" or not silent:
            answer(endpoint, *message)

    monkeypatch.setattr(RequestEndpoint, "on_message", lost)
    with HubMetadata(hub_options(emulator).connection, "$Default", response_timeout=1.0) as metadata:
        with raises(HubUnavailableError, "EHB_HUB_UNREACHABLE", reason=re.compile("3 responses are missing after 1 s")):
            metadata.partition_states(PARTITIONS)
        silent.clear()
        assert metadata.partition_states(PARTITIONS).keys() == {*PARTITIONS}


# --- responses ---------------------------------------------------------------------------------------------------


class Refused(Exception):
    """The response has an error status."""


def refusal(status: int, description: str) -> Exception:
    return Refused(f"{status}: {description}")


RESPONSE = build_response(
    "0000002a",
    {"status-code": 200, "status-description": "OK"},
    {"begin_sequence_number": 5, "is_partition_empty": False},
)


def test_response_contains_a_value_or_an_error_status() -> None:
    expected = {b"begin_sequence_number": 5, b"is_partition_empty": False}
    assert read_response(RESPONSE, refusal) == (b"0000002a", expected)
    refused = build_response("00000001", {"status-code": 404, "status-description": "no such entity"}, {})
    request_id, error = read_response(refused, refusal)
    assert (request_id, type(error), str(error)) == (b"00000001", Refused, "404: no such entity")


@settings(max_examples=300)
@given(data=st.data())
def test_truncated_or_changed_responses_are_valid_or_one_error(data: st.DataObject) -> None:
    response = bytearray(RESPONSE)
    for _ in range(data.draw(st.integers(0, 3))):
        response[data.draw(st.integers(0, len(response) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedError, Refused):
        request_id, _ = read_response(bytes(response[: data.draw(st.integers(0, len(response)))]), refusal)
        assert isinstance(request_id, bytes)
