"""A lease table that others have changed or replaced, or that a crash has damaged: it is read or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from spark_ehbalance.errors import (
    ConflictError,
    StoreError,
    StoreReplacedError,
    StoreUnavailableError,
)
from spark_ehbalance.group.changes import Checkpoint, Heartbeat
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.delta import DeltaStore
from tests.lease_table.delta_tables import age_all
from tests.lease_table.store_conformance import ANN, committed, filled

Change = Callable[[Path], object]

COMMITS = 25

#: After which of them the leader has tidied up, which writes a checkpoint of the log.
TIDIED = (8, 18)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A lease table of ann's with two partitions, of which the first has been read up to sequence number 24."""
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


def log_of_a_commit_to_come(table: Path, content: str = '{"commitInfo":{') -> None:
    (table / "_delta_log" / f"{int(newest_log(table).stem) + 1:020}.json").write_text(content)


def protocol(writer: list[str], reader: list[str]) -> Change:
    """Another engine turns on these features."""
    reads: dict[str, Any] = {"minReaderVersion": 3, "readerFeatures": reader} if reader else {"minReaderVersion": 1}
    action = {"protocol": {**reads, "minWriterVersion": 7, "writerFeatures": writer}}
    return lambda table: log_of_a_commit_to_come(table, json.dumps(action))


def updated(rows: str, **values: str) -> Change:
    """Somebody's UPDATE of the rows of this kind."""
    return lambda table: DeltaTable(table).update(values, predicate=f"kind = '{rows}'")


def deleted(predicate: str | None) -> Change:
    return lambda table: DeltaTable(table).delete(predicate)


def rewritten(change: Callable[[pa.Table], pa.Table], mode: str = "overwrite") -> Change:
    """Somebody's own program writes the table, whatever its columns."""

    def write(table: Path) -> None:
        rows = change(DeltaTable(table).to_pyarrow_table())
        write_deltalake(table, rows, mode=mode, schema_mode="overwrite" if mode == "overwrite" else "merge")  # type: ignore[call-overload]

    return write


HARMLESS: dict[str, Change] = {
    "the same rows in another file": rewritten(lambda rows: rows),
    "an append of nothing": rewritten(lambda rows: rows.slice(0, 0), "append"),
    "optimized": lambda table: DeltaTable(table).optimize.compact(),
    "vacuumed": lambda table: DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False),
    "no hint to a checkpoint": lambda table: (table / "_delta_log" / "_last_checkpoint").write_text("{"),
    "actions that nobody knows": lambda table: log_of_a_commit_to_come(table, '{"commitInfo":{}}\n{"add":null}'),
    "separators in texts": lambda table: log_of_a_commit_to_come(table, '{"commitInfo":{"note":"a\u0085b\u2028c"}}'),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_harmless_changes_are_read_and_written_over(table: Path, what: str) -> None:
    before = read(table)
    with DeltaStore(str(table)) as running:
        running.read()
        HARMLESS[what](table)
        after = running.read()
        assert (after.leases, after.members) == (before.leases, before.members)
        assert read(table) == after
        committed(running, Heartbeat(by=ANN, at_ms=9))
        running.tidy()
        assert read(table) == running.read()
    assert DeltaTable(table).to_pyarrow_table().num_rows == 4


#: The problem of a log that delta-rs cannot open, or this store cannot read on.
LOG = "the log is damaged|is damaged: _delta_log"

#: What is done, and the problem that the error names.
DAMAGE: dict[str, tuple[Change, str]] = {
    "log cut off": (lambda table: cut(newest_log(table), 100), LOG),
    "log empty": (lambda table: cut(newest_log(table), 0), LOG),
    "log cut off before its last line": (lambda table: cut_lines(newest_log(table), -1), LOG),
    "checkpoint gone": (lambda table: newest(table).unlink(), LOG),
    "log file gone": (lambda table: newest(table, "*24.json").unlink(), LOG),
    "log of a commit to come": (log_of_a_commit_to_come, LOG),
    "checkpoint half written": (lambda table: cut(newest(table), 200), LOG),
    "data missing": (lambda table: newest_data(table).unlink(), r"\.parquet is missing"),
    "data cut off": (lambda table: cut(newest_data(table), 50), r"\.parquet: "),
    "epochs edited": (updated("partition", epoch="epoch - 1"), "rows were edited"),
    "epochs null": (updated("partition", epoch="null"), "rows of another program"),
    "details that are no JSON": (updated("member", details="'{'"), r"\.parquet: "),
    "a row of nothing": (updated("member", kind="'note'"), "row of kind 'note'"),
    "all rows deleted": (deleted(None), "rows were deleted"),
    "partitions deleted": (deleted("kind = 'partition'"), "some were deleted"),
    "the same rows again": (rewritten(lambda rows: rows, "append"), "or doubled"),
    "another table": (rewritten(lambda _: pa.table({"x": [1, 2]})), "columns"),
    "a column more": (
        lambda table: DeltaTable(table).alter.add_columns([Field("x", PrimitiveType("long"))]),
        "columns",
    ),
    "a property": (
        lambda table: DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"}),
        "properties",
    ),
    "a comment": (
        lambda table: DeltaTable(table).alter.set_table_description("Leases of the flights jobs"),
        "changed its description|not a lease table",
    ),
    "row tracking": (protocol(["rowTracking", "domainMetadata"], []), "protocol|rowTracking|RowTracking"),
    "deletion vectors": (protocol(["deletionVectors"], ["deletionVectors"]), "protocol"),
    "a feature to come": (protocol(["timeTravel"], ["timeTravel"]), "timeTravel"),
}


#: What comes as a new version; earlier ones a member need not read again.
FOUND_BY_RUNNING = [*DAMAGE][[*DAMAGE].index("epochs edited") :]


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_one_line_that_names_the_problem_and_nothing_is_written(table: Path, what: str) -> None:
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


def made_anew(table: Path) -> None:
    """With as many versions as the one before, and one more."""
    versions = DeltaTable(table).version()
    shutil.rmtree(table)
    with DeltaStore(str(table)) as store:
        filled(store, ANN)
        for _ in range(versions):
            committed(store, Heartbeat(by=ANN, at_ms=9))


def made_anew_and_tidied_up(table: Path) -> None:
    """The log no longer has the version that was known."""
    made_anew(table)
    age_all(str(table))
    with DeltaStore(str(table)) as store:
        committed(store, Heartbeat(by=ANN, at_ms=9))
        store.tidy()


def set_back(table: Path) -> None:
    """An earlier copy is restored."""
    for file in (newest_data(table), newest_log(table)):
        file.unlink()


def set_back_and_written(table: Path) -> None:
    set_back(table)
    with DeltaStore(str(table)) as store:
        committed(store, Heartbeat(by=ANN, at_ms=77))


@pytest.mark.parametrize("change", [made_anew, made_anew_and_tidied_up, set_back, set_back_and_written])
def test_a_table_that_was_replaced_or_set_back_is_noticed(table: Path, change: Change) -> None:
    with DeltaStore(str(table)) as running:
        committed(running, Heartbeat(by=ANN, at_ms=9))
        running.read()
        change(table)
        for _ in range(3):
            with pytest.raises(StoreReplacedError, match="was replaced or set back while it was in use"):
                running.read()
        assert read(table).leases.keys() == {"0", "1"}
        shutil.rmtree(table)
        with pytest.raises(StoreUnavailableError):
            running.read()
