"""What survives a restart, and what is done about a torn tail."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.emulator import Emulator, LogCorruptError, partition_log
from spark_ehbalance.emulator.message import build_event
from spark_ehbalance.emulator.partition_log import PartitionLog

from .clients import bodies, numbers, reader


def _segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("hub/0/*.log"))


def test_hubs_groups_and_events_survive_a_restart(tmp_path: Path) -> None:
    with Emulator({"hub": 2}, data_dir=tmp_path) as emulator:
        emulator.append("hub", 0, [b"%d" % number for number in range(100)], {"a": "b"})
        emulator.add_partitions("hub", 1)
        emulator.add_consumer_group("hub", "Second")
        emulator.append("hub", 2, [b"x" * 1_000_000])
        before = emulator.partition_state("hub", 0)
        with reader(emulator.connection_string("hub")) as events:
            offsets = [event.offset for event in events.read(100)]
    with Emulator(data_dir=tmp_path) as emulator:
        assert emulator.partition_state("hub", 0) == before
        emulator.append("hub", 0, [b"new"])
        with reader(emulator.connection_string("hub"), group="second") as events:
            assert bodies(events.read(101)) == [b"%d" % number for number in range(100)] + [b"new"]
            assert [event.offset for event in events.events][:100] == offsets
        with reader(emulator.connection_string("hub"), start=offsets[50]) as events:
            assert numbers(events.read(50))[0] == 51
        with reader(emulator.connection_string("hub"), "2") as events:
            assert len(bodies(events.read(1))[0]) == 1_000_000


def test_trimming_survives_a_restart(tmp_path: Path) -> None:
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        emulator.append("hub", 0, [b"x"] * 10)
        emulator.trim("hub", 0, 7)
        before = emulator.partition_state("hub", 0)
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        assert emulator.partition_state("hub", 0) == before


def test_an_emptied_partition_goes_on_counting(tmp_path: Path) -> None:
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        emulator.append("hub", 0, [b"x"] * 10)
        emulator.trim("hub", 0, 10)
        before = emulator.partition_state("hub", 0)
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        assert emulator.partition_state("hub", 0) == before
        emulator.append("hub", 0, [b"y"])
        after = emulator.partition_state("hub", 0)
        assert (after.first_sequence_number, after.next_sequence_number) == (10, 11)
        assert after.bytes_held < before.bytes_held


def test_a_deleted_hub_stays_deleted(tmp_path: Path) -> None:
    with Emulator({"hub": 1, "other": 1}, data_dir=tmp_path) as emulator:
        emulator.delete_hub("hub")
    with Emulator(data_dir=tmp_path) as emulator:
        emulator.partition_state("other", 0)
        with pytest.raises(ValueError, match="could not be found"):
            emulator.partition_state("hub", 0)


@pytest.mark.parametrize("damage", ["cut", "flip", "extra"])
def test_a_torn_tail_is_cut_off(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        emulator.append("hub", 0, [b"%d" % number for number in range(10)])
    (path,) = _segments(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[:-3]
    elif damage == "flip":
        data[-1] ^= 0xFF
    else:
        data += b"EHB1 and then nothing"
    path.write_bytes(data)
    kept = 10 if damage == "extra" else 9
    with caplog.at_level(logging.WARNING), Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        assert emulator.partition_state("hub", 0).next_sequence_number == kept
        emulator.append("hub", 0, [b"new"])
        with reader(emulator.connection_string("hub")) as events:
            assert bodies(events.read(kept + 1)) == [b"%d" % number for number in range(kept)] + [b"new"]
    assert [record.message for record in caplog.records if "cut off" in record.message]


def test_damage_before_the_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_log, "SEGMENT_BYTES", 1000)
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        for _ in range(5):
            emulator.append("hub", 0, [b"x" * 600])
    first = _segments(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(LogCorruptError, match="is damaged at byte"):
        Emulator({"hub": 1}, data_dir=tmp_path).start()


@pytest.mark.parametrize("name", ["hub/hub.json", "hub/0/first", "hub/0/x-y.log"])
def test_files_that_make_no_sense_are_an_error(tmp_path: Path, name: str) -> None:
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        emulator.append("hub", 0, [b"x"])
    (tmp_path / name).write_text("nonsense")
    with pytest.raises(LogCorruptError, match="hub"):
        Emulator({"hub": 1}, data_dir=tmp_path).start()


def test_a_reader_is_told_when_its_events_cannot_be_read(tmp_path: Path) -> None:
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        emulator.append("hub", 0, [b"x"])
        _segments(tmp_path)[0].unlink()
        with pytest.raises(EventHubError) as caught, reader(emulator.connection_string("hub")) as events:
            events.read(1)
        assert caught.value.error == "internal-error"


def test_many_partitions_need_few_open_files(tmp_path: Path) -> None:
    with Emulator({"hub": 1200}, data_dir=tmp_path) as emulator:
        for partition in range(1200):
            emulator.append("hub", partition, [b"x"])
        assert emulator.partition_state("hub", 1199).next_sequence_number == 1
        assert len(list(Path("/proc/self/fd").iterdir())) < 200


@pytest.mark.parametrize("in_files", [False, True])
def test_segments_are_rolled_read_across_and_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_files: bool
) -> None:
    monkeypatch.setattr(partition_log, "SEGMENT_BYTES", 1000)
    log = PartitionLog(tmp_path if in_files else None)
    for number in range(50):
        log.append([build_event(b"%03d" % number * 50)])
    held = log.bytes_held
    read, number = [], 0
    while number < 50:
        chunk = log.read(number, 1000, 4000)
        read += [bytes(chunk.data[a:b]) for a, b in zip(chunk.starts, chunk.starts[1:], strict=False)]
        number = len(read)
    assert [b"%03d" % number * 50 in record for number, record in enumerate(read)] == [True] * 50
    log.trim(40)
    assert log.bytes_held < held / 3
    assert log.first_sequence_number == 40
    assert log.read(40, 1, 1).data == bytearray(read[40])
    if in_files:
        again = PartitionLog(tmp_path)
        assert (again.first_sequence_number, again.next_sequence_number) == (40, 50)
        assert again.last_offset == log.last_offset
