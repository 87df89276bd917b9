"""`ehbalance positions`, and its output as the input of `init` and `seek`."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.group.model import Lease, Member, QueryRecord
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.starting_positions import StartingPositions
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.query.offsets import EpochPosition, HubReference, TableReference
from tests.ops.command import Command, assert_error
from tests.ops.groups import HUB, Group, change, fill, history
from tests.query.scala_folders import scala_folder
from tests.query.spark_folders import LOST, batch, spark_folder


@pytest.fixture(autouse=True)
def events(emulator: Emulator) -> None:
    fill(emulator, 100)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "positions.json"


def test_lease_table_can_be_created_from_anothers_positions(
    group: Group, ehbalance: Command, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.done("init")
    last = emulator.partition_state(HUB, 0).last_offset
    leases = {"0": Lease("0", None, 3, checkpoint=Position(99, last)), "1": Lease("1", checkpoint=Position(-1))}
    change(group.table, leases={**leases, "2": Lease("2", "ann")}, members={"ann": Member("ann", "x", 1)})
    outcome = ehbalance("positions", group.table)
    assert "Partition 2 has not been read yet and has no position here" in outcome.err
    assert "Warning: ann may still be reading. Stop them first" in outcome.err
    found = json.loads(printed := outcome.out)
    assert found.pop("hub")["name"] == HUB
    assert found == {"0": {"next": 100, "offset": last}, "1": {"next": 0}}
    assert StartingPositions.parse(printed).named == {p: lease.checkpoint for p, lease in leases.items()}

    other = replace(group, table=tmp_path / "other")
    monkeypatch.setattr("sys.stdin", io.StringIO(printed))
    done = other.done("init", "--positions", "-")
    assert "No position for partitions 2-3: reading will begin at the first retained event." in done
    assert other.positions == {"0": 100, "1": 0, "2": 0, "3": 0}
    assert {lease.epoch for lease in other.state.leases.values()} == {0}
    assert other.state.version == 0, "all in one commit"
    assert {(change.event, change.why) for change in history(other.table)} == {("Restore", "init --positions")}


def test_rejected_lease_table_has_positions_if_its_rows_are_intact(
    group: Group, ehbalance: Command, tmp_path: Path
) -> None:
    group.done("init")
    change(group.table, leases={p: Lease(p, checkpoint=Position(4)) for p in "0123"})
    DeltaTable(group.table).alter.set_table_properties({"delta.appendOnly": "true"})
    outcome = ehbalance("positions", group.table)
    assert outcome.code == 0
    assert StartingPositions.parse(outcome.out).named == dict.fromkeys("0123", Position(4))
    assert outcome.err.startswith("Warning: [EHB_LEASE_TABLE_DAMAGED] ")
    assert "These positions may be outdated" in outcome.err
    for data in Path(group.table).glob("*.parquet"):
        data.unlink()
    assert_error(ehbalance.fails(1, "positions", group.table), "EHB_LEASE_TABLE_DAMAGED", "delta.appendOnly")


def test_queries_checkpoints_yield_lossless_positions(
    group: Group, ehbalance: Command, tmp_path: Path, file: Path
) -> None:
    """Query `b` has the later epoch for partition 1; the last batch of either query might have been cut short."""
    held = {"2": EpochPosition(5, 50)}
    first, second = batch("a", p0=(1, 10, 30), p1=(2, 0, 90)), batch("a", p0=(1, 30, 70))
    second = replace(second, other_positions=held, checkpoints={"0": 10})
    one = spark_folder(tmp_path / "one", None, first, second)
    two = spark_folder(tmp_path / "two", batch("b", p1=(3, 9, 20)), batch("b", p1=(3, 20, 50)), unfinished=1)
    outcome = ehbalance("positions", one, two)
    found = json.loads(outcome.out)
    assert found == {"hub": {"name": HUB}, "0": {"next": 10}, "1": {"next": 20}, "2": {"next": 50}}
    assert (
        "Warning: Events 10 to 69 of partition 0, 20 to 49 of partition 1 may be read twice, because only the "
        "lease table recorded which of them were read."
    ) in outcome.err
    file.write_text(outcome.out)
    group.done("init", "--positions", file)
    assert group.positions == {"0": 10, "1": 20, "2": 50, "3": 0}


def test_positions_of_several_unread_partitions(group: Group, ehbalance: Command) -> None:
    group.done("init")
    change(group.table, leases={"0": Lease("0", checkpoint=Position(9)), "2": Lease("2"), "3": Lease("3")})
    assert "Partitions 2, 3 have not been read yet and have no position here" in ehbalance("positions", group.table).err


def test_parent_folder_of_checkpoints_is_rejected(ehbalance: Command, tmp_path: Path) -> None:
    for name in ("one", "two"):
        spark_folder(tmp_path / "all" / name, batch("a", p0=(1, 0, 5)))
    (tmp_path / "all" / "other").mkdir()
    for sources in ([tmp_path / "all"], [tmp_path / "all", tmp_path / "all"]):
        assert "[EHB_CHECKPOINT_UNUSABLE]" in ehbalance.fails(2, "positions", *sources)
    assert "[EHB_CHECKPOINT_UNUSABLE]" in ehbalance.fails(2, "positions", tmp_path / "all" / "one" / "offsets")


def test_missing_source_is_reported_once(ehbalance: Command, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    message = f"[EHB_CHECKPOINT_UNUSABLE] {missing} is unusable: No such file or directory."
    remedy = "Remedy: docs/errors.md#ehb_checkpoint_unusable"
    assert f"{message} {remedy}\n" in ehbalance.fails(2, "positions", missing)


def test_query_without_a_lease_table_has_exact_positions(ehbalance: Command, tmp_path: Path) -> None:
    alone = batch("a", None, p0=(0, 0, 40), p1=(0, 7, 7))
    assert json.loads(ehbalance.succeeds("positions", spark_folder(tmp_path / "one", alone)).out) == {
        "hub": {"name": HUB}, "0": {"next": 40}, "1": {"next": 7},
    }  # fmt: skip
    outcome = ehbalance("positions", spark_folder(tmp_path / "two", alone, unfinished=1))
    assert json.loads(outcome.out)["0"] == {"next": 0}
    assert "Events 0 to 39 of partition 0 may be read twice, because their batch did not finish" in outcome.err


def test_unrelated_checkpoints_are_rejected(ehbalance: Command, tmp_path: Path) -> None:
    made = replace(batch("a", p0=(1, 0, 5)), hub=HubReference(HUB, "ns", 1_700_000_000_000))
    recreated = replace(made, hub=HubReference(HUB, "ns", 1_800_000_000_000))
    elsewhere = batch("b", TableReference("t2", "/other/leases"), p1=(1, 30, 40))
    recreated_table = batch("b", TableReference("t2", LOST.location), p0=(1, 90, 99))
    alone, copy = batch("a", None, p0=(0, 0, 40)), replace(batch("a", p0=(1, 0, 10)), lineage="one")
    cases = {
        "different lease tables: /lost/leases (id t1), /other/leases (id t2)": (batch("a", p0=(1, 0, 10)), elsewhere),
        "2 sources without a lease table have each read all partitions of hub": (alone, alone),
        "are copies of the same checkpoint": (copy, copy),
        "created 2023-11-14 22:13:20+00:00 and of event hub hub of ns, created 2027": (made, recreated),
        "[EHB_OPTION_REQUIRED] --event-hub-name is required: choose one of the event hubs hub, other": (
            made,
            batch("b", hub="other", p0=(1, 0, 9)),
        ),
        f"{tmp_path}/4/b is unusable": (made, None),
        "their queries last read with different lease tables: /lost/leases (id t1), /lost/leases (id t2)": (
            batch("a", p0=(1, 0, 10)),
            recreated_table,
        ),
    }
    for number, (message, (one, two)) in enumerate(cases.items()):
        folders = [
            spark_folder(tmp_path / str(n) / name, end) for n, name, end in ((number, "a", one), (number, "b", two))
        ]
        assert message.replace("/4/", f"/{number}/") in ehbalance.fails(2, "positions", *folders)
    hubs = [tmp_path / "4" / name for name in "ab"]
    assert json.loads(ehbalance("positions", *hubs, "--event-hub-name", "other").out)["0"] == {"next": 0}
    assert "one of the event hubs hub, other" in ehbalance.fails(2, "positions", *hubs, "--event-hub-name", "third")


def test_scala_connectors_query_can_be_continued(group: Group, ehbalance: Command, tmp_path: Path, file: Path) -> None:
    folder = scala_folder(
        tmp_path / "old", {"Hub": {0: 10, 1: 0, 2: 100}}, {"Hub": {0: 30, 1: 9, 2: 100}}, unfinished=1
    )
    outcome = ehbalance("positions", folder, "--scala-connector")
    assert "Warning: Batch 1 did not finish, so its events are read again." in outcome.err
    file.write_text(outcome.out)
    group.done("init", "--positions", file)
    assert group.positions == {"0": 10, "1": 0, "2": 100, "3": 0}
    error = ehbalance.fails(2, "positions", folder)  # the Kafka source writes the same files
    assert_error(error, "EHB_CHECKPOINT_UNUSABLE", str(folder), "--scala-connector", "Spark's Kafka source")
    (folder / "commits" / "0").unlink()
    error = ehbalance.fails(2, "positions", folder, "--scala-connector")
    assert_error(error, "EHB_CHECKPOINT_UNUSABLE", str(folder), "no batch is finished")


def test_checkpoint_is_read_from_any_location(ehbalance: Command, tmp_path: Path) -> None:
    for name in ("50% of it", "a%20b", "[x] {y}", "h#i ü?*"):
        folder = spark_folder(tmp_path / name, batch("a", p0=(1, 10, 20)))
        for written in (folder, folder.as_uri(), folder.as_uri().replace("//", "", 1)):
            assert json.loads(ehbalance("positions", written).out)["0"] == {"next": 10}


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("dbfs:/none/50%/a b", "[EHB_CHECKPOINT_UNUSABLE] /dbfs/none/50%/a b"),
        ("file:///Volumes/none/a%20b", "[EHB_CHECKPOINT_UNUSABLE] /Volumes/none/a b"),
        *(
            (source, f"INVALID] SOURCE={source!r} is invalid.")
            for source in ("", "s3:bucket/x", "file:x", "memory://x")
        ),
    ],
)
def test_invalid_source_is_rejected(ehbalance: Command, source: str, error: str) -> None:
    assert error in " ".join(ehbalance.fails(2, "positions", source).split())


def test_damaged_offsets_and_an_empty_folder_are_rejected(ehbalance: Command, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    error = ehbalance.fails(2, "positions", tmp_path / "none")
    assert_error(error, "EHB_CHECKPOINT_UNUSABLE", f"{tmp_path}/none", "not a lease table")
    folder = spark_folder(tmp_path / "newer", batch("a", p0=(1, 0, 10)))
    for line, message in (
        (json.dumps(batch("a").to_json() | {"format": 9}), "EHB_CHECKPOINT_FOREIGN"),
        ('{"a":' * 100_000, "EHB_CHECKPOINT_UNUSABLE"),
    ):
        (folder / "offsets" / "0").write_text(f"v1\n{{}}\n{line}")
        assert message in ehbalance("positions", folder).err


def test_version_2_offset_log_is_read_by_source_name(ehbalance: Command, tmp_path: Path) -> None:
    one, two = (batch("a", p0=(1, start, start + 10)) for start in (10, 20))
    folder = spark_folder(tmp_path / "named", one, two)
    for number, end in enumerate((one, two)):
        lines = ["other:-", f"events:{json.dumps(end.to_json())}"][
            :: 1 - 2 * number
        ]  # Spark writes the map in arbitrary order
        (folder / "offsets" / str(number)).write_text("\n".join(["v2", "{}", *lines]))
    assert json.loads(ehbalance("positions", folder).out)["0"] == {"next": 20}


@pytest.mark.parametrize(
    ("text", "condition", "values"),
    [
        (None, "EHB_FILE_INVALID", ("No such file or directory",)),
        ('{"0": 5,}', "EHB_FILE_INVALID", ("not JSON", "line 1 column 9")),
        ('{"0": 5, "0": 6}', "EHB_FILE_INVALID", ("each key once", "'0' occurs twice")),
        ("5", "EHB_FILE_INVALID", ("it contains no positions",)),
        ('{"0": {"0": 5}}', "EHB_FILE_INVALID", ('2026-01-31T12:00:00Z, or {"next": 4711, "offset": ',)),
        ('{"0": {"offset": "x"}}', "EHB_POSITION_INVALID", ("partition 0", "offset 'x' is invalid")),
        ("{", "EHB_FILE_INVALID", ("JSON",)),
        ("[" * 100_000, "EHB_FILE_INVALID", ("JSON",)),
        ('{"0": {"next": "10"}}', "EHB_FILE_INVALID", ("""'0': '{"next": "10"}'""", "earliest, latest, a sequence")),
        ('{"1": "soon"}', "EHB_FILE_INVALID", ("""'1': '"soon"'""", "earliest, latest, a sequence number")),
        ('{"hub": 5}', "EHB_FILE_INVALID", ("'hub': '5'", "Allowed: {")),
        ('{"7": 5}', "EHB_FILE_INVALID", ("partition '7'", "partition 0, 1, 2, 3")),
        ('{"0": 101}', "EHB_POSITION_INVALID", ("partition 0", "number 101", "0 to 100")),
        ('{"hub": {"name": "other"}, "0": 5}', "EHB_FILE_INVALID", ("event hub other", "event hub hub")),
        ('{"hub": {"name": "hub", "namespace": "x"}, "0": 5}', "EHB_FILE_INVALID", ("event hub hub of x",)),
        (
            '{"hub": {"name": "hub", "createdMs": 7}, "0": 5}',
            "EHB_FILE_INVALID",
            ("created 1970-01-01 00:00:00",),
        ),
    ],
)
def test_invalid_positions_are_rejected_and_nothing_is_written(
    group: Group, emulator: Emulator, file: Path, text: str | None, condition: str, values: tuple[str, ...]
) -> None:
    if text is not None:
        file.write_text(text)
    error = group.fails(2, "init", "--positions", file)
    assert_error(error, condition, *values)
    assert f"--positions={file}" in error or condition == "EHB_POSITION_INVALID"
    assert not group.table.exists()
    group.done("init")
    change(group.table, leases={p: Lease(p, checkpoint=Position(4)) for p in "0123"})
    before = group.state
    assert group.fails(2, "seek", "--positions", file) == error
    assert group.state == before


def test_expired_positions_are_rejected(group: Group, emulator: Emulator, file: Path) -> None:
    emulator.trim(HUB, 1, 20)
    file.write_text('{"0": 5, "1": 5}')
    error = group.fails(2, "init", "--positions", file)
    assert_error(error, "EHB_POSITION_INVALID", "partition 1", "number 5", "20 to 100")
    file.write_text('{"0": "latest", "1": "earliest", "*": 50}')
    group.done("init", "--positions", file)
    assert group.positions == {"0": 100, "1": 20, "2": 50, "3": 50}
    assert_error(group.fails(1, "init", "--positions", file), "EHB_LEASE_TABLE_EXISTS", str(group.table))


def test_unused_table_gets_positions(group: Group, file: Path) -> None:
    group.done("init")
    file.write_text('{"0": 70, "*": 5}')
    assert_error(group.fails(1, "seek", "--positions", file), "EHB_COMMAND_REJECTED", "`ehbalance init --positions")
    assert " updated; the hub has 4 partitions.\n" in group.done("init", "--positions", file)
    assert group.positions == {"0": 70, "1": 5, "2": 5, "3": 5}
    assert group.state.table is not None
    assert group.state.table.hub_created_ms is not None
    assert {(change.event, change.why) for change in history(group.table)} == {("Restore", "init --positions")}
    group.done("seek", "--positions", file)


@pytest.mark.parametrize(
    "use",
    [
        {"leases": {"0": Lease("0")}},
        {"members": {"ann": Member("ann", "x", 1)}},
        {"queries": {"q": QueryRecord("q", "", "ann")}},
    ],
    ids=["leases", "members", "queries"],
)
@pytest.mark.parametrize("meanwhile", [False, True])
def test_used_table_gets_no_positions(
    group: Group, file: Path, monkeypatch: pytest.MonkeyPatch, use: dict[str, Any], meanwhile: bool
) -> None:
    file.write_text('{"*": 5}')
    group.done("init")
    if meanwhile:
        write = DeltaStore.write

        def join_and_write(store: DeltaStore, base: Snapshot, new: Snapshot) -> Snapshot:
            monkeypatch.setattr(DeltaStore, "write", write)
            change(group.table, **use)
            return write(store, base, new)

        monkeypatch.setattr(DeltaStore, "write", join_and_write)
    else:
        change(group.table, **use)
    assert_error(group.fails(1, "init", "--positions", file), "EHB_LEASE_TABLE_EXISTS", str(group.table))
    assert group.positions == {}
    assert group.state.version == 1


def test_seek_moves_the_partitions_in_the_file(group: Group, file: Path) -> None:
    group.done("init")
    change(group.table, leases={p: Lease(p, "ann" if p == "3" else None, 2, checkpoint=Position(4)) for p in "0123"})
    file.write_text('{"0": {"next": 70}, "1": {"next": 2}}')
    printed = group.done("seek", "--positions", file, "--why", "a bad release")
    assert "Partition 0 continues at sequence number 70.\nPartition 1 continues at sequence number 2.\n" in printed
    assert "Events of partition 1 will be read again." in printed
    assert group.positions == {"0": 70, "1": 2, "2": 5, "3": 5}
    file.write_text('{"*": "earliest"}')
    error = group.fails(1, "seek", "--positions", file)
    assert_error(error, "EHB_COMMAND_REJECTED", "partition 3 is owned by ann")
    assert group.positions == {"0": 70, "1": 2, "2": 5, "3": 5}, "all or nothing"
    assert "Events of partitions 0-3 will be read again." in group("seek", "--positions", file, "--force").out
    assert set(group.positions.values()) == {0}
