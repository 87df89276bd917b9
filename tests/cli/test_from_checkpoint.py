"""`ehbalance init --from-checkpoint`, with checkpoints in Spark's format (`tests/spark` has real ones)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.source.offsets import EpochPosition, HubReference, StreamOffset, TableReference, group_name
from spark_ehbalance.source.ranges import Range
from tests.cli import groups
from tests.cli.groups import HUB, Group, fill, history, state
from tests.stores.histories import NOT_RECORDED, make_unwritable

LOST = TableReference("t1", "/lost/leases")


@pytest.fixture(autouse=True)
def events(emulator: Emulator) -> None:
    fill(emulator, 100)


def batch(owner: str, table: TableReference | None = LOST, **ranges: tuple[int, int, int]) -> StreamOffset:
    """A batch's end offset, from (epoch, start, end) of each partition p0, p1, …"""
    group = group_name(table.location) if table else ""
    read = {p[1:]: Range(p[1:], *each) for p, each in ranges.items()}
    return StreamOffset(owner, read, group, table, HubReference(HUB))


def checkpoint(folder: Path, *batches: StreamOffset | None, unfinished: int = 0) -> Path:
    """A query's checkpoint with these batches, of which the last are unfinished; None: a batch of another source."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, end in enumerate(batches):
        line = json.dumps(end.to_json()) if end else "-"
        (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{line}\n{{"logOffset":3}}')
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < len(batches) - unfinished:
            (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def positions(table: Path) -> dict[str, tuple[int, int]]:
    """Each partition's epoch and the sequence number at which reading continues."""
    leases = state(table).leases.values()
    return {each.partition: (each.epoch, each.checkpoint.next if each.checkpoint else -1) for each in leases}


def record(table: Path, *changes: tuple[str, int, int]) -> None:
    """Write the history of a table: the last changes of owner, as (partition, epoch, next sequence number)."""
    rows = [OwnershipChange(1, p, "Claim", None, "x", epoch, next - 1, "x") for p, epoch, next in changes]
    groups.record(table, *rows)


def covers(table: Path, *ids: str) -> bool:
    found = state(table).table
    return found is not None and found.covers(set(ids))


def test_a_lost_table_is_restored_from_the_queries_checkpoints(group: Group, table: Path, tmp_path: Path) -> None:
    lost = TableReference("t1", str(tmp_path / "lost"))
    record(tmp_path / "lost", ("0", 1, 0), ("1", 2, 0), ("2", 1, 5), ("1", 3, 9))
    one = checkpoint(
        tmp_path / "one", None, batch("a", lost, p0=(1, 0, 10)), batch("a", lost, p0=(1, 10, 40), p1=(2, 0, 9))
    )
    finished, planned = batch("b", lost, p1=(3, 9, 20)), batch("b", lost, p1=(3, 20, 50), p2=(1, 5, 9))
    two = checkpoint(tmp_path / "two", finished, planned, unfinished=1)
    printed = group.done("init", "--from-checkpoint", one, "--from-checkpoint", two)
    assert "3 continue where the checkpoints' batches have ended." in printed
    assert "No checkpoint knows partitions 3: they begin at their first retained event" in printed
    assert positions(table) == {"0": (1, 40), "1": (3, 20), "2": (1, 5), "3": (0, 0)}
    assert covers(table, "t1")
    assert group.state.version == 0, "all in one commit"
    assert {change.event for change in history(table)} == {"Restore"}

    assert "is there; the hub has 4 partitions. 0 continue" in group.done("init", "--from-checkpoint", one)
    assert positions(table) == {"0": (1, 40), "1": (3, 20), "2": (1, 5), "3": (0, 0)}


def test_a_table_is_restored_with_a_warning_if_its_history_cannot_be_written(
    group: Group, table: Path, tmp_path: Path
) -> None:
    known = checkpoint(tmp_path / "one", batch("a", p0=(1, 0, 40), p1=(2, 0, 9)))
    make_unwritable(table)
    done = group("init", "--from-checkpoint", known)
    assert done.code == 0
    assert f"Warning: {NOT_RECORDED}{table}_history could not be written" in done.err
    assert positions(table) == {"0": (1001, 0), "1": (1002, 0), "2": (0, 0), "3": (0, 0)}


