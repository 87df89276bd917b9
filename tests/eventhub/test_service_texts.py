"""Each text and condition by which errors of the service are told apart, with where the service was seen to send it.

"Recordings" are the frames that azure-sdk-for-python's live tests exchanged with a namespace
(`tests/amqpproxy_recordings`, April and May 2025). What nobody was seen to have received is an assumption.
"""

from __future__ import annotations

import ast
import inspect
from types import ModuleType

import pytest
from azure.eventhub.exceptions import ConnectionLostError

from spark_ehbalance.eventhub import conditions, receiver
from spark_ehbalance.eventhub.conditions import Meaning, meaning
from spark_ehbalance.eventhub.receiver import Disconnected

ASSUMED = "an assumption"
CLIENT = "azure-eventhub writes it"
RECORDED = "recordings"

#: Every literal that is compared with an error, and where it was seen.
MATCHED = {
    "not-found": RECORDED,
    "could not be found": RECORDED,
    r":eventhub:[^':|]*\|[^'|]*' could not be found": "azure-event-hubs-node issue 159",
    "404": RECORDED,
    "specified partition is invalid": "the tests of azure-sdk-for-js",
    "resource-deleted": ASSUMED,
    "entity-disabled": "azure-sdk-for-net pull request 39715",
    "is currently disabled": "azure-service-bus issue 677",
    "server-busy": "azure-event-hubs-spark issue 576",
    "com.microsoft:server-busy": ASSUMED + ": a request for properties was never seen refused",
    "429": ASSUMED,
    "503": ASSUMED,
    "unauthorized-access": "azure-event-hubs-node issue 186",
    "AuthenticationError": CLIENT,
    "AuthenticationException": CLIENT,
    r"\bStatus code: (\d{3})\b": CLIENT,
    r" epoch (?:of )?'(\d+)'": RECORDED,
    "link:stolen": RECORDED,
    "georeplication:invalid-offset": "azure-sdk-for-net pull request 48101",
    "argument-error": "azure-event-hubs-python issue 13",
}

TRACKED = "TrackingId:3210dcbe-0737-4f48-98de-c96eeb34349f_G29, SystemTracker:{}, Timestamp:2025-04-30T20:46:37"
MORE = "To know more visit https://aka.ms/sbResourceMgrExceptions. "
TO_RAISE = (
    "Make sure you are creating receiver with increasing epoch value to ensure connectivity, or ensure all old epoch "
    "receivers are closed or disconnected."
)

#: Conditions and texts of the service, where they were seen, and what they mean.
SENT = {
    "hub missing": (
        "amqp:not-found",
        f"The messaging entity 'sb://ns.servicebus.windows.net/nemo' could not be found. {MORE} "
        + TRACKED.format("ns.servicebus.windows.net:nemo"),
        RECORDED,
        Meaning.MISSING,
    ),
    "namespace missing": (
        "amqp:not-found",
        "The messaging entity 'Invalid audience: Namespace cannot be resolved "
        f"'sb://invalid123.servicebus.windows.net/hub'' could not be found. {MORE}",
        RECORDED,
        Meaning.MISSING,
    ),
    "group missing": (
        "amqp:not-found",
        "The messaging entity 'streams:eventhub:test-hub~2047|consumers' could not be found. "
        + TRACKED.format("streams:eventhub:test-hub~2047|consumers"),
        "azure-event-hubs-node issue 159",
        Meaning.NO_GROUP,
    ),
    "partition missing": (
        "com.microsoft:argument-out-of-range",
        "The specified partition is invalid for an EventHub partition sender or receiver. "
        "It should be between 0 and 3.",
        "the tests of azure-sdk-for-js",
        Meaning.NO_PARTITION,
    ),
    "busy": (
        "com.microsoft:server-busy",
        "The request was terminated because the entity is being throttled. Error code : 50002. Please wait 4 seconds "
        "and try again. " + TRACKED.format("ns:eventhub:hub~1023|$default"),
        "azure-event-hubs-spark issue 576",
        Meaning.BUSY,
    ),
    "disabled": (
        "com.microsoft:entity-disabled",
        "Messaging entity 'sb://ns.servicebus.windows.net/hub' is currently disabled. " + TRACKED.format("gateway5"),
        "azure-service-bus issue 677, azure-sdk-for-net pull request 39715",
        Meaning.DISABLED,
    ),
    "deleted": ("amqp:resource-deleted", "The messaging entity 'hub' has been deleted.", ASSUMED, Meaning.MISSING),
    "wrong key or policy": (
        "com.microsoft:auth-failed",
        "InvalidSignature: The token has an invalid signature. " + TRACKED.format("NoSystemTracker"),
        RECORDED,
        Meaning.OTHER,
    ),
    "no right": (
        "amqp:unauthorized-access",
        "Unauthorized access. 'Listen' claim(s) are required to perform this operation. Resource: "
        "'sb://ns.servicebus.windows.net/hub/consumergroups/$default/partitions/6'. " + TRACKED.format("gateway5"),
        "azure-event-hubs-node issue 186",
        Meaning.OTHER,
    ),
    "sixth reader": (
        "amqp:resource-limit-exceeded",
        "Exceeded the maximum number of allowed receivers per partition in a consumer group which is 5. List of "
        "connected receivers - nil, nil, nil, nil, nil.",
        "azure-docs issue 24985",
        Meaning.OTHER,
    ),
    "number beyond the end": (
        "com.microsoft:argument-error",
        "The supplied sequence number '488' is invalid. The last sequence number in the system is '482' "
        + TRACKED.format("ns:eventhub:hub~21844|$default"),
        "azure-firewall-mon issue 21",
        Meaning.OTHER,
    ),
    "idle": (
        "amqp:connection:forced",
        "The connection was inactive for more than the allowed 240000 milliseconds and is closed by container "
        "'5e305ffd60cc40f2b27e13fca83a46af_G12'.",
        RECORDED,
        Meaning.OTHER,
    ),
    "link lost": ("amqp:not-found", "The link 'G3:1:receiver' is not found.", ASSUMED, Meaning.OTHER),
}

