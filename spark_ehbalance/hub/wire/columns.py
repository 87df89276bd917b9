"""Messages in a buffer as Arrow columns."""

from __future__ import annotations

import pyarrow as pa

from spark_ehbalance.hub import rows
from spark_ehbalance.hub.wire.messages import parse


class Columns:
    """Makes record batches of the messages of one partition; `json_properties` as for `rows.record_batch`."""

    def __init__(self, partition: str, json_properties: bool) -> None:
        self._partition = partition
        self._json = json_properties

    def record_batch(self, data: bytearray, starts: list[int], ends: list[int], joined: list[bytes]) -> pa.RecordBatch:
        """The messages that `Transfers` has found in `data`. Raises `MalformedError`."""
        view = memoryview(data)
        events = [
            parse(bytes(view[start:end]) if start >= 0 else joined[-1 - start])
            for start, end in zip(starts, ends, strict=True)
        ]
        return rows.record_batch(events, self._partition, json_properties=self._json)