def test_a_table_that_would_skip_events_is_refused(group: Group, table: Path, tmp_path: Path) -> None:
    other = checkpoint(tmp_path / "other", batch("x", TableReference("t9", str(table)), p0=(1, 70, 80)))
    group("init", "--from-checkpoint", other)
    known = checkpoint(tmp_path / "one", batch("a", p0=(4, 40, 60)))
    arguments = ("init", "--from-checkpoint", known)
    assert "would skip events 40 to 69" in group.fails(1, *arguments)
    assert not covers(table, "t1")
    assert group("seek", "0", "--to", "40").code == 0
    assert group(*arguments).code == 0
    assert covers(table, "t1", "t9")


def test_checkpoints_of_several_tables_need_the_option_replaces(group: Group, table: Path, tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one", batch("a", p0=(1, 0, 10)))
    two = checkpoint(tmp_path / "two", batch("b", TableReference("t2", "/other/leases"), p1=(1, 30, 40)))
    arguments = ("init", "--from-checkpoint", one, "--from-checkpoint", two)
    assert f"last read with {LOST.location}, /other/leases" in group.fails(2, *arguments)
    assert f"last read with {LOST.location}, /other/leases" in group.fails(2, *arguments, "--replaces", "/third/leases")
    assert not table.exists()
    assert group(*arguments, "--replaces", "/other/leases").code == 0
    assert positions(table) == {"0": (0, 0), "1": (1001, 30), "2": (0, 0), "3": (0, 0)}


def test_copies_of_one_checkpoint_are_refused(group: Group, table: Path, tmp_path: Path) -> None:
    """Both have gone on, each with a sink of its own."""
    one, other = (replace(batch("a", p0=(1, 0, end)), lineage="one") for end in (10, 40))
    first, copy = checkpoint(tmp_path / "one", one), checkpoint(tmp_path / "copy", other)
    error = group.fails(2, "init", "--from-checkpoint", first, "--from-checkpoint", copy)
    assert "are copies of one checkpoint; allowed is the one that is to go on" in error
    assert not table.exists()


def test_a_storage_that_a_checkpoint_names_gets_no_credentials(group: Group, table: Path, tmp_path: Path) -> None:
    place = "abfss://container@another.dfs.core.windows.net/leases"
    one = checkpoint(tmp_path / "one", batch("a", TableReference("t2", place), p0=(1, 0, 10)))
    error = group.fails(2, "init", "--from-checkpoint", one)
    assert f"--replaces is not given: the queries have last read with {place}, in another storage" in error
    assert not table.exists()


def test_a_checkpoint_of_another_group_is_refused(group: Group, table: Path, tmp_path: Path) -> None:
    def fails(folder: Path, code: int = 2) -> str:
        return group.fails(code, "init", "--from-checkpoint", folder)

    assert "cannot be read" in fails(tmp_path / "none")
    assert "allowed is the checkpointLocation of a query" in fails(checkpoint(tmp_path / "empty", None))
    assert "the hub ends before 100" in fails(checkpoint(tmp_path / "beyond", batch("a", p0=(1, 101, 105))))
    assert "has partitions 0, 1, 2, 3" in fails(checkpoint(tmp_path / "more", batch("a", p7=(1, 0, 1))))
    broken = checkpoint(tmp_path / "broken", batch("a", p0=(1, 0, 10)))
    newer = batch("a").to_json() | {"format": 9}
    (broken / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(newer)}")
    assert "upgrade it" in fails(broken, 1)
    assert "needs --from-checkpoint" in group.fails(2, "init", "--replaces", LOST.location)
    assert not table.exists()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["50% of it", "a%20b", "[x] {y}", "h#i ü?*"])
def test_a_checkpoint_is_read_from_any_location(group: Group, name: str, table: Path, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / name, batch("a", p0=(1, 10, 20)))
    for written in (folder, folder.as_uri(), folder.as_uri().replace("//", "", 1)):
        done = group("init", "--from-checkpoint", written)
        assert done.code == 0, done.err
    assert positions(table)["0"] == (1001, 10)


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("dbfs:/none/50%/a b", "/dbfs/none/50%/a b is wrong: it cannot be read"),
        ("/dbfs/none", "/dbfs/none is wrong: it cannot be read"),
        ("file:///Volumes/none/a%20b", "/Volumes/none/a b is wrong: it cannot be read"),
        *((each, f"{each!r} is wrong: allowed is") for each in ("", "s3:bucket/x", "dbfs:x", "file:x", "memory://x")),
    ],
)
def test_a_location_that_has_no_checkpoint_is_refused(group: Group, written: str, error: str) -> None:
    message = group.fails(2, "init", "--from-checkpoint", written)
    assert f"--from-checkpoint={error}" in " ".join(message.split())


