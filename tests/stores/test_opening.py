"""The scheme of a location picks the backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ehbalance.errors import OptionError, StoreUnavailableError
from spark_ehbalance.stores.blob import BlobStore
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.stores.opening import keeps_all, open_store
from spark_ehbalance.stores.opening import location as parse
from tests.stores.store_conformance import GROUP


@pytest.mark.parametrize("location", ["memory://x", "C:/leases", ":x", "catalog.schema:table"])
def test_an_unknown_scheme_is_refused_in_one_line_that_names_the_known_ones(location: str) -> None:
    with pytest.raises(OptionError) as error:
        open_store(location)
    assert f"{location} cannot be opened: allowed is a path, or an address that begins with file://" in str(error.value)
    assert "s3://" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("location", ["/x/y", "s3://bucket/x", "abfss://c@a.b/x", "gs://host/x"])
def test_paths_and_the_addresses_of_storages_are_delta_tables(location: str) -> None:
    with open_store(location) as store:
        assert isinstance(store, DeltaStore)


def test_opening_creates_nothing(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "leases")) as store:
        assert not list(tmp_path.iterdir())
        assert not store.exists()
        with pytest.raises(StoreUnavailableError, match="no lease table"):
            store.read()
        store.create(GROUP)
        assert store.read().group == GROUP
        assert store.history() == []


@pytest.mark.parametrize(
    "location",
    [
        "https://account.blob.core.windows.net/container",
        "https://Account.blob.core.windows.net/container/",
        "https://account.blob.core.chinacloudapi.cn/container",
        "http://127.0.0.1:10000/devstoreaccount1/container",
    ],
)
def test_the_address_of_a_container_alone_is_the_processors_store(location: str) -> None:
    with open_store(location, {"account_key": "a2V5"}) as store:
        assert isinstance(store, BlobStore)
    assert not keeps_all(location)


@pytest.mark.parametrize(
    "location", ["https://account.blob.core.windows.net/container/leases", "az://container/leases"]
)
def test_a_folder_in_a_container_stays_a_delta_table(location: str) -> None:
    assert keeps_all(location)


def test_a_container_has_one_spelling() -> None:
    assert (
        parse("HTTPS://Account.blob.core.windows.net/Container/") == "https://account.blob.core.windows.net/container"
    )
