"""Repairs a damaged lease table from the data files in its folder. `recovery.py` decides which state is the latest."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from spark_ehbalance.errors import StoreDamagedError, StoreFormatError
from spark_ehbalance.leases.model import Lease
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.stores.base import Repair
from spark_ehbalance.stores.delta.folder import Folder
from spark_ehbalance.stores.delta.log import log_problems
from spark_ehbalance.stores.delta.names import HINT, LOG, is_data_file, is_of_a_version, new_data_file
from spark_ehbalance.stores.delta.recovery import merged, missing, salvaged
from spark_ehbalance.stores.delta.table_format import (
    SCHEMA,
    conformed,
    description,
    description_in_rows,
    encode,
    lease_of,
    rows_of,
    to_table,
)
from spark_ehbalance.stores.delta.version import file_names, shape_of
from spark_ehbalance.values.group import Group


def put_back(folder: Folder, snapshot: Snapshot, write: Callable[[Snapshot, Snapshot], Snapshot]) -> Repair:
    """Put back, by `write`, the partitions that a table which can be read has lost."""
    names = file_names(folder.open_table())
    lost = missing(snapshot.leases, _found_leases(folder, names, snapshot.group)[0])
    if not lost:
        return Repair((), snapshot.leases)
    kept = _kept(folder)
    folder.copy(names, kept)
    leases = MappingProxyType({**snapshot.leases, **lost})
    write(snapshot, replace(snapshot, leases=leases))
    return Repair(tuple(f"partition {partition} is missing" for partition in lost), leases, kept.uri)


def rewrite(folder: Folder, problem: str) -> Repair:
    """Write the latest leases that can be found, without members, who join again by themselves. Log files that cannot
    be read are removed, with all later ones.

    Raises `StoreFormatError` if the folder is not a lease table's, `StoreDamagedError` if nothing sound is left, and
    `BACKEND_ERRORS`.
    """
    if not any(is_data_file(file.name) for file in folder.listed()) or not _found_leases(folder, (), None)[0]:
        raise StoreFormatError(
            f"no file in {folder.uri} is a data file of a lease table: nothing was changed there. If a lease table was "
            "there that nobody had written yet, move the folder away"
        )
    kept = _kept(folder)
    commits_removed = _remove_unreadable_log(folder, kept)
    try:
        table = folder.open_table()
    except (OSError, DeltaError) as error:
        raise _hopeless(folder) from error
    names = file_names(table)
    group = shape_of(table, folder).group
    found, unread = _found_leases(folder, names, group)
    existing = {file.name for file in folder.listed()}
    # The data file of a commit that was removed is in the folder: it was written before the commit.
    unknown = unread & existing if commits_removed else (unread & set(names)) | (set(names) - existing)
    leases = MappingProxyType(merged(found, all_read=not unknown))
    if not leases:
        raise _hopeless(folder)
    folder.copy([name for name in names if name in existing], kept)
    _overwrite(table, folder, Snapshot(group, table.version(), leases))
    return Repair((problem,), leases, kept.uri)


def _overwrite(table: DeltaTable, folder: Folder, state: Snapshot) -> None:
    """Write `state` and our columns over all that the table holds, by delta-rs: it removes what we cannot read."""
    rows, name = to_table(state), new_data_file()
    data = encode(rows)
    folder.write(name, data)
    stats = json.dumps({"numRecords": rows.num_rows})
    table.create_write_transaction(
        [AddAction(name, len(data), {}, time.time_ns() // 1_000_000, data_change=True, stats=stats)],
        mode="overwrite",
        schema=Schema.from_arrow(SCHEMA),
        commit_properties=CommitProperties(max_commit_retries=0),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False),
    )


def _kept(folder: Folder) -> Folder:
    """Where copies of what a repair removes or replaces are kept."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return Folder(f"{folder.uri}_damaged/{now}-{uuid.uuid4().hex[:6]}", folder.options)


def _remove_unreadable_log(folder: Folder, kept: Folder) -> bool:
    """Remove the log files that cannot be read, and all of later versions, which need them. Whether commits were among
    them."""
    bad = {path.removeprefix(f"{LOG}/") for path, _ in log_problems(folder)}
    first = min((name[:20] for name in bad if name.endswith(".json")), default="~")
    log = [file.name for file in folder.listed(LOG)]
    removed = {name for name in log if name in bad or (is_of_a_version(name) and name[:20] >= first)}
    if removed:
        removed |= {HINT} & set(log)
    paths = [f"{LOG}/{name}" for name in sorted(removed)]
    folder.copy(paths, kept)
    folder.remove(paths)
    return first != "~"


def _found_leases(folder: Folder, names: Collection[str], group: Group | None) -> tuple[list[Lease], set[str]]:
    """The leases in the table's data files, `names`, and in all that were written here for the `group` (None: for any),
    committed or not, as far as they can be told; and the names of the files that cannot be read."""
    leases, unread = list[Lease](), set()
    for name in {*names, *(file.name for file in folder.listed() if is_data_file(file.name))}:
        try:
            rows = conformed(folder.parquet(name, SCHEMA.names), SCHEMA)
            if name in names or group is None or description_in_rows(rows) in (None, description(group)):
                leases += filter(None, map(_lease, rows_of(rows)))
        except FileNotFoundError:  # tidied away meanwhile
            continue
        except (ValueError, OSError):
            unread.add(name)
    return leases, unread


def _lease(row: dict[str, Any]) -> Lease | None:
    if row["kind"] != "partition":
        return None
    try:
        return lease_of(row)
    except ValueError:
        return salvaged(row)


def _hopeless(folder: Folder) -> StoreDamagedError:
    return StoreDamagedError(
        f"the lease table at {folder.uri} is damaged, and nothing sound is left of it: move its folder away and "
        f"make one of the queries' own checkpoints with `ehbalance init {folder.uri} --from-checkpoint DIR`",
        "nothing sound is left",
    )
