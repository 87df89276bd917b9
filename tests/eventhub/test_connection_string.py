"""Connection strings and namespaces as people paste them, and hub names on several ports."""

from __future__ import annotations

import re

import pytest

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.group.identity import Group
from spark_ehbalance.jobs.copy_hub import Settings
from spark_ehbalance.jobs.settings import SettingError
from spark_ehbalance.query.options import stream_options
from tests.raising import raises

HOST = "ns.servicebus.windows.net"
KEY = "k" * 43 + "="
STRING = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=reader;SharedAccessKey={KEY};EntityPath=hub"


def by_key(text: str) -> Connection:
    return stream_options({"connectionString": text}).connection


@pytest.mark.parametrize(
    "pasted",
    [
        f'"{STRING}"',
        f"'{STRING}'",
        f"“{STRING}”",
        STRING + ";",
        STRING + " ; ",
        STRING.replace(";", "; "),
        STRING.replace(";", " ;\n"),
        STRING.replace("=sb", " = sb"),
        STRING.replace("Endpoint", "endpoint").replace("EntityPath", "entitypath"),
        STRING.replace("sb://", "SB://"),
        STRING.replace("sb://", ""),
        STRING.replace("sb://", "amqps://"),
        STRING.replace(f"sb://{HOST}/", f"https://{HOST}:443/"),
        STRING.replace(f"sb://{HOST}/", f"https://{HOST}"),
    ],
)
def test_unambiguous_connection_strings_are_accepted(pasted: str) -> None:
    connection = by_key(pasted)
    assert (connection.namespace, connection.hub, connection.connection_string) == (HOST, "hub", STRING)
    client = connection.consumer_client("$Default")
    assert client._address.hostname == HOST  # type: ignore[attr-defined]
    client.close()


@pytest.mark.parametrize(
    ("pasted", "problem"),
    [
        (
            f"HostName=iot.azure-devices.net;SharedAccessKeyName=service;SharedAccessKey={KEY}",
            "HostName belongs to an IoT Hub",
        ),
        (STRING.replace("Endpoint=", ""), "part 1 is not NAME=VALUE"),
        (STRING.replace(f";SharedAccessKey={KEY}", ""), "it has no SharedAccessKey"),
        (STRING.replace(";SharedAccessKeyName=reader", ""), "it has no SharedAccessKeyName"),
        (STRING.replace(KEY, ""), "SharedAccessKey is empty"),
        (STRING.replace(f"Endpoint=sb://{HOST}/;", ""), "it has no Endpoint"),
        (STRING + ";SharedAccessSignature=SharedAccessSignature sr=x", "it has both SharedAccessKey and"),
        (STRING + f";sharedaccesskey={KEY}", "part 5 repeats a name"),
        (STRING.replace(HOST, HOST + "/hub"), "its Endpoint is not a host name"),
        (f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={KEY}", "it has no Endpoint"),
    ],
)
def test_invalid_part_is_named_without_its_value(pasted: str, problem: str) -> None:
    allowed = re.compile("^Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=NAME")
    with raises(
        OptionError, "EHB_CONNECTION_STRING_INVALID", problem=re.compile(f"^{problem}"), allowed=allowed
    ) as caught:
        by_key(pasted)
    assert "kkk" not in str(caught.value)


@pytest.mark.parametrize("pasted", [HOST, f"https://{HOST}:443/", f"https://{HOST}", f"sb://{HOST}/", f"SB://{HOST}"])
def test_namespace_can_be_an_address(pasted: str) -> None:
    connection = stream_options({"fullyQualifiedNamespace": pasted, "eventHubName": "hub"}).connection
    assert connection.namespace == HOST


@pytest.mark.parametrize("pasted", ["https://ns", f"http://{HOST}", f"https://{HOST}/hub", f"https://{HOST}:443/hub"])
def test_other_addresses_are_rejected(pasted: str) -> None:
    allowed = re.compile("^a host name such as NAMESPACE")
    with raises(OptionError, "EHB_OPTION_INVALID", option="fullyQualifiedNamespace", allowed=allowed):
        stream_options({"fullyQualifiedNamespace": pasted, "eventHubName": "hub"})


@pytest.mark.parametrize("port", ["", ":5671", ":443", ":5673"])
def test_port_is_not_part_of_the_name(port: str) -> None:
    connection = by_key(STRING.replace(HOST, HOST + port))
    assert connection.namespace == HOST + port, "which is what the client connects to"
    assert connection.hub_name == f"{HOST}/hub"
    assert connection.group("$Default") == Group.from_names(HOST, "hub", "$Default")
    assert Group.from_names(HOST.upper() + port, "Hub", "$Default") == connection.group("$Default"), (
        "as older tables have it"
    )


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3"])
def test_emulators_on_one_machine_differ_by_port(host: str) -> None:
    one, other = (by_key(STRING.replace(HOST, f"{host}:{port}")) for port in (40001, 40002))
    assert one.hub_name == f"{host}:40001/hub"
    assert one.group("g").namespace == f"{host}:40001"
    assert one.group("g") != other.group("g")
    assert by_key(STRING.replace(HOST, f"{host}:5671")).hub_name == f"{host}/hub"


def test_copy_hub_recognizes_its_source_at_another_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE", STRING)
    monkeypatch.setenv("SINK", STRING.replace(HOST, f"{HOST}:443"))
    with raises(SettingError, "EHB_OPTIONS_CONFLICT", reason=re.compile("the hub ns")):
        Settings(
            checkpoint_location="/tmp/checkpoint",
            trigger={"availableNow": True},
            source={"connectionString": "env:SOURCE"},
            sink={"connectionString": "env:SINK"},
        )
