"""A connection string passed by reference whose key is replaced while the query runs."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import HubUnavailableError
from spark_ehbalance.eventhub import connection
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.eventhub.receiver import PartitionAddress
from spark_ehbalance.eventhub.resolve import find_offset
from spark_ehbalance.eventhub.sending.columns import SinkColumns
from spark_ehbalance.eventhub.sending.write_options import write_options
from spark_ehbalance.eventhub.sending.writing import LinkPool
from spark_ehbalance.eventhub.sending.writing import WriteTask as SendingTask
from spark_ehbalance.eventhub.watcher import HubWatcher
from spark_ehbalance.group.starting_positions import LATEST
from spark_ehbalance.query.options import Options, batch_options, stream_options
from spark_ehbalance.query.range_reader import read_range
from spark_ehbalance.query.receivers import RECEIVERS
from spark_ehbalance.spark.datasource import BatchReader
from tests.query.support import HUB, numbers
from tests.raising import raises

EVENTS = 100


class Rotation:
    """A hub whose key changes, and the file with its connection string."""

    def __init__(self, folder: Path) -> None:
        self.keys = {"reader": "oldKey"}
        self.file = folder / "connection-string"
        self.emulator = Emulator({HUB: 1, "other": 1}, sas_keys=self.keys)

    def write(self) -> None:
        self.file.write_text(self.emulator.connection_string(HUB))

    def rotate(self) -> None:
        self.keys["reader"] += "er"
        self.write()

    @property
    def options(self) -> Options:
        return stream_options({"connectionString": f"file:{self.file}"})


@pytest.fixture
def rotation(tmp_path: Path) -> Iterator[Rotation]:
    made = Rotation(tmp_path)
    with made.emulator:
        made.write()
        made.emulator.append(HUB, 0, [b"x"] * EVENTS)
        yield made
    RECEIVERS.close()


def read(options: Options) -> list[int]:
    return numbers(read_range(options, OffsetRange("0", 0, 0, EVENTS), None, None))


def test_all_kinds_of_connections_use_the_new_key(rotation: Rotation) -> None:
    options = rotation.options
    watcher = HubWatcher(options.connection, "$Default", LATEST, timeout=20.0)
    with contextlib.ExitStack() as stack:
        stack.callback(watcher.stop)
        watcher.start()
        for _ in range(2):  # the second rotation must work too
            rotation.rotate()
            assert read(options) == list(range(EVENTS))
            rotation.rotate()
            with HubMetadata(options.connection, "$Default") as metadata:
                assert metadata.partition_ids() == ("0",)
            rotation.rotate()
            assert find_offset(PartitionAddress(options.connection, "$Default", "0"), 9, None, 20) is not None
        rotation.emulator.drop_connections()
        rotation.emulator.append(HUB, 0, [b"x"])
        watcher.refresh()
        assert watcher.states()["0"].end == EVENTS + 1


def test_sink_uses_the_new_key(rotation: Rotation) -> None:
    options = pickle.dumps(write_options({"connectionString": f"file:{rotation.file}"}))  # once per query
    rotation.rotate()
    task = SendingTask(pickle.loads(options), SinkColumns(0), LinkPool())
    schema = pa.schema([("body", pa.binary())])
    assert task.write(pa.Table.from_pylist([{"body": b"new"}], schema).to_batches()).events == 1


def test_tasks_bring_their_batchs_key_to_executors_without_the_file(
    rotation: Rotation, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = batch_options({"connectionString": f"file:{rotation.file}"})
    reader = pickle.dumps(BatchReader(options))  # Spark does this once per query
    rotation.rotate()
    tasks = [pickle.dumps(task) for task in BatchReader(options).partitions()]
    rotation.file.unlink()
    monkeypatch.setattr(connection, "_NEWEST", {})  # a separate process
    rows = [batch for task in tasks for batch in pickle.loads(reader).read(pickle.loads(task))]
    assert sum(row.num_rows for row in rows) == EVENTS
    assert "oldKey" not in repr([pickle.loads(task) for task in tasks])


@pytest.mark.parametrize("content", ["the old key", None, "", "half a str", "other"])
def test_reference_without_a_valid_key_is_one_line_and_keeps_the_old_key(
    rotation: Rotation, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    options = rotation.options
    rotation.keys["reader"] = "newKey"
    if content is None:
        rotation.file.unlink()
    elif content == "other":
        rotation.file.write_text(rotation.emulator.connection_string("other"))
    elif content != "the old key":
        rotation.file.write_text(content)
    with raises(HubUnavailableError, "EHB_CREDENTIALS_REFUSED") as caught:
        read(options)
    if content == "the old key":
        assert f"connectionString=file:{rotation.file}, which was read again" in str(caught.value.parameters["check"])
    else:
        assert "No new key found after the old one was refused" in caplog.text
        assert options.connection.with_current_key() is options.connection
    assert "oldKey" not in str(caught.value)
    assert "\n" not in str(caught.value)