def test_a_query_without_a_lease_table_gets_one(group: Group, table: Path, tmp_path: Path) -> None:
    alone = checkpoint(tmp_path / "one", batch("a", None, p0=(0, 0, 40), p1=(0, 0, 0), p2=(0, 7, 7), p3=(0, 0, 100)))
    assert group("init", "--from-checkpoint", alone).code == 0
    assert positions(table) == {"0": (0, 40), "1": (0, 0), "2": (0, 7), "3": (0, 100)}


def test_a_table_that_a_query_returns_to_gets_its_later_positions(group: Group, table: Path, tmp_path: Path) -> None:
    here = TableReference("t1", str(table))
    record(table, ("0", 2, 0))
    shared = checkpoint(tmp_path / "shared", batch("a", here, p0=(2, 0, 40)))
    assert group("init", "--from-checkpoint", shared).code == 0
    alone = checkpoint(tmp_path / "alone", batch("a", here, p0=(2, 0, 40)), batch("a", None, p0=(4, 40, 60)))
    assert "last read with none" in group.fails(2, "init", "--from-checkpoint", alone, "--replaces", table)
    assert group("init", "--from-checkpoint", alone).code == 0
    assert positions(table)["0"] == (4, 60)


def test_the_history_counts_for_a_batch_that_ended_early(group: Group, table: Path, tmp_path: Path) -> None:
    known = checkpoint(tmp_path / "one", batch("a", TableReference("t1", str(table)), p0=(1, 0, 100), p1=(1, 0, 100)))
    record(table, ("0", 1, 0), ("1", 1, 0), ("0", 2, 60))
    assert group("init", "--from-checkpoint", known).code == 0
    assert positions(table) == {"0": (2, 60), "1": (1, 100), "2": (0, 0), "3": (0, 0)}


def test_without_a_history_only_what_is_sure_counts_and_the_rest_is_told(
    group: Group, table: Path, tmp_path: Path
) -> None:
    """Of partition 2 the history has an earlier owner only."""
    record(tmp_path / "lost", ("2", 4, 0), ("3", 1, 0))
    lost = TableReference("t1", str(tmp_path / "lost"))
    first = batch("a", lost, p0=(1, 10, 30), p1=(2, 0, 40), p2=(5, 20, 50), p3=(1, 0, 60))
    held = {"1": EpochPosition(2, 40), "2": EpochPosition(5, 50), "3": EpochPosition(1, 60)}
    second = replace(batch("a", lost, p0=(1, 30, 70)), other_positions=held, checkpoints={"0": 10, "2": 20})
    folder = checkpoint(tmp_path / "one", first, second)
    done = group("init", "--from-checkpoint", folder)
    assert positions(table) == {"0": (1001, 10), "1": (1002, 40), "2": (1005, 20), "3": (1, 60)}
    assert (
        "4 continue after the last batch that is surely finished. Events 10 to 69 of partition 0, 20 to 49 of "
        "partition 2 may be read twice: the table's history is lost too, which shows whether a batch was read to its "
        "end. Events read by queries without a --from-checkpoint are read again.\n"
    ) in done.out
    assert done.code == 0


def test_positions_of_a_hub_that_had_the_same_name_are_refused(group: Group, table: Path, tmp_path: Path) -> None:
    """In another namespace, or made anew: they mean other events."""
    other = replace(batch("a", p0=(1, 0, 90)), hub=HubReference(HUB, "moved.servicebus.windows.net", 1_700_000_000_000))
    folder = checkpoint(tmp_path / "one", other)
    message = group.fails(2, "init", "--from-checkpoint", folder)
    assert "has read event hub hub of moved.servicebus.windows.net, made 2023-11-14 22:13:20+00:00, and this" in message
    assert not table.exists()


def test_only_the_sources_of_this_hub_count_in_a_query_of_several_hubs(
    group: Group, table: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "two"
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    ends = [replace(batch("a", p0=(1, at, 95)), hub=HubReference(hub)) for hub, at in (("other", 90), (HUB, 40))]
    lines = "\n".join(json.dumps(end.to_json()) for end in ends)
    (folder / "offsets" / "0").write_text(f"v1\n{{}}\n{lines}")
    (folder / "commits" / "0").write_text("v1\n{}")
    (folder / "offsets" / "²").write_text("no batch")
    assert group("init", "--from-checkpoint", folder).code == 0
    assert positions(table)["0"] == (1001, 40)

    strange = checkpoint(tmp_path / "strange", replace(batch("a", p0=(1, 0, 90)), hub=HubReference("other")))
    message = group.fails(2, "init", "--from-checkpoint", strange)
    assert "its sources have read other; allowed is the checkpoint of a query that has read event hub hub" in message
