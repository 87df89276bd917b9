"""Files that the lease table did not write are never removed, and no table is made among them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_ehbalance.consumer import DeltaCheckpointStore
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import StoreFormatError, StoreUnavailableError
from spark_ehbalance.leases.transitions import AddPartitions, Join, Transition
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.stores.delta.folder import Folder
from spark_ehbalance.stores.delta.log import actions_of, lines
from spark_ehbalance.stores.delta.table_format import HISTORY_SCHEMA
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import Position
from tests.cli.command import Command
from tests.cli.conftest import ehbalance
from tests.cli.groups import HUB, connection, emulator, secrets
from tests.source.queries import Group as Queries
from tests.stores.foreign_files import NAMES, OLD, contents, put, write
from tests.stores.store_conformance import ANN, GROUP, committed
from tests.stores.upkeep import assert_only_own_files_go, change

__all__ = ["connection", "ehbalance", "emulator", "secrets"]


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def two_partitions(next: int = 100, count: int = 2) -> list[Transition]:
    partitions = tuple(map(str, range(count)))
    at = Position.before(next)
    return [Join(by=ANN, at_ms=1), AddPartitions(by=ANN, at_ms=1, partitions=partitions, checkpoint=at)]


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


def test_upkeep_leaves_a_table_alone_that_was_put_in_the_place_of_the_leases(tmp_path: Path) -> None:
    """While the leader goes on: its upkeep may come before its next look."""
    place, mine = tmp_path / "leases", DeltaStore(str(tmp_path / "leases"))
    mine.create(GROUP)
    mine.read()
    place.rename(tmp_path / "moved")
    for number in range(8):
        write_deltalake(place, pa.table({"customer": [number]}), mode="append")
    for path in place.rglob("*"):
        os.utime(path, (path.stat().st_mtime - 3 * 24 * 3600,) * 2)
    before = files_in(place)
    with pytest.raises(StoreFormatError, match="another table in the place of the lease table"):
        mine.tidy()
    assert files_in(place) == before


def test_the_history_goes_into_no_table_that_was_put_in_its_place(tmp_path: Path) -> None:
    place, store = tmp_path / "leases_history", DeltaStore(str(tmp_path / "leases"))
    store.create(GROUP)
    for number in range(3):
        store.record([change(number)])
    place.rename(tmp_path / "moved")
    for number in range(5):
        write_deltalake(place, pa.table({"customer": [number]}), mode="append")
    before = files_in(place)
    with pytest.raises(StoreUnavailableError, match="is another Delta table"):
        store.record([change(4)])
    assert files_in(place) == before


def test_a_table_of_others_with_the_columns_of_the_history_is_none(tmp_path: Path) -> None:
    place = tmp_path / "leases_history"
    rows = pa.table({name: pa.nulls(1, HISTORY_SCHEMA.field(name).type) for name in HISTORY_SCHEMA.names})
    for _ in range(3):
        write_deltalake(place, rows.append_column("team", pa.array(["a"])), mode="overwrite", name="audit")
    before = files_in(place)
    with DeltaStore(str(tmp_path / "leases")) as store:
        with pytest.raises(StoreFormatError, match="is another Delta table"):
            store.create(GROUP)
        with pytest.raises(StoreUnavailableError, match="is another Delta table"):
            store.record([change(1)])
    assert files_in(place) == before


def test_a_history_is_kept_for_as_long_as_somebody_has_set(tmp_path: Path) -> None:
    with DeltaStore(str(tmp_path / "leases")) as store:
        store.create(GROUP)
        for number in range(4):
            store.record([change(number)])
        history = DeltaTable(tmp_path / "leases_history")
        history.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 365 days"})
        for path in (tmp_path / "leases_history").glob("*.parquet"):
            os.utime(path, (path.stat().st_mtime - 2 * 3600,) * 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("spark_ehbalance.stores.delta.history._KEPT_HOURS", 0)
            store.maintain()
    old = DeltaTable(tmp_path / "leases_history", version=4)
    assert old.to_pyarrow_table().num_rows == 4


def test_no_table_is_made_of_what_is_left_of_another_group_s(tmp_path: Path) -> None:
    """A repair would give the new table the positions of the other hub."""
    place, other = tmp_path / "leases", Group("ns", "invoices", "$default")
    with DeltaStore(str(place)) as store:
        store.create(GROUP)
        committed(store, *two_partitions())
    shutil.rmtree(place / "_delta_log")
    before = files_in(place)
    with pytest.raises(StoreFormatError, match=r"lease-\S+ of a lease table whose log is gone, of another group"):
        DeltaStore(str(place)).create(other)
    assert files_in(place) == before
    DeltaStore(str(place)).create(GROUP)  # its own group may go on


def test_a_commit_of_spark_s_that_sets_a_mark_alone_is_sound() -> None:
    metrics = {"numFiles": "0", "numOutputRows": "0", "numOutputBytes": "0"}
    information = {"operation": "WRITE", "operationParameters": {"mode": "Append"}, "operationMetrics": metrics}
    actions = [{"commitInfo": information}, {"txn": {"appId": "nightly", "version": 7}}]
    assert actions_of(lines(actions)) == actions
    metrics["numFiles"] = "1"
    with pytest.raises(ValueError, match="is cut off"):
        actions_of(lines(actions))


def test_a_repair_takes_nothing_of_another_group(tmp_path: Path) -> None:
    tables = {name: tmp_path / name for name in ("flights", "invoices")}
    for name, place in tables.items():
        with DeltaStore(str(place)) as store:
            store.create(Group("ns", name, "$default"))
            committed(store, *two_partitions(100 if name == "flights" else 5, count=3 if name == "flights" else 2))
    for file in tables["flights"].glob("*.parquet"):
        shutil.copy(file, tables["invoices"])
    with DeltaStore(str(tables["invoices"])) as store:
        assert store.repair().problems == ()
        newest = max((tables["invoices"] / "_delta_log").glob("*.json"))
        newest.write_bytes(newest.read_bytes()[:50])
        store.repair()
        found = store.read().leases
        assert {p: each.checkpoint and each.checkpoint.next for p, each in found.items()} == {"0": 5, "1": 5}


@pytest.mark.parametrize("content", [b"", b"{"])
def test_a_repair_changes_no_table_of_others(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "table"
    for number in range(4):
        write_deltalake(place, pa.table({"customer": [number]}), mode="append")
    (place / f"lease-{OLD}.parquet").write_text("a scan of a rental contract")
    (place / "_delta_log" / f"{2:020}.json").write_bytes(content)
    before = files_in(tmp_path)
    with DeltaStore(str(place)) as store, pytest.raises(StoreFormatError, match="a lease table"):
        store.repair()
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("below", ["leases", "some/leases", "_delta_log/leases"])
def test_no_table_is_made_in_the_folder_of_a_delta_table(tmp_path: Path, below: str) -> None:
    """Whose VACUUM would remove it."""
    target = tmp_path / "target"
    write_deltalake(target, pa.table({"customer": [1]}))
    before = files_in(tmp_path)
    with pytest.raises(StoreFormatError, match=f"lies in the folder of the Delta table at {target}, whose VACUUM"):
        DeltaStore(str(target / below)).create(GROUP)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("name", ["0/2024-11.log", "hub.tmp", "notes.txt", "0/00-00.log"])
def test_the_emulator_makes_no_hub_among_files_of_others(tmp_path: Path, name: str) -> None:
    file = tmp_path / "data" / "flights" / name
    file.parent.mkdir(parents=True)
    file.write_text("the only copy of November's log")
    before = files_in(tmp_path)
    with (
        pytest.raises(OSError, match="holds files that are no event hub's"),
        Emulator({"flights": 2}, data_dir=tmp_path / "data"),
    ):
        pass
    assert file.read_text() == before[str(file.relative_to(tmp_path))].decode()


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
