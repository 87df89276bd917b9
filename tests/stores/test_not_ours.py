"""Files that the lease table did not write are never removed, and no table is made among them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_ehbalance.consumer import DeltaCheckpointStore
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import StoreFormatError, StoreUnavailableError
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.stores.delta.folder import Folder
from tests.cli.command import Command
from tests.cli.conftest import ehbalance
from tests.cli.groups import HUB, connection, emulator, secrets
from tests.source.queries import Group as Queries
from tests.stores.foreign_files import NAMES, OLD, contents, put, write
from tests.stores.store_conformance import GROUP
from tests.stores.upkeep import assert_only_own_files_go, change

__all__ = ["connection", "ehbalance", "emulator", "secrets"]


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_day_of_upkeep_and_all_commands_leave_the_files_of_others_alone(
    tmp_path: Path, ehbalance: Command, connection: Sequence[str]
) -> None:
    def an_hour_passes() -> None:
        for path in tmp_path.rglob("*"):
            os.utime(path, (path.stat().st_mtime - 3600,) * 2)

    assert_only_own_files_go(Folder(str(tmp_path), {}), {}, ehbalance, connection, an_hour_passes)


@pytest.mark.parametrize("where", ["leases", "leases_history"])
@pytest.mark.parametrize("who", NAMES)
def test_no_table_is_made_among_files_of_others(tmp_path: Path, who: str, where: str) -> None:
    name = NAMES[who].format(id=OLD)
    write(Folder(str(tmp_path), {}), f"{where}/{name}", b"precious")
    with DeltaStore(str(tmp_path / "leases")) as store:
        with pytest.raises(StoreFormatError, match="files that are not a lease table's") as error:
            store.create(GROUP)
        assert f"{tmp_path / where} holds" in str(error.value)
        assert name in str(error.value)
        assert "\n" not in str(error.value)
    assert files_in(tmp_path) == {f"{where}/{name}": b"precious"}


def test_the_error_names_the_first_files_and_how_to_go_on(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(StoreFormatError) as error:
        DeltaStore(str(tmp_path)).create(GROUP)
    assert str(error.value) == (
        f"{tmp_path} holds files that are not a lease table's: 0.txt, 1.txt, 2.txt and more. Nothing was changed "
        "there: choose a leaseTable that does not exist yet, or whose folder is empty"
    )


def test_commands_consumers_and_queries_make_no_table_among_files_of_others(
    tmp_path: Path, ehbalance: Command, emulator: Emulator, connection: Sequence[str]
) -> None:
    table = tmp_path / "leases"
    put(Folder(str(tmp_path), {}), "leases/", OLD)
    before = files_in(tmp_path)
    problem = f"{table} holds files that are not a lease table's"
    for command in (["init", table, *connection], ["import-checkpoints", table, *connection, "--from", tmp_path]):
        outcome = ehbalance(*command)
        assert outcome.code != 0, command
    assert problem in ehbalance.fails(1, "init", table, *connection)
    checked = ehbalance("check", table, *connection)
    assert checked.code == 1
    assert problem in " ".join(checked.out.split())
    queries = Queries(emulator, tmp_path, 4)
    with pytest.raises(StoreFormatError, match=problem):
        queries.query("ann")
    store = DeltaCheckpointStore(str(table), connection_string=emulator.connection_string(HUB))
    whose = {"fully_qualified_namespace": f"localhost:{emulator.port}", "eventhub_name": HUB}
    with pytest.raises(StoreFormatError, match=problem):
        store.list_ownership(**whose, consumer_group="$Default")
    store.close()
    assert files_in(tmp_path) == before


def test_what_an_interrupted_creation_leaves_is_no_obstacle(tmp_path: Path) -> None:
    left = [f"lease-{OLD}.parquet", f"lease-{OLD}.parquet#1", "_delta_log/00000000000000000000.json#2"]
    for name in left:
        write(Folder(str(tmp_path), {}), f"leases/{name}", b"")
    with DeltaStore(str(tmp_path / "leases")) as store:
        store.create(GROUP)
        assert store.read().leases == {}


def foreign_delta_table(folder: Path) -> None:
    for number in range(3):
        write_deltalake(str(folder), pa.table({"x": [number]}), mode="append")


@pytest.mark.parametrize("damaged", [False, True])
def test_a_delta_table_of_others_stays_as_it_is(
    tmp_path: Path, ehbalance: Command, connection: Sequence[str], damaged: bool
) -> None:
    table = tmp_path / "flights"
    foreign_delta_table(table)
    if damaged:
        max((table / "_delta_log").glob("*.json")).write_text('{"commitInfo":{')
    before = files_in(tmp_path)
    for command in (["init", table, *connection], ["maintain", table], ["maintain", table, "--repair"]):
        assert ehbalance(*command).code == 1
    assert files_in(tmp_path) == before


def test_the_history_is_not_appended_to_a_table_of_others(tmp_path: Path) -> None:
    with DeltaStore(str(tmp_path / "leases")) as store:
        store.create(GROUP)
        foreign_delta_table(tmp_path / "leases_history")
        before = files_in(tmp_path / "leases_history")
        for done in (lambda: store.record([change(1)]), store.maintain):
            with pytest.raises(StoreUnavailableError, match="is another Delta table"):
                done()
        assert files_in(tmp_path / "leases_history") == before
    foreign_delta_table(tmp_path / "others_history")
    with pytest.raises(StoreFormatError, match="is another Delta table"):
        DeltaStore(str(tmp_path / "others")).create(GROUP)
    assert not (tmp_path / "others").exists()


def test_a_lease_table_that_spark_has_written_goes_on(tmp_path: Path) -> None:
    """What other engines have committed is read, and left to their VACUUM when it is replaced."""
    with DeltaStore(str(tmp_path / "leases")) as store:
        store.create(GROUP)
        store.write(store.read(), store.read())
        write_deltalake(
            str(tmp_path / "leases"), DeltaTable(str(tmp_path / "leases")).to_pyarrow_table(), mode="overwrite"
        )
        theirs = {name for name in files_in(tmp_path / "leases") if name.startswith("part-")}
        store.write(store.read(), store.read())
        store.maintain()
        assert theirs <= files_in(tmp_path / "leases").keys()


def test_a_hub_of_the_emulator_is_deleted_with_its_own_files_alone(tmp_path: Path) -> None:
    with Emulator({"flights": 2}, data_dir=tmp_path) as running:
        folder = Folder(str(tmp_path), {})
        files = {f"flights/{name}": b"precious" for name in ("notes.txt", "0/part-00000.parquet", "hub.json.bak")}
        for path, content in files.items():
            folder.write(path, content)
        running.delete_hub("flights")
        assert contents(folder, files) == files
        assert files_in(tmp_path).keys() - files.keys() <= {"lock"}
