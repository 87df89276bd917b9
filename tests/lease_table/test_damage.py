"""A lease table that was changed or replaced by others or damaged by a crash is either read or rejected."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from spark_ehbalance.errors import (
    ConflictError,
    StoreDamagedError,
    StoreError,
    StoreReplacedError,
    StoreUnavailableError,
)
from spark_ehbalance.group.changes import Checkpoint, Heartbeat, Join
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.lease_table.delta.table_format import SCHEMA, encode
from tests.lease_table.delta_tables import age_all
from tests.lease_table.store_conformance import ANN, committed, filled
from tests.raising import raises

Change = Callable[[Path], object]
Rows = list[dict[str, Any]]

COMMITS = 25

#: The commit after which the leader ran maintenance, which writes a checkpoint of the log.
TIDIED = (8, 18)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """ann's lease table with two partitions, the first checkpointed at sequence number 24."""
    with DeltaStore(str(tmp_path / "leases")) as store:
        filled(store, ANN, owned=("0", "1"))
        for number in range(COMMITS):
            committed(store, Checkpoint(by=ANN, at_ms=1, partition="0", epoch=1, position=Position(number)))
            if number in TIDIED:
                store.tidy()
    return tmp_path / "leases"


def read(table: Path) -> Snapshot:
    with DeltaStore(str(table)) as store:
        return store.read()


def newest_log(table: Path) -> Path:
    return newest(table, "*.json")


def newest(table: Path, files: str = "*.checkpoint.parquet") -> Path:
    return max((table / "_delta_log").glob(files))


def newest_data(table: Path) -> Path:
    actions = map(json.loads, newest_log(table).read_text().splitlines())
    return next(table / action["add"]["path"] for action in actions if "add" in action)


def cut(file: Path, length: int) -> None:
    file.write_bytes(file.read_bytes()[:length])


def cut_lines(file: Path, kept: int) -> None:
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:kept]))


def write_next_log_file(table: Path, content: str = '{"commitInfo":{') -> None:
    (table / "_delta_log" / f"{int(newest_log(table).stem) + 1:020}.json").write_text(content)


def protocol(writer: list[str], reader: list[str]) -> Change:
    """Another engine enables these features."""
    reads: dict[str, Any] = {"minReaderVersion": 3, "readerFeatures": reader} if reader else {"minReaderVersion": 1}
    action = {"protocol": {**reads, "minWriterVersion": 7, "writerFeatures": writer}}
    return lambda table: write_next_log_file(table, json.dumps(action))


def with_metadata(*without: str, **values: object) -> Change:
    """Another engine changes the table's metadata to these values and removes the properties `without`."""

    def write(table: Path) -> None:
        found = DeltaTable(table).metadata()
        properties = {name: value for name, value in found.configuration.items() if name not in without}
        creation = map(json.loads, (table / "_delta_log" / f"{0:020}.json").read_text().splitlines())
        metadata = next(action["metaData"] for action in creation if "metaData" in action)
        write_next_log_file(table, json.dumps({"metaData": metadata | {"configuration": properties} | values}))

    return write


def with_rows(change: Callable[[Rows], Rows]) -> Change:
    """Change the rows in the newest data file without a commit."""

    def write(table: Path) -> None:
        file = newest_data(table)
        file.write_bytes(encode(pa.Table.from_pylist(change(pq.read_table(file).to_pylist()), schema=SCHEMA)))

    return write


def with_values(rows_of: str, **values: object) -> Change:
    """Change values in the rows of this kind without a commit."""
    return with_rows(lambda rows: [row | values if row["kind"] == rows_of else row for row in rows])


def rewritten(change: Callable[[pa.Table], pa.Table], mode: str = "overwrite") -> Change:
    """A foreign program rewrites the table with arbitrary columns."""

    def write(table: Path) -> None:
        rows = change(DeltaTable(table).to_pyarrow_table())
        write_deltalake(table, rows, mode=mode, schema_mode="overwrite" if mode == "overwrite" else "merge")  # type: ignore[call-overload]

    return write


def vacuumed(table: Path, times: int = 1) -> None:
    """Run VACUUM `times` times; each run adds two commits without rows."""
    version = DeltaTable(table).version()
    for _ in range(times):
        DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert DeltaTable(table).version() == version + 2 * times


