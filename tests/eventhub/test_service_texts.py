"""The meaning of service errors, with conditions and texts that the service really sent; `test_endings.py` covers
others.

"Recorded" are the frames that azure-sdk-for-python's live tests exchanged with a namespace
(`tests/amqpproxy_recordings`, April and May 2025).
"""

from __future__ import annotations

import pytest
from azure.eventhub.exceptions import ConnectionLostError, EventHubError

from spark_ehbalance.eventhub import receiver
from spark_ehbalance.eventhub.client_errors import error_message
from spark_ehbalance.eventhub.receiver import DisconnectedError
from spark_ehbalance.eventhub.service_errors import ErrorKind, classify

TRACKED = "TrackingId:3210dcbe-0737-4f48-98de-c96eeb34349f_G29, SystemTracker:{}, Timestamp:2025-04-30T20:46:37"
MISSING = "The messaging entity {!r} could not be found. To know more visit https://aka.ms/sbResourceMgrExceptions. "
NO_NAMESPACE = "Invalid audience: Namespace cannot be resolved 'sb://invalid123.servicebus.windows.net/hub'"
TO_RAISE = "Make sure you are creating receiver with increasing epoch value to ensure connectivity, or ensure all old"


@pytest.mark.parametrize(
    ("condition", "text", "means"),
    [
        # recorded
        ("amqp:not-found", MISSING.format("sb://ns.servicebus.windows.net/nemo"), ErrorKind.MISSING),
        ("amqp:not-found", MISSING.format(NO_NAMESPACE), ErrorKind.MISSING),
        ("com.microsoft:auth-failed", "InvalidSignature: The token has an invalid signature. ", ErrorKind.OTHER),
        # azure-event-hubs-node issue 159
        (
            "amqp:not-found",
            "The messaging entity 'streams:eventhub:test-hub~2047|consumers' could not be found. ",
            ErrorKind.NO_GROUP,
        ),
        # the tests of azure-sdk-for-js
        (
            "com.microsoft:argument-out-of-range",
            "The specified partition is invalid for an EventHub partition sender or receiver. "
            "It should be between 0 and 3.",
            ErrorKind.NO_PARTITION,
        ),
        # azure-service-bus issue 677, azure-sdk-for-net pull request 39715
        (
            "com.microsoft:entity-disabled",
            "Messaging entity 'sb://ns.servicebus.windows.net/hub' is currently disabled. ",
            ErrorKind.DISABLED,
        ),
        # azure-firewall-mon issue 21
        (
            "com.microsoft:argument-error",
            "The supplied sequence number '488' is invalid. The last sequence number in the system is '482' ",
            ErrorKind.OTHER,
        ),
        # no known report of this error
        ("amqp:not-found", "The link 'G3:1:receiver' is not found.", ErrorKind.OTHER),
    ],
)
def test_service_errors_are_classified(condition: str, text: str, means: ErrorKind) -> None:
    for name in (condition, condition.rpartition(":")[2]):  # the second is azure-eventhub's name
        assert classify(name, text + TRACKED) is means


@pytest.mark.parametrize(
    ("text", "level"),
    [
        # azure-sdk-for-js issue 15893
        ("New receiver 'nil' with higher epoch of '0' is created hence current receiver 'nil' with epoch '0' is", 0),
        # azure-sdk-for-net issue 7154
        ("New receiver with higher epoch of '20' is created hence current receiver with epoch '19' is", 20),
        # azure-event-hubs-dotnet issue 317
        ("A receiver with a higher epoch '636730203068015448' already exists. A new receiver", 636730203068015448),
    ],
)
def test_other_receivers_level_is_parsed(text: str, level: int) -> None:
    error = ConnectionLostError(f"{text} {TO_RAISE} {TRACKED.format('ns:eventhub:hub~16383|$default')}")
    translated = receiver._translate(error, None)  # type: ignore[arg-type]  # not needed for these
    assert isinstance(translated, DisconnectedError)
    assert translated.epoch == level


@pytest.mark.parametrize("kind", [EventHubError, RuntimeError])
def test_error_messages_are_short_and_contain_no_secrets(kind: type[Exception]) -> None:
    assert error_message(kind("The partition is away.")) == "The partition is away."
    assert len(error_message(kind("x" * 3_000_000))) == 1000
    token = "SharedAccessSignature sr=sb%3a%2f%2fns&sig=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY%3d&se=1&skn=key"
    assert "MDEyMzQ1" not in error_message(kind(f"You sent {token}"))
