"""What survives a restart, and what damaged files cost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from azure.eventhub.exceptions import EventHubError

from spark_ehbalance.emulator import Emulator, LogCorruptError
from spark_ehbalance.emulator.message import build_events
from spark_ehbalance.emulator.partition_log import PartitionLog

from .clients import bodies, numbers, read, reader


def _segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("hub/0/*.log"))


def _fill(directory: Path, sent: list[bytes], segment_bytes: int) -> list[str]:
    """Create `hub` with one event of each body, in segments of that size; returns the events' offsets."""
    with Emulator({"hub": 1}, data_dir=directory):
        pass
    log = PartitionLog(directory / "hub" / "0", segment_bytes)
    offsets = []
    for body in sent:
        log.append(build_events([body]))
        offsets.append(log.last_offset)
    return offsets


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
        assert numbers(read(emulator.connection_string("hub"), 50, start=offsets[50]))[0] == 51
        assert len(bodies(read(emulator.connection_string("hub"), 1, "2"))[0]) == 1_000_000


@pytest.mark.parametrize("trimmed", [7, 10])
def test_trimming_survives_a_restart_also_of_an_emptied_partition(tmp_path: Path, trimmed: int) -> None:
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        emulator.append("hub", 0, [b"x"] * 10)
        emulator.trim("hub", 0, trimmed)
        before = emulator.partition_state("hub", 0)
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        assert emulator.partition_state("hub", 0) == before
        emulator.append("hub", 0, [b"y"])
        after = emulator.partition_state("hub", 0)
        assert (after.first_sequence_number, after.next_sequence_number) == (trimmed, 11)
        assert (after.bytes_held < before.bytes_held) is (trimmed == 10)


def test_a_deleted_hub_stays_deleted(tmp_path: Path) -> None:
    with Emulator({"hub": 1, "other": 1}, data_dir=tmp_path) as emulator:
        emulator.delete_hub("hub")
    with Emulator(data_dir=tmp_path) as emulator:
        emulator.partition_state("other", 0)
        with pytest.raises(ValueError, match="could not be found"):
            emulator.partition_state("hub", 0)


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (lambda data: data[:-3], 9),
        (lambda data: data[:-1] + bytes([data[-1] ^ 0xFF]), 9),
        (lambda data: data + b"EHB1 and then nothing", 10),
    ],
)
def test_a_damaged_end_is_cut_off(
    tmp_path: Path, damage: Callable[[bytes], bytes], kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    sent = [b"%d" % number for number in range(10)]
    _fill(tmp_path, sent, 1 << 20)
    (path,) = _segments(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING), Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        assert emulator.partition_state("hub", 0).next_sequence_number == kept
        emulator.append("hub", 0, [b"new"])
        assert bodies(read(emulator.connection_string("hub"), kept + 1)) == [*sent[:kept], b"new"]
    assert "cut off" in caplog.text


COUNT = 20


@pytest.mark.parametrize("segment_bytes", [1000, 1 << 20], ids=["many files", "one file"])
@pytest.mark.parametrize("lost", [[7, 8, 9], [3, 11, 12], [0, 1, 18]], ids=str)
@pytest.mark.parametrize("part", ["magic", "length", "check", "number", "time", "body"])
def test_damage_before_the_end_loses_only_the_damaged_events(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, segment_bytes: int, lost: list[int], part: str
) -> None:
    sent = [b"%02d" % number * 200 for number in range(COUNT)]
    offsets = _fill(tmp_path, sent, segment_bytes)
    before = PartitionLog(tmp_path / "hub" / "0")
    distance = {"magic": 0, "length": 4, "check": 8, "number": 12, "time": 20, "body": -100}[part]
    for number in lost:
        _damage(tmp_path, sent[number], distance)
    kept = [number for number in range(COUNT) if number not in lost]
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING), Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
            (warning,) = (record.message for record in caplog.records)
            assert "are lost, all others are kept" in warning
            after = emulator.partition_state("hub", 0)
            assert (after.next_sequence_number, after.last_offset) == (before.next_sequence_number, before.last_offset)
            with reader(emulator.connection_string("hub")) as events:
                events.read(len(kept))
                assert numbers(events.events) == kept
                assert bodies(events.events) == [sent[number] for number in kept]
                assert [event.offset for event in events.events] == [offsets[number] for number in kept]
            for start in (lost[0], kept[3]):
                with reader(emulator.connection_string("hub"), start=start, inclusive=True) as events:
                    assert numbers(events.read(1))[0] == min(number for number in kept if number >= start)
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        emulator.append("hub", 0, [b"new"])
        with reader(emulator.connection_string("hub"), start=offsets[-1]) as events:
            assert (numbers(events.read(1)), bodies(events.events)) == ([COUNT], [b"new"])


