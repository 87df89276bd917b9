"""What docs/security.md says of where data is, and who listens."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import deltalake
import psutil
import pytest

from spark_ehbalance.query.options import stream_options
from tests.query.queries import PARTITIONS, Group
from tests.query.support import HUB

EVENT = b"what-a-customer-has-written"


def test_no_event_is_in_the_lease_table_its_history_or_an_offset(group: Group) -> None:
    for partition in range(PARTITIONS):
        group.emulator.append(HUB, partition, [EVENT] * 5, {"name": EVENT.decode()})
    query = group.query()
    query.read(5 * PARTITIONS)
    query.stop()
    tables = [group.table, Path(f"{group.table}_history")]
    rows = [deltalake.DeltaTable(str(each)).to_pyarrow_table().to_pylist() for each in tables]
    assert all(rows)
    assert EVENT.decode() not in f"{rows}{query.finished.to_json()}"
    files = [file for each in tables for file in each.rglob("*") if file.is_file()]
    assert not any(EVENT in file.read_bytes() for file in files)


def test_a_planner_listens_on_no_port(group: Group) -> None:
    group.append(1)
    process, _ = group.process("a")
    deadline = time.monotonic() + 30
    while not (found := psutil.Process(process.pid).net_connections(kind="inet")):
        assert time.monotonic() < deadline, "it is connected to the hub"
        time.sleep(0.05)
    assert [each for each in found if each.type != socket.SOCK_STREAM or each.status == psutil.CONN_LISTEN] == []


def test_a_changed_key_is_found_by_the_next_batch_or_start(monkeypatch: pytest.MonkeyPatch, group: Group) -> None:
    raw = {"connectionString": "env:THE_STRING"}
    string = group.emulator.connection_string(HUB).replace(";", "/;", 1)  # as it is given to the client
    monkeypatch.setenv("THE_STRING", string)
    before = stream_options(raw).connection
    monkeypatch.setenv("THE_STRING", other := string.replace("SharedAccessKeyName=", "SharedAccessKeyName=other"))
    assert before.connection_string == string
    assert before.current().connection_string == other
    assert stream_options(raw).connection.connection_string == other
