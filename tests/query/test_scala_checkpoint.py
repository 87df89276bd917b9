"""Starting positions read from the Scala connector's checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ehbalance.group.position import Position
from spark_ehbalance.query.scala_checkpoint import UnusableError, may_be_scala_query, scala_query_positions
from spark_ehbalance.query.spark_checkpoint import opened
from tests.query.scala_folders import scala_folder


def read(folder: Path, hub: str | None = "hub") -> dict[str, int]:
    with opened(str(folder), {}) as files:
        found = scala_query_positions(files, hub)
    assert all(isinstance(position, Position) for position in found.named.values())
    return {p: position.next for p, position in found.named.items() if isinstance(position, Position)}


def refusal(folder: Path, hub: str | None = "hub") -> str:
    with pytest.raises(UnusableError) as caught:
        read(folder, hub)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_position_is_the_end_of_the_last_finished_batch(tmp_path: Path) -> None:
    batches = [{"hub": {0: 10, 1: 0}}, {"hub": {0: 25, 1: 7, 10: 3}}, {"hub": {0: 31, 1: 9, 10: 3, 2: 8}}]
    assert read(scala_folder(tmp_path / "all", *batches, first=1207)) == {"0": 31, "1": 9, "2": 8, "10": 3}
    assert read(scala_folder(tmp_path / "planned", *batches, first=1207, unfinished=1)) == {"0": 25, "1": 7, "10": 3}
    assert list(read(tmp_path / "all")) == ["0", "1", "2", "10"]
    assert read(scala_folder(tmp_path / "none", {"hub": {0: -1, 1: 0}})) == {"0": 0, "1": 0}, "before the first event"


def test_checkpoint_without_a_finished_batch_is_rejected(tmp_path: Path) -> None:
    folder = scala_folder(tmp_path, {"hub": {0: 10, 1: 5}}, unfinished=1)
    assert "no batch is finished" in refusal(folder)
    later = scala_folder(tmp_path / "later", ("7", None), ("8", {"hub": {0: 10}}), unfinished=1)
    assert "its last finished batch, offsets/0, contains positions of no event hub, not of hub" in refusal(later)


def test_checkpoints_with_several_hubs_and_sources(tmp_path: Path) -> None:
    one_source = {"Other": {0: 99}, "Hub": {0: 11}, "t": {0: 1}, "T": {0: 2}}
    assert read(scala_folder(tmp_path / "one", one_source)) == {"0": 11}
    assert "as t and as T" in refusal(tmp_path / "one", "t")
    files = '{"logOffset":3}'
    folder = scala_folder(tmp_path / "several", (files, {"other": {0: 99}}, {"hub": {0: 11}}, "4711", None, "[]", "{}"))
    assert read(folder) == {"0": 11}
    assert read(folder, "OTHER") == {"0": 99}
    assert "contains positions of hub, other, not of third" in refusal(folder, "third")
    assert "its sources have read the event hubs hub, other, so choose one of them" in refusal(folder, None)
    twice = scala_folder(tmp_path / "twice", ({"hub": {0: 9}}, {"hub": {0: 11}}))
    assert "2 of its sources have read event hub hub" in refusal(twice)


def test_unrelated_files_are_ignored(tmp_path: Path) -> None:
    folder = scala_folder(tmp_path, {"hub": {0: 10}}, {"hub": {0: 20}})
    for name in ("7.compact", "8.tmp", ".9.crc", "²", "_SUCCESS"):
        (folder / "offsets" / name).write_text("v1\n{}\n" + '{"hub":{"0":99}}')
        (folder / "commits" / name).write_text("v1\n{}")
    (folder / "offsets" / "3").mkdir()
    (folder / "offsets" / "2").write_text("")  # a planned batch whose file a crash left empty
    assert read(folder) == {"0": 20}


def test_damaged_file_of_a_finished_batch_is_rejected(tmp_path: Path) -> None:
    folder = scala_folder(tmp_path, {"hub": {0: 10}}, {"hub": {0: 20}})
    for text, problem in (
        ("", "offsets/1 is not an offset log of version 1"),
        ("v2\n{}\n" + '{"hub":{"0":20}}', "offsets/1 is not an offset log of version 1"),
        ("v1\n{}\n" + '{"hub":{"0":2', "line 3 of offsets/1 is damaged"),
        ("v1\n{}\n" + '{"hub":{"0":"20"}}', "offsets/1 contains '20' for partition 0"),
        ("v1\n{}\n" + '{"hub":{"0":true}}', "offsets/1 contains True for partition 0"),
    ):
        (folder / "offsets" / "1").write_text(text)
        assert problem in refusal(folder)
    for text in ("v1\n{}", "v1\n", 'v1\n{}\n{"other":{"0":7}}'):  # truncated before the hub's line
        (folder / "offsets" / "1").write_text(text)
        assert "offsets/1, contains positions of" in refusal(folder)
    (folder / "offsets" / "1").unlink()
    assert "batch 1 is finished, but offsets/1 is missing" in refusal(folder)


def test_other_checkpoints_are_not_mistaken_for_the_scala_connectors(tmp_path: Path) -> None:
    for name, line, is_scala in (
        ("rate", "17", False),
        ("files", '{"logOffset":3}', False),
        ("hub", {"hub": {0: 1}}, True),
    ):
        with opened(str(scala_folder(tmp_path / name, line)), {}) as files:
            assert may_be_scala_query(files) is is_scala
    assert "its sources have not read any event hub" in refusal(tmp_path / "rate", None)
