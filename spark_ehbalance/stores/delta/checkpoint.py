"""A checkpoint of the table's log, written from what is known: delta-rs would read the log back, four requests a
commit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ehbalance.stores.delta.names import HINT, LOG

_TEXTS = pa.map_(pa.string(), pa.string())
_FILE = [("path", pa.string()), ("partitionValues", _TEXTS), ("size", pa.int64()), ("dataChange", pa.bool_())]
_FORMAT = pa.struct([("provider", pa.string()), ("options", _TEXTS)])

#: The actions of Delta's protocol that a checkpoint can have. Readers expect all their columns.
_SCHEMA = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
        (
            "add",
            pa.struct([*_FILE, ("modificationTime", pa.int64()), ("stats", pa.string()), ("tags", _TEXTS)]),
        ),
        ("remove", pa.struct([*_FILE, ("deletionTimestamp", pa.int64()), ("extendedFileMetadata", pa.bool_())])),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", _FORMAT),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("createdTime", pa.int64()),
                    ("configuration", _TEXTS),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(pa.string())),
                    ("writerFeatures", pa.list_(pa.string())),
                ]
            ),
        ),
    ]
)


def checkpoint(version: int, actions: list[dict[str, Any]]) -> dict[str, bytes]:
    """The files of a checkpoint at `version`, by name, in the order in which they are to be written. `actions` are the
    table's protocol, its metadata, its data files and its `tombstones`."""
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([_with_pairs(each) for each in actions], schema=_SCHEMA), buffer)
    content: bytes = buffer.getvalue().to_pybytes()
    hint = {
        "version": version,
        "size": len(actions),
        "sizeInBytes": len(content),
        "numOfAddFiles": sum("add" in each for each in actions),
    }
    return {f"{LOG}/{version:020}.checkpoint.parquet": content, f"{LOG}/{HINT}": json.dumps(hint).encode()}


def tombstones(files: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    """The actions for the data files, given by name and size, that newer versions have replaced. They tell other
    engines' VACUUM what to spare for readers of earlier versions: from now on, as nobody knows since when."""
    now = time.time_ns() // 1_000_000
    fields = {"partitionValues": {}, "dataChange": False, "deletionTimestamp": now, "extendedFileMetadata": True}
    return [{"remove": {"path": name, "size": size, **fields}} for name, size in files]


def _with_pairs(value: Any) -> Any:
    """`value` with those dictionaries that Arrow takes for maps as lists of pairs."""
    if not isinstance(value, dict):
        return value
    maps = ("partitionValues", "options", "configuration")
    return {name: [*each.items()] if name in maps else _with_pairs(each) for name, each in value.items()}
