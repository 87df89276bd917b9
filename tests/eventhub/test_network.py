"""Network options: the client's settings made of them, and errors that name the option to check."""

from __future__ import annotations

import asyncio
import pickle
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.eventhub import TransportType

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.certificates import issue_certificate
from spark_ehbalance.errors import HubUnavailableError, OptionError
from spark_ehbalance.eventhub import network as network_module
from spark_ehbalance.eventhub import receiver as receiver_module
from spark_ehbalance.eventhub.client_errors import TransientError
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.network import AMQP, WEBSOCKET, Network, NetworkError, Proxy
from spark_ehbalance.eventhub.receiver import PartitionAddress, disconnect_readers
from spark_ehbalance.eventhub.resolve import find_offset
from spark_ehbalance.query.options import Options, stream_options
from tests.eventhub.receiving import address_of, reading
from tests.proxy import HttpProxy
from tests.query.support import HUB, hub_options
from tests.raising import assert_reports, raises

PASSWORD = "hunter2 & more"
NAMESPACE = "space.servicebus.windows.net"
CONNECTION_STRING = f"Endpoint=sb://{NAMESPACE}/;SharedAccessKeyName=n;SharedAccessKey=k;EntityPath=hub"


def network(**options: str) -> Network:
    return Network.from_options(options)


# --- options ---------------------------------------------------------------------------------------------------------


def test_default_is_a_direct_connection() -> None:
    made = network()
    assert made == Network() == Network(AMQP)
    settings = made.client_settings(NAMESPACE)
    assert settings["transport_type"] is TransportType.Amqp
    assert settings.keys() == {"transport_type", "ssl_context"}


def test_proxy_implies_websockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HUB_PROXY", "http://someone:hunter2%20%26%20more@proxy.example.com:3128/")
    made = network(httpProxy="env:HUB_PROXY")
    assert made == Network(WEBSOCKET, Proxy("proxy.example.com", 3128, "someone", PASSWORD))
    assert made.client_settings(NAMESPACE)["http_proxy"] == {
        "proxy_hostname": "proxy.example.com",
        "proxy_port": 3128,
        "username": "someone",
        "password": PASSWORD,
    }
    (tmp_path / "proxy").write_text("http://someone:hunter2%20%26%20more@proxy.example.com:3128\n")
    assert network(httpProxy=f"file:{tmp_path / 'proxy'}", transportType="amqpOverWebsocket") == made
    assert network(httpProxy="http://10.0.0.1:80").proxy == Proxy("10.0.0.1", 80)


@pytest.mark.parametrize(
    ("text", "transport", "found"),
    [
        ("gateway.example.com", "Amqp", "sb://gateway.example.com:5671"),
        ("gateway.example.com", "AmqpOverWebsocket", "sb://gateway.example.com:443"),
        ("10.1.2.3:8443", "Amqp", "sb://10.1.2.3:8443"),
        ("sb://gateway.example.com:1/", "Amqp", "sb://gateway.example.com:1"),
    ],
)
def test_custom_address_uses_the_transports_port(text: str, transport: str, found: str) -> None:
    settings = network(customEndpointAddress=text, transportType=transport).client_settings(NAMESPACE)
    assert settings["custom_endpoint_address"] == found
    assert settings["transport_type"].value == TransportType[transport].value


HIDDEN = "(not shown, as it may contain a password)"


