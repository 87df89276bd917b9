"""The conformance suite for lease stores on Azure Storage, with four processes as contenders."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from chaos.storage.azurite import ACCOUNT, KEY, storage_options
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.azure_storage.tables import Table
from tests.lease_table.contenders import Opening
from tests.lease_table.contenders import processes as contenders
from tests.lease_table.store_conformance import ANN, BOB, LeaseTableConformance, filled

__all__ = ["contenders"]


class TestDeltaStoreOnAzureStorage(LeaseTableConformance):
    @pytest.fixture(autouse=True)
    def in_a_new_container(self, new_table: Table) -> None:
        self.table = new_table

    def opening(self, tmp_path: Path) -> Opening:
        return functools.partial(DeltaStore, self.table.location, storage_options(self.table.proxy))


@pytest.mark.parametrize("cloud", ["core.windows.net", "core.usgovcloudapi.net", "core.chinacloudapi.cn"])
def test_endpoint_option_overrides_the_server_of_any_cloud(new_table: Table, cloud: str) -> None:
    """For private endpoints: the address names the account, the option the server."""
    endpoint = {"allow_http": "true", "endpoint": f"{new_table.storage}/{ACCOUNT}", "account_key": KEY}
    with DeltaStore(f"abfss://{new_table.container}@{ACCOUNT}.dfs.{cloud}/leases", endpoint) as store:
        filled(store, ANN, BOB, owned=("0",))
        written = store.read().leases
    with new_table.undisturbed() as known:
        assert known.read().leases == written
