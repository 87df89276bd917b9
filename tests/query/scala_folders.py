"""Checkpoint folders as the Scala connector writes them, according to its source and Spark's (`EventHubsSourceOffset`,
`OffsetSeqLog`): the connector itself does not run with Spark 4."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1770000000000,"conf":{"spark.sql.shuffle.partitions":"200"}}'

#: A source's entry in a batch: the hubs' sequence numbers, another source's line, or None if it had no data yet.
Line = Mapping[str, Mapping[int, int]] | str | None


def scala_folder(folder: Path, *batches: Line | tuple[Line, ...], first: int = 0, unfinished: int = 0) -> Path:
    """Write a checkpointLocation with these batches, numbered from `first`; the last `unfinished` are only planned. A
    batch is one source's entry, or a tuple of several sources' entries."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text('{"id":"0b1f6dd5-9a5b-4c0c-b9ae-27b1bbf1d5c5"}')
    for number, batch in enumerate(batches, first):
        lines = [_line(line) for line in (batch if isinstance(batch, tuple) else (batch,))]
        (folder / "offsets" / str(number)).write_text("\n".join(["v1", SETTINGS, *lines]))
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < first + len(batches) - unfinished:
            (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def _line(line: Line) -> str:
    if line is None:
        return "-"
    if isinstance(line, str):
        return line
    return json.dumps(
        {hub: {str(p): n for p, n in numbers.items()} for hub, numbers in line.items()}, separators=(",", ":")
    )
