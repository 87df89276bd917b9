"""A location's scheme selects the backend."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_ehbalance.errors import OptionError, StoreUnavailableError
from spark_ehbalance.lease_table.backends import canonical_location as parse
from spark_ehbalance.lease_table.backends import capabilities, open_store
from spark_ehbalance.lease_table.blob.store import BlobStore
from spark_ehbalance.lease_table.contract import LeaseStore
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.lease_table.store_conformance import GROUP
from tests.raising import raises


def test_error_for_an_unknown_scheme_lists_the_supported_ones() -> None:
    allowed = re.compile("^a path, or an address that begins with file://.*s3://")
    with raises(OptionError, "EHB_OPTION_INVALID", value="'memory://x'", allowed=allowed) as caught:
        open_store("memory://x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "backend"),
    [
        *(
            (location, DeltaStore)
            for location in ("/x/y", "s3://bucket/x", "abfss://c@a.b/x", "gs://host/x", "az://c/leases")
        ),
        ("https://account.blob.core.windows.net/container/leases", DeltaStore),
        ("https://account.blob.core.windows.net/container", BlobStore),
        ("https://Account.blob.core.windows.net/container/", BlobStore),
        ("https://account.blob.core.chinacloudapi.cn/container", BlobStore),
        ("https://account.z12.blob.storage.azure.net/container", BlobStore),
        ("https://account.z12.blob.storage.azure.net/container/leases", DeltaStore),
        ("http://127.0.0.1:10000/devstoreaccount1/container", BlobStore),
    ],
)
def test_container_address_selects_the_blob_store(location: str, backend: type[LeaseStore]) -> None:
    with open_store(location, {"account_key": "a2V5"}) as store:
        assert isinstance(store, backend)
    assert capabilities(location) is backend.capabilities


def test_opening_creates_nothing(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "leases")) as store:
        assert not list(tmp_path.iterdir())
        assert not store.exists()
        with raises(StoreUnavailableError, "EHB_LEASE_TABLE_MISSING", location=str(tmp_path / "leases")):
            store.read()
        store.create(GROUP)
        assert store.read().group == GROUP
        assert store.history() == []


def test_container_has_one_canonical_form() -> None:
    spelled = parse("HTTPS://Account.blob.core.windows.net/Container/")
    assert spelled == "https://account.blob.core.windows.net/container"
