"""A lease table that others have written, or a crash has damaged: it is read, or refused in one line."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from spark_ehbalance.errors import StoreDamagedError
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import Checkpoint, Heartbeat, Join
from spark_ehbalance.stores.base import commit
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.position import Position
from tests.cli.command import Command
from tests.member.keepers import Keepers, begin_batch, end_batch
from tests.stores.store_conformance import ANN, BOB, GROUP, committed, filled
from tests.waiting import wait_until

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


def log_of_a_commit_to_come(table: Path) -> None:
    (table / "_delta_log" / f"{int(newest_log(table).stem) + 1:020}.json").write_text('{"commitInfo":{')


def updated(kind: str | None = "partition", **values: str) -> Change:
    """Somebody's UPDATE of the rows of this `kind`, or of all."""
    return lambda table: DeltaTable(table).update(values, predicate=kind and f"kind = '{kind}'")


def rewrite(table: Path, change: Callable[[pa.Table], pa.Table], *, mode: str = "overwrite") -> None:
    """Somebody's own program writes the table, whatever its columns."""
    rows = change(DeltaTable(table).to_pyarrow_table())
    write_deltalake(table, rows, mode=mode, schema_mode="overwrite" if mode == "overwrite" else "merge")  # type: ignore[call-overload]


def column(name: str, kind: pa.DataType, mode: str = "overwrite", value: Any = None) -> Change:
    """The table with another type of a column, whose values stay if none is given."""

    def change(rows: pa.Table) -> pa.Table:
        values = rows[name].cast(kind) if value is None else pa.array([value] * rows.num_rows, kind)
        return rows.set_column(rows.schema.get_field_index(name), name, values)

    return lambda table: rewrite(table, change, mode=mode)


FAR = "to_timestamp_micros(-900000000000000000)"

