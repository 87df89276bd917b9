"""Files are removed in bulk."""

from __future__ import annotations

from chaos.storage.azurite import storage_options
from chaos.storage.faults import Kind
from chaos.storage.proxy import StorageProxy
from spark_ehbalance.lease_table.delta.folder import Folder
from tests.azure_storage.tables import Table


def test_many_files_are_removed_with_few_requests(new_table: Table, proxy: StorageProxy) -> None:
    folder = Folder(new_table.location, storage_options(new_table.proxy))
    names = [f"_delta_log/{number:020}.json" for number in range(300)]
    for name in ["kept", *names]:
        folder.write(name, b"{}")
    with proxy.counted() as requests:
        folder.remove(["_delta_log/removed by others", *names])
    assert (requests[Kind.BATCH], requests.total()) == (2, 2), "256 in one"
    assert not folder.listed("_delta_log")
    assert [file.name for file in folder.listed()] == ["kept"]
