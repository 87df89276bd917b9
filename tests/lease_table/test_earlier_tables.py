"""A lease table written in November 2026, before the first release. `earlier/N.json` is the log file of version N, and
`earlier/N.rows.jsonl` contains the rows of its data file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ehbalance.group.changes import Heartbeat
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.lease_table.delta.table_format import to_table
from tests.lease_table.store_conformance import ANN, committed

EARLIER = Path(__file__).parent / "earlier"

TEXTS, NUMBERS = ("kind", "id", "owner", "host"), ("epoch", "sequence_number")
TIME = pa.timestamp("us", tz="UTC")


def put(table: Path, version: int) -> list[dict[str, Any]]:
    """Add `version` to the `table`. Returns its rows."""
    log = (EARLIER / f"{version}.json").read_text()
    (table / "_delta_log").mkdir(parents=True, exist_ok=True)
    (table / "_delta_log" / f"{version:020}.json").write_text(log)
    rows = [json.loads(line) for line in (EARLIER / f"{version}.rows.jsonl").read_text().splitlines()]
    types = dict.fromkeys(TEXTS, pa.string()) | dict.fromkeys(NUMBERS, pa.int64()) | {"renewed_at": TIME}
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}
    columns |= {"details": pa.array([json.dumps(row["details"]) for row in rows])}
    pq.write_table(pa.table(columns), table / json.loads(log.splitlines()[-1])["add"]["path"])
    return rows


def rows_of(snapshot: Snapshot) -> list[dict[str, Any]]:
    rows = to_table(snapshot).to_pylist()
    for row in rows:
        time = row["renewed_at"]
        row |= {"details": json.loads(row["details"]), "renewed_at": time and round(time.timestamp() * 1_000_000)}
    return rows


def test_table_of_an_earlier_version_is_read_and_continued(tmp_path: Path) -> None:
    table = tmp_path / "leases"
    written_by_init = put(table, 0)
    with DeltaStore(str(table)) as store:
        assert rows_of(store.read()) == written_by_init
        rows = put(table, 1)
        assert rows[4]["details"]["load"].pop("cpu") == 0.75  # no longer used
        assert rows_of(store.read()) == rows
    with DeltaStore(str(table)) as store:
        assert rows_of(store.read()) == rows
        committed(store, Heartbeat(by=ANN, at_ms=5))
        assert store.read().version == 2