HARMLESS: dict[str, Change] = {
    "times without a zone": column("renewed_at", pa.timestamp("us")),
    "no times": updated(None, renewed_at="null"),
    "times beyond the years that there are": updated(None, renewed_at=FAR, started_at=FAR, owned_since=FAR),
    "a member's number at the end": updated("member", joined=str(2**63 - 1)),
    "no renewals": updated(None, renewal="null"),
    "an unknown state": updated("member", state="'asleep'"),
    "reasons that are no JSON": updated("member", left_out=f"'{'[' * 100_000}'"),
    "loads that are no numbers": updated(None, rate="'NaN'", backlog="'inf'", batch_seconds="'inf'", cpu="'NaN'"),
    "no members": lambda table: DeltaTable(table).delete("kind = 'member'"),
    "the same rows again": lambda table: rewrite(table, lambda rows: rows, mode="append"),
    "smaller numbers": column("epoch", pa.int32()),
    "optimized": lambda table: DeltaTable(table).optimize.compact(),
    "no hint to a checkpoint": lambda table: (table / "_delta_log" / "_last_checkpoint").write_text("{"),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_harmless_changes_are_read_and_written_over(table: Path, what: str, ehbalance: Command) -> None:
    before = read(table)
    HARMLESS[what](table)
    after = read(table)
    assert {p: (each.owner, each.epoch, each.checkpoint) for p, each in after.leases.items()} == {
        p: (each.owner, each.epoch, each.checkpoint) for p, each in before.leases.items()
    }
    assert ehbalance("status", table).code == 0
    assert not {"NaN", "Infinity"} & {*re.findall(r"\w+", ehbalance("status", table, "--json").out)}
    with DeltaStore(str(table)) as store:
        commit(store, store.read(), [Join(by=ANN, at_ms=1), Heartbeat(by=ANN, at_ms=9), Join(by=BOB, at_ms=9)])
    assert read(table).members.keys() == {"ann", "bob"}
    written = pq.read_schema(newest_data(table))
    types = {field.name: field.type for field in pa.schema(DeltaTable(table).schema())}
    assert {field.name: field.type for field in written}.items() <= types.items(), "Spark reads no other types"


def test_a_comment_in_place_of_the_description_changes_nothing(table: Path, ehbalance: Command) -> None:
    with DeltaStore(str(table)) as running:
        before = running.read()
        DeltaTable(str(table)).alter.set_table_description("Leases of the flights jobs")
        assert running.read().leases == before.leases
        committed(running, Heartbeat(by=ANN, at_ms=9))
    assert read(table).group == before.group
    assert ehbalance("status", table).code == 0
    DeltaTable(str(table)).alter.set_table_description('{"ehbalance": 99}')
    assert "upgrade it" in ehbalance.fails(1, "status", table)


#: What is done, and the file and the reason that the error names.
DAMAGE: dict[str, tuple[Change, str]] = {
    "log cut off": (lambda table: cut(newest_log(table), 100), r"_delta_log/0+26\.json cannot be read"),
    "log empty": (lambda table: cut(newest_log(table), 0), r"_delta_log/0+26\.json is empty"),
    "log cut off between lines": (lambda table: cut_lines(newest_log(table), 1), r"_delta_log/0+26\.json is cut off"),
    "log cut off before its last line": (lambda table: cut_lines(newest_log(table), -1), r"0+26\.json is cut off"),
    "checkpoint gone": (lambda table: newest(table).unlink(), "_last_checkpoint names a checkpoint that is missing"),
    "log file gone": (
        lambda table: newest(table, "*24.json").unlink(),
        r"25\.json follows on a file that is missing",
    ),
    "log of a commit to come": (log_of_a_commit_to_come, r"_delta_log/0+27\.json cannot be read"),
    "checkpoint half written": (lambda table: cut(newest(table), 200), r"_delta_log/0+\d+\.checkpoint\.parquet"),
    "data missing": (lambda table: newest_data(table).unlink(), r"\.parquet is missing"),
    "data cut off": (lambda table: cut(newest_data(table), 50), r"\.parquet: "),
    "epochs null": (updated(epoch="null"), r"\.parquet: partition \d has the epoch None"),
    "epochs negative": (updated(epoch="-3"), "the epoch -3"),
    "epochs at the end": (updated(epoch=str(2**63 - 1)), "the epoch 9223372036854775807"),
    "renewals at the end": (updated(renewal=str(2**63 - 1)), "the renewal 9223372036854775807"),
    "positions null": (updated(sequence_number="null"), r"partition \d has the sequence number None"),
    "positions and owners null": (updated(owner="null", sequence_number="null"), "has the sequence number None"),
    "two rows that differ": (
        column("sequence_number", pa.int64(), "append", 9),
        r"\d has two rows that differ",
    ),
    "no owners": (lambda table: rewrite(table, lambda rows: rows.drop_columns(["owner"])), "there is no column owner"),
    "another table": (lambda table: rewrite(table, lambda _: pa.table({"x": [1, 2]})), "there is no column kind"),
    "text for numbers": (column("epoch", pa.string(), value="many"), "column epoch holds string, not int64"),
    "rows of nothing": (
        lambda table: rewrite(
            table, lambda rows: pa.table({"id": ["x"]}, schema=pa.schema([rows.schema.field("id")])), mode="append"
        ),
        r"there is (a row of kind None|no column kind)",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_one_line_that_names_the_file_and_the_remedy(table: Path, what: str, ehbalance: Command) -> None:
    damage, problem = DAMAGE[what]
    damage(table)
    with pytest.raises(StoreDamagedError, match=problem) as error:
        read(table)
    assert "\n" not in str(error.value)
    assert f"`ehbalance init {table} --positions FILE`" in str(error.value)
    for command in ("status", "maintain"):
        assert "is damaged: " in ehbalance.fails(1, command, table)


def test_without_any_sound_log_file_the_table_is_damaged(table: Path, ehbalance: Command) -> None:
    for file in (table / "_delta_log").iterdir():
        cut(file, 10)
    assert f"`ehbalance init {table} --positions FILE`" in ehbalance.fails(1, "status", table)


# --- queries that run ---------------------------------------------------------------------------------------------


@pytest.fixture
def damage_found() -> threading.Event:
    """Set when a keeper of `running` has found the table damaged."""
    return threading.Event()


@pytest.fixture
def running(tmp_path: Path, damage_found: threading.Event) -> Iterator[Keepers]:
    class Watching(DeltaStore):
        def read(self) -> Snapshot:
            try:
                return super().read()
            except StoreDamagedError:
                damage_found.set()
                raise

    group = Keepers(lambda: Watching(str(tmp_path / "leases")))
    yield group
    group.close()


WRITTEN_BY_OTHERS: dict[str, Change] = {
    "all deleted": lambda table: DeltaTable(table).delete(),
    "partitions deleted": lambda table: DeltaTable(table).delete("kind = 'partition'"),
    "members deleted": lambda table: DeltaTable(table).delete("kind = 'member'"),
    "one deleted": lambda table: DeltaTable(table).delete("id = '2'"),
    "epochs set back": updated(None, epoch="0", sequence_number="-1", owner="null"),
    "made anew": lambda table: (shutil.rmtree(table), DeltaStore(str(table)).create(GROUP)),
}


@pytest.mark.parametrize("what", WRITTEN_BY_OTHERS)
def test_running_members_restore_what_others_remove_and_go_on(running: Keepers, tmp_path: Path, what: str) -> None:
    ann, bob = running.start("ann", lease_duration=6.0), running.start("bob", lease_duration=6.0)
    running.wait_owned(ann=2, bob=2)
    wait_until(lambda: len(ann.holdings()) == len(bob.holdings()) == 2, "both know")
    batches = [(keeper, begin_batch(keeper)) for keeper in (ann, bob)]
    for keeper, batch in batches:
        end_batch(keeper, batch, 41)
    wait_until(lambda: {each.checkpoint for each in running.leases.values()} == {Position(41)}, "all is checkpointed")
    layout = running.layout()
    batches = [(keeper, begin_batch(keeper)) for keeper in (ann, bob)]

    def written() -> bool:
        with contextlib.suppress(CommitFailedError):  # the members were faster
            WRITTEN_BY_OTHERS[what](tmp_path / "leases")
            return True
        return False

    wait_until(written, "others have written")
    wait_until(lambda: running.layout() == layout and len(running.snapshot.members) == 2, "all is put back")
    wait_until(lambda: {each.checkpoint for each in running.leases.values()} == {Position(41)}, "with its positions")
    for keeper, batch in batches:
        end_batch(keeper, batch, 99)
    wait_until(
        lambda: {each.checkpoint for each in running.leases.values()} == {Position(99)}, "batches in flight count"
    )
    assert running.layout() == layout
    assert ann.holdings().keys() | bob.holdings().keys() == set("0123")


def test_a_running_member_keeps_its_partitions_while_the_table_is_damaged_and_checkpoints_afterwards(
    running: Keepers, damage_found: threading.Event, tmp_path: Path
) -> None:
    ann = running.start("ann", lease_duration=9.0)
    running.wait_owned(ann=4)
    wait_until(lambda: len(ann.holdings()) == 4, "it knows")
    layout, batch = running.layout(), begin_batch(ann)
    running.stores[ann].read_only = True  # so that what is damaged stays the newest
    wait_until(lambda: running.stores[ann].failures > 0, "no commit is under way")
    table = tmp_path / "leases"
    log_of_a_commit_to_come(table)
    running.stores[ann].read_only = False
    end_batch(ann, batch, 41)
    wait_until(damage_found.is_set, "the keeper finds the damage")
    assert len(ann.holdings()) == 4
    newest_log(table).unlink()
    wait_until(lambda: {each.checkpoint for each in running.leases.values()} == {Position(41)}, "it goes on")
    assert running.layout() == layout
