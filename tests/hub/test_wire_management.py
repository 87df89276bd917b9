"""Questions over the client's management link: which clients it is done with, credit, tokens, and strange answers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import azure.eventhub
import pytest
from azure.core.credentials import AccessToken
from azure.eventhub._pyamqp.error import AMQPException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.hub import metadata as metadata_module
from spark_ehbalance.hub.metadata import HubMetadata
from spark_ehbalance.hub.wire import management
from spark_ehbalance.hub.wire.management import Management, management_incompatibility
from spark_ehbalance.hub.wire.values import MalformedError
from tests.source.support import HUB, hub_options

PARTITIONS = ["0", "1", "2"]


def opened(metadata: HubMetadata) -> Management:
    """What it asks with, after a first question."""
    metadata.partition_ids()
    assert metadata._management is not None
    return metadata._management


# --- which clients it is done with ------------------------------------------------------------------------------


def no_number(operation: Any) -> None:
    operation._mgmt_link._request_link.delivery_count = None


STRANGE: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "no link": (lambda handler, operation: delattr(operation, "_mgmt_link"), "management link is not as expected"),
    "counter": (lambda handler, operation: no_number(operation), "management link is not as expected"),
    "window": (lambda handler, operation: delattr(handler._session, "remote_incoming_window"), "not as expected"),
    "credit": (lambda handler, operation: operation._mgmt_link._response_link.flow(link_credit=7), "counters"),
    "thread": (lambda handler, operation: setattr(handler, "_keep_alive_thread", object()), "a thread"),
}


@pytest.mark.parametrize("what", STRANGE)
def test_a_client_of_another_shape_is_asked_by_its_public_calls(
    metadata: HubMetadata, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    change, reason = STRANGE[what]
    found = []

    def changed(handler: Any, operation: Any) -> str | None:
        assert management_incompatibility(handler, operation) is None
        change(handler, operation)
        found.append(management_incompatibility(handler, operation))
        return found[-1]

    monkeypatch.setattr(metadata_module, "management_incompatibility", changed)
    caplog.set_level(logging.WARNING, logger="spark_ehbalance")
    assert metadata.partition_ids() == ("0", "1", "2")
    assert found[0] is not None
    assert reason in found[0]
    assert [message for message in caplog.messages if "asking slowly" in message] == [
        f"this azure-eventhub keeps no management connection open ({found[0]}): asking slowly"
    ]
    assert metadata.partition_states(PARTITIONS).keys() == {*PARTITIONS}
    assert len(found) == 1


def test_another_version_is_asked_by_its_public_calls(metadata: HubMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(azure.eventhub, "__version__", "5.99.0")
    assert metadata.partition_ids() == ("0", "1", "2")
    assert metadata._management is None


# --- credit and tokens --------------------------------------------------------------------------------------------


def test_a_peer_that_grants_little_is_sent_no_more(metadata: HubMetadata) -> None:
    asking = opened(metadata)
    flows, sender = [], asking._sender
    granted = sender._incoming_flow

    def little(frame: Any) -> None:
        granted(frame)
        sender.current_link_credit = min(2, sender.current_link_credit)
        flows.append(sender.current_link_credit)

    sender._incoming_flow = little
    sender.current_link_credit = 2
    written = []
    write = asking._transport.write
    asking._transport.write = lambda data: (written.append(len(data)), little_later(), write(data))

    def little_later() -> None:
        sender.current_link_credit = 2  # as a peer's flow would, once it has answered

    states = metadata.partition_states(PARTITIONS * 4)
    assert states.keys() == {*PARTITIONS}
    assert len(written) >= 6


def test_tokens_are_renewed(metadata: HubMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = opened(metadata)
    kept = asking._token
    assert metadata.partition_states(PARTITIONS).keys() == {*PARTITIONS}
    assert asking._token == kept
    metadata._auth.get_token = lambda: AccessToken("another", int(time.time()) + 100)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert metadata.partition_states(PARTITIONS).keys() == {*PARTITIONS}
    assert asking._token == "another"
    assert metadata._management is asking


# --- strange answers ----------------------------------------------------------------------------------------------


def test_a_silent_hub_is_given_up(emulator: Emulator, metadata: HubMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(metadata)
    monkeypatch.setattr(Management, "_receive", lambda *_: time.sleep(0.01) or [])
    monkeypatch.setattr("spark_ehbalance.hub.metadata._ANSWER_TIMEOUT", 0.2)
    with pytest.raises(HubUnavailableError, match=r"3 answers have not come within 0\.2 s"):
        metadata.partition_states(PARTITIONS)
    monkeypatch.undo()
    assert metadata.partition_states(PARTITIONS).keys() == {*PARTITIONS}


def test_answers_to_others_are_left_alone(metadata: HubMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Management._receive

    def with_others(self: Management, most: int, wait: float) -> list[tuple[bytes, Any]]:
        return [(b"00ffff00", {}), *receive(self, most, wait)]

    monkeypatch.setattr(Management, "_receive", with_others)
    assert metadata.partition_states(PARTITIONS).keys() == {*PARTITIONS}


def test_a_question_that_the_peer_does_not_take(metadata: HubMetadata) -> None:
    opened(metadata)._most = 100
    assert metadata.partition_states(["0"]).keys() == {"0"}  # over a new connection
    assert opened(metadata)._most > 100


@pytest.fixture(scope="module")
def answering() -> Iterator[Management]:
    with Emulator({HUB: 1}) as emulator:
        made = HubMetadata(hub_options(emulator).connection, "$Default")
        yield opened(made)
        made.close()


def an_answer() -> bytes:
    from spark_ehbalance.emulator.message import build_response

    said = {"status-code": 200, "status-description": "OK"}
    return build_response("0000002a", said, {"begin_sequence_number": 5, "is_partition_empty": False})


def test_an_answer(answering: Management) -> None:
    number, value = answering._answer(an_answer())
    assert number == b"0000002a"
    assert value == {b"begin_sequence_number": 5, b"is_partition_empty": False}


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_answer_cut_off_or_changed_is_one_or_a_clear_error(answering: Management, data: st.DataObject) -> None:
    answer = bytearray(an_answer())
    for _ in range(data.draw(st.integers(0, 3))):
        answer[data.draw(st.integers(0, len(answer) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(answer[: data.draw(st.integers(0, len(answer)))])
    with contextlib.suppress(MalformedError, AMQPException):  # the client's, for a status that is an error
        number, _ = answering._answer(cut)
        assert isinstance(number, bytes)


def test_a_refusal_is_the_client_s(answering: Management) -> None:
    from spark_ehbalance.emulator.message import build_response

    refused = build_response("00000001", {"status-code": 404, "status-description": "no such entity"}, {})
    with pytest.raises(Exception, match="no such entity"):
        answering._answer(refused)


def test_numbers_begin_anew(answering: Management, monkeypatch: pytest.MonkeyPatch) -> None:
    answering._number = 0xFFFFFFFE
    token = answering._token
    question = next(iter(answering._encoded))
    assert len(answering.ask([question] * 3, token, 5.0)) == 3
    assert answering._number == 2


def test_what_is_encoded_has_room_for_the_number() -> None:
    before, after = management._encode(("com.microsoft:partition", (("name", "hub"), ("partition", "7"))), "token")
    assert management._NUMBER.encode() not in before + after
    assert b"security_token" in after
