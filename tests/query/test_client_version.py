"""Versions of azure-eventhub: one that lacks required internals is rejected, naming the version to install."""

from __future__ import annotations

import re
import time
from typing import Any

import azure.eventhub
import pytest
from azure.eventhub import EventHubConsumerClient
from azure.eventhub._pyamqp import AMQPClient, _encode, management_operation

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import ClientVersionError
from spark_ehbalance.eventhub.client_errors import TransientError
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.eventhub.wire.client import TESTED
from spark_ehbalance.query.range_reader import read_range
from spark_ehbalance.query.receivers import Receivers
from tests.eventhub.receiving import address_of, reading
from tests.query.queries import Group
from tests.query.support import HUB
from tests.raising import assert_reports, raises

#: Missing client internals and the reason that the error reports.
MISSING: dict[str, tuple[Any, str]] = {
    "_create_consumer": (EventHubConsumerClient, "has no attribute '_create_consumer'"),
    "encode_payload": (_encode, "missing private attributes: _encode.encode_payload"),
    "ManagementOperation": (management_operation, "has no attribute 'ManagementOperation'"),
}


@pytest.mark.parametrize("name", MISSING)
def test_client_without_required_internals_is_rejected_at_startup(
    group: Group, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    group.append(9)
    owner, named = MISSING[name]
    for class_ in (owner, *getattr(owner, "__mro__", ())):
        if name in vars(class_):
            monkeypatch.delattr(class_, name)
    began = time.monotonic()
    with pytest.raises(ClientVersionError) as caught:
        group.query()
    assert not group.table.exists(), "nothing was created"
    errors = [caught.value]
    if name != "ManagementOperation":  # workers do not use it
        with pytest.raises(ClientVersionError) as caught:
            read(group)
        errors.append(caught.value)
    assert time.monotonic() - began < 10, "it is not tried again until receiverTimeout"
    for error in errors:
        version, reason = azure.eventhub.__version__, re.compile(re.escape(named))
        assert_reports(error, "EHB_CLIENT_UNSUPPORTED", version=version, reason=reason, tested=TESTED)
        assert "\n" not in str(error)


def read(group: Group) -> int:
    """The number of events that a worker reads."""
    batches = read_range(group.options(), OffsetRange("0", 0, 0, 9), None, None, receivers=Receivers())
    return sum(batch.num_rows for batch in batches)


def test_client_method_with_another_signature_is_rejected(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventHubConsumerClient, "_create_consumer", lambda self, group: None)
    with raises(ClientVersionError, "EHB_CLIENT_UNSUPPORTED", reason=re.compile("unexpected keyword argument")):
        read(group)


def test_link_failure_during_attach_is_not_mistaken_for_another_version(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator.add_hub(HUB, 1)

    def ready(client: Any) -> bool:
        """The client's result after it received a ValueError instead of the answer."""
        return bool(client.auth_complete()) and client._client_ready() in (True, False)

    monkeypatch.setattr(AMQPClient, "client_ready", ready)
    with reading(address_of(emulator)) as receiver, pytest.raises(TransientError, match="ATTACH_SENT"):
        receiver.receive(1, 1.0)


def test_compatible_client_version_is_used_without_a_warning(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(azure.eventhub, "__version__", "5.99.0")
    group.append(9)
    group.query().read(72)
    assert read(group) == 9
    assert not [message for message in caplog.messages if "azure-eventhub" in message]
