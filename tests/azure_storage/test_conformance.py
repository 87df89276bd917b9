"""What every lease store must do, on Azure Storage; contenders are four processes."""

from __future__ import annotations

import functools
from concurrent.futures import Executor
from pathlib import Path

import pytest

from chaos.storage.azurite import storage_options
from spark_ehbalance.lease_table.delta import DeltaStore
from tests.azure_storage.tables import Table
from tests.lease_table.contenders import Opening, processes
from tests.lease_table.store_conformance import LeaseTableConformance


class TestDeltaStoreOnAzureStorage(LeaseTableConformance):
    @pytest.fixture(autouse=True)
    def in_a_new_container(self, new_table: Table) -> None:
        self.table = new_table

    def opening(self, tmp_path: Path) -> Opening:
        return functools.partial(DeltaStore, self.table.location, storage_options(self.table.proxy))

    def contenders(self, count: int) -> Executor:
        return processes(count)
