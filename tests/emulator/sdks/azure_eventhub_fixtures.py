"""The fixtures of azure-eventhub's live tests, on the emulator instead of a namespace.

`make sdk-tests` replaces the conftest.py in azure-eventhub's source distribution with this file.
"""

from __future__ import annotations

import importlib
import itertools
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest
from azure.core.settings import settings
from azure.eventhub import EventHubProducerClient, EventHubSharedKeyCredential, TransportType
from azure.eventhub._pyamqp import ReceiveClient
from azure.eventhub._pyamqp.authentication import SASTokenAuth
from azure.eventhub.aio import EventHubSharedKeyCredential as EventHubSharedKeyCredentialAsync
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore
from azure.eventhub.extensions.checkpointstoreblobaio import (  # type: ignore[import-not-found]
    BlobCheckpointStore as BlobCheckpointStoreAsync,
)

from chaos.storage.azurite import ACCOUNT, azurite, missing_requirement
from chaos.storage.azurite import KEY as STORAGE_KEY
from spark_ehbalance.emulator import Emulator

HOST, KEY_NAME, KEY = "localhost", "RootManageSharedAccessKey", "a key for tests"
PARTITIONS = ("0", "1")


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    """A namespace with TLS, websocket and a key, at the service's ports for clients."""
    with (
        Emulator(tls=True, websocket_port=0, sas_keys={KEY_NAME: KEY}) as emulator,
        pytest.MonkeyPatch.context() as patch,
    ):
        ports = {5671: emulator.port, 443: emulator.websocket_port}
        resolve = socket.getaddrinfo

        def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            return resolve(host, ports.get(port, port) if host == HOST else port, *args, **kwargs)

        patch.setattr(socket, "getaddrinfo", getaddrinfo)
        bundle = emulator.ca_file.with_name("bundle.pem")
        bundle.write_text(Path(certifi.where()).read_text() + emulator.ca_file.read_text())
        patch.setattr(certifi, "where", lambda: str(bundle))
        yield emulator


_names = itertools.count()


@pytest.fixture
def live_eventhub(emulator: Emulator) -> Iterator[dict[str, str]]:
    """A new hub for each test."""
    hub = f"hub-{next(_names)}"
    emulator.add_hub(hub, len(PARTITIONS))
    yield {
        "resource_group": "tests",
        "hostname": HOST,
        "key_name": KEY_NAME,
        "access_key": KEY,
        "namespace": HOST,
        "event_hub": hub,
        "consumer_group": "$Default",
        "partition": "0",
        "connection_str": connection_string(hub),
    }
    emulator.delete_hub(hub)


def connection_string(hub: str, *, host: str = HOST, key_name: str = KEY_NAME, key: str = KEY) -> str:
    return f"Endpoint=sb://{host}/;SharedAccessKeyName={key_name};SharedAccessKey={key};EntityPath={hub}"


@pytest.fixture
def connection_str(live_eventhub: dict[str, str]) -> str:
    return live_eventhub["connection_str"]


@pytest.fixture
def invalid_hostname(live_eventhub: dict[str, str]) -> str:
    return connection_string(live_eventhub["event_hub"], host="no-such-namespace.invalid")


@pytest.fixture
def invalid_key(live_eventhub: dict[str, str]) -> str:
    return connection_string(live_eventhub["event_hub"], key="wrong")


@pytest.fixture
def invalid_policy(live_eventhub: dict[str, str]) -> str:
    return connection_string(live_eventhub["event_hub"], key_name="wrong")


def _credential(**_: object) -> EventHubSharedKeyCredential:
    return EventHubSharedKeyCredential(KEY_NAME, KEY)


def _credential_async(**_: object) -> EventHubSharedKeyCredentialAsync:
    return EventHubSharedKeyCredentialAsync(KEY_NAME, KEY)


@pytest.fixture(scope="session")
def get_credential() -> Callable[..., Any]:
    return _credential


@pytest.fixture(scope="session")
def get_credential_async() -> Callable[..., Any]:
    return _credential_async


@pytest.fixture
def auth_credentials(live_eventhub: dict[str, str]) -> tuple[str, str, Callable[..., Any]]:
    return HOST, live_eventhub["event_hub"], _credential


@pytest.fixture
def auth_credentials_async(live_eventhub: dict[str, str]) -> tuple[str, str, Callable[..., Any]]:
    return HOST, live_eventhub["event_hub"], _credential_async


def _receivers(hub: str) -> Iterator[list[ReceiveClient]]:
    uri = f"sb://{HOST}/{hub}"
    receivers = [
        ReceiveClient(
            HOST,
            f"amqps://{HOST}/{hub}/ConsumerGroups/$Default/Partitions/{partition}",
            auth=SASTokenAuth(uri, uri, KEY_NAME, KEY),
            network_trace=False,
            timeout=30,
            link_credit=500,
        )
        for partition in PARTITIONS
    ]
    for receiver in receivers:
        receiver.open()
    yield receivers
    for receiver in receivers:
        receiver.close()


@pytest.fixture
def connstr_receivers(live_eventhub: dict[str, str]) -> Iterator[tuple[str, list[ReceiveClient]]]:
    for receivers in _receivers(live_eventhub["event_hub"]):
        yield live_eventhub["connection_str"], receivers


@pytest.fixture
def auth_credential_receivers(live_eventhub: dict[str, str]) -> Iterator[tuple[str, str, Any, list[ReceiveClient]]]:
    for receivers in _receivers(live_eventhub["event_hub"]):
        yield HOST, live_eventhub["event_hub"], _credential, receivers


@pytest.fixture
def auth_credential_receivers_async(
    live_eventhub: dict[str, str],
) -> Iterator[tuple[str, str, Any, list[ReceiveClient]]]:
    for receivers in _receivers(live_eventhub["event_hub"]):
        yield HOST, live_eventhub["event_hub"], _credential_async, receivers


@pytest.fixture(scope="session")
def uamqp_transport() -> bool:
    return False


@pytest.fixture(scope="session", params=[TransportType.Amqp, TransportType.AmqpOverWebsocket], ids=["amqp", "ws"])
def socket_transport(request: pytest.FixtureRequest) -> TransportType:
    return request.param


@pytest.fixture(scope="session")
def timeout_factor() -> int:
    return 1


@pytest.fixture
def faultinjector() -> None:
    pytest.skip("needs Azure's fault injector, a proxy in Go that no registry has")


@pytest.fixture
def client_args() -> dict[str, object]:
    return {}


@pytest.fixture
def sleep() -> bool:
    return True


def _senders(hub: str) -> Iterator[list[Any]]:
    client = EventHubProducerClient(HOST, hub, _credential())
    with client:
        senders = [client._create_producer(partition_id=partition) for partition in client.get_partition_ids()]
        yield senders
        for sender in senders:
            sender.close()


@pytest.fixture
def auth_credential_senders(live_eventhub: dict[str, str]) -> Iterator[tuple[str, str, Any, list[Any]]]:
    for senders in _senders(live_eventhub["event_hub"]):
        yield HOST, live_eventhub["event_hub"], _credential, senders


@pytest.fixture
def auth_credential_senders_async(live_eventhub: dict[str, str]) -> Iterator[tuple[str, str, Any, list[Any]]]:
    for senders in _senders(live_eventhub["event_hub"]):
        yield HOST, live_eventhub["event_hub"], _credential_async, senders


@pytest.fixture
def fake_span() -> Any:
    return importlib.import_module("tracing_common").FakeSpan  # of the distribution


@pytest.fixture
def enable_tracing(fake_span: Any) -> Iterator[Any]:
    settings.tracing_implementation.set_value(fake_span)
    yield fake_span
    settings.tracing_implementation.set_value(None)


class Management:
    """Changes of a hub by Azure's management client: like the service's, each one detaches links."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self.event_hubs = self

    def get(self, _group: str, _namespace: str, _hub: str) -> Management:
        return self

    def as_dict(self) -> dict[str, int]:
        return {"message_retention_in_days": 1}

    def create_or_update(self, _group: str, _namespace: str, hub: str, _properties: dict[str, int]) -> None:
        self._emulator.detach(hub)


@pytest.fixture
def resource_mgmt_client(emulator: Emulator) -> Management:
    return Management(emulator)


@pytest.fixture(scope="session")
def storage() -> Iterator[str]:
    """The address of a storage account."""
    if problem := missing_requirement():
        pytest.skip(problem)
    with azurite() as address:
        yield f"{address}/{ACCOUNT}"


@pytest.fixture
def checkpoint_store(storage: str) -> BlobCheckpointStore:
    return BlobCheckpointStore(storage, f"checkpoints-{next(_names)}", credential=STORAGE_KEY)


@pytest.fixture
def checkpoint_store_aio(storage: str) -> BlobCheckpointStoreAsync:
    return BlobCheckpointStoreAsync(storage, f"checkpoints-{next(_names)}", credential=STORAGE_KEY)
