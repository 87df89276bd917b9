"""Requests over the client's management link: compatible clients, credit, tokens, and invalid responses."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import ClientVersionError, HubUnavailableError
from spark_ehbalance.hub import metadata as metadata_module
from spark_ehbalance.hub.metadata import HubMetadata
from spark_ehbalance.hub.wire import management
from spark_ehbalance.hub.wire.management import Management, management_incompatibility, read_response
from spark_ehbalance.hub.wire.values import MalformedError
from tests.source.support import HUB, hub_options
from tests.waiting import wait_until

PARTITIONS = ["0", "1", "2"]


class Refused(Exception):
    """The status of a response is an error."""


def refusal(status: int, description: str) -> Exception:
    return Refused(f"{status}: {description}")


def opened(metadata: HubMetadata) -> Management:
    """Its open management link."""
    metadata.partition_ids()
    assert metadata._management is not None
    return metadata._management


# --- which clients are compatible ------------------------------------------------------------------------------


def no_counter(operation: Any) -> None:
    operation._mgmt_link._request_link.delivery_count = None


INCOMPATIBLE: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "no link": (lambda handler, operation: delattr(operation, "_mgmt_link"), "management link is not as expected"),
    "counter": (lambda handler, operation: no_counter(operation), "management link is not as expected"),
    "window": (lambda handler, operation: delattr(handler._session, "remote_incoming_window"), "not as expected"),
    "credit": (lambda handler, operation: operation._mgmt_link._response_link.flow(link_credit=7), "counters"),
    "thread": (lambda handler, operation: setattr(handler, "_keep_alive_thread", object()), "a thread"),
}


@pytest.mark.parametrize("what", INCOMPATIBLE)
def test_an_incompatible_client_is_refused(
    metadata: HubMetadata, emulator: Emulator, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    change, reason = INCOMPATIBLE[what]
    found = []

    def changed(handler: Any, operation: Any) -> str | None:
        assert management_incompatibility(handler, operation) is None
        change(handler, operation)
        found.append(management_incompatibility(handler, operation))
        return found[-1]

    monkeypatch.setattr(metadata_module, "management_incompatibility", changed)
    with pytest.raises(ClientVersionError, match=re.escape(reason)):
        metadata.partition_ids()
    assert found[0] is not None
    assert len(found) == 1, "it is not tried again"
    wait_until(lambda: emulator.connections() == 0, "it is closed")


# --- credit and tokens --------------------------------------------------------------------------------------------


def test_no_more_is_sent_than_the_peer_grants(metadata: HubMetadata) -> None:
    management_link = opened(metadata)
    flows, sender = [], management_link._sender
    granted = sender._incoming_flow

    def little(frame: Any) -> None:
        granted(frame)
        sender.current_link_credit = min(2, sender.current_link_credit)
        flows.append(sender.current_link_credit)

    sender._incoming_flow = little
    sender.current_link_credit = 2
    written = []
    write = management_link._transport.write
    management_link._transport.write = lambda data: (written.append(len(data)), little_later(), write(data))

    def little_later() -> None:
        sender.current_link_credit = 2  # as a peer's flow would, once it has answered

    states = metadata.partition_states(PARTITIONS * 4)
    assert states.keys() == {*PARTITIONS}
    assert len(written) >= 6


def test_tokens_are_renewed(metadata: HubMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    management_link = opened(metadata)
    kept = management_link._token
    assert metadata.partition_states(PARTITIONS).keys() == {*PARTITIONS}
    assert management_link._token == kept
    metadata._auth.get_token = lambda: AccessToken("another", int(time.time()) + 100)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert metadata.partition_states(PARTITIONS).keys() == {*PARTITIONS}
    assert management_link._token == "another"
    assert metadata._management is management_link


# --- invalid responses -------------------------------------------------------------------------------------------


def test_a_silent_hub_is_an_error_after_the_timeout(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.add_hub(HUB, 3)
    with HubMetadata(hub_options(emulator).connection, "$Default", response_timeout=2.0) as metadata:
        opened(metadata)
        monkeypatch.setattr(Management, "_receive", lambda *_: time.sleep(0.01) or [])
        with pytest.raises(HubUnavailableError, match="3 responses have not come within 2 s"):
            metadata.partition_states(PARTITIONS)
        monkeypatch.undo()
        assert metadata.partition_states(PARTITIONS).keys() == {*PARTITIONS}


def test_responses_to_other_requests_are_ignored(metadata: HubMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Management._receive

    def with_others(self: Management, most: int, wait: float) -> list[tuple[bytes, Any]]:
        return [(b"00ffff00", {}), *receive(self, most, wait)]

    monkeypatch.setattr(Management, "_receive", with_others)
    assert metadata.partition_states(PARTITIONS).keys() == {*PARTITIONS}


def test_a_request_too_large_for_the_peer_is_sent_over_a_new_connection(metadata: HubMetadata) -> None:
    opened(metadata)._most = 100
    assert metadata.partition_states(["0"]).keys() == {"0"}  # over a new connection
    assert opened(metadata)._most > 100


@pytest.fixture(scope="module")
def management_link() -> Iterator[Management]:
    with Emulator({HUB: 1}) as emulator, HubMetadata(hub_options(emulator).connection, "$Default") as metadata:
        yield opened(metadata)


def a_response() -> bytes:
    from spark_ehbalance.emulator.message import build_response

    status = {"status-code": 200, "status-description": "OK"}
    return build_response("0000002a", status, {"begin_sequence_number": 5, "is_partition_empty": False})


def test_a_response() -> None:
    request_id, value = read_response(a_response(), refusal)
    assert request_id == b"0000002a"
    assert value == {b"begin_sequence_number": 5, b"is_partition_empty": False}


@settings(max_examples=300)
@given(data=st.data())
def test_a_response_cut_off_or_changed_is_one_or_a_clear_error(data: st.DataObject) -> None:
    response = bytearray(a_response())
    for _ in range(data.draw(st.integers(0, 3))):
        response[data.draw(st.integers(0, len(response) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(response[: data.draw(st.integers(0, len(response)))])
    with contextlib.suppress(MalformedError, Refused):
        request_id, _ = read_response(cut, refusal)
        assert isinstance(request_id, bytes)


def test_a_refusal_has_status_and_description() -> None:
    from spark_ehbalance.emulator.message import build_response

    refused = build_response("00000001", {"status-code": 404, "status-description": "no such entity"}, {})
    request_id, error = read_response(refused, refusal)
    assert (request_id, type(error), str(error)) == (b"00000001", Refused, "404: no such entity")


def test_ids_start_again_after_the_last_one(management_link: Management, monkeypatch: pytest.MonkeyPatch) -> None:
    management_link._next_id = 0xFFFFFFFE
    token = management_link._token
    request = next(iter(management_link._encoded))
    assert len(management_link.request([request] * 3, token, 5.0)) == 3
    assert management_link._next_id == 2


def test_the_encoded_request_has_room_for_the_id() -> None:
    before, after = management.encode(("com.microsoft:partition", (("name", "hub"), ("partition", "7"))), "token")
    assert b"ffffffff" not in before + after
    assert b"security_token" in after
