"""One version of the table as a snapshot. The state is one small Parquet file, which is read and written here; a table
that a foreign writer has changed may have several."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from spark_ehbalance.errors import StoreDamagedError
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.stores.delta.features import refused, unreadable, unsupported
from spark_ehbalance.stores.delta.folder import Folder, storage_error_text
from spark_ehbalance.stores.delta.log import Head, actions_of, shape_version
from spark_ehbalance.stores.delta.names import commit_file
from spark_ehbalance.stores.delta.table_format import (
    SCHEMA,
    conformed,
    description,
    description_in_rows,
    from_table,
    group_of,
    is_described,
)
from spark_ehbalance.values.group import Group


@dataclass(frozen=True, slots=True)
class Shape:
    """What a table's protocol and metadata say: whose leases it holds, in which columns data files are written, and why
    the table is not written here; empty if it is. `actions` are the two as a log has them."""

    group: Group
    columns: pa.Schema
    refused: str
    actions: tuple[dict[str, Any], dict[str, Any]]

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return self.actions[1]["metaData"]["configuration"]  # type: ignore[no-any-return]


def shape_of(table: DeltaTable, folder: Folder, known: Group | None = None) -> Shape:
    """The shape of the table; its group is `known` where somebody has replaced the table's description.

    Raises `StoreFormatError` if it is not a lease table.
    """
    return Shape(_group(table, folder, known), _columns(table), _refused(table), _actions(table))


def _actions(table: DeltaTable) -> tuple[dict[str, Any], dict[str, Any]]:
    protocol, metadata = table.protocol(), table.metadata()
    return {
        "protocol": {
            "minReaderVersion": protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
            "readerFeatures": protocol.reader_features,
            "writerFeatures": protocol.writer_features,
        }
    }, {
        "metaData": {
            "id": str(metadata.id),
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": table.schema().to_json(),
            "partitionColumns": metadata.partition_columns,
            "createdTime": metadata.created_time,
            "configuration": metadata.configuration,
        }
    }


def _columns(table: DeltaTable) -> pa.Schema:
    """Our columns, in the types that somebody may have given them in the table: Spark reads no other ones."""
    types = {field.name: field.type for field in pa.schema(table.schema())}
    return pa.schema([(field.name, types.get(field.name, field.type)) for field in SCHEMA])


def _refused(table: DeltaTable) -> str:
    metadata, protocol = table.metadata(), table.protocol()
    return refused(
        protocol.min_writer_version,
        frozenset(protocol.writer_features or ()),
        metadata.configuration,
        table.schema().to_json(),
        metadata.partition_columns,
    )


def head_of(table: DeltaTable, folder: Folder) -> tuple[Head, str]:
    """What a writer must know of the table, and the tag of the version's log file, empty if that is missing. Raises
    `StoreDamagedError` if a crash has left it empty, or without its last lines, and `BACKEND_ERRORS`."""
    version, actions, tag = table.version(), list[dict[str, Any]](), ""
    with contextlib.suppress(FileNotFoundError):
        content, tag = folder.read_tagged(commit_file(version))
        actions = sound_actions(folder, version, content)
    return Head(version, frozenset(file_names(table)), shape_version(actions, version)), tag


def sound_actions(folder: Folder, version: int, content: bytes) -> list[dict[str, Any]]:
    """The actions of the log file of `version`. Raises `StoreDamagedError`."""
    try:
        return actions_of(content)
    except ValueError as problem:
        raise damaged(folder, f"{commit_file(version)} {problem}") from problem


def read_snapshot(folder: Folder, names: Collection[str], group: Group, version: int) -> Snapshot:
    """The state of `group` in the data files with these names. Raises `StoreDamagedError`."""
    try:
        return from_table(rows_in(folder, names, SCHEMA), group, version)
    except FileNotFoundError as error:
        found = {file.name for file in folder.listed()}
        gone = [name for name in names if name not in found] or [*names]
        raise damaged(folder, f"{gone[0]} is missing") from error
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise damaged(folder, f"{', '.join([*names][:3]) or 'its data'}: {storage_error_text(error)}") from error


def read_rows(table: DeltaTable, folder: Folder, schema: pa.Schema, since_ms: int = 0) -> pa.Table:
    """The rows of the table in the columns of `schema`, of the files that were written at `since_ms` or later. Raises
    `ValueError`, `FileNotFoundError`."""
    check_readable(table)
    return rows_in(folder, file_names(table, since_ms), schema)


def check_readable(table: DeltaTable) -> None:
    """Raise `ValueError` if the table's data files alone do not tell its rows."""
    if what := unreadable(frozenset(table.protocol().reader_features or ()), table.metadata().configuration):
        raise ValueError(unsupported(what))


def check_writable(table: DeltaTable) -> None:
    """Raise `ValueError` if the table is not written here."""
    if what := _refused(table):
        raise ValueError(unsupported(what))


def file_names(table: DeltaTable, since_ms: int = 0) -> list[str]:
    """The names of the table's data files in its folder, of those that were written at `since_ms` or later; others may
    put them into folders of it."""
    files = pa.table(table.get_add_actions())
    written = files["modification_time"].cast(pa.int64()).to_pylist()
    return [name for name, at in zip(files["path"].to_pylist(), written, strict=True) if at >= since_ms]


def damaged(folder: Folder, problem: str) -> StoreDamagedError:
    """The error for a table with this problem: a file, and what is wrong with it."""
    return StoreDamagedError(
        f"the lease table at {folder.uri} is damaged: {problem}. Running queries continue reading their partitions. "
        "Stop them, move the folder away, and create the table from their checkpoints: `ehbalance positions "
        f"CHECKPOINT`, then `ehbalance init {folder.uri} --positions FILE`",
        problem,
    )


def _group(table: DeltaTable, folder: Folder, known: Group | None) -> Group:
    text: str | None = table.metadata().description
    if not is_described(text) and known is not None:
        text = description(known)
    elif not is_described(text):
        with contextlib.suppress(OSError, ValueError, OverflowError, pa.ArrowException):  # of somebody else's table
            text = description_in_rows(read_rows(table, folder, SCHEMA))
    return group_of(text, folder.uri)


def rows_in(folder: Folder, names: Iterable[str], schema: pa.Schema) -> Any:
    """The rows of the data files with these names in the columns of `schema`."""
    parts = [conformed(folder.parquet(name, schema.names), schema) for name in names]
    # To concatenate one table takes a third as long as to read it.
    return parts[0] if len(parts) == 1 else pa.concat_tables([schema.empty_table(), *parts])
