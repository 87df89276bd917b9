"""TLS is off only for connections to this machine unless a remote emulator is allowed, because the token is sent."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.certificates import issue_certificate
from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.query.options import stream_options
from tests.query.support import HUB
from tests.raising import assert_reports, raises

FAR = "hub.attacker.test"
ALLOWED = {"allowPlaintextEmulator": "true"}


@pytest.fixture
def attacker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """A server that receives the token of clients connecting to `FAR` without TLS."""
    real = socket.getaddrinfo

    def resolved(host: Any, *rest: Any, **more: Any) -> Any:
        return real("127.0.0.1" if host in (FAR, FAR.encode()) else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Emulator({HUB: 1}, websocket_port=0) as running:
        yield running


def string(host: str, emulator: str = "UseDevelopmentEmulator=true") -> str:
    return f"Endpoint=sb://{host};SharedAccessKeyName=n;SharedAccessKey=k;EntityPath={HUB};{emulator}"


def partitions(given: str, **options: str) -> list[str]:
    """The partition ids that a query gets with this connection string."""
    with HubMetadata(stream_options({"connectionString": given, **options}).connection, "$Default") as metadata:
        return list(metadata.partition_ids())


def test_token_is_not_sent_unencrypted_to_another_host(attacker: Emulator) -> None:
    reason = re.compile(f"{FAR} is not on this machine.*allowPlaintextEmulator=true")
    with raises(OptionError, "EHB_OPTION_NOT_APPLICABLE", option=re.compile("^UseDevelopmentEmulator"), reason=reason):
        partitions(string(f"{FAR}:{attacker.port}"))
    assert attacker.connections() == 0
    assert partitions(string(f"{FAR}:{attacker.port}"), **ALLOWED) == ["0"]


ON = "UseDevelopmentEmulator=true"


@pytest.mark.parametrize(
    ("host", "emulator", "reason"),
    [
        (FAR, "USEDEVELOPMENTEMULATOR=True;", "it disables TLS, and hub.attacker.test is not on this machine"),
        (FAR, " UseDevelopmentEmulator = true ", "it disables TLS, and hub.attacker.test is not on this machine"),
        (FAR, "UseDevelopmentEmulator=1", "it disables TLS, and hub.attacker.test is not on this machine"),
        ("LOCALHOST.evil.com", ON, "is not on this machine"),
        ("127.0.0.1.evil.com", ON, "is not on this machine"),
        ("evil.com:5672", ON, "is not on this machine"),
        ("127.1", ON, "is not on this machine"),
        ("2130706433", ON, "is not on this machine"),
        ("0.0.0.0", ON, "is not on this machine"),
        ("128.0.0.1", ON, "is not on this machine"),
        ("localhost", f"UseDevelopmentEmulator=false;{ON}", "part 6 repeats a name"),
        ("localhost", f"{ON};ENDPOINT=sb://{FAR}", "part 6 repeats a name"),
    ],
)
def test_hosts_that_are_not_loopback_are_rejected(host: str, emulator: str, reason: str) -> None:
    with pytest.raises(OptionError) as caught:
        stream_options({"connectionString": string(host, emulator)})
    repeats = "repeats" in reason
    condition = "EHB_CONNECTION_STRING_INVALID" if repeats else "EHB_OPTION_NOT_APPLICABLE"
    parameter = {"problem" if repeats else "reason": re.compile(re.escape(reason))}
    assert_reports(caught.value, condition, **parameter)


@pytest.mark.parametrize(
    "host",
    ["localhost.", "[::1]:5672", "localhost@evil.com", "evil.com@localhost", "localhost#.evil.com:1", "localh ost"],
)
def test_tricky_hosts_are_rejected_or_loopback(host: str) -> None:
    try:
        connection = stream_options({"connectionString": string(host)}).connection
    except OptionError:
        return
    client = connection.consumer_client("$Default")
    assert client._address.hostname == connection.namespace == "localhost"


@pytest.mark.parametrize("host", ["localhost", "LocalHost:5672", "127.0.0.1", "127.8.9.10:1", " localhost "])
def test_loopback_hosts_are_allowed(host: str) -> None:
    assert stream_options({"connectionString": string(host)}).connection.namespace == host.strip()


def test_custom_address_replaces_the_namespace_in_the_check(attacker: Emulator) -> None:
    with raises(OptionError, "EHB_OPTION_NOT_APPLICABLE", reason=re.compile(f"{FAR} is not on this machine")):
        partitions(string("localhost"), customEndpointAddress=f"{FAR}:{attacker.port}")
    assert attacker.connections() == 0
    assert partitions(string(FAR), customEndpointAddress=f"localhost:{attacker.port}") == ["0"]


def test_remote_proxies_are_rejected() -> None:
    with raises(OptionError, "EHB_OPTION_NOT_APPLICABLE", reason=re.compile(r"proxy\.corp is not on this machine")):
        stream_options({"connectionString": string("localhost"), "httpProxy": "http://proxy.corp:3128"})
    stream_options({"connectionString": string("localhost"), "httpProxy": "http://127.0.0.1:3128"})


def test_certificate_options_require_tls(tmp_path: Path) -> None:
    ca_file = str(issue_certificate(tmp_path).ca_file)
    for given, way in ((string("localhost"), {}), (string(FAR, "UseDevelopmentEmulator=false"), ALLOWED)):
        with pytest.raises(OptionError, match="caFile"):
            stream_options({"connectionString": given, "caFile": ca_file, **way})


def test_tls_is_on_without_the_emulator_setting(attacker: Emulator) -> None:
    connection = Connection.from_options(
        {"connectionString": string(f"{FAR}:{attacker.port}", "UseDevelopmentEmulator=false"), "eventHubName": HUB}
        | {"fullyQualifiedNamespace": None, **ALLOWED}
    )
    assert connection.consumer_client("$Default")._config.use_tls
