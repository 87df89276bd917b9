"""A storage whose clock is an hour off: nobody compares its clock with another one."""

from __future__ import annotations

import pytest

from chaos.storage.proxy import StorageProxy
from tests.azure_storage.tables import RENEWAL, Table
from tests.lease_table.store_conformance import committed


@pytest.mark.parametrize("hours", [-1.1, 1.1, -25, 25])
def test_the_table_is_read_written_and_tidied(table: Table, proxy: StorageProxy, hours: float) -> None:
    proxy.skew(hours * 3600)
    with table.opened() as store, table.opened() as other:
        before = table.renewals()
        for number in range(12):
            committed(store, RENEWAL)
            if number % 4 == 0:
                other.tidy()
            assert other.read().leases["0"].renewal == before + number + 1
        other.maintain()
        assert store.read() == other.read()
        committed(store, RENEWAL)
    assert table.renewals() == before + 13
