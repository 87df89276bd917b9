"""One version of the table: read as a snapshot, and written as one data file with one commit.

The state is one small Parquet file, which is read and written here; delta-rs does the log. Its own reading and writing
use a query engine, take two to three times as long, and leave a file behind for every lost race.
"""

from __future__ import annotations

import contextlib
import json
import time

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.transaction import AddAction

from spark_ehbalance.errors import StoreDamagedError
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.stores.delta.folder import Folder, one_line
from spark_ehbalance.stores.delta.log import commit_file, log_problem
from spark_ehbalance.stores.delta.table_format import (
    SCHEMA,
    conformed,
    description,
    description_in_rows,
    from_table,
    group_of,
    is_described,
    to_table,
)
from spark_ehbalance.values.group import Group

#: The key in a commit's metadata under which its author finds it again.
COMMIT_TOKEN = "ehbalance.commit"

#: Features of Delta that do not change how a data file is read.
_PLAIN_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})

_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


def read_snapshot(table: DeltaTable, folder: Folder, group: Group) -> Snapshot:
    """The state of `group` in this version of the table. Raises `StoreDamagedError`."""
    names = file_names(table)
    try:
        return from_table(read_rows(table, folder, SCHEMA), group, table.version())
    except FileNotFoundError as error:
        found = {file.name for file in folder.listed()}
        gone = [name for name in names if name not in found] or names
        raise damaged(folder, f"{gone[0]} is missing") from error
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise damaged(folder, f"{', '.join(names[:3]) or 'its data'}: {one_line(error)}") from error


def read_rows(table: DeltaTable, folder: Folder, schema: pa.Schema) -> pa.Table:
    """The rows of the table in the columns of `schema`. Raises `ValueError`, `FileNotFoundError`."""
    protocol = table.protocol()
    if protocol.min_reader_version == 2 or set(protocol.reader_features or ()) - _PLAIN_FEATURES:
        raise ValueError("it uses features of Delta that only a whole engine reads, such as deletion vectors")
    parts = [conformed(folder.parquet(name), schema) for name in file_names(table)]
    return pa.concat_tables([schema.empty_table(), *parts])


def read_group(table: DeltaTable, folder: Folder, known: Group | None = None) -> Group:
    """The group whose lease table this is; `known` where somebody has replaced the table's description.

    Raises `StoreFormatError`.
    """
    text: str | None = table.metadata().description
    if not is_described(text) and known is not None:
        text = description(known)
    elif not is_described(text):
        with contextlib.suppress(OSError, ValueError, OverflowError, pa.ArrowException):  # of somebody else's table
            text = description_in_rows(read_rows(table, folder, SCHEMA))
    return group_of(text, folder.uri)


def check_commit(folder: Folder, version: int) -> None:
    """Raise `StoreDamagedError` if a crash has left the log file of `version` empty, or without its last lines."""
    name = commit_file(version)
    with contextlib.suppress(FileNotFoundError):
        if problem := log_problem(folder.read(name)):
            raise damaged(folder, f"{name} {problem}")


def write_snapshot(
    table: DeltaTable, folder: Folder, new: Snapshot, *, name: str, token: str, schema: Schema | None = None
) -> None:
    """Write `new` as the data file `name`, and commit it as the version after that of `table`, with the columns of
    `schema` from then on, if given. Raises `BACKEND_ERRORS`, also if the commit was done."""
    rows = to_table(new)
    buffer = pa.BufferOutputStream()
    # None of what makes Parquet good at large tables: half the time, and fewer bytes.
    pq.write_table(rows, buffer, compression="snappy", use_dictionary=False, write_statistics=False)
    data = buffer.getvalue().to_pybytes()
    folder.write(name, data)
    stats = json.dumps({"numRecords": rows.num_rows})
    table.create_write_transaction(
        [AddAction(name, len(data), {}, time.time_ns() // 1_000_000, data_change=True, stats=stats)],
        mode="overwrite",
        schema=schema or table.schema(),
        commit_properties=CommitProperties(max_commit_retries=0, custom_metadata={COMMIT_TOKEN: token}),
        post_commithook_properties=_HOOKS,
    )


def file_names(table: DeltaTable) -> list[str]:
    """The names of the table's data files in its folder."""
    return [uri.rsplit("/", 1)[1] for uri in table.file_uris()]


def damaged(folder: Folder, problem: str) -> StoreDamagedError:
    """The error for a table with this problem: a file, and what is wrong with it."""
    return StoreDamagedError(
        f"the lease table at {folder.uri} is damaged: {problem}. Running queries go on reading what they own, and "
        f"`ehbalance maintain --repair {folder.uri}` repairs it",
        problem,
    )
