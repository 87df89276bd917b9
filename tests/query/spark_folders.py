"""Checkpoint folders of `ehbalance` queries in Spark's format (`tests/spark` tests real ones)."""

from __future__ import annotations

import json
from pathlib import Path

from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.query.offsets import HubReference, StreamOffset, TableReference, group_name

LOST = TableReference("t1", "/lost/leases")


def batch(
    owner: str, table: TableReference | None = LOST, hub: str = "hub", **ranges: tuple[int, int, int]
) -> StreamOffset:
    """The end offset of a batch with these (epoch, start, end) ranges of partitions p0, p1, …"""
    group = group_name(table.location) if table else ""
    read = {p[1:]: OffsetRange(p[1:], *range_) for p, range_ in ranges.items()}
    return StreamOffset(owner, read, group, table, HubReference(hub))


def spark_folder(folder: Path, *batches: StreamOffset | None, unfinished: int = 0) -> Path:
    """Write a checkpoint with these batches, the last `unfinished` uncommitted; None is another source's batch."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, end in enumerate(batches):
        line = json.dumps(end.to_json()) if end else "-"
        (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{line}\n{{"logOffset":3}}')
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < len(batches) - unfinished:
            (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder
