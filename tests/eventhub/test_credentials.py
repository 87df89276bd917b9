"""The option `credential`, with `clientId` and `tenantId`: accepted and rejected values, and their errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import azure.identity
import pytest

from chaos.tokens import ShortLived
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError, OptionError
from spark_ehbalance.eventhub import credentials
from spark_ehbalance.eventhub.client_errors import TransientError
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.credentials import CREDENTIALS, Identity
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver
from spark_ehbalance.eventhub.sender import Sender
from spark_ehbalance.eventhub.wire.sending_link import Deadline
from tests.eventhub import callables
from tests.raising import raises

HERE = "tests.eventhub.callables"
ID, TENANT = "5ce7f0ab-0000-4000-8000-1234567890ab", "contoso.onmicrosoft.com"
SECRET = "correct-battery"
PRINCIPAL = {"clientId": ID, "tenantId": TENANT, "clientSecret": SECRET}
HUB = {"fullyQualifiedNamespace": "ns.servicebus.windows.net", "eventHubName": "hub", "connectionString": None}


STRING = {
    "connectionString": "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=b;EntityPath=hub",
    "fullyQualifiedNamespace": None,
}


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    credentials.clear_cache()
    callables.MADE.clear()
    yield
    credentials.clear_cache()


# --- by name -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ids", "given"),
    [
        ("managedIdentity", {"clientId": ID}, {"client_id": ID}),
        ("workloadIdentity", {"clientId": ID, "tenantId": TENANT}, {"client_id": ID, "tenant_id": TENANT}),
        ("azureCli", {"tenantId": TENANT}, {"tenant_id": TENANT}),
        (
            "default",
            {"clientId": ID, "tenantId": TENANT},
            {
                "managed_identity_client_id": ID,
                "workload_identity_client_id": ID,
                "workload_identity_tenant_id": TENANT,
            },
        ),
        ("environment", {}, {}),
        ("servicePrincipal", PRINCIPAL, {"client_id": ID, "tenant_id": TENANT, "client_secret": SECRET}),
    ],
)
def test_azure_identity_credential_receives_its_ids(
    name: str, ids: dict[str, str], given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    kind = getattr(azure.identity, CREDENTIALS[name].name)

    class Noted(kind):  # type: ignore[misc,valid-type]
        def __init__(self, **settings: Any) -> None:
            made.append(settings)

        def get_token(self, *scopes: str, **_: Any) -> Any:
            return callables.Counting().get_token(*scopes)

    monkeypatch.setattr(azure.identity, CREDENTIALS[name].name, Noted)
    connection = Connection.from_options(HUB | {"credential": name.upper(), **ids})
    assert connection.identity is not None
    assert connection.identity.tokens().get_token("scope").token == "token-1"
    assert made == [given]


def test_azure_identity_accepts_the_arguments() -> None:
    """Some of its classes silently ignore unknown keywords."""
    for kind in CREDENTIALS.values():
        source = getattr(azure.identity, kind.name).__init__
        code = source.__code__
        known = {*code.co_varnames, *(const for const in code.co_consts if isinstance(const, str))}
        assert {*kind.client_id, *kind.tenant_id, *kind.client_secret} <= known, kind


UNUSABLE, INVALID, CONFLICT = "EHB_CREDENTIAL_UNUSABLE", "EHB_OPTION_INVALID", "EHB_OPTIONS_CONFLICT"
NOT_APPLICABLE, REQUIRED = "EHB_OPTION_NOT_APPLICABLE", "EHB_OPTION_REQUIRED"


@pytest.mark.parametrize(
    ("options", "condition", "named"),
    [
        (
            {"credential": "environment", "clientId": ID},
            NOT_APPLICABLE,
            [f"clientId='{ID}'", "credential=environment does not accept it"],
        ),
        (
            {"credential": "environment", "tenantId": TENANT},
            NOT_APPLICABLE,
            [f"tenantId='{TENANT}'", "workloadIdentity"],
        ),
        (
            {"credential": "managedIdentity", "tenantId": TENANT},
            NOT_APPLICABLE,
            ["tenantId", "credential=managedIdentity does not accept it"],
        ),
        ({"credential": "azureCli", "clientId": ID}, NOT_APPLICABLE, ["clientId", "managedIdentity", "callable"]),
        ({"clientId": "a b"}, INVALID, ["clientId", "'a b'", "letters, digits"]),
        (
            PRINCIPAL | {"credential": "azureCli"},
            CONFLICT,
            ["clientSecret and credential='azureCli'", "servicePrincipal"],
        ),
        (PRINCIPAL | {"credential": f"{HERE}:plain"}, CONFLICT, ["clientSecret and credential=", "servicePrincipal"]),
        (
            {"clientSecret": SECRET, "clientId": ID},
            REQUIRED,
            ["tenantId", "credential=servicePrincipal needs clientId, tenantId, clientSecret"],
        ),
        ({"credential": "servicePrincipal"}, REQUIRED, ["clientId", "clientId, tenantId, clientSecret"]),
        (
            PRINCIPAL | {"clientSecret": "file:/no/such/file"},
            "EHB_SECRET_UNAVAILABLE",
            ["clientSecret", "'file:/no/such/file'"],
        ),
        ({"credential": "magic"}, INVALID, ["credential", "'magic'", "azureCli", "package.module:callable"]),
        (
            {"credential": "no_such_module:make"},
            UNUSABLE,
            ["'no_such_module:make'", "ModuleNotFoundError: no module 'no_such_module'"],
        ),
        ({"credential": "tests.eventhub.exiting_import:make"}, UNUSABLE, ["SystemExit (text not shown"]),
        ({"credential": f"{HERE}:missing"}, UNUSABLE, ["raised AttributeError"]),
        ({"credential": f"{HERE}:NOT_CALLABLE"}, UNUSABLE, ["raised TypeError"]),
        ({"credential": f"{HERE}:returns_a_token"}, UNUSABLE, ["returned a str", "TokenCredential"]),
        ({"credential": f"{HERE}:Asynchronous"}, UNUSABLE, ["returned a Asynchronous", "azure.identity.aio"]),
        ({"credential": f"{HERE}:without_a_token_yet"}, UNUSABLE, ["raised RuntimeError (text not shown"]),
        ({"credential": f"{HERE}:raises"}, UNUSABLE, ["raised RuntimeError (text not shown"]),
        ({"credential": "a b:c"}, INVALID, ["credential", "'a b:c'", "package.module:callable"]),
        ({"credential": "os:"}, INVALID, ["package.module:callable"]),
        (STRING | {"credential": "default"}, CONFLICT, ["connectionString and credential"]),
        (STRING | {"clientId": ID}, CONFLICT, ["connectionString and clientId"]),
        (STRING | {"tenantId": TENANT}, CONFLICT, ["connectionString and tenantId"]),
        (STRING | {"clientSecret": SECRET}, CONFLICT, ["connectionString and clientSecret"]),
    ],
)
def test_unusable_credential_is_rejected(options: dict[str, str | None], condition: str, named: list[str]) -> None:
    with raises(OptionError, condition) as caught:
        Connection.from_options(HUB | options)
    message = str(caught.value)
    for part in named:
        assert part in "\n".join(map(str, caught.value.parameters.values()))
    for hidden in ("\n", callables.SECRET, SECRET, "correct-horse"):
        assert hidden not in message
    assert caught.value.__cause__ is None


# --- callables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ids", "made"),
    [
        ("plain", {}, {}),
        ("Holder.inner", {}, {}),
        ("with_ids", {"clientId": ID}, {"client_id": ID, "tenant_id": None}),
        ("with_all", {"clientId": ID, "tenantId": TENANT}, {"client_id": ID, "tenant_id": TENANT}),
        ("Counting", {}, None),
    ],
)
def test_callable_is_called_once_per_process(name: str, ids: dict[str, str], made: dict[str, str] | None) -> None:
    options = HUB | {"credential": f"{HERE}:{name}", **ids}
    identity = Connection.from_options(options).identity
    assert identity is not None
    assert identity.tokens().get_token("scope").token == "token-1"
    again = Connection.from_options(options).identity
    assert again is not None
    assert again.tokens().get_token("scope").token == "token-1"
    assert ([] if made is None else [made]) == callables.MADE


def test_credential_without_a_token_is_a_single_line_error(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.add_hub("hub", 1)
    connection = ShortLived(f"localhost:{emulator.port}", "hub", Identity(f"{HERE}:failing"))
    with HubMetadata(connection, "$Default") as metadata, pytest.raises(HubUnavailableError) as listed:
        metadata.partition_ids()
    with pytest.raises(TransientError) as opened:
        Receiver(PartitionAddress(connection, "$Default", "0"), 0, owner_level=None, prefetch=1).receive(1, 0.1)
    monkeypatch.setattr(Connection, "producer_client", partialmethod(Connection.producer_client, use_tls=False))
    with pytest.raises(TransientError) as sent:
        Sender(connection, "0").most_bytes(Deadline(60.0))
    for error in (listed, opened, sent):
        assert "No token could be fetched: RuntimeError (text not shown" in str(error.value)


def test_missing_module_fails_immediately_in_a_worker(emulator: Emulator) -> None:
    emulator.add_hub("hub", 1)
    connection = ShortLived(f"localhost:{emulator.port}", "hub", Identity("only_on_the_driver:make"))
    reason = re.compile("no module 'only_on_the_driver'")
    with raises(OptionError, "EHB_CREDENTIAL_UNUSABLE", reason=reason):
        Receiver(PartitionAddress(connection, "$Default", "0"), 0, owner_level=None, prefetch=1).receive(1, 0.1)


def test_client_secret_implies_a_service_principal(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    identity = Connection.from_options(HUB | PRINCIPAL | {"clientSecret": f"file:{tmp_path}/secret"}).identity
    assert identity == Identity("servicePrincipal", ID, TENANT, SECRET)
    assert SECRET not in repr((identity, vars(Connection("ns.net", "hub", identity))))