#: Properties that tables created by older versions do not have.
NEW_PROPERTIES = ("delta.enableExpiredLogCleanup", "ehbalance.group")


def with_statistics(path: str | None = None) -> Change:
    """Another engine adds statistics to the newest data file, or adds the file at `path`."""

    def write(table: Path) -> None:
        action = json.loads(newest_log(table).read_text().splitlines()[-1])
        action["add"] |= {"dataChange": False, "stats": '{"numRecords":4,"nullCount":{}}'} | (
            {"path": path} if path else {}
        )
        write_next_log_file(table, f'{{"commitInfo":{{"operation":"COMPUTE STATS"}}}}\n{json.dumps(action)}')

    return write


HARMLESS: dict[str, Change] = {
    "statistics": with_statistics(),
    "comment": lambda table: DeltaTable(table).alter.set_table_description("Leases of the flights jobs"),
    "column comment": lambda table: DeltaTable(table).alter.set_column_metadata("id", {"comment": "the id"}),
    "catalog's property": lambda table: DeltaTable(table).alter.set_table_properties(
        {"owner.team": "x"}, raise_if_not_exists=False
    ),
    "table of an older version": with_metadata(*NEW_PROPERTIES),
    "optimized": lambda table: DeltaTable(table).optimize.compact(),
    "vacuumed": vacuumed,
    "vacuumed often": lambda table: vacuumed(table, 3),
    "invalid checkpoint hint": lambda table: (table / "_delta_log" / "_last_checkpoint").write_text("{"),
    "unknown actions": lambda table: write_next_log_file(table, '{"commitInfo":{}}\n{"add":null}'),
    "separators in texts": lambda table: write_next_log_file(table, '{"commitInfo":{"note":"a\u0085b\u2028c"}}'),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_harmless_changes_are_read_and_overwritten(table: Path, what: str) -> None:
    before = read(table)
    with DeltaStore(str(table)) as running:
        running.read()
        HARMLESS[what](table)
        after = running.read()
        assert (after.leases, after.members) == (before.leases, before.members)
        assert read(table) == after
        committed(running, Heartbeat(by=ANN, at_ms=9))
        log = DeltaTable(table)
        running.tidy()
        assert read(table) == running.read()
    checkpoint = DeltaTable(table)
    assert checkpoint.schema() == log.schema()
    for name in ("id", "name", "description", "configuration"):
        assert getattr(checkpoint.metadata(), name) == getattr(log.metadata(), name)
    assert checkpoint.to_pyarrow_table().num_rows == 4


def test_vacuum_of_an_idle_table_keeps_the_last_commit(table: Path) -> None:
    """delta-rs cleans up the log after the commit of version 100, which is the second one of VACUUM."""
    with DeltaStore(str(table)) as store:
        while store.read().version < 98:
            committed(store, Heartbeat(by=ANN, at_ms=9))
    before = read(table)
    age_all(str(table))
    vacuumed(table)
    assert read(table).leases == before.leases


def test_changed_property_can_be_undone(table: Path) -> None:
    name, problem = (
        "delta.logRetentionDuration",
        "delta.logRetentionDuration from interval 10 minutes to interval 30 days",
    )
    before = read(table)
    DeltaTable(table).alter.set_table_properties({name: "interval 30 days"})
    with raises(StoreDamagedError, "EHB_LEASE_TABLE_DAMAGED", problem=f"another program changed {problem}"):
        read(table)
    with_metadata(name)(table)
    assert read(table).leases == before.leases


def vacuumed_and_cleaned_up(table: Path) -> None:
    """Leave the commits before the last one, which has no rows, only in another program's checkpoint."""
    vacuumed(table)
    DeltaTable(table).create_checkpoint()
    for file in {*(table / "_delta_log").glob("*.json")} - {newest_log(table)}:
        file.unlink()


#: The reported problem of a log that delta-rs cannot open or that this store cannot continue to read.
LOG = "could not be opened|is damaged: _delta_log"

#: Damages, and the problem that the error reports.
DAMAGE: dict[str, tuple[Change, str]] = {
    "log cut off": (lambda table: cut(newest_log(table), 100), LOG),
    "log empty": (lambda table: cut(newest_log(table), 0), LOG),
    "log cut off before its last line": (lambda table: cut_lines(newest_log(table), -1), LOG),
    "checkpoint gone": (lambda table: newest(table).unlink(), LOG),
    "log file gone": (
        lambda table: newest(table, "*24.json").unlink(),
        r"rolled back .* _delta_log/0*24\.json is missing",
    ),
    "log of a commit to come": (write_next_log_file, LOG),
    "checkpoint half written": (lambda table: cut(newest(table), 200), LOG),
    "data missing": (lambda table: newest_data(table).unlink(), r"\.parquet is missing"),
    "data cut off": (lambda table: cut(newest_data(table), 50), r"\.parquet: "),
    "epochs edited": (with_values("partition", epoch=0), "rows were edited"),
    "epochs null": (with_values("partition", epoch=None), "rows that another program wrote"),
    "details that are no JSON": (with_values("member", details="{"), r"\.parquet: "),
    "a row of nothing": (with_values("member", kind="note"), "row of the unknown kind 'note'"),
    "all rows deleted": (with_rows(lambda rows: []), "rows were deleted"),
    "partitions deleted": (
        with_rows(lambda rows: [row for row in rows if row["kind"] != "partition"]),
        "some of them were deleted",
    ),
    "the same rows again": (with_rows(lambda rows: 2 * rows), "or duplicated"),
    "another table": (rewritten(lambda _: pa.table({"x": [1, 2]})), 'column x from None to "long"'),
    "a column more": (
        lambda table: DeltaTable(table).alter.add_columns([Field("x", PrimitiveType("long"))]),
        'changed column x from None to "long"',
    ),
    "a property": (
        lambda table: DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"}),
        "changed delta.appendOnly from None to true",
    ),
    "a comment on a table of an older version": (
        with_metadata(*NEW_PROPERTIES, description="Leases of the flights jobs"),
        "changed its description",
    ),
    "row tracking": (protocol(["rowTracking", "domainMetadata"], []), "protocol|rowTracking|RowTracking"),
    "deletion vectors": (protocol(["deletionVectors"], ["deletionVectors"]), "protocol"),
    "a feature to come": (protocol(["timeTravel"], ["timeTravel"]), "timeTravel"),
    "the author unknown": (vacuumed_and_cleaned_up, r"27\.json is missing"),
}


#: Damages in a new version; a running member does not reread earlier versions.
FOUND_BY_RUNNING = [*DAMAGE][[*DAMAGE].index("another table") :]


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_reported_in_one_line_and_nothing_is_written(table: Path, what: str) -> None:
    damage, problem = DAMAGE[what]
    with DeltaStore(str(table)) as running, DeltaStore(str(table)) as fresh:
        before = running.read()
        damage(table)
        files = set(table.rglob("*"))
        with pytest.raises(StoreError, match=problem) as error:
            fresh.read()
        assert "\n" not in str(error.value)
        if what in FOUND_BY_RUNNING:
            with pytest.raises(StoreUnavailableError, match=problem):
                running.read()
            with pytest.raises(ConflictError):
                running.write(before, before)
    assert set(table.rglob("*")) == files


def merged(table: Path) -> None:
    delta = DeltaTable(table)
    merge = delta.merge(delta.to_pyarrow_table(), "t.kind = s.kind AND t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().execute()


def restored_and_vacuumed(table: Path) -> None:
    DeltaTable(table).restore(20)
    vacuumed(table)


#: Commits of another program, and delta-rs's name of the operation.
EDITS: dict[str, tuple[Change, str]] = {
    "restored": (lambda table: DeltaTable(table).restore(20), "RESTORE"),
    "restored and vacuumed": (restored_and_vacuumed, "RESTORE"),
    "updated": (lambda table: DeltaTable(table).update({"host": "'here'"}, predicate="kind = 'member'"), "UPDATE"),
    "all deleted": (lambda table: DeltaTable(table).delete(), "DELETE"),
    "partitions deleted": (lambda table: DeltaTable(table).delete("kind = 'partition'"), "DELETE"),
    "merged": (merged, "MERGE"),
    "another file": (with_statistics("lease.parquet"), "COMPUTE STATS"),
    "the same rows in another file": (rewritten(lambda rows: rows), "WRITE"),
    "the same rows again": (rewritten(lambda rows: rows, "append"), "WRITE"),
}


def foreign_commit(operation: str) -> re.Pattern[str]:
    return re.compile(rf"^version \d+ is a foreign commit \(.*({operation})")


@pytest.mark.parametrize("behind", [0, 7])
@pytest.mark.parametrize("what", EDITS)
def test_rows_from_another_program_are_an_error_for_all_handles(table: Path, what: str, behind: int) -> None:
    edit, operation = EDITS[what]
    with DeltaStore(str(table)) as running, DeltaStore(str(table)) as fresh:
        before = running.read()
        with DeltaStore(str(table)) as other:
            for _ in range(behind):
                committed(other, Heartbeat(by=ANN, at_ms=9))
        edit(table)
        files = set(table.rglob("*"))
        for store in (running, fresh, running):
            with raises(StoreReplacedError, "EHB_LEASE_TABLE_ROLLED_BACK", problem=foreign_commit(operation)):
                store.read()
            with pytest.raises(ConflictError):
                store.write(before, before)
            store.tidy()
    assert set(table.rglob("*")) == files


def test_table_created_by_another_program_is_an_error(table: Path) -> None:
    delta = DeltaTable(table)
    copy = table.with_name("copy")
    # delta-rs creates no table with properties of other programs.
    properties = {k: v for k, v in delta.metadata().configuration.items() if k not in NEW_PROPERTIES}
    settings = {"description": delta.metadata().description, "configuration": properties}
    write_deltalake(copy, delta.to_pyarrow_table().cast(SCHEMA), **settings)  # type: ignore[call-overload]
    with raises(StoreReplacedError, "EHB_LEASE_TABLE_ROLLED_BACK", problem=foreign_commit("unknown|CREATE|WRITE")):
        read(copy)


def test_table_created_with_or_without_rows_is_read(tmp_path: Path, table: Path) -> None:
    content = read(table)
    for name, rows in (("filled", content), ("empty", None)):
        path = tmp_path / name
        with DeltaStore(str(path)) as store:
            store.create(content.group, rows)
            write_next_log_file(path, '{"commitInfo":{"operation":"VACUUM END"}}')
            assert store.read() == read(path)
            assert store.read().leases == (content.leases if rows else {})
            committed(store, Heartbeat(by=ANN, at_ms=9) if rows else Join(by=ANN, at_ms=9))


def test_truncated_creation_is_an_error(tmp_path: Path, table: Path) -> None:
    content, path = read(table), tmp_path / "new"
    with DeltaStore(str(path)) as store:
        store.create(content.group, content)
    cut_lines(newest_log(path), -1)
    with raises(StoreDamagedError, "EHB_LEASE_TABLE_DAMAGED", problem=f"_delta_log/{0:020}.json is cut off"):
        read(path)
    # Tables created by older versions do not have the number of actions.
    newest_log(path).write_text(newest_log(path).read_text().replace("ehbalance.actions", "x"))
    assert read(path).leases == {}


def recreate(table: Path) -> None:
    """Recreate the table with one version more than the previous table."""
    versions = DeltaTable(table).version()
    shutil.rmtree(table)
    with DeltaStore(str(table)) as store:
        filled(store, ANN)
        for _ in range(versions):
            committed(store, Heartbeat(by=ANN, at_ms=9))


def recreate_and_clean_up(table: Path) -> None:
    """The known version is no longer in the log."""
    recreate(table)
    age_all(str(table))
    with DeltaStore(str(table)) as store:
        committed(store, Heartbeat(by=ANN, at_ms=9))
        store.tidy()


def roll_back(table: Path) -> None:
    """Restore an earlier copy."""
    for file in (newest_data(table), newest_log(table)):
        file.unlink()


def roll_back_and_write(table: Path) -> None:
    roll_back(table)
    with DeltaStore(str(table)) as store:
        committed(store, Heartbeat(by=ANN, at_ms=77))


@pytest.mark.parametrize("change", [recreate, recreate_and_clean_up, roll_back, roll_back_and_write])
def test_replaced_or_rolled_back_table_is_detected(table: Path, change: Change) -> None:
    with DeltaStore(str(table)) as running:
        committed(running, Heartbeat(by=ANN, at_ms=9))
        running.read()
        change(table)
        for _ in range(3):
            with raises(
                StoreReplacedError, "EHB_LEASE_TABLE_ROLLED_BACK", problem=re.compile("^its (id|version) was ")
            ):
                running.read()
        assert read(table).leases.keys() == {"0", "1"}
        shutil.rmtree(table)
        with pytest.raises(StoreUnavailableError):
            running.read()
