"""Data locations and listeners listed in docs/security.md."""

from __future__ import annotations

from pathlib import Path

import deltalake
import psutil

from tests.query.queries import PARTITIONS, Group
from tests.query.support import HUB

EVENT = b"what-a-customer-has-written"


def listening() -> set[tuple[str, int]]:
    """The TCP ports on which this process listens."""
    connections = psutil.Process().net_connections(kind="inet")
    return {tuple(connection.laddr) for connection in connections if connection.status == psutil.CONN_LISTEN}


def test_events_stay_out_of_tables_and_offsets_and_planners_open_no_port(group: Group) -> None:
    for partition in range(PARTITIONS):
        group.emulator.append(HUB, partition, [EVENT] * 5, {"name": EVENT.decode()})
    before = listening()
    query = group.query()
    query.read(5 * PARTITIONS)
    assert listening() == before
    query.stop()
    tables = [group.table, Path(f"{group.table}_history")]
    rows = [deltalake.DeltaTable(str(table)).to_pyarrow_table().to_pylist() for table in tables]
    assert all(rows)
    assert EVENT.decode() not in f"{rows}{query.finished.to_json()}"
    files = [file for table in tables for file in table.rglob("*") if file.is_file()]
    assert not any(EVENT in file.read_bytes() for file in files)