#: Texts about owner levels, and the other receiver's level.
LEVELS = {
    "New receiver 'nil' with higher epoch of '1' is created hence current receiver 'nil' with epoch '' is getting "
    "disconnected. If you are recreating the receiver, make sure a higher epoch is used.": (RECORDED, 1),
    "New receiver 'nil' with higher epoch of '0' is created hence current receiver 'nil' with epoch '0' is getting "
    "disconnected. If you are recreating the receiver, make sure a higher epoch is used.": (
        "azure-sdk-for-js issue 15893",
        0,
    ),
    "New receiver with higher epoch of '20' is created hence current receiver with epoch '19' is getting disconnected. "
    "If you are recreating the receiver, make sure a higher epoch is used.": ("azure-sdk-for-net issue 7154", 20),
    "Receiver 'nil' with a higher epoch '1' already exists. Receiver 'nil' with epoch 0 cannot be created. "
    f"{TO_RAISE}": ("azure-sdk-for-java issue 26583", 1),
    f"A receiver with a higher epoch '636730203068015448' already exists. A new receiver with epoch 6499 cannot be "
    f"created. {TO_RAISE}": ("azure-event-hubs-dotnet issue 317", 636730203068015448),
    "At least one receiver for the endpoint is created with epoch of '5', and so non-epoch receiver is not allowed. "
    "Either reconnect with a higher epoch, or make sure all epoch receivers are closed or disconnected.": (
        "azure-docs issue 19417",
        5,
    ),
}


def compared(module: ModuleType, *functions: str) -> set[str]:
    """The literals with which these functions compare, and the regular expressions of the module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.FunctionDef) and node.name in functions:
            for part in ast.walk(node):
                sides = [part.left, *part.comparators] if isinstance(part, ast.Compare) else []
                literals = [each for side in sides for each in (side.elts if isinstance(side, ast.Tuple) else [side])]
                found |= {each.value for each in literals if isinstance(each, ast.Constant)}
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("re.compile", "re.search"):
            found.add(ast.literal_eval(node.args[0]))
    return {each for each in found if isinstance(each, str)}


def test_the_table_is_complete() -> None:
    literals = compared(conditions, "meaning", "is_refusal") | compared(receiver, "_meaning")
    assert literals | {*receiver._NO_SUCH_OFFSET} == MATCHED.keys()


@pytest.mark.parametrize("name", SENT)
def test_what_the_service_sends_is_understood(name: str) -> None:
    condition, text, _, means = SENT[name]
    assert meaning(condition, text) is means
    assert meaning(condition.rpartition(":")[2], text) is means, "as azure-eventhub names it"


@pytest.mark.parametrize("text", LEVELS)
def test_the_other_receivers_level_is_found_in_the_text(text: str) -> None:
    error = ConnectionLostError(f"{text} {TRACKED.format('ns:eventhub:hub~16383|$default')}")
    told = receiver._meaning(error, None)  # type: ignore[arg-type]  # not needed for these
    assert isinstance(told, Disconnected)
    assert told.epoch == LEVELS[text][1]