def _damage(directory: Path, body: bytes, distance: int) -> None:
    """Flip a bit of the event with `body`, at a distance from its record's start or, if negative, its body's end."""
    for path in _segments(directory):
        data = bytearray(path.read_bytes())
        end = data.find(body) + len(body)
        if end >= len(body):
            data[(end if distance < 0 else data.rfind(b"EHB1", 0, end)) + distance] ^= 0x10
            path.write_bytes(data)


def test_a_missing_file_of_a_log_loses_only_its_events(tmp_path: Path) -> None:
    _fill(tmp_path, [b"x" * 600] * 10, 1000)
    gone = _segments(tmp_path)[1]
    first, after = (int(path.stem.split("-")[0]) for path in (gone, _segments(tmp_path)[2]))
    gone.unlink()
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        with reader(emulator.connection_string("hub")) as events:
            assert numbers(events.read(10 - after + first)) == [*range(first), *range(after, 10)]
        emulator.trim("hub", 0, after)
        assert emulator.partition_state("hub", 0).first_sequence_number == after


def test_a_record_inside_an_event_is_not_read_as_one(tmp_path: Path) -> None:
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        emulator.append("hub", 0, [b"first"])
        inside = _segments(tmp_path)[0].read_bytes()
        emulator.append("hub", 0, [b"a copy: " + inside * 3, b"last"])
    _damage(tmp_path, b"a copy: ", -1)
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator, reader(emulator.connection_string("hub")) as events:
        assert bodies(events.read(2)) == [b"first", b"last"]
        assert numbers(events.events) == [0, 2]


@pytest.mark.parametrize("name", ["hub/hub.json", "hub/0/first", "hub/0/x-y.log"])
def test_invalid_files_are_an_error(tmp_path: Path, name: str) -> None:
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        emulator.append("hub", 0, [b"x"])
    (tmp_path / name).write_text("nonsense")
    with pytest.raises(LogCorruptError, match="hub"):
        Emulator({"hub": 1}, data_dir=tmp_path).start()


def test_a_reader_gets_an_error_when_its_events_cannot_be_read(tmp_path: Path) -> None:
    with Emulator({"hub": 1}, data_dir=tmp_path) as emulator:
        emulator.append("hub", 0, [b"x"])
        _segments(tmp_path)[0].unlink()
        with pytest.raises(EventHubError, match="internal-error"):
            read(emulator.connection_string("hub"), 1)


def test_many_partitions_need_few_open_files(tmp_path: Path) -> None:
    with Emulator({"hub": 1200}, data_dir=tmp_path) as emulator:
        for partition in range(1200):
            emulator.append("hub", partition, [b"x"])
        assert emulator.partition_state("hub", 1199).next_sequence_number == 1
        assert len(list(Path("/proc/self/fd").iterdir())) < 200


@pytest.mark.parametrize("in_files", [False, True])
def test_reading_crosses_segments_and_trimming_deletes_them(tmp_path: Path, in_files: bool) -> None:
    log = PartitionLog(tmp_path if in_files else None, 1000)
    for number in range(50):
        log.append(build_events([b"%03d" % number * 50]))
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
