"""The credential that opens a lease table's storage; `tests/azure_storage/test_entra.py` uses real storage."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from spark_ehbalance.errors import OptionError, StoreUnavailableError
from spark_ehbalance.eventhub import credentials
from spark_ehbalance.eventhub.credentials import Identity
from spark_ehbalance.lease_table.delta.folder import Folder
from spark_ehbalance.lease_table.identity import StorageTokens, check_identity, for_delta_rs, split, with_identity
from spark_ehbalance.query.options import stream_options
from tests.raising import raises

TABLE = "abfss://c@account.dfs.core.windows.net/leases"
CONTAINER = "https://account.blob.core.windows.net/leases"
HUBS = Identity("managedIdentity", "an-id")
SECRET = "abc8Q~0123456789012345678901234567890"  # in the format of Entra ID
PLAIN = "tests.eventhub.callables:plain"


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    credentials.clear_cache()
    yield
    credentials.clear_cache()


@pytest.mark.parametrize("location", [TABLE, CONTAINER, "az://c/leases", "https://account.dfs.core.windows.net/c/l"])
def test_hubs_credential_opens_storage_in_azure(location: str) -> None:
    given = with_identity(location, {"account_name": "account"}, HUBS, {"AZURE_CLIENT_SECRET": "for all of Azure"})
    assert given == {"account_name": "account", "credential": "managedIdentity", "client_id": "an-id"}
    assert split(given) == (HUBS, {"account_name": "account"})


@pytest.mark.parametrize("location", ["/data/leases", "s3://bucket/leases", "gs://bucket/leases", "file:///data/l"])
def test_other_storage_does_not_receive_the_hubs_credential(location: str) -> None:
    assert with_identity(location, {}, HUBS, {}) == {}


KEYS = ("account_key", "AZURE_STORAGE_ACCOUNT_KEY", "azure_storage_sas_key", "sas_token", "connection_string")
IDENTITIES = ("client_id", "azure_client_secret", "use_azure_cli", "federated_token_file", "credential", "bearer_token")


@pytest.mark.parametrize("own", [*KEYS, *IDENTITIES])
def test_storages_own_credential_takes_precedence(own: str) -> None:
    assert with_identity(TABLE, {own: "x"}, HUBS, {}) == {own: "x"}


@pytest.mark.parametrize("variable", ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_KEY"])
def test_credential_in_the_environment_takes_precedence_over_the_hubs(variable: str) -> None:
    assert with_identity(TABLE, {}, HUBS, {variable: "x"}) == {}


@pytest.mark.parametrize("location", [TABLE, CONTAINER])
def test_querys_options_pass_the_credential_to_the_storage(location: str) -> None:
    hub = {"fullyQualifiedNamespace": "ns.servicebus.windows.net", "eventHubName": "hub", "leaseTable": location}
    by_hub = stream_options(hub | {"clientId": "an-id", "tenantId": "contoso.com", "clientSecret": SECRET})
    assert split(by_hub.storage_options) == (Identity("servicePrincipal", "an-id", "contoso.com", SECRET), {})
    assert SECRET not in repr(by_hub)
    own = {"storageOptions.credential": "azureCli", "storageOptions.tenant_id": "contoso.com"}
    assert stream_options(hub | own).storage_options == {"credential": "azureCli", "tenant_id": "contoso.com"}
    with pytest.raises(OptionError, match=r"\[EHB_OPTION_INVALID\] storageOptions\.credential='magic'"):
        stream_options(hub | {"storageOptions.credential": "magic"})


@pytest.mark.parametrize(
    ("location", "options", "named"),
    [
        (TABLE, {"credential": "magic"}, "[EHB_OPTION_INVALID] storageOptions.credential='magic'"),
        (
            TABLE,
            {"credential": "azureCli", "client_id": "x"},
            "NOT_APPLICABLE] storageOptions.client_id='x'",
        ),
        (TABLE, {"credential": "nowhere:make"}, "no module 'nowhere'"),
        (
            TABLE,
            {"credential": "default", "azure_storage_sas_key": "x"},
            "storageOptions.azure_storage_sas_key",
        ),
        ("/data/leases", {"credential": "default"}, "[EHB_OPTION_NOT_APPLICABLE] storageOptions.credential"),
        ("s3://bucket/leases", {"credential": PLAIN}, "[EHB_OPTION_NOT_APPLICABLE] storageOptions.credential"),
    ],
)
def test_error_for_an_invalid_credential_names_it(location: str, options: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError) as caught:
        check_identity(location, options)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_obstore_and_delta_rs_receive_the_current_token() -> None:
    tokens = StorageTokens(Identity(PLAIN))
    given = tokens()
    assert given["token"] == "token-1"
    assert given["expires_at"].timestamp() == pytest.approx(time.time() + 3600, abs=600)
    assert for_delta_rs({"credential": PLAIN, "account_name": "a"}) == {"account_name": "a", "bearer_token": "token-1"}


def test_storage_is_unavailable_without_a_token() -> None:
    folder = Folder(TABLE, {"credential": "tests.eventhub.callables:failing"}, "the lease table")
    reason = re.compile(r"RuntimeError \(text not shown")
    with raises(StoreUnavailableError, "EHB_LEASE_TABLE_UNAVAILABLE", reason=reason):
        folder.is_table()


def test_token_repeated_by_a_library_is_hidden() -> None:
    folder = Folder(TABLE, {"credential": PLAIN}, "the lease table")
    assert folder.delta_options()["bearer_token"] == "token-1"
    assert "token-1" not in str(folder.unavailable("read", ValueError("it is not understood: token-1")))
    assert "token-1" not in repr(vars(folder)["options"])