@pytest.mark.parametrize(
    ("options", "condition", "parameters"),
    [
        ({"transportType": "Http"}, "OPTION_INVALID", {"value": "'Http'", "allowed": "one of Amqp, AmqpOverWebsocket"}),
        (
            {"transportType": "Amqp", "httpProxy": "http://a:1"},
            "OPTIONS_CONFLICT",
            {"options": "transportType=Amqp and httpProxy"},
        ),
        ({"httpProxy": "proxy:3128"}, "OPTION_INVALID", {"allowed": re.compile("^http://HOST:PORT")}),
        ({"httpProxy": "https://proxy:3128"}, "OPTION_INVALID", {"value": "'https://proxy:3128'"}),
        ({"httpProxy": "http://proxy:99999"}, "OPTION_INVALID", {"value": "'http://proxy:99999'"}),
        ({"httpProxy": "http://proxy:80/path"}, "OPTION_INVALID", {"value": "'http://proxy:80/path'"}),
        ({"httpProxy": f"http://me:{PASSWORD}@proxy:80"}, "SECRET_EXPOSED", {"reason": re.compile("password")}),
        (
            {"httpProxy": f"http://{PASSWORD}@proxy:80"},
            "SECRET_EXPOSED",
            {"reason": re.compile("password")},
        ),
        ({"httpProxy": f"https://me:{PASSWORD}@proxy:80"}, "OPTION_INVALID", {"value": HIDDEN}),
        ({"httpProxy": "env:NO_SUCH_PROXY"}, "SECRET_UNAVAILABLE", {"value": "'env:NO_SUCH_PROXY'"}),
        ({"httpProxy": "env:BAD_PROXY"}, "OPTION_INVALID", {"value": HIDDEN}),
        (
            {"customEndpointAddress": "[::1]:443"},
            "OPTION_INVALID",
            {"value": "'[::1]:443'", "allowed": re.compile("^HOST or HOST")},
        ),
        ({"customEndpointAddress": "host:0"}, "OPTION_INVALID", {"value": "'host:0'"}),
        (
            {"customEndpointAddress": f"me:{PASSWORD}@host"},
            "OPTION_INVALID",
            {"value": "(not shown, as it could be a secret)"},
        ),
        (
            {"caFile": "/no/such/file.pem"},
            "FILE_INVALID",
            {"file": "caFile='/no/such/file.pem'", "problem": re.compile("No such file")},
        ),
        ({"caFile": __file__}, "FILE_INVALID", {"problem": re.compile("PEM"), "allowed": re.compile("^the path")}),
    ],
)
def test_error_names_the_invalid_option(
    options: dict[str, str], condition: str, parameters: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_PROXY", f"http//me:{PASSWORD}@proxy:80")
    with raises(OptionError, f"EHB_{condition}", **parameters) as caught:
        stream_options({"connectionString": CONNECTION_STRING, **options})
    assert "hunter2" not in str(caught.value)
    option = next(reversed(options))
    assert option in str(caught.value)


def test_password_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_PROXY", f"http://me:{PASSWORD}@proxy:80")
    options = stream_options({"connectionString": CONNECTION_STRING, "httpProxy": "env:HUB_PROXY"})
    assert "hunter2" not in repr(options) + str(options.connection.network)
    assert "me" not in repr(options.connection.network.proxy)
    assert "proxy" in repr(options.connection.network)
    assert pickle.loads(pickle.dumps(options)).connection == options.connection, "executors get what the driver has"
    assert hash(pickle.loads(pickle.dumps(options)).connection) == hash(options.connection)


# --- certificates ----------------------------------------------------------------------------------------------------


def test_ca_file_is_reread_only_after_it_was_replaced(tmp_path: Path) -> None:
    first, second = (
        issue_certificate(tmp_path / name) for name in ("first", "second") if (tmp_path / name).mkdir() is None
    )
    used = tmp_path / "ca.pem"
    used.write_bytes(first.ca_file.read_bytes())
    made = network(caFile=str(used))
    context = made.client_settings(NAMESPACE)["ssl_context"]
    assert made.client_settings(NAMESPACE)["ssl_context"] is context
    used.write_bytes(second.ca_file.read_bytes() + b"\n")
    assert made.client_settings(NAMESPACE)["ssl_context"] is not context


def test_missing_file_on_an_executor_is_reported_with_option_path_and_host(tmp_path: Path) -> None:
    path = issue_certificate(tmp_path).ca_file
    connection = Connection.from_options(
        {"connectionString": CONNECTION_STRING, "caFile": str(path)}
        | dict.fromkeys(("fullyQualifiedNamespace", "credential", "eventHubName"))
    )
    path.unlink()
    with pytest.raises(NetworkError) as caught, reading(PartitionAddress(connection, "$Default", "0")):
        pass
    assert_reports(caught.value, "EHB_NETWORK_INVALID", target=NAMESPACE)
    for part in ("caFile", str(path), socket.gethostname(), "No such file"):
        assert part in caught.value.parameters["problem"]
    problem = re.compile("caFile")
    with raises(NetworkError, "EHB_NETWORK_INVALID", problem=problem), HubMetadata(connection, "$Default") as metadata:
        metadata.partition_ids()


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure() -> Iterator[Emulator]:
    """An emulator with TLS, including over websockets."""
    with Emulator({HUB: 1}, tls=True, tls_names=("hub.test",), websocket_port=0) as running:
        running.append(HUB, 0, [b"x"])
        yield running


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CA file of an authority that signed none of the certificates here."""
    return issue_certificate(tmp_path_factory.mktemp("stranger")).ca_file


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def planner_and_executor_errors(options: Options) -> tuple[HubUnavailableError, Exception]:
    """The errors of the management connection and of a receiver; both occur within seconds."""
    with pytest.raises(HubUnavailableError) as planner, HubMetadata(options.connection, "$Default") as metadata:
        metadata.partition_ids()
    address = PartitionAddress(options.connection, "$Default", "0")
    with pytest.raises((TransientError, NetworkError)) as executor, reading(address) as reader:
        reader.receive(1, 1.0)
    return planner.value, executor.value


def by(emulator: Emulator, *, websocket: bool, **options: object) -> Options:
    """Options for a query that connects to this emulator with TLS."""
    port = emulator.websocket_port if websocket else emulator.port
    transport = WEBSOCKET if websocket else AMQP
    way = {"customEndpointAddress": f"localhost:{port}", "transportType": transport, "caFile": emulator.ca_file}
    return hub_options(emulator, **(way | options))


@pytest.mark.parametrize("websocket", [False, True])
def test_untrusted_certificate_is_final(secure: Emulator, stranger: Path, websocket: bool) -> None:
    port = secure.websocket_port if websocket else secure.port
    for way in ({"caFile": stranger}, {"customEndpointAddress": f"127.1:{port}"}):
        for error in planner_and_executor_errors(by(secure, websocket=websocket, **way)):
            assert isinstance(error, NetworkError)
            assert f":{port} is not trusted" in str(error)
            assert "check customEndpointAddress, caFile" in str(error)


@pytest.mark.parametrize("websocket", [False, True])
@pytest.mark.parametrize("server", ["closed", "silent", "plain", "unknown"])
def test_unreachable_server_is_retried(
    secure: Emulator, silent: int, server: str, websocket: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_module, "_STEP_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as free, Emulator({HUB: 1}, websocket_port=0) as plain:
        closed, plain_port = free.getsockname()[1], plain.websocket_port if websocket else plain.port
        free.close()
        ports = {"closed": closed, "silent": silent, "plain": plain_port}
        called = f"localhost:{ports[server]}" if server in ports else "no.such.invalid:1"
        for error in planner_and_executor_errors(by(secure, websocket=websocket, customEndpointAddress=called)):
            assert not isinstance(error, NetworkError)
            assert called in str(error)
            assert "check customEndpointAddress" in str(error)


def test_unresolvable_namespace_is_reported() -> None:
    string = CONNECTION_STRING.replace(NAMESPACE, "no.such.invalid")
    for error in planner_and_executor_errors(stream_options({"connectionString": string})):
        assert "the name of no.such.invalid:5671 does not resolve" in str(error)
        assert "check connectionString or fullyQualifiedNamespace" in str(error)


@pytest.mark.parametrize("websocket", [False, True])
def test_server_that_does_not_answer_amqp_is_reported(websocket: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "_STEP_TIMEOUT", 0.5)
    monkeypatch.setattr(receiver_module, "_OPEN_TIMEOUT", 1.0)
    with Emulator({HUB: 1}, tls=True, websocket_port=0) as mute:
        options = by(mute, websocket=websocket)
        mute.silence_connections()
        with HubMetadata(options.connection, "$Default", response_timeout=1.0) as metadata:
            with raises(HubUnavailableError, "EHB_HUB_UNREACHABLE", what=re.compile("did not answer")):
                metadata.partition_ids()
            mute.silence_connections(False)
            assert metadata.partition_ids() == ("0",)
        mute.silence_connections()
        with pytest.raises(TransientError), reading(PartitionAddress(options.connection, "$Default", "0")) as reader:
            reader.receive(1, 1.0)


def test_firewall_is_mentioned_for_the_amqp_port() -> None:
    refused = ConnectionRefusedError(111, "Connection refused")
    error = RuntimeError("Failed to initiate the connection due to exception: ...")
    error.__cause__ = refused
    assert "transportType=AmqpOverWebsocket uses port 443" in str(Network().problem(error, NAMESPACE))
    assert "443" not in str(Network(endpoint=("gateway", 5671)).problem(error, NAMESPACE))
    assert Network().problem(refused, NAMESPACE) is None, "a later break is no evidence about the options"


def test_server_without_websocket_is_reported(secure: Emulator) -> None:
    async def not_found(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    with HttpProxy(handler=not_found) as server:
        string = {"customEndpointAddress": f"localhost:{server.port}", "transportType": WEBSOCKET}
        with Emulator({HUB: 1}) as plain:
            errors = planner_and_executor_errors(hub_options(plain, **string))
    for error in errors:
        assert f"localhost:{server.port} refuses the websocket (status 404)" in str(error)
        assert "check customEndpointAddress" in str(error)


# --- proxies ---------------------------------------------------------------------------------------------------------


def through(emulator: Emulator, **options: object) -> Options:
    """Options for a query that uses a hostname of the emulator that only the proxy resolves."""
    return by(emulator, websocket=True, customEndpointAddress="hub.test:443", **options)


def test_slow_connections_succeed(secure: Emulator) -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.2)  # longer than the client's own timeout of 1 s
        await way.join(reader, writer, secure.websocket_port)

    with HttpProxy(handler=slow) as way:
        options = by(secure, websocket=True, customEndpointAddress=f"localhost:{way.port}")
        with HubMetadata(options.connection, "$Default") as metadata:
            assert metadata.partition_ids() == ("0",)
        with reading(PartitionAddress(options.connection, "$Default", "0")) as reader:
            assert reader.receive(1, 10.0).num_rows == 1
            assert reader.is_usable()


def test_refusing_or_missing_proxy_is_reported(secure: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpProxy({}) as gone:
        pass
    with HttpProxy(user="me", password=PASSWORD) as strict, HttpProxy({}) as closed:
        monkeypatch.setenv("WRONG", f"http://me:wrong@localhost:{strict.port}")
        refuses = "refuses the connection to hub.test:443 (status {}); check httpProxy"
        for address, is_final, text in (
            ("env:WRONG", True, f"the proxy localhost:{strict.port} {refuses.format(407)}"),
            (f"http://localhost:{closed.port}", True, f"the proxy localhost:{closed.port} {refuses.format(403)}"),
            (f"http://localhost:{gone.port}", False, f"the proxy localhost:{gone.port} (Connection refused)"),
        ):
            for error in planner_and_executor_errors(through(secure, httpProxy=address)):
                assert isinstance(error, NetworkError) is is_final
                assert text in str(error)
                assert "check httpProxy" in str(error)
                assert "wrong" not in str(error)


@pytest.mark.parametrize("by_environment", [False, True], ids=["option", "environment"])
def test_all_connections_use_the_proxy(secure: Emulator, monkeypatch: pytest.MonkeyPatch, by_environment: bool) -> None:
    with HttpProxy({"hub.test:443": secure.websocket_port}, user="me", password=PASSWORD) as proxy:
        way = f"http://me:{PASSWORD.replace(' ', '%20')}@localhost:{proxy.port}"
        monkeypatch.setenv("https_proxy" if by_environment else "RIGHT", way)
        options = through(secure, **({} if by_environment else {"httpProxy": "env:RIGHT"}))
        address = address_of(secure, options.connection)
        assert HubMetadata(address.connection, "$Default").partition_ids() == ("0",)
        assert find_offset(address, 0, 1, 10.0) is not None
        disconnect_readers({address: 2})
        with reading(address, owner_level=None) as reader:
            assert reader.receive(1, 10.0).num_rows == 1
        assert (proxy.connected, proxy.refused) == (4, 0)
        if by_environment:
            monkeypatch.setenv("https_proxy", f"http://me:wrong@localhost:{proxy.port}")
            for error in planner_and_executor_errors(options):
                assert "the proxy in the environment refuses the connection to hub.test:443" in str(error)
                assert "wrong" not in str(error)
