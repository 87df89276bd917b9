"""Files that the lease table did not write are never removed, and no table is created among them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_ehbalance.consumers import DeltaCheckpointStore
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import StoreError, StoreFormatError, StoreReplacedError, StoreUnavailableError
from spark_ehbalance.lease_table.delta.folder import Folder
from spark_ehbalance.lease_table.delta.history import HISTORY_SCHEMA
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.lease_table.delta_tables import change
from tests.lease_table.foreign_files import OLD, put, write
from tests.lease_table.store_conformance import GROUP
from tests.lease_table.upkeep import assert_only_own_files_go
from tests.ops.command import Command
from tests.ops.conftest import connection, emulator, secrets
from tests.ops.groups import HUB
from tests.query.queries import Group as Queries
from tests.raising import raises

__all__ = ["connection", "emulator", "secrets"]

FOREIGN = "EHB_LEASE_TABLE_FOREIGN"


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextlib.contextmanager
def refused(error: type[StoreError], condition: str, unchanged: Path, **parameters: object) -> Iterator[None]:
    """Expect the error, and that no file in the folder `unchanged` changes."""
    before = files_in(unchanged)
    with raises(error, condition, **parameters) as caught:
        yield
    assert "\n" not in str(caught.value)
    assert files_in(unchanged) == before


def hours_pass(folder: Path, hours: int = 1) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (path.stat().st_mtime - 3600 * hours,) * 2)


def foreign_delta_table(folder: Path) -> None:
    for number in range(5):
        write_deltalake(folder, pa.table({"x": [number]}), mode="append")


def test_maintenance_and_commands_keep_foreign_files(
    tmp_path: Path, ehbalance: Command, connection: Sequence[str]
) -> None:
    assert_only_own_files_go(Folder(str(tmp_path), {}), {}, ehbalance, connection, lambda: hours_pass(tmp_path))


def test_no_table_is_created_among_foreign_files(
    tmp_path: Path, ehbalance: Command, emulator: Emulator, connection: Sequence[str]
) -> None:
    table = tmp_path / "leases"
    put(Folder(str(tmp_path), {}), "leases/", OLD)
    before = files_in(tmp_path)
    problem = re.compile("^it contains other files: ")
    (tmp_path / "p.json").write_text('{"*": "earliest"}')
    for given in ((), ("--positions", tmp_path / "p.json")):
        assert f"[{FOREIGN}] {table} " in ehbalance.fails(1, "init", table, *connection, *given)
    (tmp_path / "p.json").unlink()
    with raises(StoreFormatError, FOREIGN, location=str(table), problem=problem):
        Queries(emulator, tmp_path, 4).query("ann")
    store = DeltaCheckpointStore({"leaseTable": str(table), "connectionString": emulator.connection_string(HUB)})
    whose = {"fully_qualified_namespace": f"localhost:{emulator.port}", "eventhub_name": HUB}
    with raises(StoreFormatError, FOREIGN, location=str(table), problem=problem):
        store.list_ownership(**whose, consumer_group="$Default")
    store.close()
    assert files_in(tmp_path) == before


def test_table_is_created_after_an_interrupted_creation(tmp_path: Path) -> None:
    left = [f"lease-{OLD}.parquet", f"lease-{OLD}.parquet#1", "_delta_log/00000000000000000000.json#2"]
    for name in left:
        write(Folder(str(tmp_path), {}), f"leases/{name}", b"")
    with DeltaStore(str(tmp_path / "leases")) as store:
        store.create(GROUP)
        assert store.read().leases == {}


@pytest.mark.parametrize("damaged", [False, True])
def test_foreign_delta_table_is_unchanged(
    tmp_path: Path, ehbalance: Command, connection: Sequence[str], damaged: bool
) -> None:
    table = tmp_path / "flights"
    foreign_delta_table(table)
    if damaged:
        max((table / "_delta_log").glob("*.json")).write_text('{"commitInfo":{')
    before = files_in(tmp_path)
    for command in (["init", table, *connection], ["maintain", table]):
        assert ehbalance(*command).code == 1
    assert files_in(tmp_path) == before


def with_the_columns_of_the_history(folder: Path) -> None:
    rows = pa.table({name: pa.nulls(1, HISTORY_SCHEMA.field(name).type) for name in HISTORY_SCHEMA.names})
    write_deltalake(folder, rows.append_column("team", pa.array(["a"])), name="audit")


@pytest.mark.parametrize("make", [foreign_delta_table, with_the_columns_of_the_history])
def test_foreign_table_is_not_used_as_the_history(tmp_path: Path, make: Callable[[Path], None]) -> None:
    place, reason = tmp_path / "leases_history", "it is a Delta table of another program"
    with DeltaStore(str(tmp_path / "leases")) as store:
        store.create(GROUP)
        store.record([change(1)])
        place.rename(tmp_path / "moved")
        make(place)
        for done in (lambda: store.record([change(2)]), store.maintain):
            with refused(StoreUnavailableError, "EHB_LEASE_TABLE_UNAVAILABLE", place, reason=reason):
                done()


@pytest.mark.parametrize("below", ["leases", "some/leases", "_delta_log/leases"])
def test_no_lease_table_is_created_inside_another_delta_table(tmp_path: Path, below: str) -> None:
    target = tmp_path / "target"
    foreign_delta_table(target)
    problem = re.compile(f"in the folder of the Delta table {target},")
    with refused(StoreFormatError, FOREIGN, tmp_path, problem=problem):
        DeltaStore(str(target / below)).create(GROUP)


def test_commits_of_other_engines_are_kept(uri: str, mine: DeltaStore) -> None:
    mine.read()
    write_deltalake(uri, DeltaTable(uri).to_pyarrow_table(), mode="overwrite")
    with refused(StoreReplacedError, "EHB_LEASE_TABLE_ROLLED_BACK", Path(uri), problem=re.compile("foreign commit")):
        mine.maintain()
