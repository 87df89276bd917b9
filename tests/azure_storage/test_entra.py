"""A container that is opened with a credential of Entra ID, as `DefaultAzureCredential` finds it on an App Service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.storage.azurite import ACCOUNT, azurite
from chaos.tokens import IdentityEndpoint
from spark_ehbalance.emulator.certificates import make
from spark_ehbalance.leases.transitions import AddPartitions, Join
from spark_ehbalance.stores.base import commit
from spark_ehbalance.stores.blob import BlobStore
from spark_ehbalance.values.position import Position
from tests.azure_storage.conftest import require_azurite
from tests.cli.command import Command
from tests.stores.store_conformance import ANN, GROUP, claim


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a container, which is not there yet, in an Azurite with TLS."""
    require_azurite()
    certificate = make(tmp_path_factory.mktemp("certificate"))
    with pytest.MonkeyPatch.context() as patch, azurite(certificate.server_file) as address:
        patch.setenv("REQUESTS_CA_BUNDLE", str(certificate.ca_file))
        yield f"{address.replace('127.0.0.1', 'localhost')}/{ACCOUNT}/leases"  # the certificate's name


def test_a_group_is_kept_and_shown_with_a_token(
    container: str, ehbalance: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with IdentityEndpoint(life=3600.0) as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        with BlobStore(container, group=GROUP) as store:
            store.create(GROUP)
            add = AddPartitions(by=ANN, at_ms=1, partitions=("0",), checkpoint=Position(-1))
            for orders in ([Join(by=ANN, at_ms=1), add], [claim(ANN, "0")]):
                assert not commit(store, store.read(), orders).refused
        assert endpoint.issued == 1
        assert ANN.id in ehbalance("status", container).out
        for name in ("default", "managedIdentity"):
            done = ehbalance("status", container, "--storage-option", f"credential={name}")
            assert (done.code, done.err) == (0, "")


def test_without_a_token_the_error_is_one_line(container: str, ehbalance: Command) -> None:
    error = ehbalance.fails(1, "status", container, "--storage-option", "credential=environment")
    assert f"the container at {container} could not be read: " in error
