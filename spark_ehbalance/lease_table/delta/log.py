"""Commits and checkpoints of the table's log."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ehbalance.lease_table.delta.names import HINT, LOG, checkpoint_file

_ENGINE = "spark-ehbalance"

#: Keys in `commitInfo`: the token by which the author recognizes its commit, the table's id, and the number of actions.
_TOKEN, _TABLE, _ACTIONS = "ehbalance.commit", "ehbalance.table", "ehbalance.actions"

_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}

_TEXTS = pa.map_(pa.string(), pa.string())
_LONG, _TEXT, _INT = pa.int64(), pa.string(), pa.int32()


def _struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct([*fields.items()])


_METADATA = {
    "id": _TEXT,
    "name": _TEXT,
    "description": _TEXT,
    "format": _struct(provider=_TEXT, options=_TEXTS),
    "schemaString": _TEXT,
    "partitionColumns": pa.list_(_TEXT),
    "createdTime": _LONG,
    "configuration": _TEXTS,
}

_ADD = {
    "path": _TEXT,
    "partitionValues": _TEXTS,
    "size": _LONG,
    "modificationTime": _LONG,
    "dataChange": pa.bool_(),
    "stats": _TEXT,
}

#: The actions of a checkpoint. This store does not write the last two, but readers expect their columns.
_CHECKPOINT = pa.schema(
    [
        ("protocol", _struct(minReaderVersion=_INT, minWriterVersion=_INT)),
        ("metaData", _struct(**_METADATA)),
        ("add", _struct(**_ADD)),
        ("remove", _struct(path=_TEXT, deletionTimestamp=_LONG, dataChange=pa.bool_())),
        ("txn", _struct(appId=_TEXT, version=_LONG, lastUpdated=_LONG)),
    ]
)


def metadata(
    name: str | None,
    description: str | None,
    schema: str,
    properties: Mapping[str, str],
    at_ms: int,
    id: str | None = None,
) -> dict[str, Any]:
    """The action with a table's metadata; `schema` is in Delta's JSON, `at_ms` the creation time."""
    return {
        "metaData": {
            "id": id or str(uuid.uuid4()),
            "name": name,
            "description": description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": [],
            "createdTime": at_ms,
            "configuration": dict(properties),
        }
    }


def creation(metadata: dict[str, Any], *adds: dict[str, Any]) -> bytes:
    """The log file that creates a table."""
    information = {
        "timestamp": metadata["metaData"]["createdTime"],
        "operation": "CREATE TABLE",
        "engineInfo": _ENGINE,
        _TABLE: metadata["metaData"]["id"],
        _ACTIONS: 3 + len(adds),
    }
    return _lines([{"commitInfo": information}, {"protocol": _PROTOCOL}, metadata, *adds])


def added(path: str, size: int, rows: int, at_ms: int) -> dict[str, Any]:
    """The action that adds the data file at `path`, of `size` bytes, changed at `at_ms`."""
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": size,
            "modificationTime": at_ms,
            "dataChange": True,
            "stats": json.dumps({"numRecords": rows}),
        }
    }


def overwrite(version: int, table: str, removed: str | None, add: dict[str, Any], token: str) -> bytes:
    """The log file of the commit after `version`, which replaces the data file `removed` with `add` in the table with
    the id `table`."""
    at_ms = add["add"]["modificationTime"]
    information = {
        "timestamp": at_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Overwrite"},
        "readVersion": version,
        "isBlindAppend": False,
        "engineInfo": _ENGINE,
        _TOKEN: token,
        _TABLE: table,
    }
    removes = [{"remove": {"path": removed, "deletionTimestamp": at_ms, "dataChange": True}}] if removed else []
    return _lines([{"commitInfo": information}, *removes, add])


def _lines(actions: Iterable[dict[str, Any]]) -> bytes:
    return "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode()


def actions_of(content: bytes) -> list[dict[str, Any]]:
    """The actions of a log file. Raises `ValueError`, whose message states the problem. A truncated file
    of this store is recognized by its number of actions (first commit) or the missing final `add` (later commits)."""
    try:
        # The bytes are split, because a string would also be split at U+2028.
        actions = [json.loads(line) for line in content.splitlines() if line.strip()]
        information = _information(actions)
        is_cut = _TOKEN in information and "add" not in actions[-1]
        is_cut |= information.get(_ACTIONS, len(actions)) != len(actions)
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError("cannot be read") from None
    if not actions:
        raise ValueError("is empty")
    if is_cut:
        raise ValueError("is cut off")
    return actions


def own_add(content: bytes, table: str) -> dict[str, Any] | None:
    """The `add` of a commit that this store made to the table with id `table`; None for any other commit. Raises
    `ValueError`."""
    actions = actions_of(content)
    return actions[-1] if "add" in actions[-1] and _table_of(actions) == table else None


def data_change(content: bytes, files: list[str]) -> str | None:
    """The operation of a commit that adds or removes data files; None for any other commit, such as one that only adds
    statistics to the table's only file. `files` are the table's files. Raises `ValueError`."""
    actions = actions_of(content)
    adds = [add for action in actions if (add := action.get("add"))]
    changes_data = any(action.get("remove") for action in actions) or any(
        add.get("dataChange", True) or [add.get("path")] != files for add in adds
    )
    return str(_information(actions).get("operation", "unknown")) if changes_data else None


def was_written_by(token: str, content: bytes) -> bool:
    """Whether the author with this token wrote the log file."""
    return _information(actions_of(content)).get(_TOKEN) == token


def _table_of(actions: Iterable[dict[str, Any]]) -> str | None:
    """The id of the table to which this store made the commit; None for another program's commit."""
    information = _information(actions)
    if information.get("engineInfo") != _ENGINE:
        return None
    # Earlier processes did not write the id in a table's first commit, which contains it as metadata.
    created = next((action["metaData"]["id"] for action in actions if "metaData" in action), None)
    return information.get(_TABLE, created)


def _information(actions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def newest_checkpoint(names: Iterable[str]) -> int:
    """The version of the newest checkpoint among log files with these `names`; -1 if there is none."""
    return max((int(name[:20]) for name in names if name[:20].isdigit() and ".checkpoint." in name), default=-1)


def encode_checkpoint(version: int, metadata: dict[str, Any], add: dict[str, Any]) -> dict[str, bytes]:
    """The files of a checkpoint at `version`, by name, in the order in which they must be written. This store writes
    the checkpoint itself, because delta-rs would read the log with several requests per commit."""
    rows = [{"protocol": _PROTOCOL}, metadata, {"add": add["add"] | {"dataChange": False}}]
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([_with_pairs(row) for row in rows], schema=_CHECKPOINT), buffer)
    hint = json.dumps({"version": version, "size": len(rows)})
    return {checkpoint_file(version): buffer.getvalue().to_pybytes(), f"{LOG}/{HINT}": hint.encode()}


def _with_pairs(value: Any) -> Any:
    """`value` with maps as lists of pairs, as Arrow expects them."""
    if not isinstance(value, dict):
        return value
    maps = ("partitionValues", "options", "configuration")
    return {name: [*field.items()] if name in maps else _with_pairs(field) for name, field in value.items()}
