"""A file in the lease table's folder that is small and holds more than memory can is not read."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

#: KiB of memory that the process may use for what it does not read: reading the files whole takes 400 MB and more.
MORE_MEMORY = 300 << 10


BOMBS: dict[str, Callable[[], tuple[pa.Table, dict[str, object]]]] = {
    "nulls": lambda: (pa.table({"epoch": pa.nulls(50_000_000, pa.int64())}), {}),
    "a list": lambda: (pa.table({"kind": pa.array([[None] * 50_000_000], pa.list_(pa.int64()))}), {}),
    "one value, compressed": lambda: (
        pa.table({"kind": ["x" * 400_000_000]}),
        {"compression": "zstd", "use_dictionary": False, "write_statistics": False},
    ),
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_data_file_that_expands_is_refused_in_one_line(uri: str, what: str) -> None:
    rows, options = BOMBS[what]()
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, **options)
    del rows
    newest = max(Path(uri, "_delta_log").glob("*.json"))
    actions = map(json.loads, newest.read_text().splitlines())
    name = next(action["add"]["path"] for action in actions if "add" in action)
    Path(uri, name).write_bytes(buffer.getvalue())
    assert len(buffer.getvalue()) < 2_000_000
    reading = f"""
import resource
from spark_ehbalance.errors import StoreDamagedError
from spark_ehbalance.lease_table.delta import DeltaStore
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    DeltaStore({uri!r}).read()
except StoreDamagedError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used)
"""
    done = subprocess.run([sys.executable, "-c", reading], capture_output=True, text=True, timeout=120)
    error, more = done.stdout.splitlines()
    assert "is damaged: " in error
    assert int(more) < MORE_MEMORY
