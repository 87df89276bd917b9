"""Containers and Delta tables opened with an Entra ID credential."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator

import pytest

from chaos import tokens
from chaos.storage.azurite import ACCOUNT, azurite, make_container, token_options
from chaos.tokens import IdentityEndpoint
from spark_ehbalance.emulator.certificates import issue_certificate
from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.eventhub import credentials
from spark_ehbalance.lease_table.blob.store import BlobStore
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.azure_storage.conftest import require_azurite
from tests.azure_storage.tables import RENEWAL
from tests.lease_table.delta_tables import assert_one_line_with, change
from tests.lease_table.store_conformance import ANN, GROUP, claim, committed, filled
from tests.ops.command import Command
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Azurite server with TLS and the container `tables`."""
    require_azurite()
    certificate = issue_certificate(tmp_path_factory.mktemp("certificate"))
    with pytest.MonkeyPatch.context() as patch, azurite(certificate.server_file) as started:
        patch.setenv("REQUESTS_CA_BUNDLE", str(certificate.ca_file))
        address = started.replace("127.0.0.1", "localhost")  # the certificate's name
        make_container(address, "tables", certificate.ca_file)
        yield address


@pytest.fixture
def container(storage: str) -> str:
    """The address of a container that does not exist yet."""
    return f"{storage}/{ACCOUNT}/leases"


@pytest.fixture(autouse=True)
def no_tokens_left() -> Iterator[None]:
    credentials.clear_cache()
    yield
    credentials.clear_cache()


@contextlib.contextmanager
def identities(patch: pytest.MonkeyPatch, **lives: float) -> Iterator[IdentityEndpoint]:
    """A managed identity endpoint that this process detects."""
    with IdentityEndpoint(**lives) as endpoint:
        for name, value in endpoint.environment.items():
            patch.setenv(name, value)
        yield endpoint


def test_group_is_stored_and_displayed_with_a_token(
    container: str, ehbalance: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with identities(monkeypatch, life=3600.0) as endpoint:
        with BlobStore(container, group=GROUP) as store:
            filled(store, ANN)
            committed(store, claim(ANN, "0"))
        assert endpoint.issued == 1
        assert ANN.id in ehbalance("status", container).out
        for name in ("default", "managedIdentity"):
            ehbalance.succeeds("status", container, "--storage-option", f"credential={name}")


# --- a Delta table -----------------------------------------------------------------------------------------------

#: The lifetime of a token in seconds; shorter ones conflict with the resolution of whole seconds.
LIFE = 4.0


def table_options(storage: str, **more: str) -> dict[str, str]:
    return token_options(storage) | {"credential": "chaos.tokens:short_tokens"} | more


def fresh_table() -> str:
    return f"az://tables/{uuid.uuid4().hex}"


def test_table_outlives_its_tokens(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tokens.LIFE, str(LIFE))
    before, renewals = time.monotonic(), 0
    with DeltaStore(fresh_table(), table_options(storage)) as store:
        filled(store, ANN, owned=("0",))
        while time.monotonic() - before < 1.5 * LIFE:
            committed(store, RENEWAL)
            renewals += 1
            if renewals % 5 == 0:  # it would make the log longer
                store.record([change(renewals)])
                store.tidy()
        store.maintain()
        assert store.read().leases["0"].renewal >= renewals
        assert len(store.history()) == renewals // 5


def test_rejected_token_is_replaced(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens become invalid early; obstore, the credential and the process would otherwise use them for an hour."""
    options = table_options(storage, credential="managedIdentity")
    with (
        identities(monkeypatch, life=LIFE, stated=3600.0) as endpoint,
        DeltaStore(fresh_table(), options) as store,
    ):
        store.create(GROUP)
        wait_until(lambda: reads(store) and endpoint.issued == 2, "the token has ended, and a new one was fetched")


def reads(store: DeltaStore) -> bool:
    try:
        return store.read().group == GROUP
    except StoreUnavailableError:
        return False


def test_error_of_a_table_contains_no_token(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    location, options = "az://missing/leases", table_options(storage, credential="managedIdentity")
    with identities(monkeypatch, life=3600.0), DeltaStore(location, options) as store:
        with pytest.raises(StoreUnavailableError) as error:
            store.create(GROUP)
        assert "eyJ" not in f"{error.value} {error.value.__cause__} {store!r}"
        assert_one_line_with(location, error)
